"""The story of a lease, top to bottom: asked for, admitted, handed out again or minted, ended.

The order that always holds: intent and request audited and synced → mint → lease committed → outcome audited and
synced → released. A kind that leaves no trace elsewhere (``static``, ``jwt``) does it in one transaction and one sync.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from config.clock import Clock
from config.contract import LeaseRequest, RevokedLease, RunRecord
from config.problems import ProblemError
from config.tokenfiles import Principal
from minter import failpoints, minting
from minter.admission import Admission, Asked
from minter.book import Book, Live
from minter.custody import Custody
from minter.expiry import Expiry
from minter.flights import Flight, Flights, Order, OvertakenError
from minter.kinds import Minted
from minter.lease_rows import LeaseRow
from minter.lease_values import LeaseValues, Lent
from minter.limits import MintLimits
from minter.metrics import Metrics
from minter.revocation import Endings
from minter.store import Store, stands

#: So often a request is asked again whose lease was ended while it was being made, by a rotation or a reload.
_AGAIN: Final = 3


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
    values: LeaseValues
    #: Refuses whatever a state in quarantine may not do (minter/quarantine.py).
    check: Callable[[], None]
    flights: Flights = field(default_factory=Flights)

    # --- lending ---

    async def lease(self, broker: Principal, request: LeaseRequest) -> Lent:
        """Lend a credential: the live lease of exactly what is asked for, or a new one.

        Errors: ``ProblemError`` when it is refused or could not be made.
        """
        self.check()
        asked_at, ttl_s = self.clock.boottime(), request.ttl_s
        for _ in range(1 + _AGAIN):
            try:
                return await self._lease(broker, request)
            except OvertakenError:
                # The run has not become longer meanwhile.
                left_s = ttl_s - (self.clock.boottime() - asked_at)
                request = msgspec.structs.replace(request, ttl_s=left_s)
        raise ProblemError("not-ready", "the lease was ended each time while it was being made", retry_after=1)

    async def _lease(self, broker: Principal, request: LeaseRequest) -> Lent:
        while True:
            asked = self.admission.admit(broker, request)
            flight, current = self.flights.find(asked.key), self.book.current(asked.key)
            if flight is not None:
                asked.same_as(flight.asked)
                await flight.landed()
            elif current is None or self._objection(asked, current) is not None:
                return await self.flights.take_off(asked, self._mint).landed()
            else:
                row = current.row
                credential = await self.values.hand_out(row)
                failpoints.reached("mint.reissued")
                # What ended while that was written is not lent: as for a request that comes now.
                if current.id in self.book:
                    if credential is not None:
                        self.metrics.reissued(row.kind)
                        return Lent(current, credential)
                    await self.endings.close([current], "value-lost")

    async def _mint(self, flight: Flight) -> Lent:
        asked = flight.asked
        replaced = await self._make_room(asked)
        with self.limits.one_more(*asked.cap, live=self.book.count(*asked.cap)):
            row = minting.begun(asked, self.clock)
            failpoints.reached("mint.requested")
            if not asked.kind.local:
                await self._intend(row, replaced)
                failpoints.reached("mint.intent-written")
            minted = await self._made(asked, row)
            failpoints.reached("mint.made")
            minting.done(row, minted)
            live = await self._commit(row, minted, replaced, local=asked.kind.local)
            failpoints.reached("mint.committed")
        self.expiry.arm(row.expires_at)
        self.metrics.minted(row.kind)
        await self._obey(flight, live)
        return Lent(live, minted.credential)

    # --- ending ---

    async def end_run(self, broker: str, run_id: str) -> list[RevokedLease]:
        """End all leases of a run, those included that are just being made; say of each how it ended."""
        self.check()
        self.admission.run_ended(broker, run_id)
        self.flights.order(
            Order(lambda _live: True, "run-ended", final=True), of=lambda key: key[:2] == (broker, run_id)
        )
        return await self.endings.end(self.book.of_run(broker, run_id), "run-ended")

    async def end(
        self, which: Callable[[Live], bool], reason: str, *, uid: int | None = None, final: bool = False
    ) -> list[RevokedLease]:
        """End the live leases that ``which`` picks, those included that are just being made.

        Whoever waits for one that is being made gets another one, unless the end is ``final``.
        """
        self.check()
        self.flights.order(Order(which, reason, uid, final))
        return await self.endings.end_all(which, reason, uid=uid)

    async def end_one(
        self, lease_id: str, reason: str, *, broker: str | None = None, uid: int | None = None
    ) -> list[RevokedLease]:
        """End one lease; with ``broker``, only one of its own: another's looks like none at all."""
        self.check()
        live = self.book.get(lease_id)
        if live is None or (broker is not None and live.row.broker != broker):
            raise ProblemError("lease-not-found")
        return await self.endings.end([live], reason, uid=uid)

    async def record(self, broker: str, run_id: str, record: RunRecord) -> None:
        """Write the counts of a run that ended to the audit log, as the broker reports them."""
        self.check()
        await self.store.write(minting.recorded(broker, run_id, record))

    # --- the steps of a mint ---

    def _objection(self, asked: Asked, current: Live) -> str | None:
        asked.same_as(current.row)
        return minting.objection(
            current, asked, clock=self.clock, highest_wall=self.store.highest_wall, margin_s=self.margin_s
        )

    async def _make_room(self, asked: Asked) -> Live | None:
        """End what cannot go on before its successor begins; return it when it stays good until its own end."""
        current = self.book.current(asked.key)
        reason = None if current is None else self._objection(asked, current)
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
            failpoints.reached("mint.failed")
            await self.store.write(minting.failure(row, error, local=asked.kind.local))
            raise

    async def _commit(self, row: LeaseRow, minted: Minted, replaced: Live | None, *, local: bool) -> Live:
        if local:
            write = minting.whole(row, replaced, minted, self.custody, self.values.sealer)
        else:
            write = minting.outcome(row, minted, self.custody, self.values.sealer)
        try:
            await self.store.write(write)
        except ProblemError as error:
            # Not recorded means not released. What was made, or committed, is ended at once.
            if stands(error) or not local:
                # It may be in this memory alone, and is wanted to end it upstream.
                self.values.hold(row.id, minted.credential)
                await self.endings.close([self.book.add(row)], "not-released")
            raise
        return self.book.add(row)

    async def _obey(self, flight: Flight, live: Live) -> None:
        """End a lease whose end was ordered while it was being made; it is not released then."""
        orders = [order for order in flight.orders if order.which(live)]
        if not orders:
            return
        order = next((order for order in orders if order.final), orders[0])
        await self.endings.close([live], order.reason, uid=order.uid)
        # More may have been ordered while that was written.
        if any(order.final for order in flight.orders if order.which(live)):
            raise ProblemError("run-over", "the lease was ended while it was being made")
        raise OvertakenError
