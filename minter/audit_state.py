"""A log held against everything that is known of it: the minter's state and checkpoints, read from outside.

The chain alone cannot show that a log ends too early or that it was rewritten as a whole. The state keeps the last
line that was synced and the last checkpoint; files of checkpoints keep the others. The minter may be running.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from minter.audit_checkpoint import Checkpoint, parse_all
from minter.audit_segments import last_instant, named, segments
from minter.audit_verify import Bad, Head, Report, verify

__all__ = ["Examined", "Known", "check", "examine", "known", "last_instant"]


@dataclass(frozen=True, slots=True)
class Known:
    """The installation that a log must belong to, a line that must be in it, and the state's checkpoint of it."""

    installation: str | None
    head: Head | None
    checkpoint: bytes = b""


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found of a log in ``files``. ``missing`` are the numbers of lines whose files are not there.

    ``unread``: lines in files of checkpoints that are no checkpoint. ``bad_file`` and ``bad_line`` say where the first
    bad record stands.
    """

    report: Report
    known: Known | None
    files: Sequence[Path]
    missing: Sequence[tuple[int, int]] = ()
    checkpoints: int = 0
    unread: int = 0
    bad_file: Path | None = None
    bad_line: int = 0


def known(state: str) -> Known | None:
    """Read the state behind a ``sqlite:PATH`` reference; None when there is none or it may not be read."""
    path = Path(state.removeprefix("sqlite:"))
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5.0)) as database:
            installation = database.execute("SELECT value FROM meta WHERE name = 'installation'").fetchone()
            head = database.execute("SELECT seq, hash FROM audit_head").fetchone()
            checkpoint = database.execute("SELECT value FROM meta WHERE name = 'audit_checkpoint'").fetchone()
    except sqlite3.Error:
        return None
    return Known(
        installation[0] if installation else None,
        Head(*head) if head else None,
        checkpoint[0].encode() if checkpoint else b"",
    )


def check(path: Path, state: str | None, checkpoints: Sequence[Path] = ()) -> tuple[Report, Known | None]:
    """Verify the log that goes on in ``path``; see :func:`examine`. Errors: ``OSError``."""
    found = examine([path], state, checkpoints=[one for one in checkpoints if one.exists()])
    return found.report, found.known


def examine(
    paths: Sequence[Path], state: str | None, *, checkpoints: Sequence[Path] = (), pins: Collection[str] = ()
) -> Examined:
    """Verify a log against the state, when it is given and readable, and against files of checkpoints.

    One path stands for the log that goes on there, with the finished files beside it; several are taken as they are.
    What is known is read before the log: the log may grow meanwhile, what is known may not run ahead of what is read.
    A line that is being written at this moment looks torn; the log is then read once more.

    Errors: ``OSError`` when something that was named cannot be read.
    """
    expected = known(state) if state else None
    good, unread, forged = _read_checkpoints(checkpoints, expected)
    for attempt in (1, 2):
        files = _files(paths)
        size = files[-1].stat().st_size
        end = named(files[-1])
        reader = _Reader(files)
        report = verify(
            reader.lines(),
            installation=expected.installation if expected else None,
            head=expected.head if expected and end is None else None,
            # A finished file alone ends where its name says; what was signed later is not about it.
            checkpoints=[one for one in good if end is None or one.seq <= end[1]],
            forged=[seq for seq in forged if end is None or seq <= end[1]],
            pins=pins,
        )
        unchanged = files == _files(paths) and files[-1].stat().st_size == size
        if report.bad is None or attempt == 2 or unchanged:  # noqa: PLR2004 - the second look
            break
    where = reader.place(report.bad) if report.bad is not None else (None, 0)
    return Examined(report, expected, files, _missing(report, files), len(good), unread, *where)


@dataclass(slots=True)
class _Reader:
    """Reads files one after the other and knows how many lines each has."""

    files: Sequence[Path]
    begins: list[tuple[int, Path]] = field(default_factory=list)

    def lines(self) -> Iterator[bytes]:
        count = 0
        for path in self.files:
            self.begins.append((count, path))
            with path.open("rb") as file:
                for line in file:
                    count += 1
                    yield line

    def place(self, bad: Bad) -> tuple[Path, int]:
        for before, path in reversed(self.begins):
            if before < bad.line:
                return path, bad.line - before
        return self.files[0], bad.line


def _files(paths: Sequence[Path]) -> list[Path]:
    if len(paths) == 1:
        return [segment.path for segment in segments(paths[0])]
    return sorted(paths, key=lambda path: (named(path) or (1 << 62, 0))[0])


def _missing(report: Report, files: Sequence[Path]) -> list[tuple[int, int]]:
    """Return the numbers of lines that stand in no file: before the first line, and between two finished files."""
    missing = [(1, report.first - 1)] if report.first > 1 else []
    names = [found for found in map(named, files) if found]
    missing += [(before[1] + 1, after[0] - 1) for before, after in itertools.pairwise(names)]
    return [(first, last) for first, last in missing if first <= last]


def _read_checkpoints(paths: Sequence[Path], expected: Known | None) -> tuple[list[Checkpoint], int, list[int]]:
    lines = [expected.checkpoint] if expected else []
    for path in paths:
        lines += path.read_bytes().split(b"\n")
    good, faults = parse_all(lines)
    return good, sum(fault.seq == 0 for fault in faults), [fault.seq for fault in faults if fault.seq]
