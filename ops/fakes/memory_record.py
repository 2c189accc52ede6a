"""What the fake Agent Memory API writes down about every request: the line of a log that holds no key.

The record is kept in memory and, when a path is given, in a file of JSON lines. A path segment or a query value that is
the key itself is written as ``<key>``. Tokens are kept nowhere but in ``keep_jwt``, a file that is for the demo, which
plays the thief of one.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import msgspec

_PIECES = re.compile(r"([^/?&=]+)")


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it arrived. ``authenticated`` is ``key``, ``jwt``, ``none`` or ``refused``."""

    n: int
    method: str
    target: str
    operation: str
    authenticated: str
    status: int


class Record:
    """The list of what was received, in order."""

    def __init__(self, *, path: Path | None = None, keep_jwt: Path | None = None, key_digest: str = "") -> None:
        """Write also to ``path``; keep the last accepted token of a run in ``keep_jwt``."""
        self.received: list[Received] = []
        self._file = None if path is None else os.fdopen(_open(path, os.O_APPEND), "ab", buffering=0)
        self._keep_jwt = keep_jwt
        self._key_digest = key_digest

    def add(self, *, method: str, target: str, operation: str, authenticated: str, status: int) -> None:
        """Write one request down, before it is answered."""
        line = Received(
            n=len(self.received) + 1,
            method=method,
            target=_PIECES.sub(self._masked, target),
            operation=operation,
            authenticated=authenticated,
            status=status,
        )
        self.received.append(line)
        if self._file is not None:
            self._file.write(msgspec.json.encode(line) + b"\n")

    def keep_jwt(self, token: str) -> None:
        """Keep an accepted token, when that was asked for."""
        if self._keep_jwt is not None:
            with os.fdopen(_open(self._keep_jwt, os.O_TRUNC), "w") as file:
                file.write(token)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _masked(self, piece: re.Match[str]) -> str:
        digest = hashlib.sha256(piece[0].encode()).hexdigest()
        return "<key>" if digest == self._key_digest else piece[0]


def read_record(path: Path) -> list[Received]:
    """Read what was received from a file."""
    return [msgspec.json.decode(line, type=Received) for line in path.read_bytes().splitlines()]


def _open(path: Path, flag: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o600)
