"""A checkpoint: the last line of the audit log, signed, for a place that whoever rewrites the log does not reach.

It is a JSON object in the log's canonical spelling:

``v`` (1), ``installation``, ``seq`` and ``hash`` of the line, ``at`` (when it was signed), ``kid`` (RFC 7638
thumbprint of the signer's key), ``key`` (the Ed25519 public key, raw, base64url without padding), ``signature``
(base64url without padding) over :data:`DOMAIN` followed by the canonical object without ``signature``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from config.clock import rfc3339
from minter.audit_verify import Head, canonical
from minter.signing import SigningKey

#: A signature over this prefix is good for nothing else that the key may ever sign.
DOMAIN: Final = b"minter-broker audit checkpoint v1\n"
VERSION: Final = 1
_MAX: Final = 4096
_MEMBERS: Final = {
    "v": int,
    "installation": str,
    "seq": int,
    "hash": str,
    "at": str,
    "kid": str,
    "key": str,
    "signature": str,
}


class CheckpointError(ValueError):
    """A text that is no checkpoint, or one whose signature is wrong. ``seq`` is what it claims, 0 when it does not."""

    def __init__(self, why: str, seq: int = 0) -> None:
        self.seq = seq
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose signature is good. ``fingerprint`` is the signer's, as ``minter keys`` shows it."""

    installation: str
    seq: int
    hash: str
    at: str
    kid: str
    fingerprint: str
    line: bytes


def sign(head: Head, *, installation: str, now: float, key: SigningKey) -> Checkpoint:
    """Return a checkpoint of a line that is on disk. Errors: ``SigningError`` for another key than Ed25519."""
    body: dict[str, Any] = {
        "v": VERSION,
        "installation": installation,
        "seq": head.seq,
        "hash": head.hash,
        "at": rfc3339(now),
        "kid": key.kid,
        "key": _base64url(key.public_raw()),
    }
    signature = key.sign_raw(DOMAIN + canonical(body))
    line = canonical({**body, "signature": _base64url(signature)})
    return Checkpoint(installation, head.seq, head.hash, body["at"], key.kid, key.fingerprint, line)


def parse(line: bytes) -> Checkpoint:
    """Read a checkpoint and check its signature. Errors: :class:`CheckpointError`."""
    body = _body(line)
    raw, signature = _raw(body["key"], body), _raw(body["signature"], body)
    if body["kid"] != thumbprint(raw):
        raise CheckpointError("kid is not the key's thumbprint", body["seq"])
    signed = {name: value for name, value in body.items() if name != "signature"}
    try:
        public = Ed25519PublicKey.from_public_bytes(raw)
        public.verify(signature, DOMAIN + canonical(signed))
    except (InvalidSignature, ValueError):
        raise CheckpointError("the signature is wrong", body["seq"]) from None
    fingerprint = hashlib.sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    return Checkpoint(
        body["installation"], body["seq"], body["hash"], body["at"], body["kid"], fingerprint, line.strip()
    )


def parse_all(lines: Iterable[bytes]) -> tuple[list[Checkpoint], list[CheckpointError]]:
    """Read checkpoints, one a line; what stands before the first brace (as in a system's log) is left out.

    The second list: lines that are none, by :attr:`CheckpointError.seq` 0 (what a power loss left of one, say), and
    those whose signature is wrong.
    """
    good: list[Checkpoint] = []
    faults: list[CheckpointError] = []
    for line in lines:
        text = line[max(line.find(b"{"), 0) :].strip()
        if not text:
            continue
        try:
            good.append(parse(text))
        except CheckpointError as error:
            faults.append(error)
    return good, faults


def thumbprint(raw: bytes) -> str:
    """Return the RFC 7638 thumbprint of an Ed25519 public key."""
    jwk = {"crv": "Ed25519", "kty": "OKP", "x": _base64url(raw)}
    return _base64url(hashlib.sha256(canonical(jwk)).digest())


def _body(line: bytes) -> dict[str, Any]:
    body: dict[str, Any] = {}
    try:
        found = json.loads(line) if len(line) <= _MAX else None
        if type(found) is dict and canonical(found) == line:
            body = found
    except (ValueError, RecursionError):
        pass
    if body.keys() != _MEMBERS.keys() or any(type(body[name]) is not kind for name, kind in _MEMBERS.items()):
        raise CheckpointError("it is no checkpoint in canonical spelling")
    if body["v"] != VERSION or body["seq"] < 1:
        raise CheckpointError("it is a checkpoint of another version")
    return body


def _raw(text: str, body: dict[str, Any]) -> bytes:
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raw = b""
    # One spelling: base64 has unused bits at its end.
    if not raw or _base64url(raw) != text:
        raise CheckpointError("key or signature is not base64url", body["seq"])
    return raw


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
