"""Ending credentials at their issuers: at a bounded rate, in turns, until it is known how each ended.

1. At most ``per_s`` attempts begin in a second, :data:`AT_ONCE` run at once, :data:`AT_ONCE_PER_PROFILE` of one
   profile. Kinds take turns, within a kind profiles: an issuer that hangs, or a long queue, holds up nobody else.
2. What waits stands in the lease table and is read in small pages when its turn comes. Only ends that have just begun
   are remembered, so that they need not queue behind a backlog; beyond a cap they are found in the table as well.
3. What fails is tried again: six times from ten seconds on, doubling, each ±50 %, never before the issuer's
   ``Retry-After``. Then, or at once when the issuer says that it never will, the lease is ``irrevocable``: seen,
   counted, and tried once an hour until its credential ends by itself. One whose kind is not there waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import structlog

from config.clock import Clock
from config.problems import ProblemError
from minter import failpoints, lease_queue, orphans
from minter.audit_events import Event
from minter.kinds import Kind, RevocationError
from minter.lease_changes import Change, ended, ended_here, ends_in_s
from minter.lease_events import facts
from minter.lease_queue import KIND_MISSING, NEVER_SEEN, Group
from minter.lease_rows import LeaseRow
from minter.lease_values import LeaseValues
from minter.limits import Rate
from minter.metrics import Metrics
from minter.store import Store
from minter.turns import Turns

ATTEMPTS: Final = 6
FIRST_DELAY_S: Final = 10.0
JITTER: Final = 0.5
SLOW_S: Final = 3600.0
AT_ONCE: Final = 64
#: An upstream that answers no revocation must not hold up those of others.
AT_ONCE_PER_PROFILE: Final = 8
_ATTEMPT_S: Final = 60.0
#: So many of a group are read from the table at once, and so many fresh ends are remembered.
PAGE: Final = 64
FRESH: Final = 1000
#: Beyond so many outcomes that could not be written yet no more are read from the table.
_HELD: Final = 5000
#: Without a right to begin nobody looks more often.
_PAUSE_S: Final = 0.05

_log = structlog.get_logger()

Write = Callable[[Sequence[Change]], Awaitable[None]]


class Upstream:
    """Tries revocations. ``write`` writes changes and calls :meth:`settled` for each once it is committed.

    ``skip`` says of a lease that somebody else is working on it, or that it is live.
    """

    def __init__(
        self,
        *,
        store: Store,
        kind_of: Callable[[LeaseRow], Kind | None],
        values: LeaseValues,
        clock: Clock,
        metrics: Metrics,
        per_s: float,
        write: Write,
        skip: Callable[[str], bool],
        spread: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._store = store
        self._kind_of = kind_of
        self._values = values
        self._clock = clock
        self._metrics = metrics
        self._write = write
        self._skip = skip
        self._spread = spread
        self._rate = Rate(clock, per_s=per_s, burst=max(1.0, per_s))
        self._waiting: Turns[LeaseRow] = Turns()
        #: Leases that wait here or are being tried, until their outcome is written; and how many of each group.
        self._held: dict[str, Group] = {}
        self._held_of: Counter[Group] = Counter()
        self._settled_meanwhile: set[str] = set()
        self._running: Counter[Group] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: dict[str, asyncio.Future[LeaseRow]] = {}
        #: Whether the table may have more than what waits here, of which groups, and where the next look at it begins.
        self._look = False
        self._more: set[Group] = set()
        self._after: Group = ("", "")
        self._feeding: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = False

    # --- what is asked of it ---

    def holds(self, lease_id: str) -> bool:
        """Say whether a lease waits here, is being tried, or has an outcome that is not written yet."""
        return lease_id in self._held

    def want(self, rows: Iterable[LeaseRow], *, written: bool) -> None:
        """Try leases that have just ended, before what waits in the table.

        Those that are ``written`` there are found there as well: of them only so many are remembered.
        """
        for row in rows:
            if row.id in self._held:
                continue
            if written and len(self._waiting) >= FRESH:
                self._look = True
                continue
            # Its own copy: the other one may still have to be written as it is.
            self._hold(dataclasses.replace(row), fresh=True)
        self._go()

    def look(self) -> None:
        """Note that revocations may have become due in the table."""
        self._look = True
        self._go()

    def answer(self, lease_id: str) -> asyncio.Future[LeaseRow]:
        """Return what will be the lease's row after the next attempt."""
        future = self._answers.get(lease_id)
        if future is None:
            future = self._answers[lease_id] = asyncio.get_running_loop().create_future()
        return future

    def forget_answer(self, lease_id: str) -> None:
        """Give up waiting for an answer."""
        self._answers.pop(lease_id, None)

    def settled(self, lease_id: str) -> None:
        """Note that an outcome is committed."""
        group = self._held.pop(lease_id, None)
        if group is not None:
            self._settled_meanwhile.add(lease_id)
            self._held_of[group] -= 1
            if not self._held_of[group]:
                del self._held_of[group]
            self._wake.set()

    async def idle(self) -> None:
        """Wait until nothing is being tried and nothing more may begin now."""
        while not (self._idle.is_set() and not self._tasks):
            await self._idle.wait()
            if self._tasks:
                await asyncio.wait(list(self._tasks))

    async def stop(self, timeout_s: float) -> int:
        """Begin nothing more, let attempts finish; return how many did not. They are tried after the next start."""
        self._stopped = True
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.wait([self._feeding])
        if not self._tasks:
            return 0
        _, left = await asyncio.wait(list(self._tasks), timeout=timeout_s)
        for task in left:
            task.cancel()
        return len(left)

    # --- whose turn it is ---

    def _hold(self, row: LeaseRow, *, waits: bool = True, fresh: bool = False) -> None:
        group = (row.kind, row.profile)
        self._held[row.id] = group
        self._held_of[group] += 1
        if waits:
            self._waiting.put(group, row, fresh=fresh)

    def _go(self) -> None:
        if self._stopped:
            return
        self._idle.clear()
        self._wake.set()
        if self._feeding is None or self._feeding.done():
            self._feeding = asyncio.get_running_loop().create_task(self._feed())

    async def _feed(self) -> None:
        while not self._stopped:
            self._wake.clear()
            if self._wants_more():
                try:
                    await self._fill()
                except Exception as error:  # noqa: BLE001 - what is here is tried all the same; the next sweep looks again
                    _log.error("revocations-wait", exc_info=error)
                    self._look, self._more = False, set()
            pause_s = self._begin()
            if self._wants_more():
                continue
            if not self._running:
                # Nothing is being tried, and nothing may begin before time passes.
                self._idle.set()
                if pause_s is None:
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if pause_s is None else max(pause_s, _PAUSE_S)):
                    await self._wake.wait()

    def _wants_more(self) -> bool:
        """Say whether to look at the table: there may be more in it, and little of that waits here."""
        short = self._look or any(self._waiting.of(group) < PAGE // 2 for group in self._more)
        return short and len(self._held) < _HELD

    async def _fill(self) -> None:
        """Read a page of each group of which little waits here; end at once what needs nothing upstream."""
        now, after = self._clock.now(), self._after
        limits: dict[Group, int] = {}
        self._settled_meanwhile.clear()

        def page(group: Group) -> int:
            # Those that are held are among the first of the table.
            limits[group] = PAGE + self._held_of[group] if self._waiting.of(group) < PAGE // 2 else 0
            return limits[group]

        try:
            found, self._after = await self._store.read_beside(
                lambda connection: lease_queue.turns(connection, now=now, after=after, limits=page)
            )
        except ProblemError as error:
            _log.warning("revocations-wait", code=error.code)
            self._look, self._more = False, set()
            return
        self._look = self._after != ("", "")
        over: list[Change] = []
        for group, rows in found.items():
            # One that was settled while the table was read stands in what was read as it was before.
            known = self._held.keys() | self._settled_meanwhile
            fresh = [row for row in rows if row.id not in known and not self._skip(row.id)]
            for row in fresh:
                change = await self._over_here(row)
                self._hold(row, waits=change is None)
                if change is not None:
                    over.append(change)
            # Without anything new another look would find the same.
            (self._more.add if fresh and len(rows) >= limits[group] else self._more.discard)(group)
        for group in [group for group in self._more if limits.get(group) and group not in found]:
            self._more.discard(group)
        await self._write(over)

    def _begin(self) -> float | None:
        """Begin what may; return the seconds until more may, or None when that takes an end of what runs."""
        while sum(self._running.values()) < AT_ONCE:
            group = self._waiting.next(lambda one: self._running[one] < AT_ONCE_PER_PROFILE)
            if group is None:
                return None
            wait_s = self._rate.wait_s("")
            if wait_s:
                return wait_s
            row = self._waiting.take(group)
            self._idle.clear()
            self._running[group] += 1
            task = asyncio.get_running_loop().create_task(self._attempt(row, group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return None

    # --- one attempt ---

    async def _attempt(self, row: LeaseRow, group: Group) -> None:
        try:
            change = await self._outcome(row)
        finally:
            self._running[group] -= 1
            if not self._running[group]:
                del self._running[group]
            self._wake.set()
        kind_of_step = "orphan" if row.end_reason in NEVER_SEEN else "revoke"
        failpoints.reached("orphan.looked" if kind_of_step == "orphan" else "revoke.attempted")
        answer = self._answers.pop(row.id, None)
        await self._write([change])
        failpoints.reached(f"{kind_of_step}.outcome-written")
        if answer is not None and not answer.done():
            answer.set_result(change.row)

    async def _over_here(self, row: LeaseRow) -> Change | None:
        kind = self._kind_of(row)
        if orphans.finder(row, kind) is not None:
            return None
        row.ended_at = row.ended_at or self._clock.now()
        return await ended_here(row, kind, clock=self._clock)

    async def _outcome(self, row: LeaseRow) -> Change:
        kind = self._kind_of(row)
        try:
            finder = orphans.finder(row, kind)
            if finder is not None:
                async with asyncio.timeout(_ATTEMPT_S):
                    change = await orphans.look(row, finder, now=self._clock.now())
            else:
                change = await self._over_here(row) or ended(row, await self._revoke(row, kind))
        except RevocationError as error:
            return self._failed(row, error, missing=kind is None)
        except Exception as error:  # noqa: BLE001 - a plug-in's own; its text stays out
            _log.warning("revocation-failed", lease_id=row.id, kind=row.kind, exc_info=error)
            return self._failed(row, RevocationError())
        self._metrics.revocation_tried(row.kind, change.row.how)
        return change

    async def _revoke(self, row: LeaseRow, kind: Kind | None) -> str:
        """Ask the kind to end the credential."""
        if kind is None:
            raise RevocationError(permanent=True)
        known, credential = await self._values.to_revoke(row)
        try:
            async with asyncio.timeout(_ATTEMPT_S):
                return (await kind.revoke(row, credential)).how
        except RevocationError as error:
            # That it could not do without a value which cannot be read now is not its last word.
            raise RevocationError(retry_after=error.retry_after, permanent=error.permanent and known) from None

    def _failed(self, row: LeaseRow, error: RevocationError, *, missing: bool = False) -> Change:
        now = self._clock.now()
        before = (row.state, row.how)
        if not error.permanent or row.state == "orphan_suspect":
            row.attempts += 1
        if row.state == "orphan_suspect":
            # It stays in sight until its worst-case end, whatever the issuer says.
            delay_s = min(SLOW_S, FIRST_DELAY_S * 2 ** min(row.attempts, ATTEMPTS))
        elif error.permanent or row.attempts >= ATTEMPTS or row.state == "irrevocable":
            row.state = "irrevocable"
            row.how = KIND_MISSING if missing else "refused" if error.permanent else "failing"
            delay_s = SLOW_S
        else:
            delay_s = FIRST_DELAY_S * 2 ** (row.attempts - 1)
        delay_s *= self._spread(1 - JITTER, 1 + JITTER)
        row.next_attempt_at = now + max(delay_s, error.retry_after or 0.0)
        left_s = ends_in_s(row, self._clock)
        if left_s is not None:
            end = now + max(left_s, 0.0)
            row.next_attempt_at = end if missing else min(row.next_attempt_at, end)
        elif missing:
            # Nothing is tried until its kind is there: see lease_queue.waiting.
            row.next_attempt_at = None
        result = KIND_MISSING if missing else "permanent" if error.permanent else "transient"
        self._metrics.revocation_tried(row.kind, result)
        self._metrics.revocation_failed(row.kind, permanent=error.permanent)
        turned = row.state == "irrevocable" and before[0] != "irrevocable"
        fields = {**facts(row), "reason": row.end_reason, "attempts": row.attempts}
        if row.next_attempt_at is not None:
            fields["next_attempt_at"] = row.next_attempt_at
        if turned:
            fields["problem"] = row.how
        return Change(row, (Event("lease.irrevocable" if turned else "lease.revoke-failed", fields),))
