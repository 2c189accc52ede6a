"""A lease row in few bytes: what a million live leases are kept as in memory.

Words that few leases differ in (brokers, profiles, token objects, digests of grants, the boot) stand once in a table
and by number in the row. The table only grows, by what operators write; names that brokers choose stand in the row.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import msgspec

from minter.lease_rows import LeaseRow

_encode_into: Final = msgspec.msgpack.Encoder().encode_into
_decode: Final = msgspec.msgpack.Decoder(list[Any]).decode


class _Numbers(dict[Any, int]):
    """The number of each word, given when it is first asked for."""

    def __missing__(self, word: Any) -> int:
        number = self[word] = len(_words)
        _words.append(word)
        return number


_DIGEST: Final = "hmac-sha256:"
#: Where a row is packed: what is copied from here has its exact size, other than what an encoder returns.
_buffer: Final = bytearray()
_words: Final[list[Any]] = []
_numbers: Final = _Numbers()


def _shorter(digest: str) -> str | bytes:
    """Return a digest of run parameters as its 32 bytes; another text as it is."""
    if digest.startswith(_DIGEST):
        with contextlib.suppress(ValueError):
            short = bytes.fromhex(digest[len(_DIGEST) :])
            if _DIGEST + short.hex() == digest:
                return short
    return digest


def pack(row: LeaseRow) -> bytes:
    """Return a row, without its id, in few bytes. Only :func:`unpack` in the same process can read them."""
    number = _numbers
    _encode_into(
        (
            number[row.broker],
            number[row.profile],
            number[row.origin],
            number[row.grant_digest],
            number[row.kind],
            number[row.state],
            number[row.how],
            number[row.end_reason],
            number[row.boot_id],
            number[row.key_alias],
            number[row.key_versions],
            number[row.token],
            row.run_id,
            row.caller,
            _shorter(row.params_digest),
            row.fingerprint,
            row.created_at,
            row.expires_at,
            row.boot_expires_at,
            row.run_ends_at,
            row.credential_ends_at,
            row.key_version,
            row.attempts,
            row.next_attempt_at,
            row.ended_at,
            row.trace_id,
        ),
        _buffer,
    )
    return bytes(_buffer)


def unpack(id_: str, packed: bytes) -> LeaseRow:
    """Return the row that was packed, under its id."""
    words, value = _words, _decode(packed)
    return LeaseRow(
        id=id_,
        broker=words[value[0]],
        profile=words[value[1]],
        origin=words[value[2]],
        grant_digest=words[value[3]],
        kind=words[value[4]],
        state=words[value[5]],
        how=words[value[6]],
        end_reason=words[value[7]],
        boot_id=words[value[8]],
        key_alias=words[value[9]],
        key_versions=words[value[10]],
        token=words[value[11]],
        run_id=value[12],
        caller=value[13],
        params_digest=value[14] if type(value[14]) is str else _DIGEST + value[14].hex(),
        fingerprint=value[15],
        created_at=value[16],
        expires_at=value[17],
        boot_expires_at=value[18],
        run_ends_at=value[19],
        credential_ends_at=value[20],
        key_version=value[21],
        attempts=value[22],
        next_attempt_at=value[23],
        ended_at=value[24],
        trace_id=value[25],
    )
