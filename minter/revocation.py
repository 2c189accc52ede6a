"""How leases end: use stops at once, the row says so next, and the end upstream is tried until it is known.

1. :meth:`Endings.stop` takes a lease out of the book and tells the watching broker: nobody can use it from here on.
2. The row is written. A local kind is over with that; the others are ``revoking`` and are tried upstream at once
   (``minter/upstream.py``).
3. A disk that is full or slow holds up neither: what cannot be written is tried upstream all the same, and written at
   a later sweep. What is over stays over, whatever is written late.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import structlog

from config.clock import Clock
from config.contract import RevokedLease
from config.problems import ProblemError
from minter import failpoints, lease_queue, orphans
from minter.book import Book, Key, Live
from minter.kinds import Kind
from minter.lease_changes import Change, apply, ended_here
from minter.lease_events import over
from minter.lease_queue import Moment
from minter.lease_rows import LeaseRow
from minter.lease_values import LeaseValues
from minter.metrics import Metrics
from minter.store import Store, stands
from minter.upstream import Upstream
from minter.watch import WatchHub

#: So long an answer waits to say how a lease ended; then it says that it is still being tried.
_ANSWER_S: Final = 5.0
#: So long the end upstream waits for the disk.
_SLOW_WRITE_S: Final = 2.0
_BATCH: Final = 500
#: A sweep ends so many batches; what is left is due at once.
_BATCHES: Final = 20
#: Smaller steps back are the clock being steered.
_STEP_BACK_S: Final = 5.0

_log = structlog.get_logger()


class Endings:
    """Ends leases. ``kind_of`` returns the kind that made a row's credential, or None when it cannot be had.

    ``per_s``: attempts upstream that are begun in a second.
    """

    def __init__(
        self,
        *,
        store: Store,
        book: Book,
        hub: WatchHub,
        kind_of: Callable[[LeaseRow], Kind | None],
        values: LeaseValues,
        clock: Clock,
        metrics: Metrics,
        per_s: float,
    ) -> None:
        self._store = store
        self._book = book
        self._hub = hub
        self._kind_of = kind_of
        self._values = values
        self._clock = clock
        self._metrics = metrics
        self.upstream = Upstream(
            store=store,
            kind_of=kind_of,
            values=values,
            clock=clock,
            metrics=metrics,
            per_s=per_s,
            write=self.write,
            skip=lambda lease_id: lease_id in self._busy or lease_id in book,
        )
        #: Leases whose end is not written yet, and the keys that no lease may begin for until it is.
        self._busy: set[str] = set()
        self._closing: dict[str, Key] = {}
        self._closing_keys: Counter[Key] = Counter()
        self._unwritten: list[Change] = []
        self._later: set[asyncio.Task[None]] = set()
        self._halted = False
        #: By how much the wall clock was before the boot clock at the last sweep.
        self._wall_ahead_s: float | None = None
        #: The highest wall time that was known then.
        self._highest_wall = 0.0

    # --- ending before time ---

    async def end(self, leases: Iterable[Live], reason: str, *, uid: int | None = None) -> list[RevokedLease]:
        """End live leases now; return how each ended, after one attempt upstream where there is one."""
        return await self._answered(self.stop(leases, reason), reason, uid)

    async def end_all(
        self, which: Callable[[Live], bool], reason: str, *, uid: int | None = None
    ) -> list[RevokedLease]:
        """End the live leases that ``which`` picks, likewise. However many there are, others are answered meanwhile."""
        stopped: list[Live] = []
        for some in self._book.slices():
            stopped += self.stop([live for live in some if which(live)], reason)
            await asyncio.sleep(0)
        return await self._answered(stopped, reason, uid)

    async def _answered(self, stopped: Sequence[Live], reason: str, uid: int | None) -> list[RevokedLease]:
        answers: dict[str, asyncio.Future[LeaseRow]] = {}
        try:
            changes = await self._close(stopped, reason, uid, answers)
            if answers:
                await asyncio.wait(answers.values(), timeout=_ANSWER_S)
        finally:
            for lease_id in answers:
                self.upstream.forget_answer(lease_id)
        known = {lease_id: answer.result() for lease_id, answer in answers.items() if answer.done()}
        return [_report(known.get(change.row.id, change.row)) for change in changes]

    async def close(self, leases: Iterable[Live], reason: str, *, uid: int | None = None) -> list[Change]:
        """End live leases now; wait until that is written, not for what is to be done upstream."""
        return await self._close(self.stop(leases, reason), reason, uid)

    def close_later(self, leases: Iterable[Live], reason: str) -> None:
        """End live leases now, and have it written while others are answered: however many a start finds."""
        stopped = self.stop(leases, reason)
        if stopped:
            task = asyncio.get_running_loop().create_task(self._close_in_parts(stopped, reason))
            self._later.add(task)
            task.add_done_callback(self._later.discard)

    async def _close_in_parts(self, stopped: Sequence[Live], reason: str) -> None:
        for some in _batched(stopped, _BATCH):
            if self._halted:
                # The next start finds them as this one did.
                return
            await self._close(some, reason, None)

    async def _close(
        self,
        stopped: Sequence[Live],
        reason: str,
        uid: int | None,
        answers: dict[str, asyncio.Future[LeaseRow]] | None = None,
    ) -> list[Change]:
        changes: list[Change] = []
        for some in _batched(stopped, _BATCH):
            # Written before the next are worked out: however many they are, others are answered in between.
            part = [await self._change(live, reason, uid=uid) for live in some]
            if answers is not None:
                answers |= {change.row.id: self.upstream.answer(change.row.id) for change in part if change.attempt}
            await self.write(part)
            changes += part
        return changes

    def stop(self, leases: Iterable[Live], reason: str) -> list[Live]:
        """Take leases out of the book and tell who watches; return those that had not ended yet."""
        taken = self._book.take(leases)
        for live in taken:
            self._begin(live)
        self._hub.publish((live.row for live in taken), reason)
        if taken:
            failpoints.reached("revoke.stopped")
        return taken

    def _begin(self, live: Live) -> None:
        key = live.key
        self._busy.add(live.id)
        self._closing[live.id] = key
        self._closing_keys[key] += 1

    async def _change(self, live: Live, reason: str, *, uid: int | None = None) -> Change:
        """Work out how a lease that was stopped ends; writes nothing: :meth:`write` does."""
        now, row = self._clock.now(), live.row
        row.end_reason, row.ended_at, row.next_attempt_at = reason, now, None
        change = await ended_here(row, self._kind_of(row), clock=self._clock, uid=uid)
        if change is not None:
            return change
        row.state, row.next_attempt_at = "revoking", now
        return Change(row, (), attempt=True)

    # --- writing it ---

    async def write(self, changes: Sequence[Change]) -> None:
        """Write how leases ended. What cannot be written now is written at the next sweep."""
        for start in range(0, len(changes), _BATCH):
            await self._write_part(list(changes[start : start + _BATCH]))

    async def _write_part(self, part: list[Change]) -> None:
        writing = asyncio.ensure_future(self._store.write(functools.partial(apply, part)))
        if any(change.attempt for change in part):
            await asyncio.wait([writing], timeout=_SLOW_WRITE_S)
            if not writing.done():
                part = self._try_unwritten(part)
        try:
            await writing
        except ProblemError as error:
            # When only the log failed the rows stand, and the store owes it the events.
            if not stands(error):
                self._unwritten += self._try_unwritten(part)
                return
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not leave a lease that nobody ends
            _log.error("ends-not-written", exc_info=error)
            self._unwritten += self._try_unwritten(part)
            return
        if any(change.row.id in self._closing for change in part):
            failpoints.reached("revoke.row-written")
        self._settled(part)

    def _try_unwritten(self, part: Iterable[Change]) -> list[Change]:
        """Have ends tried upstream though their rows are not written; return the changes with that done."""
        part = list(part)
        self.upstream.want((change.row for change in part if change.attempt), written=False)
        return [dataclasses.replace(change, attempt=False) for change in part]

    def _settled(self, changes: Iterable[Change]) -> None:
        """Note that changes are committed, and begin what is to be tried upstream."""
        wanted = []
        for change in changes:
            row = change.row
            self._busy.discard(row.id)
            key = self._closing.pop(row.id, None)
            if key is not None:
                self._closing_keys[key] -= 1
                if not self._closing_keys[key]:
                    del self._closing_keys[key]
            if change.attempt:
                wanted.append(row)
            elif not change.begun:
                self.upstream.settled(row.id)
                if row.state in ("revoked", "expired"):
                    self._values.let_go(row.id)
                    self._metrics.ended(row)
        if wanted:
            self.upstream.want(wanted, written=True)

    async def clear(self, key: Key) -> None:
        """Wait until every end of a lease of ``key`` is written: only then may another one begin.

        Errors: ``state-unavailable`` while it cannot be written.
        """
        while key in self._closing_keys:
            if self._unwritten:
                await self._write_again()
                if self._unwritten:
                    raise ProblemError("state-unavailable", retry_after=5)
            # The write is on its way, or about to be: what is read after it sees it.
            await self._store.read(lambda _connection: None)

    async def _write_again(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        await self.write(unwritten)

    # --- the sweep ---

    async def sweep(self) -> float | None:
        """End what is due by either clock, have tried what is to be tried; return when the next is due.

        Bounded batches over the index: what is not due costs nothing, and what is does not keep a sweep from ending.
        """
        await self._write_again()
        if self._clock_went_back():
            # What waits may wait for an instant that only the wrong clock would have come to soon.
            await self._store.write(lambda found: (lease_queue.bring_forward(found, now=self._clock.now()), ()))
        self.upstream.look()
        for _ in range(_BATCHES):
            if self._halted or not await self._end_due():
                break
        else:
            return self._clock.now()
        await self._call_on_kinds()
        clock = self._clock
        now, boot, boot_id = clock.now(), clock.boottime(), clock.boot_id()
        wall_at, boot_at = await self._store.read(
            lambda found: lease_queue.next_ends(found, now=now, boot=boot, boot_id=boot_id)
        )
        ends = [] if wall_at is None else [wall_at]
        if boot_at is not None:
            ends.append(now + boot_at - boot)
        return min(ends, default=None)

    def _moment(self) -> Moment:
        clock, highest = self._clock, self._store.highest_wall
        return Moment(now=clock.now(), boot_id=clock.boot_id(), boot=clock.boottime(), highest_wall=highest)

    def _clock_went_back(self) -> bool:
        """Say whether the wall clock was set back since the last sweep, or before the first one."""
        now, highest = self._clock.now(), self._store.highest_wall
        before, self._wall_ahead_s = self._wall_ahead_s, now - self._clock.boottime()
        known, self._highest_wall = self._highest_wall, highest
        went_back = before is not None and before - self._wall_ahead_s > _STEP_BACK_S
        return went_back or (highest != known and highest - now > _STEP_BACK_S)

    async def _end_due(self) -> bool:
        """End one batch; say whether there may be more."""
        moment = self._moment()
        rows = await self._store.read(lambda found: lease_queue.due(found, moment, limit=_BATCH))
        changes: list[Change] = []
        stopped: list[tuple[Live, str]] = []
        # All before anything is waited for: what was read is as old as that.
        for row in rows:
            reason = "replaced" if row.end_reason == "replaced" else "expired"
            live = self._book.get(row.id)
            if live is not None:
                stopped += [(one, reason) for one in self.stop([live], reason)]
            elif row.id in self._busy or self.upstream.holds(row.id):
                continue
            elif row.state == "orphan_suspect":
                change = self._suspect_over(row, moment.now)
                if change is not None:
                    self._busy.add(row.id)
                    changes.append(change)
            else:
                stopped.append((Live(row), reason))
                self._begin(stopped[-1][0])
        changes += [await self._change(live, reason) for live, reason in stopped]
        await self.write(changes)
        return bool(changes) and len(rows) >= _BATCH

    def _suspect_over(self, row: LeaseRow, now: float) -> Change | None:
        """Return what becomes of a suspect at its worst-case end; None while its kind is about to be asked first."""
        if orphans.finder(row, self._kind_of(row)) is None or row.how == orphans.NOT_FOUND:
            row.end_reason, row.ended_at = "expired", now
            return Change(row, (over(row, "expired_only", expired=True),))
        return orphans.unseen_to_the_end(row, now=now) if row.attempts else None

    async def _call_on_kinds(self) -> None:
        """Have leases tried that waited for their kind: suspects that it can look for, what it was not there to end."""
        waiting = await self._store.read(lease_queue.waiting)
        given = [
            (what, row.token)
            for what, row in waiting
            if (orphans.finder(row, self._kind_of(row)) if what == "unsought" else self._kind_of(row)) is not None
        ]
        if given:
            now = self._clock.now()
            await self._store.write(lambda found: (lease_queue.wait_no_longer(found, given, now=now), ()))
            self.upstream.look()

    def works_on(self, lease_id: str) -> bool:
        """Say whether a lease is live, or its end is being written or tried."""
        return lease_id in self._busy or lease_id in self._book or self.upstream.holds(lease_id)

    # --- stopping ---

    def halt(self) -> None:
        """Let a sweep that is under way end soon."""
        self._halted = True

    async def drain(self, timeout_s: float) -> None:
        """Wait, no longer than that, until nothing is being tried upstream and nothing more may be now."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                if self._later:
                    await asyncio.wait(list(self._later))
                await self.upstream.idle()

    async def stop_trying(self, timeout_s: float) -> int:
        """Let attempts finish and begin none; return how many did not. They are tried again after the next start."""
        self.halt()
        if self._later:
            await asyncio.wait(list(self._later), timeout=timeout_s)
        return await self.upstream.stop(timeout_s)


def _batched(leases: Sequence[Live], size: int) -> Iterator[Sequence[Live]]:
    """Yield ``leases`` in parts."""
    return (leases[start : start + size] for start in range(0, len(leases), size))


def _report(row: LeaseRow) -> RevokedLease:
    return RevokedLease(lease_id=row.id, profile=row.profile, kind=row.kind, state=row.state, how=row.how)
