"""A version of a custody key in memory, how it is read from its source, and what is written down of it."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog

from config.errors import Fault
from config.secret import SHORTEST_SCRUBBED, Secret
from config.settings import AUDIT_SIGNER, SEALING_KEY, KeySettings, MinterSettings
from minter import signing
from minter.audit_events import Event, Value
from minter.key_rows import VersionRow
from minter.signing import SigningError, SigningKey
from minter.sources import SourceError, Sources, kind_of

#: Sources that a grants file may name inline.
_INLINE: Final = ("env", "file", "keyring", "credential")
#: What can stand in a header, a query or a cookie.
_SENDABLE: Final = re.compile(r"[\x20-\x7e]+", re.ASCII)

#: Uses of keys of our own that sign, which the minter makes when they never were.
SIGNERS: Final = frozenset({"signing", "checkpoints"})
#: The keys that every minter has, described in minter.toml or not at all, and their uses: no other key has those.
OWN_KEYS: Final = {SEALING_KEY: "sealing", AUDIT_SIGNER: "checkpoints"}

_log = structlog.get_logger()


def own_key(settings: MinterSettings, alias: str) -> KeySettings:
    """Return what the settings say of a key that every minter has, or the defaults."""
    if alias in settings.keys:
        return settings.keys[alias]
    if alias == SEALING_KEY:
        beside = Path(settings.state.removeprefix("sqlite:")).with_name("sealing.key")
        return KeySettings(source=f"file:{beside}", use="sealing", purpose="wraps the keys that seal the state")
    return KeySettings(source=f"sealed:{alias}", use="checkpoints", purpose="signs the audit log's checkpoints")


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """One version of a key. ``signer`` is of signing keys."""

    version: int
    secret: Secret
    fingerprint: str
    signer: SigningKey | None = None


class Reader:
    """Reads versions of keys. ``fingerprint_key`` is this installation's; it is set before anything is read."""

    def __init__(self, settings: MinterSettings, sources: Sources) -> None:
        self.settings = settings
        self.sources = sources
        self.fingerprint_key = b""
        #: What operators declared while it ran; and the keys that they took out of use, which are never read again.
        self.declared: Mapping[str, KeySettings] = {}
        self.retired: frozenset[str] = frozenset()

    def named(self) -> Mapping[str, KeySettings]:
        """Return what is said of every key by alias: in minter.toml, whose word counts, else by an operator."""
        return {**self.declared, **self.settings.keys}

    def settings_of(self, alias: str) -> KeySettings | None:
        """Return what is said of a key; of one that the grants name inline (``env:NAME``), the defaults."""
        named = self.settings.keys.get(alias) or self.declared.get(alias)
        if named is not None:
            return named
        if alias in OWN_KEYS:
            return own_key(self.settings, alias)
        source, colon, _ = alias.partition(":")
        return KeySettings(source=alias) if colon and source in _INLINE else None

    def fingerprint(self, value: Secret) -> str:
        """Return the keyed fingerprint of a secret that a person may have chosen."""
        if not self.fingerprint_key:
            raise RuntimeError("no fingerprint before the installation's key is known")
        return hmac.new(self.fingerprint_key, value.reveal().encode(), hashlib.sha256).hexdigest()[:16]

    def read(self, alias: str, ref: str, version: int) -> Held:
        """Read a version from its source. Errors: :class:`minter.sources.SourceError`."""
        return self.take(alias, self.sources.read(ref), version)

    def take(self, alias: str, value: Secret, version: int) -> Held:
        """Make what is kept in memory of a value.

        Errors: :class:`minter.sources.SourceError` when a signing key's value is none.
        """
        return self.take_as(self.settings_of(alias), value, version)

    def take_as(self, settings: KeySettings | None, value: Secret, version: int) -> Held:
        """Make it of a value of which ``settings`` say what it is. Errors: like :meth:`take`."""
        fingerprint = self.fingerprint(value)
        if settings is None or settings.use not in SIGNERS:
            return Held(version, value, fingerprint)
        try:
            signer = signing.load(value, settings.algorithm, keyed_fingerprint=fingerprint)
        except SigningError as error:
            raise SourceError(str(error), f"a private key for {settings.algorithm} is wanted, as PEM or JWK") from None
        return Held(version, value, signer.fingerprint, signer)

    def read_retiring(self, row: VersionRow) -> SigningKey | None:
        """Read a version that is retiring and is held; None when its source no longer has it: that stops no start."""
        try:
            value = self.sources.read(row.source_ref)
            signer = signing.load(value, signing.algorithm(row.algorithm), keyed_fingerprint=self.fingerprint(value))
        except (SourceError, SigningError):
            _log.warning("retiring-key-unavailable", alias=row.alias, version=row.version)
            return None
        # Another value than the one that signed verifies nothing.
        return signer if signer.fingerprint == row.fingerprint else None


def is_sendable(value: Secret) -> bool:
    """Say whether a value that is lent as it is can be sent: one line of printable ASCII."""
    return _SENDABLE.fullmatch(value.reveal()) is not None


def is_too_short(value: Secret) -> bool:
    """Say whether answers cannot be scrubbed of a value that is lent as it is."""
    return len(value) < SHORTEST_SCRUBBED


def version_row(alias: str, held: Held, ref: str, *, now: float) -> VersionRow:
    """Return the row of a version that was read back from its source."""
    signer = held.signer
    public = signer.public_jwk if signer is not None else None
    return VersionRow(
        alias=alias,
        version=held.version,
        phase="prepared",
        source_ref=ref,
        fingerprint=held.fingerprint,
        algorithm=signer.algorithm if signer is not None else "",
        public_jwk=msgspec.json.encode(public).decode() if public is not None else None,
        created_at=now,
    )


def key_event(code: str, row: VersionRow, **more: Value) -> Event:
    """Return an event about a version; of its place only the source's name."""
    fields: dict[str, Value] = {"alias": row.alias, "version": row.version, "source": kind_of(row.source_ref)}
    if row.fingerprint:
        fields["fingerprint"] = row.fingerprint
    if row.algorithm:
        fields["algorithm"] = row.algorithm
    return Event(code, fields | {name: value for name, value in more.items() if value is not None})


def key_fault(alias: str, ref: str, error: SourceError) -> Fault:
    """Return the fault of a key that cannot be had: its alias and reference, never its value."""
    return Fault(ref if alias == ref else f"keys.{alias} ({ref})", error.what, error.hint)
