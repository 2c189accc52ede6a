"""The files that an audit log consists of, and reading across them. A reader needs no lock.

The log goes on in ``PATH``. What was written before stands in ``PATH.FIRST-LAST``, named by the numbers of its first
and last line, twelve digits each, so that names sort as lines do. Such a file may be moved away: it is complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from minter.audit_verify import parse_line

_CHUNK: Final = 1 << 16
_NAME: Final = re.compile(r"\.(\d{12,})-(\d{12,})\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of the log. ``last`` is None for the one that the log goes on in."""

    path: Path
    first: int
    last: int | None


def name_of(path: Path, first: int, last: int) -> Path:
    """Return where the lines ``first`` to ``last`` of the log at ``path`` are kept once the log goes on anew.

    >>> name_of(Path("audit.jsonl"), 1, 950).name
    'audit.jsonl.000000000001-000000000950'
    """
    return path.with_name(f"{path.name}.{first:012}-{last:012}")


def named(path: Path) -> tuple[int, int] | None:
    """Return the numbers in the name of a finished file; None for another name."""
    match = _NAME.search(path.name)
    return (int(match[1]), int(match[2])) if match else None


def finished(path: Path) -> list[Segment]:
    """Return the finished files of the log at ``path`` that are still beside it, the oldest first."""
    found = []
    for one in path.parent.glob(f"{_escaped(path.name)}.*"):
        match = _NAME.fullmatch(one.name[len(path.name) :])
        if match:
            found.append(Segment(one, int(match[1]), int(match[2])))
    return sorted(found, key=lambda segment: segment.first)


def segments(path: Path) -> list[Segment]:
    """Return every file of the log at ``path``, the oldest first."""
    old = finished(path)
    return [*old, Segment(path, old[-1].last + 1 if old and old[-1].last else 1, None)]


def lines_of(paths: Iterable[Path]) -> Iterator[bytes]:
    """Yield the lines of several files, line feeds included. Errors: ``OSError``."""
    for path in paths:
        with path.open("rb") as file:
            yield from file


def record(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line without its line feed; None when it is none."""
    try:
        return parse_line(line)
    except ValueError:
        return None


def read_after(path: Path, after: int, limit: int) -> list[dict[str, Any]]:
    """Return up to ``limit`` records with ``seq`` above ``after``, without reading what stands before them.

    An unfinished end is left out.
    """
    records: list[dict[str, Any]] = []
    for one in read_from(path, after):
        records.append(one)
        if len(records) == limit:
            break
    return records


def read_from(path: Path, after: int) -> Iterator[dict[str, Any]]:
    """Yield the records with ``seq`` above ``after``, across the files of the log."""
    for segment in segments(path):
        if segment.last is not None and segment.last <= after:
            continue
        with _opened(segment.path) as fd:
            if fd is None:
                continue
            for _, line in lines(fd, *_place_of(fd, after)):
                found = record(line)
                # Also what stands in two files for a moment, while the log goes on anew.
                if found is not None and found["seq"] > after:
                    after = found["seq"]
                    yield found


def last_seq(path: Path) -> int:
    """Return the number of the last whole line of the log; 0 when there is none."""
    found = _last(path)
    return 0 if found is None else int(found["seq"])


def last_instant(path: Path) -> str | None:
    """Return the instant of the last whole line of the log, as it is written; None when there is none."""
    found = _last(path)
    return None if found is None else str(found["at"])


def _last(path: Path) -> dict[str, Any] | None:
    for segment in reversed(segments(path)):
        with _opened(segment.path) as fd:
            if fd is None:
                continue
            for _, line in lines_backwards(fd, os.fstat(fd).st_size):
                found = record(line)
                if found is not None:
                    return found
    return None


def ends_of(path: Path) -> tuple[dict[str, Any], dict[str, Any], bytes] | None:
    """Return the records of a file's first and last line, and the last line; None when one is none.

    Errors: ``OSError``.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        end = os.fstat(fd).st_size
        first = next((line for _, line in lines(fd, 0, end)), b"")
        last = next((line for _, line in lines_backwards(fd, end)), b"")
    finally:
        os.close(fd)
    begun, ended = record(first), record(last)
    return None if begun is None or ended is None else (begun, ended, last)


def lines(fd: int, start: int, end: int, *, whole: bool = True) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line without its line feed) of the finished lines; ``whole``: one begins at ``start``."""
    rest = b""
    at = start
    for offset in range(start, end, _CHUNK):
        *found, rest = (rest + os.pread(fd, min(_CHUNK, end - offset), offset)).split(b"\n")
        for line in found:
            if whole:
                yield at, line
            whole = True
            at += len(line) + 1


def lines_backwards(fd: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line without its line feed) of the finished lines, the last first."""
    rest = b""
    done = False
    at = end
    while at > 0:
        size = min(_CHUNK, at)
        at -= size
        rest, *found = (os.pread(fd, size, at) + rest).split(b"\n")
        place = at + len(rest) + 1 + sum(len(line) + 1 for line in found)
        for line in reversed(found):
            place -= len(line) + 1
            if done:
                yield place, line
            done = True
    if done:
        yield 0, rest


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _place_of(fd: int, after: int) -> tuple[int, int]:
    """Return the beginning of a line at or before the first with ``seq`` above ``after``, and the end of the file."""
    end = os.fstat(fd).st_size
    low, high = 0, end
    # Offsets are searched by halves: the first whole line behind each tells on which side to go on.
    while high - low > _CHUNK:
        middle = (low + high) // 2
        at, line = next(lines(fd, middle, end, whole=False), (end, b""))
        found = record(line)
        if found is None or found["seq"] > after:
            high = middle
        else:
            low = at
    return low, end


def _escaped(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)
