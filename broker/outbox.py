"""What the minter has still to be told: that a run ended, and what it did.

A notice is written in the transaction that ends the run and forgotten once the minter has taken it. A minter that is
down is told later, with pauses that double up to a minute; a restart of the broker goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
import structlog

from broker import records
from broker.records import Notice, NoticeKind
from broker.run_record import run_record
from broker.store import Store
from config.clock import Clock
from config.contract import Revoked, RevokedLease, RunRecord
from config.problems import ProblemError

log = structlog.get_logger("broker.outbox")

#: How many notices are under way at once.
_AT_ONCE: Final = 16
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
#: After so long every lease of the run has ended by itself.
_GIVE_UP_AFTER_S: Final = 7 * 86400.0


class Minter(Protocol):
    """The calls of :class:`broker.minter_link.MinterLink` that are made here."""

    async def end_run(self, run_id: str) -> Revoked:
        """Revoke the run's leases."""
        ...

    async def record(self, run_id: str, record: RunRecord) -> None:
        """Hand over the run's counts."""
        ...


@dataclass(slots=True, eq=False)
class Waiting:
    """A notice for the minter. ``tried`` is set once it has taken it, or has not been there for the first time."""

    notice: Notice
    attempts: int = 0
    due_at: float = 0.0
    task: asyncio.Task[None] | None = None
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    leases: list[RevokedLease] | None = None

    async def revoked(self, *, within_s: float) -> list[RevokedLease] | None:
        """Return how the run's leases ended, None when the minter is away or has not said so within the time."""
        try:
            await asyncio.wait_for(self.tried.wait(), within_s)
        except TimeoutError:
            return None
        return self.leases


class Outbox:
    """The notices that wait, and their delivery."""

    def __init__(self, store: Store, minter: Minter, clock: Clock) -> None:
        """Start empty; :meth:`load` takes up what an earlier process left."""
        self._store = store
        self._minter = minter
        self._clock = clock
        self._waiting: dict[tuple[str, NoticeKind], Waiting] = {}
        self._limit = asyncio.Semaphore(_AT_ONCE)

    def __len__(self) -> int:
        """Return how many notices wait."""
        return len(self._waiting)

    async def load(self) -> None:
        """Take up the notices of an earlier process."""
        for notice in await self._store.read(records.notices):
            self._waiting[notice.run_id, notice.kind] = Waiting(notice)

    def add(self, run_id: str, kind: NoticeKind, *, created_at: float) -> Waiting:
        """Deliver a notice that has been written."""
        earlier = self._waiting.get((run_id, kind))
        if earlier is not None and earlier.task is None:
            self._start(earlier)
            return earlier
        waiting = Waiting(Notice(run_id=run_id, kind=kind, created_at=created_at))
        self._waiting[run_id, kind] = waiting
        self._start(waiting)
        return waiting

    def tick(self) -> None:
        """Try again what is due."""
        now = self._clock.boottime()
        for waiting in tuple(self._waiting.values()):
            if waiting.task is None and waiting.due_at <= now:
                self._start(waiting)

    async def settle(self) -> None:
        """Wait for what is under way."""
        while tasks := [waiting.task for waiting in self._waiting.values() if waiting.task is not None]:
            await asyncio.wait(tasks)

    def _start(self, waiting: Waiting) -> None:
        waiting.task = asyncio.create_task(self._deliver(waiting))

    async def _deliver(self, waiting: Waiting) -> None:
        notice = waiting.notice
        try:
            async with self._limit:
                leases = await _TELL[notice.kind](self, notice)
            kept = None if leases is None else msgspec.json.encode(leases)
            await self._store.write(lambda db: records.delivered(db, notice, kept))
        except ProblemError as problem:
            await self._failed(waiting, problem.code, problem.members.get("minter_code"), problem.retry_after)
        except Exception as error:  # noqa: BLE001 - whatever it was, the minter is told again
            await self._failed(waiting, type(error).__name__)
        else:
            waiting.leases = leases
            self._forget(waiting)
        finally:
            waiting.task = None
            waiting.tried.set()

    async def _revoke(self, notice: Notice) -> list[RevokedLease] | None:
        return (await self._minter.end_run(notice.run_id)).leases

    async def _record(self, notice: Notice) -> list[RevokedLease] | None:
        row = await self._store.read(lambda db: records.find_run(db, notice.run_id))
        if row is not None:
            await self._minter.record(notice.run_id, run_record(row))
        return None

    async def _failed(
        self, waiting: Waiting, code: str, minter_code: object = None, retry_after: float | None = None
    ) -> None:
        notice = waiting.notice
        waiting.attempts += 1
        pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(waiting.attempts - 1, 10))
        pause *= random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
        waiting.due_at = self._clock.boottime() + max(pause, retry_after or 0.0)
        about = {"run_id": notice.run_id, "notice": notice.kind, "code": code, "minter_code": minter_code}
        log.warning("minter-not-told", **about, attempts=waiting.attempts)
        if self._clock.now() - notice.created_at > _GIVE_UP_AFTER_S:
            log.error("minter-never-told", **about)
            self._forget(waiting)
            with contextlib.suppress(ProblemError):  # then the next process tries, and gives up, once more
                await self._store.write(lambda db: records.delivered(db, notice, None))

    def _forget(self, waiting: Waiting) -> None:
        key = waiting.notice.run_id, waiting.notice.kind
        if self._waiting.get(key) is waiting:
            del self._waiting[key]


_TELL: Final[dict[NoticeKind, Callable[[Outbox, Notice], Awaitable[list[RevokedLease] | None]]]] = {
    "revoke": Outbox._revoke,  # noqa: SLF001 - the table belongs to the class
    "record": Outbox._record,  # noqa: SLF001
}
