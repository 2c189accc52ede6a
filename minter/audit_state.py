"""What the minter's state knows of its audit log, read from outside while the minter may be running.

The chain alone cannot show that a log ends too early or that its last line was rewritten. The state keeps the last
line that was synced; a check that has it finds both.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from minter.audit_verify import MAX_LINE, Head, Report, parse_line, verify


@dataclass(frozen=True, slots=True)
class Known:
    """The installation that a log must belong to, and a line that must be in it."""

    installation: str | None
    head: Head | None


def known(state: str) -> Known | None:
    """Read the state behind a ``sqlite:PATH`` reference; None when there is none or it may not be read."""
    path = Path(state.removeprefix("sqlite:"))
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5.0)) as database:
            installation = database.execute("SELECT value FROM meta WHERE name = 'installation'").fetchone()
            head = database.execute("SELECT seq, hash FROM audit_head").fetchone()
    except sqlite3.Error:
        return None
    return Known(installation[0] if installation else None, Head(*head) if head else None)


def check(path: Path, state: str | None) -> tuple[Report, Known | None]:
    """Verify the log at ``path``, against the state's head when ``state`` is given and readable.

    The head is read before the log: the log may grow meanwhile, the head may not run ahead of what is read. A line
    that is being written at this moment looks torn; the log is then read once more.

    Errors: ``OSError`` when the log cannot be read.
    """
    expected = known(state) if state else None
    for attempt in (1, 2):
        size = path.stat().st_size
        with path.open("rb") as file:
            report = verify(
                file,
                installation=expected.installation if expected else None,
                head=expected.head if expected else None,
            )
        if report.bad is None or attempt == 2 or path.stat().st_size == size:  # noqa: PLR2004 - the second look
            break
    return report, expected


def last_instant(path: Path) -> str | None:
    """Return the instant of the last whole line, as the log writes it; None when there is none."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MAX_LINE))
        lines = file.read().split(b"\n")[:-1]
    try:
        return str(parse_line(lines[-1])["at"]) if lines else None
    except ValueError:
        return None
