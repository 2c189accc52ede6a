"""The story of a lease, top to bottom: asked for, admitted, handed out again or minted, ended.

The order that always holds: intent and request audited and synced → mint → lease committed → outcome audited and
synced → released. A kind that leaves no trace elsewhere (``static``, ``jwt``) does it in one transaction and one sync.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from config.clock import Clock
from config.contract import LeaseRequest, RevokedLease, RunRecord
from config.problems import ProblemError
from config.tokenfiles import Principal
from minter import minting
from minter.admission import Admission, Asked
from minter.book import Book, Key, Live
from minter.custody import Custody
from minter.expiry import Expiry
from minter.kinds import Minted
from minter.lease_rows import LeaseRow
from minter.limits import MintLimits
from minter.metrics import Metrics
from minter.revocation import Endings
from minter.store import Store


@dataclass(frozen=True, slots=True)
class _Flight:
    """A mint under way, and what it is for."""

    asked: Asked
    task: asyncio.Task[Live]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseService:
    """Lends credentials to brokers and takes them back."""

    admission: Admission
    custody: Custody
    limits: MintLimits
    endings: Endings
    expiry: Expiry
    book: Book
    store: Store
    clock: Clock
    metrics: Metrics
    margin_s: float
    _flights: dict[Key, _Flight] = dataclasses.field(default_factory=dict)

    async def lease(self, broker: Principal, request: LeaseRequest) -> Live:
        """Lend a credential: the live lease of exactly what is asked for, or a new one.

        Errors: ``ProblemError`` when it is refused or could not be made.
        """
        while True:
            asked = self.admission.admit(broker, request)
            flight, current = self._flights.get(asked.key), self.book.current(asked.key)
            if flight is not None:
                asked.same_as(flight.asked)
                await asyncio.shield(flight.task)
            elif current is None or self._objection(asked, current) is not None:
                return await asyncio.shield(self._take_off(asked, current))
            else:
                await self.store.write(minting.again(current.row))
                if self.book.get(current.row.id) is current:
                    self.metrics.reissued(current.row.kind)
                    return current
                # It ended while that was written: what holds for a request that comes now holds for this one.

    async def _mint(self, asked: Asked, current: Live | None) -> Live:
        replaced = await self._make_room(asked, current)
        with self.limits.one_more(*asked.cap, live=self.book.count(*asked.cap)):
            row = minting.begun(asked, self.clock)
            if not asked.kind.local:
                await self._intend(row, replaced)
            minted = await self._made(asked, row)
            live = minting.done(row, minted)
            await self._commit(live, minted, replaced, local=asked.kind.local)
        self.expiry.arm(live.row.expires_at)
        self.metrics.minted(row.kind)
        return live

    async def end_run(self, broker: str, run_id: str) -> list[RevokedLease]:
        """End all leases of a run, those included that are just being made; say of each how it ended."""
        self.admission.run_ended(broker, run_id)
        await self.landed(lambda key: key[:2] == (broker, run_id))
        return await self.endings.end(self.book.of_run(broker, run_id), "run-ended")

    async def end_one(
        self, lease_id: str, reason: str, *, broker: str | None = None, uid: int | None = None
    ) -> list[RevokedLease]:
        """End one lease; with ``broker``, only one of its own: another's looks like none at all."""
        live = self.book.get(lease_id)
        if live is None or (broker is not None and live.row.broker != broker):
            raise ProblemError("lease-not-found")
        return await self.endings.end([live], reason, uid=uid)

    async def end(self, which: Callable[[Live], bool], reason: str, *, uid: int | None = None) -> list[RevokedLease]:
        """End the live leases that ``which`` picks, those included that are just being made."""
        await self.landed(lambda _key: True)
        return await self.endings.end([live for live in self.book if which(live)], reason, uid=uid)

    async def record(self, broker: str, run_id: str, record: RunRecord) -> None:
        """Write the counts of a run that ended to the audit log, as the broker reports them."""
        await self.store.write(minting.recorded(broker, run_id, record))

    def _objection(self, asked: Asked, current: Live) -> str | None:
        asked.same_as(current.row)
        return minting.objection(
            current, asked, clock=self.clock, highest_wall=self.store.highest_wall, margin_s=self.margin_s
        )

    async def _make_room(self, asked: Asked, current: Live | None) -> Live | None:
        """End what cannot go on before its successor begins; return it when it stays good until its own end."""
        reason = self._objection(asked, current) if current is not None else None
        if current is not None and reason == "replaced":
            return current
        if current is not None and reason is not None:
            await self.endings.close([current], reason)
        await self.endings.clear(asked.key)
        return None

    async def _intend(self, row: LeaseRow, replaced: Live | None) -> None:
        try:
            await self.store.write(minting.intent(row, replaced))
        except ProblemError:
            # The row may stand though the log does not say so; nothing was made.
            await self.store.write(minting.withdrawn(row))
            raise

    async def _made(self, asked: Asked, row: LeaseRow) -> Minted:
        try:
            return await minting.make(asked, row, self.clock)
        except ProblemError as error:
            self.metrics.mint_failed(row.kind)
            await self.store.write(minting.failure(row, error, local=asked.kind.local))
            raise

    async def _commit(self, live: Live, minted: Minted, replaced: Live | None, *, local: bool) -> None:
        if local:
            write = minting.whole(live.row, replaced, minted, self.custody)
        else:
            write = minting.outcome(live.row, minted, self.custody)
        try:
            await self.store.write(write)
        except ProblemError as error:
            # Not recorded means not released. What was made, or committed, is ended at once.
            if error.code == "audit-unavailable" or not local:
                self.book.add(live)
                await self.endings.close([live], "not-released")
            raise
        self.book.add(live)

    def _take_off(self, asked: Asked, current: Live | None) -> asyncio.Task[Live]:
        """Mint in a task of its own: one for all who ask for it, and none of them takes it along when it gives up."""
        task = asyncio.create_task(self._mint(asked, current))
        self._flights[asked.key] = _Flight(asked, task)
        task.add_done_callback(lambda done: self._land(asked.key, done))
        return task

    def _land(self, key: Key, done: asyncio.Task[Live]) -> None:
        del self._flights[key]
        if not done.cancelled():
            done.exception()  # everybody may have gone by now

    async def landed(self, which: Callable[[Key], bool]) -> None:
        """Wait for mints that are under way."""
        tasks = [flight.task for key, flight in self._flights.items() if which(key)]
        if tasks:
            await asyncio.wait(tasks)

    async def drain(self, timeout_s: float) -> None:
        """Wait for all of them, not for ever: what is given up shows as a suspect after the next start."""
        tasks = [flight.task for flight in self._flights.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
