"""The audit log's form, and the check of its chain. Standard library only, so that a reviewer can run it anywhere.

A log is lines. A line is a JSON object in one canonical spelling (ASCII, names sorted, no spaces) and ends in one
line feed. ``seq`` counts from 1; ``prev`` is the SHA-256 of the line before, its line feed left out; the first line
is ``audit.opened`` and its ``prev`` is :func:`genesis` of the installation's id.

What the chain shows by itself: an edit, a removal, a reorder, a splice or a duplicate anywhere before the last line.
What it cannot show is a log that ends too early, or a last line that was rewritten; for that a *head* is needed, a
(``seq``, hash) that was known to be in the log and is kept elsewhere: the minter keeps one in its state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

#: Longer lines are not ours.
MAX_LINE: Final = 1 << 20
#: Events that are no fault and that a reviewer wants to hear of.
NOTABLE: Final = frozenset({"audit.healed", "audit.loss-accepted", "clock.went-back"})
_MEMBERS: Final = {"at": str, "code": str, "prev": str, "seq": int}

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class Head:
    """A line that is known to be in the log: its number and the SHA-256 of its bytes, in hexadecimal."""

    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Bad:
    """The first line that does not verify (``line`` counts from 1), and why."""

    line: int
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """What :func:`verify` found. ``bad`` is None when the log verifies; ``head`` is the last good line.

    ``notable`` lists (seq, code) of events that are no fault and that a reviewer wants to hear of.
    """

    lines: int
    head: Head | None
    installation: str | None
    bad: Bad | None
    notable: list[tuple[int, str]] = field(default_factory=list)


def canonical(record: dict[str, Any]) -> bytes:
    """Return the one spelling of a record, without its line feed.

    Everything outside printable ASCII is escaped: line breaks, terminal escapes, marks that turn the direction of
    writing, U+2028 and lone surrogates. One record is one line, whatever its fields hold.
    """
    return _encode(record).encode("ascii")


def line_hash(line: bytes) -> str:
    """Return the SHA-256 of a line without its line feed, in hexadecimal."""
    return hashlib.sha256(line).hexdigest()


def genesis(installation: str) -> str:
    """Return what the first line's ``prev`` must be for this installation."""
    return line_hash(b"minter-broker audit log\n" + installation.encode())


def parse_line(line: bytes) -> dict[str, Any]:
    """Read one line without its line feed.

    Errors: ``ValueError`` with the reason when it is not a record in canonical spelling.
    """
    if len(line) > MAX_LINE:
        raise ValueError("the line is too long")
    try:
        record: dict[str, Any] = json.loads(line)
        same = type(record) is dict and canonical(record) == line
    except (ValueError, RecursionError):
        raise ValueError("the line is not JSON") from None
    if not same:
        raise ValueError("the line is not an object in canonical spelling")
    for name, kind in _MEMBERS.items():
        if type(record.get(name)) is not kind:
            raise ValueError(f"the line has no {name}")
    try:
        datetime.fromisoformat(record["at"])
    except ValueError:
        raise ValueError("at is not an instant") from None
    return record


def verify(lines: Iterable[bytes], *, installation: str | None = None, head: Head | None = None) -> Report:
    """Check a whole log and report the first line that is wrong.

    ``lines`` are as a binary file gives them, line feeds included. ``installation``: the id that the log must
    belong to. ``head``: a line that must be in it.
    """
    chain = _Chain(installation, head)
    for line in lines:
        try:
            chain.add(line)
        except ValueError as error:
            return chain.report(Bad(chain.count + 1, str(error)))
    try:
        chain.end()
    except ValueError as error:
        return chain.report(Bad(chain.count + 1, str(error)))
    return chain.report(None)


class _Chain:
    def __init__(self, installation: str | None, head: Head | None) -> None:
        self._wanted = installation
        self._known = head
        self._installation: str | None = None
        self._prev = ""
        self._notable: list[tuple[int, str]] = []
        self.count = 0

    def add(self, line: bytes) -> None:
        if not line.endswith(b"\n"):
            raise ValueError("the line is unfinished: a torn end that the minter heals at its next start, or a cut")
        line = line[:-1]
        record = parse_line(line)
        if self.count == 0:
            self._first(record)
        if record["seq"] != self.count + 1:
            raise ValueError(f"seq is {record['seq']} where {self.count + 1} belongs")
        if record["prev"] != self._prev:
            raise ValueError("prev is not the hash of the line before")
        digest = line_hash(line)
        if self._known is not None and record["seq"] == self._known.seq and digest != self._known.hash:
            raise ValueError("the line is not the one that the known head names")
        if record["code"] in NOTABLE:
            self._notable.append((record["seq"], record["code"]))
        self._prev = digest
        self.count += 1

    def _first(self, record: dict[str, Any]) -> None:
        installation = record.get("installation")
        if record["code"] != "audit.opened" or not isinstance(installation, str):
            raise ValueError("the first line is not audit.opened")
        if self._wanted is not None and installation != self._wanted:
            raise ValueError("the log belongs to another installation")
        self._installation = installation
        self._prev = genesis(installation)

    def end(self) -> None:
        if self.count == 0:
            raise ValueError("the log is empty")
        if self._known is not None and self.count < self._known.seq:
            raise ValueError(f"the log ends at seq {self.count}; seq {self._known.seq} was in it: it was cut")

    def report(self, bad: Bad | None) -> Report:
        head = Head(self.count, self._prev) if self.count else None
        return Report(self.count, head, self._installation, bad, self._notable)
