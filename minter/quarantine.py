"""A restored state is not believed until an operator says so: what the backup calls live may long be somebody else's.

One that was put back without ``minter restore`` is found by its log, which goes further (:func:`doubt`).

1. While the state is in quarantine nothing is lent, ended, revoked, swept or rotated, by whomever it is asked for.
   What only looks (lists, reports, the audit log, public keys) answers, and readiness says why the rest does not.
2. The quarantine stands in the state itself, so it outlives any restart, and begins before a restored state is in
   its place.
3. The operator's confirmation is written and audited first. Then every lease of the backup is ended: a run whose
   lease was renewed since, by a minter that is gone, simply mints again. A crash in between is taken up at the start.
"""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import structlog

from config.clock import Clock, rfc3339
from config.errors import ConfigurationError, Fault
from config.problems import ProblemError
from minter import failpoints, owed
from minter.audit import BY_ITSELF, read_after
from minter.audit_events import Event, Value
from minter.audit_verify import Head
from minter.book import Book
from minter.revocation import Endings
from minter.store import Connection, Store

#: Names in ``meta``: since when the state is not believed; since when it is, while leases of the backup still live.
QUARANTINE: Final = "quarantine"
CONFIRMED: Final = "restore-confirmed"
#: Number and hash of a line of the audit log that is known to be lost, until the log says so.
LOST: Final = "restore-lost"
#: Why the leases of a backup end.
REASON: Final = "restored"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Summary:
    """What a confirmation will do: leases that end, and those whose end upstream is tried from then on.

    ``suspects`` may exist upstream though nobody holds them.
    """

    since: str
    leases: int
    revoking: int
    suspects: int
    irrevocable: int


class Quarantine:
    """Whether this state is believed, and how it comes to be."""

    def __init__(self, store: Store, book: Book, endings: Endings, *, clock: Clock) -> None:
        self._store = store
        self._book = book
        self._endings = endings
        self._clock = clock
        self._alone = asyncio.Lock()
        self._confirmed: float | None = None
        self.since: float | None = None

    async def look(self) -> None:
        """Read whether the state is in quarantine; take up a confirmation that was cut off."""
        self.since = await self._store.read(lambda found: _instant(found, QUARANTINE))
        if self.since is None:
            await self._settle()
        else:
            _log.warning("QUARANTINE: a restored state; nothing is lent or ended until minter restore --confirm")

    def check(self) -> None:
        """Refuse what a state in quarantine may not do. Errors: ``quarantined``."""
        if self.since is not None:
            raise ProblemError("quarantined", retry_after=5)

    def reason(self) -> str:
        """Return why the minter is not ready, for readiness; empty without a quarantine."""
        return (
            ""
            if self.since is None
            else "the state was restored, or is older than its log: minter restore --confirm lifts the quarantine"
        )

    async def summary(self) -> Summary:
        """Return what a confirmation would do. Errors: ``not-quarantined``."""
        if self.since is None:
            raise ProblemError("not-quarantined")
        counts = await self._store.read(_counts)
        return Summary(
            since=rfc3339(self.since),
            leases=len(self._book),
            revoking=counts.get("revoking", 0),
            suspects=counts.get("orphan_suspect", 0),
            irrevocable=counts.get("irrevocable", 0),
        )

    async def confirm(self, *, uid: int) -> Summary:
        """Lift the quarantine for good, and end what the backup calls live.

        Errors: ``not-quarantined``; ``audit-unavailable`` and ``state-unavailable``, after which it may be asked again.
        """
        async with self._alone:
            summary = await self.summary()
            now = self._clock.now()
            told: dict[str, Value] = {"uid": uid, "count": summary.leases, "suspects": summary.suspects}
            await self._store.write(functools.partial(_confirm, now, told))
            failpoints.reached("restore.confirmed")
            await self._settle()
            self.since = None
            _log.info("quarantine-lifted", **asdict(summary))
            return summary

    async def tick(self) -> None:
        """Forget a confirmation once every end that came of it is written."""
        if self._confirmed is not None:
            failpoints.reached("restore.settled")
            if await self._store.write(functools.partial(_settled, self._confirmed)):
                self._confirmed = None

    async def _settle(self) -> None:
        """End the leases of a confirmed backup: at once in memory, and in the state while others are answered."""
        self._confirmed = confirmed = await self._store.read(lambda found: _instant(found, CONFIRMED))
        if confirmed is not None:
            self._endings.close_later([live for live in self._book if live.row.created_at <= confirmed], REASON)
            await self.tick()


