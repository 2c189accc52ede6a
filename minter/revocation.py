"""How leases end: use stops at once, the row says so next, and the end upstream is tried until it is known.

1. :meth:`Endings.stop` takes a lease out of the book and tells the watching broker: nobody can use it from here on.
2. The row is written. A local kind is over with that; the others are ``revoking`` and are tried upstream at once.
3. What fails is tried again: six times from ten seconds on, doubling, each ±50 %, never before the issuer's
   ``Retry-After``. Then, or at once when the issuer says that it never will, the lease is ``irrevocable``: seen,
   counted, and tried once an hour until its credential ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from config.clock import Clock
from config.contract import RevokedLease
from config.problems import ProblemError
from minter import lease_rows
from minter.audit_events import Event
from minter.book import Book, Key, Live
from minter.kinds import Kind, RevocationError
from minter.lease_events import facts, over
from minter.lease_rows import LeaseRow, Moment
from minter.lease_values import LeaseValues
from minter.metrics import Metrics
from minter.store import Connection, Store, UndoneError
from minter.watch import WatchHub

ATTEMPTS: Final = 6
FIRST_DELAY_S: Final = 10.0
JITTER: Final = 0.5
SLOW_S: Final = 3600.0
#: An upstream that answers no revocation must not hold up those of others.
AT_ONCE_PER_PROFILE: Final = 8
_ATTEMPT_S: Final = 60.0
#: So long an answer waits to say how a lease ended; then it says that it is still being tried.
_ANSWER_S: Final = 5.0
_BATCH: Final = 500
#: Smaller steps back are the clock being steered.
_STEP_BACK_S: Final = 5.0
#: Reasons that are no revocation: the lease was over in its own time.
_ENDED_IN_TIME: Final = ("expired", "replaced")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Change:
    """A row as it is to be and what the audit log is told; ``attempt``: its end upstream is to be tried at once."""

    row: LeaseRow
    events: tuple[Event, ...] = ()
    attempt: bool = False


class Endings:
    """Ends leases. ``kind_of`` returns the kind that made a row's credential, or None when it cannot be had."""

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
        spread: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._store = store
        self._book = book
        self._hub = hub
        self._kind_of = kind_of
        self._values = values
        self._clock = clock
        self._metrics = metrics
        self._spread = spread
        #: Leases whose end somebody is working on, and the keys whose last lease is not written as ended yet.
        self._busy: set[str] = set()
        self._closing: dict[str, Key] = {}
        self._closing_keys: Counter[Key] = Counter()
        self._unwritten: list[Change] = []
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE_PER_PROFILE))
        self._attempts: dict[str, asyncio.Task[None]] = {}
        #: By how much the wall clock was before the boot clock at the last sweep.
        self._wall_ahead_s: float | None = None
        #: The highest wall time that was known then.
        self._highest_wall = 0.0

    # --- ending before time ---

    async def end(self, leases: Iterable[Live], reason: str, *, uid: int | None = None) -> list[RevokedLease]:
        """End live leases now; return how each ended, after one attempt upstream where there is one."""
        return await self._reports(await self.close(leases, reason, uid=uid))

    async def end_all(
        self, which: Callable[[Live], bool], reason: str, *, uid: int | None = None
    ) -> list[RevokedLease]:
        """End the live leases that ``which`` picks, likewise. However many there are, others are answered meanwhile."""
        stopped: list[Live] = []
        for some in self._book.slices():
            stopped += self.stop([live for live in some if which(live)], reason)
            await asyncio.sleep(0)
        return await self._reports(await self._close(stopped, reason, uid=uid))

    async def _reports(self, changes: Sequence[Change]) -> list[RevokedLease]:
        attempts = [self._attempts[change.row.id] for change in changes if change.row.id in self._attempts]
        if attempts:
            await asyncio.wait(attempts, timeout=_ANSWER_S)
        return [_report(change.row) for change in changes]

    async def close(self, leases: Iterable[Live], reason: str, *, uid: int | None = None) -> list[Change]:
        """End live leases now; wait until that is written, not for what is to be done upstream."""
        return await self._close(self.stop(leases, reason), reason, uid=uid)

    async def _close(self, stopped: Sequence[Live], reason: str, *, uid: int | None) -> list[Change]:
        changes: list[Change] = []
        for some in _batched(stopped, _BATCH):
            # Written before the next are worked out: however many they are, others are answered in between.
            part = [await self._change(live, reason, uid=uid) for live in some]
            await self.write(part)
            changes += part
        return changes

    def stop(self, leases: Iterable[Live], reason: str) -> list[Live]:
        """Take leases out of the book and tell who watches; return those that had not ended yet."""
        taken = self._book.take(leases)
        for live in taken:
            self._begin(live)
        self._hub.publish((live.row for live in taken), reason)
        return taken

    def _begin(self, live: Live) -> None:
        key = live.key
        self._busy.add(live.id)
        self._closing[live.id] = key
        self._closing_keys[key] += 1

    async def _change(self, live: Live, reason: str, *, uid: int | None = None) -> Change:
        """Work out how a lease that was stopped ends; writes nothing: :meth:`write` does."""
        row = live.row
        row.end_reason, row.ended_at, row.next_attempt_at = reason, self._clock.now(), None
        change = await self._over_here(row, uid=uid)
        if change is not None:
            return change
        row.state, row.next_attempt_at = "revoking", row.ended_at
        return Change(row, (), attempt=True)

    async def write(self, changes: Sequence[Change]) -> None:
        """Write how leases ended. What cannot be written now is written at the next sweep."""
        for start in range(0, len(changes), _BATCH):
            part = changes[start : start + _BATCH]
            try:
                await self._store.write(functools.partial(_apply, part))
            except ProblemError as error:
                # When only the log failed the rows stand, and the store owes it the events.
                if error.code != "audit-unavailable" or isinstance(error, UndoneError):
                    self._unwritten += part
                    continue
            self._settled(part)

    def _settled(self, changes: Iterable[Change]) -> None:
        """Note that changes are committed, and begin what is to be tried upstream."""
        for change in changes:
            row = change.row
            key = self._closing.pop(row.id, None)
            if key is not None:
                self._closing_keys[key] -= 1
                if not self._closing_keys[key]:
                    del self._closing_keys[key]
            if change.attempt:
                self._start(row)
                continue
            self._busy.discard(row.id)
            if row.state in ("revoked", "expired"):
                self._values.let_go(row.id)
                self._metrics.ended(row)

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

    # --- the sweep ---

    async def sweep(self) -> float | None:
        """End what is due by either clock and try what is to be tried; return when the next is due.

        Bounded batches over the index: what is not due costs nothing.
        """
        await self._write_again()
        if self._clock_went_back():
            # What waits may wait for an instant that only the wrong clock would have come to soon.
            await self._store.write(lambda found: (lease_rows.bring_forward(found, now=self._clock.now()), ()))
        while await self._end_due():
            pass
        while await self._try_due():
            pass
        boot_id = self._clock.boot_id()
        wall_at, boot_at = await self._store.read(lambda found: lease_rows.next_ends(found, boot_id=boot_id))
        ends = [] if wall_at is None else [wall_at]
        if boot_at is not None:
            ends.append(self._clock.now() + boot_at - self._clock.boottime())
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
        rows = await self._store.read(lambda found: lease_rows.due(found, moment, limit=_BATCH))
        due = []
        for row in rows:
            live = self._book.get(row.id)
            if live is not None:
                due += self.stop([live], "expired")
            elif row.id not in self._busy:
                due.append(Live(row))
                self._begin(due[-1])
        await self.write([await self._change(live, "expired") for live in due])
        return bool(due) and len(rows) >= _BATCH

    async def _try_due(self) -> bool:
        """Try one batch; say whether there may be more."""
        moment = self._moment()
        # Those being tried are among them: an upstream that hangs must not keep others from being looked at.
        limit = _BATCH + len(self._busy)
        rows = await self._store.read(lambda found: lease_rows.attempts_due(found, moment, limit=limit))
        done = []
        for row in rows:
            live = self._book.get(row.id)
            if live is not None:
                self.stop([live], "expired")
            elif row.id in self._busy:
                continue
            self._busy.add(row.id)
            row.ended_at = row.ended_at or moment.now
            change = await self._over_here(row)
            if change is None:
                self._start(row)
            else:
                done.append(change)
        await self.write(done)
        return bool(done) and len(rows) >= limit

    async def _over_here(self, row: LeaseRow, *, uid: int | None = None) -> Change | None:
        """Return the end of a lease that needs nothing upstream: of a local kind, or ended by itself; else None."""
        end = row.expires_at if row.state == "orphan_suspect" else row.credential_ends_at
        kind = self._kind_of(row)
        if kind is not None and kind.local:
            # A kind that fails here is tried again like an upstream; the lease is out of use already.
            with contextlib.suppress(Exception):
                how = (await kind.revoke(row, None)).how
                return Change(row, (over(row, how, expired=row.end_reason in _ENDED_IN_TIME, uid=uid),))
        if end is not None and end <= self._clock.now():
            return Change(row, (over(row, "expired_only", expired=True),))
        return None

    async def _write_again(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        await self.write(unwritten)

    # --- upstream ---

    def _start(self, row: LeaseRow) -> None:
        self._busy.add(row.id)
        task = self._attempts[row.id] = asyncio.create_task(self._attempt(row))
        task.add_done_callback(lambda _task: self._attempts.pop(row.id, None))

    async def _attempt(self, row: LeaseRow) -> None:
        try:
            async with self._slots[row.profile]:
                how = await self._revoke(row)
        except RevocationError as error:
            event = self._failed(row, error)
        else:
            event = over(row, how, expired=row.end_reason in _ENDED_IN_TIME)
        await self.write([Change(row, (event,))])

    async def _revoke(self, row: LeaseRow) -> str:
        """Ask the kind to end the credential. Whatever it raises becomes a :class:`RevocationError`."""
        kind = self._kind_of(row)
        if kind is None:
            raise RevocationError(permanent=True)
        try:
            async with asyncio.timeout(_ATTEMPT_S):
                return (await kind.revoke(row, await self._values.to_revoke(row))).how
        except RevocationError:
            raise
        except Exception as error:  # noqa: BLE001 - a plug-in's own; its text stays out
            _log.warning("revocation-failed", lease_id=row.id, kind=row.kind, exc_info=error)
            raise RevocationError from None

    def _failed(self, row: LeaseRow, error: RevocationError) -> Event:
        now = self._clock.now()
        if not error.permanent:
            row.attempts += 1
        was_irrevocable = row.state == "irrevocable"
        if error.permanent or row.attempts >= ATTEMPTS or was_irrevocable:
            row.state = "irrevocable"
            delay_s = SLOW_S
        else:
            delay_s = FIRST_DELAY_S * 2 ** (row.attempts - 1)
        delay_s *= self._spread(1 - JITTER, 1 + JITTER)
        row.next_attempt_at = now + max(delay_s, error.retry_after or 0.0)
        if row.credential_ends_at is not None:
            row.next_attempt_at = min(row.next_attempt_at, max(row.credential_ends_at, now))
        self._metrics.revocation_failed(row.kind, permanent=error.permanent)
        turned = row.state == "irrevocable" and not was_irrevocable
        return Event(
            "lease.irrevocable" if turned else "lease.revoke-failed",
            {
                **facts(row),
                "reason": row.end_reason,
                "attempts": row.attempts,
                "next_attempt_at": row.next_attempt_at,
            },
        )

    async def drain(self, timeout_s: float) -> int:
        """Let attempts finish; return how many did not. They are tried again after the next start."""
        attempts = list(self._attempts.values())
        if attempts:
            _, left = await asyncio.wait(attempts, timeout=timeout_s)
            for task in left:
                task.cancel()
            return len(left)
        return 0


def _batched(leases: Sequence[Live], size: int) -> Iterator[Sequence[Live]]:
    """Yield ``leases`` in parts."""
    return (leases[start : start + size] for start in range(0, len(leases), size))


def _apply(changes: Sequence[Change], connection: Connection) -> tuple[None, list[Event]]:
    lease_rows.update(connection, [change.row for change in changes])
    return None, [event for change in changes for event in change.events]


def _report(row: LeaseRow) -> RevokedLease:
    return RevokedLease(lease_id=row.id, profile=row.profile, kind=row.kind, state=row.state, how=row.how)
