"""Sealing: what a secret looks like in the state. AES-256-GCM, as the cryptography library has it.

A value is sealed with a *data key*, which stands in the state itself, wrapped by a version of the custody key
``sealing-key``, which does not. What a value is and where it belongs (a lease's id and kind, whose it is and until
when; a key's name and version) and the data key's number are authenticated with it: a row that is moved, swapped, given
to somebody else or put back does not open. The data key is chosen by its number; keys are never tried in turn.

A data key is used for a day, so its random 96-bit nonces stay far below 2^32 (NIST SP 800-38D, section 8.3).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from config.secret import Secret

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_SEAL: Final = "minter-broker seal 1"
_WRAP: Final = "minter-broker data key 1"

#: What a value is and where it belongs: authenticated, not kept with it.
Place = Sequence[str | int | float]

_encode = msgspec.json.Encoder().encode
_context = msgspec.msgpack.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, str]).decode


class SealError(Exception):
    """A value that does not open: another key, another place, or changed. The message never holds a value."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed value: the number of its data key, and nonce and ciphertext in one."""

    data_key: int
    blob: bytes


def lease_place(lease_id: str, kind: str, *whose: str | float) -> Place:
    """Return the place of a lease's credential. ``whose``: whom it was lent to, for what, until when."""
    return ("lease", lease_id, kind, *whose)


def key_place(name: str, version: int) -> Place:
    """Return the place of a version of a key that is kept in the state."""
    return ("key", name, version)


class Sealer:
    """Seals with the current data key and opens with any that is loaded. Usable from any thread."""

    def __init__(self) -> None:
        self._keys: dict[int, AESGCM] = {}
        self._current = 0

    def use(self, number: int, key: bytes, *, current: bool = False) -> None:
        """Load a data key; ``current``: values are sealed with it from now on."""
        self._keys[number] = AESGCM(key)
        if current:
            self._current = number

    def drop(self, number: int) -> None:
        """Forget a data key that no value needs any more."""
        if number == self._current:
            raise ValueError("the current data key cannot be dropped")
        self._keys.pop(number, None)

    @property
    def current(self) -> int:
        """The number of the data key that values are sealed with."""
        return self._current

    def seal(self, place: Place, plain: bytes) -> Sealed:
        """Seal a value for its place. Errors: :class:`SealError` before any data key is loaded."""
        number = self._current
        key = self._keys.get(number)
        if key is None:
            raise SealError("no data key is loaded")
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return Sealed(number, nonce + key.encrypt(nonce, plain, _context((_SEAL, number, *place))))

    def open(self, place: Place, sealed: Sealed) -> bytes:
        """Return the value. Errors: :class:`SealError`."""
        key = self._keys.get(sealed.data_key)
        if key is None:
            raise SealError(f"data key {sealed.data_key} is not loaded")
        context = _context((_SEAL, sealed.data_key, *place))
        return _open(key, sealed.blob, context)

    def seal_credential(self, place: Place, credential: Mapping[str, Secret]) -> Sealed:
        """Seal a lease's credential, field by field in one value."""
        return self.seal(place, _encode({name: secret.reveal() for name, secret in credential.items()}))

    def open_credential(self, place: Place, sealed: Sealed) -> dict[str, Secret]:
        """Return a lease's credential. Errors: :class:`SealError`."""
        plain = self.open(place, sealed)
        try:
            return {name: Secret(value) for name, value in _decode(plain).items()}
        except msgspec.DecodeError:
            raise SealError("the value is no credential") from None

    def reseal(self, place: Place, sealed: Sealed) -> Sealed:
        """Return the same value under the current data key. Errors: :class:`SealError`."""
        return self.seal(place, self.open(place, sealed))


# --- the sealing key ---


def new_sealing_key() -> Secret:
    """Return a new sealing key in its written form: 32 random bytes, base64."""
    return Secret(base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode())


def read_sealing_key(value: Secret) -> bytes:
    """Return a sealing key's bytes. Errors: :class:`SealError` when it is not 32 bytes of base64."""
    try:
        key = base64.b64decode(value.reveal(), validate=True)
    except (binascii.Error, ValueError):
        raise SealError("a sealing key is 32 bytes, written as base64") from None
    if len(key) != KEY_BYTES:
        raise SealError("a sealing key is 32 bytes, written as base64")
    return key


def sealing_fingerprint(value: Secret) -> str:
    """Return the fingerprint of a sealing key: a plain digest, since nobody chose its 256 bits."""
    return hashlib.sha256(b"minter-broker sealing key\0" + read_sealing_key(value)).hexdigest()[:16]


def new_data_key() -> bytes:
    """Return a new data key."""
    return secrets.token_bytes(KEY_BYTES)


def wrap(sealing_key: bytes, *, sealing_version: int, number: int, data_key: bytes) -> bytes:
    """Return a data key as it stands in the state; its number and the wrapping version are authenticated."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(sealing_key).encrypt(nonce, data_key, _context((_WRAP, number, sealing_version)))


def unwrap(sealing_key: bytes, *, sealing_version: int, number: int, wrapped: bytes) -> bytes:
    """Return a data key. Errors: :class:`SealError`."""
    return _open(AESGCM(sealing_key), wrapped, _context((_WRAP, number, sealing_version)))


def _open(key: AESGCM, blob: bytes, context: bytes) -> bytes:
    try:
        return key.decrypt(blob[:_NONCE_BYTES], blob[_NONCE_BYTES:], context)
    except (InvalidTag, ValueError):
        raise SealError("the value does not open: another key, another place, or it was changed") from None