def begin(state: Path, *, now: float, lost: Head | None = None) -> None:
    """Put a state that is not in its place yet in quarantine; ``lost`` is a line that its log is known to lack."""
    insert = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"
    with sqlite3.connect(state) as database:
        database.execute("DELETE FROM meta WHERE name IN (?, ?)", (CONFIRMED, LOST))
        database.execute(insert, (QUARANTINE, repr(now)))
        if lost is not None:
            database.execute(insert, (LOST, f"{lost.seq} {lost.hash}"))
    database.close()


async def doubt(store: Store, log: Path, *, clock: Clock) -> None:
    """Put the state in quarantine when the log knows of what came after it: somebody put an older one in its place.

    Call it before anything is written. Errors: ``ConfigurationError`` when the log cannot be read.
    """
    try:
        older = await store.read(
            lambda found: (
                None
                if _instant(found, QUARANTINE) is not None
                else owed.unknown_to(found, lambda seq, limit: read_after(log, seq, limit), BY_ITSELF)
            )
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            [Fault("audit", f"cannot be held against the state ({type(error).__name__})")]
        ) from None
    if older is not None:
        known, count = older
        _log.error("state-is-older-than-its-log", known_seq=known, count=count)
        told: dict[str, Value] = {"known_seq": known, "count": count}
        await store.write(functools.partial(_begin, clock.now(), told))


def _begin(now: float, told: dict[str, Value], connection: Connection) -> tuple[None, list[Event]]:
    connection.exec_driver_sql("DELETE FROM meta WHERE name IN (?, ?)", (CONFIRMED, LOST))
    connection.exec_driver_sql("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (QUARANTINE, repr(now)))
    return None, [Event("state.older", told)]


def _instant(connection: Connection, name: str) -> float | None:
    row = connection.exec_driver_sql("SELECT value FROM meta WHERE name = ?", (name,)).first()
    if row is None:
        return None
    try:
        return float(row[0])
    except ValueError:
        # Unknown means no: a value that says nothing keeps the quarantine.
        return 0.0


def _counts(connection: Connection) -> dict[str, int]:
    rows = connection.exec_driver_sql(
        "SELECT state, count(*) FROM leases WHERE state IN ('revoking', 'orphan_suspect', 'irrevocable') GROUP BY state"
    )
    return {state: count for state, count in rows.all()}  # noqa: C416 - rows are no pairs to dict()


def _confirm(now: float, told: dict[str, Value], connection: Connection) -> tuple[None, list[Event]]:
    lost = connection.exec_driver_sql("SELECT value FROM meta WHERE name = ?", (LOST,)).scalar()
    if lost is not None:
        seq, _, digest = lost.partition(" ")
        told = {**told, "lost_seq": int(seq), "lost_hash": digest}
    connection.exec_driver_sql("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (CONFIRMED, repr(now)))
    connection.exec_driver_sql("DELETE FROM meta WHERE name IN (?, ?)", (QUARANTINE, LOST))
    return None, [Event("restore.confirmed", told)]


def _settled(confirmed: float, connection: Connection) -> tuple[bool, list[Event]]:
    """Forget the confirmation unless a lease of the backup still lives; say whether it is forgotten."""
    done = connection.exec_driver_sql(
        "DELETE FROM meta WHERE name = ? AND NOT EXISTS "
        "(SELECT 1 FROM leases WHERE state IN ('intent', 'active') AND created_at <= ?)",
        (CONFIRMED, confirmed),
    )
    return done.rowcount > 0, []
