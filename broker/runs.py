"""The registry of runs: how one is opened, extended, ended, and taken up again after a restart.

What is decided here is on the disk before anybody is told: a run that was opened survives a crash, one that was
ended stays ended. Run tokens are kept as digests; the grant that a run was opened with is kept by its own digest.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

import structlog

from broker import records
from broker.budget import Budget, Reserve
from broker.current import Current, narrow
from broker.learned import Learned
from broker.leases import Lease, Leases
from broker.metrics import Metrics
from broker.opening import Opening, checked_params, checked_ttl, new_run_id, run_row, token_digest
from broker.outbox import Outbox, Waiting
from broker.records import Idempotency
from broker.restoring import restored
from broker.run import Run
from broker.store import Store
from config import tokens
from config.clock import Clock, Deadline
from config.grants import Profile
from config.problems import ProblemError
from config.secret import Secret

log = structlog.get_logger("broker.runs")

#: How long an ended run can be looked up.
KEEP_ENDED_S: Final = 86400.0
#: How long the end of a run waits for its open calls to be gone before its trace is closed.
DRAIN_S: Final = 2.0

_WALL_EVERY_S: Final = 60.0
_PURGE_EVERY_S: Final = 3600.0


@dataclass(slots=True, eq=False)
class _Entry:
    run: Run
    digest: bytes
    ceiling: Deadline
    #: Held while the end is moved: of two extensions at once the second looks at what the first made of it.
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that has ended here; ``notice`` tells when the minter knows."""

    run: Run
    ended_at: float
    notice: Waiting


class Registry:
    """All runs that live."""

    def __init__(
        self,
        *,
        store: Store,
        leases: Leases,
        outbox: Outbox,
        clock: Clock,
        current: Current,
        max_runs: int,
        metrics: Metrics,
        learned: Learned | None = None,
    ) -> None:
        """Start empty; :meth:`restore` takes up the runs of an earlier process. ``max_runs`` is per caller."""
        self.current = current
        self.learned = learned or Learned()
        self._store = store
        self._leases = leases
        self._outbox = outbox
        self._clock = clock
        self._max_runs = max_runs
        self._metrics = metrics
        self._live: dict[str, _Entry] = {}
        self._by_digest: dict[bytes, Run] = {}
        self._endings: dict[str, asyncio.Task[Ended]] = {}
        self._late: set[asyncio.Task[None]] = set()
        self._wall_kept_at = 0.0
        self._purged_at = clock.boottime()

    # --- finding -----------------------------------------------------------------------------------------------

    def by_digest(self, digest: bytes) -> Run | None:
        """Return the run of a run token, by the token's digest."""
        return self._by_digest.get(digest)

    def live(self, *, caller: str | None = None, profile: str | None = None, run_id: str | None = None) -> list[Run]:
        """Return the live runs that fit every filter which is given."""
        return [
            entry.run
            for entry in self._live.values()
            if (caller is None or entry.run.caller == caller)
            and (profile is None or profile in entry.run.profiles)
            and (run_id is None or entry.run.run_id == run_id)
        ]

    def find(self, run_id: str, caller: str) -> Run | None:
        """Return a live run of ``caller``; another caller's is as unknown as one that never was."""
        entry = self._live.get(run_id)
        return entry.run if entry is not None and entry.run.caller == caller else None

    def __len__(self) -> int:
        """Return how many runs live."""
        return len(self._live)

    # --- opening and extending ---------------------------------------------------------------------------------

    async def open(self, opening: Opening, key: Idempotency | None = None) -> tuple[Run, Secret]:
        """Open a run and return it with its token; with ``key`` a replay gets the same run and a new token.

        Errors: ``ProblemError``: ``profile-unknown``, ``params-invalid``, ``ttl-invalid``, ``too-many-runs``,
        ``idempotency-key-reused``, ``run-ended``, ``state-unavailable``.
        """
        granted = [self.current.for_caller(name, opening.caller) for name in opening.profiles]
        profiles = [profile for profile, _ in granted]
        params = checked_params(profiles, opening.params)
        ttl_s = checked_ttl(profiles, opening.ttl_s)
        token = tokens.generate(tokens.RUN)
        digest = token_digest(token)
        ceiling = Deadline.after(self._clock, min(profile.max_ttl_s for profile in profiles))
        run = Run(
            run_id=new_run_id(),
            caller=opening.caller,
            trace_id=opening.trace_id,
            params=params,
            deadline=Deadline.after(self._clock, ttl_s),
            created_at=self._clock.now(),
        )
        row = run_row(run, digest, ceiling, profiles)
        kept_id = await self._store.write(lambda db: records.open_run(db, row, key, max_runs=self._max_runs))
        # The store answers in the order in which it wrote, and from here on nothing is awaited. So of two openings with
        # one key the first one's run is there when the second looks, and the token written last is the one that works.
        if kept_id != run.run_id:
            return self._renamed(kept_id, digest), token
        for profile, matcher in granted:
            budget = self._budget(run, profile)
            run.grant(profile, matcher, budget=budget, leases=self._leases, learned=self.learned)
        self._add(_Entry(run, digest, ceiling))
        # The grants may have been reloaded while the row was written.
        if (reason := narrow(run, self.current)) is not None:
            await self.end(run, reason)
            raise ProblemError("run-ended", "the grants changed while the run was opened")
        self._metrics.run_opened()
        log.info(
            "run-opened",
            run_id=run.run_id,
            caller=run.caller,
            profiles=list(run.profiles),
            ttl_s=ttl_s,
            trace_id=run.trace_id,
        )
        return run, token

    async def extend(self, run: Run, ttl_s: float) -> None:
        """Let ``run`` end ``ttl_s`` from now, or at its ceiling if that is earlier.

        Errors: ``ProblemError``: ``ttl-invalid`` when that is no later than it ends anyway, ``run-ended``,
        ``state-unavailable``.
        """
        entry = self._live.get(run.run_id)
        if entry is None:
            raise ProblemError("run-ended")
        async with entry.moving:
            remaining_s = await self._move_end(entry, ttl_s)
        log.info("run-extended", run_id=run.run_id, caller=run.caller, ttl_s=round(remaining_s, 3))

    async def _move_end(self, entry: _Entry, ttl_s: float) -> float:
        run = entry.run
        if run.ended is not None or run.deadline.ended(self._clock):
            raise ProblemError("run-ended")
        ceiling_s = self._ceiling_s(entry)
        remaining_s = min(ttl_s, ceiling_s)
        if remaining_s <= run.deadline.remaining(self._clock):
            raise ProblemError(
                "ttl-invalid", "the run would not end later than it does", longest_s=max(0.0, round(ceiling_s, 3))
            )
        deadline = Deadline.after(self._clock, remaining_s)
        await self._store.write(lambda db: records.move_end(db, run.run_id, deadline=deadline, ceiling=entry.ceiling))
        run.deadline = deadline
        self._shorten(entry)  # the grants may have been reloaded meanwhile
        return remaining_s

    def _ceiling_s(self, entry: _Entry) -> float:
        """Return the seconds that the run can go on at most, by the grants as they are now."""
        left = entry.ceiling.remaining(self._clock)
        granted = entry.run.profiles.values()
        opened_with = min(profile.frozen.max_ttl_s for profile in granted)
        now = min(profile.current[0].max_ttl_s if profile.current else opened_with for profile in granted)
        return left - max(0.0, opened_with - now)

    # --- ending ------------------------------------------------------------------------------------------------

    async def end(self, run: Run, reason: str) -> Ended:
        """End ``run``: at once here, then durably; return when that is done and its open calls are gone.

        Whoever asks a second time meanwhile waits for the same end.

        Errors: ``ProblemError``: ``run-not-found`` when it has ended before; ``state-unavailable``: the run has ended
        here then, and its end is written as soon as that works again (:meth:`tick`).
        """
        entry = self._live.get(run.run_id)
        if entry is None:
            raise ProblemError("run-not-found")
        run.end(reason)
        self._by_digest.pop(entry.digest, None)
        task = self._endings.get(run.run_id)
        if task is None or task.done():
            task = asyncio.create_task(self._end(run, run.ended or reason))
            self._endings[run.run_id] = task
        # Whoever asked may go away; the end goes on.
        return await asyncio.shield(task)

    async def _end(self, run: Run, reason: str) -> Ended:
        calls = [call.waiting for call in run.open_calls if call.waiting is not None]
        ended_at = self._clock.now()
        trace = run.trace.dump()
        await self._store.write(
            lambda db: records.end_run(db, run.run_id, ended_at=ended_at, reason=reason, trace=trace)
        )
        notice = self._outbox.add(run.run_id, "revoke", created_at=ended_at)
        fetching = [slot.lease.fetching for slot in run.profiles.values() if slot.lease and slot.lease.fetching]
        if fetching:
            self._late.add(late := asyncio.create_task(self._revoke_late(run.run_id, fetching)))
            late.add_done_callback(self._late.discard)
        if calls:
            await asyncio.wait(calls, timeout=DRAIN_S)
            await self._close_trace(run)
        self._outbox.add(run.run_id, "record", created_at=ended_at)
        del self._live[run.run_id], self._endings[run.run_id]
        self._metrics.run_ended(reason)
        log.info(
            "run-ended",
            run_id=run.run_id,
            caller=run.caller,
            reason=reason,
            trace_id=run.trace_id,
            trace=run.trace.snapshot(),
        )
        return Ended(run, ended_at, notice)

    async def _revoke_late(self, run_id: str, fetching: list[asyncio.Task[Lease]]) -> None:
        """Revoke again what the minter was still minting when the run ended."""
        await asyncio.wait(fetching)
        notice = records.Notice(run_id=run_id, kind="revoke", created_at=self._clock.now())
        try:
            await self._store.write(lambda db: records.notify(db, notice))
        except ProblemError as problem:
            # The next process will not know of it; this one tells the minter all the same.
            log.warning("notice-not-kept", run_id=run_id, code=problem.code)
        self._outbox.add(run_id, "revoke", created_at=notice.created_at)

    async def _close_trace(self, run: Run) -> None:
        """Write what the calls that were cut added to the trace."""
        traces = [(run.run_id, run.trace.dump())]
        try:
            await self._store.write(lambda db: records.save_traces(db, traces, highest_wall=self._clock.now()))
        except ProblemError as problem:
            log.warning("trace-incomplete", run_id=run.run_id, code=problem.code)

    # --- as time passes ----------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """End what is over, write the traces, forget what is long over: what is done once a second.

        No use of a run waits for this: every call asks the run's own deadline.
        """
        over = [entry.run for entry in self._live.values() if entry.run.deadline.ended(self._clock)]
        unwritten = [entry.run for entry in self._live.values() if entry.run.ended is not None]
        results = await asyncio.gather(
            *(self.end(run, "expired") for run in {*over, *unwritten}),
            self.write_traces(),
            self.learned.write(),
            self._purge(),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, ProblemError):
                raise result

    async def write_traces(self, *, always: bool = False) -> None:
        """Write the traces that changed, and now and then (or ``always``) the wall time."""
        changed = [entry.run for entry in self._live.values() if entry.run.trace.dirty]
        now = self._clock.now()
        if not changed and not always and now - self._wall_kept_at < _WALL_EVERY_S:
            return
        traces = [(run.run_id, run.trace.dump()) for run in changed]
        try:
            await self._store.write(lambda db: records.save_traces(db, traces, highest_wall=now))
        except BaseException:
            for run in changed:
                run.trace.dirty = True
            raise
        self._wall_kept_at = max(self._wall_kept_at, now)

    async def _purge(self) -> None:
        if self._clock.boottime() - self._purged_at >= _PURGE_EVERY_S:
            self._purged_at = self._clock.boottime()
            ended_before = self._clock.now() - KEEP_ENDED_S
            while await self._store.write(lambda db: records.purge(db, ended_before=ended_before)):
                pass
            learned = list(self.learned)
            kept = await self._store.read(lambda db: records.known(db, learned))
            self.learned.forget(set(learned) - kept)

    # --- restart and reload ------------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Take up the runs of an earlier process, as far as the current grants still allow."""
        rows = await self._store.read(records.live_runs)
        highest = await self._store.read(records.highest_wall)
        ending: list[tuple[Run, str]] = []
        for row in rows:
            run, ceiling, reason = restored(
                row,
                current=self.current,
                leases=self._leases,
                clock=self._clock,
                highest_wall=highest,
                budget=self._budget,
                learned=self.learned,
            )
            entry = _Entry(run, row.token_digest, ceiling)
            self._add(entry)
            if reason is not None:
                ending.append((run, reason))
            else:
                self._shorten(entry)
        await self._end_all(ending)
        log.info("runs-restored", live=len(rows) - len(ending), ended=len(ending))

    async def regrant(self, current: Current) -> None:
        """Go by ``current`` from now on: new runs, and as far as it is narrower the ones that live."""
        self.current = current
        ending: list[tuple[Run, str]] = []
        for entry in self._live.values():
            run = entry.run
            if run.ended is None and (reason := narrow(run, current)) is not None:
                run.end(reason)
                ending.append((run, reason))
        shorter = [entry for entry in self._live.values() if self._shorten(entry)]
        await self._end_all(ending)
        await asyncio.gather(*(self._write_deadline(entry) for entry in shorter), return_exceptions=True)

    async def _end_all(self, ending: list[tuple[Run, str]]) -> None:
        """End runs; what cannot be written now has ended all the same, and :meth:`tick` writes it."""
        await asyncio.gather(*(self.end(run, reason) for run, reason in ending), return_exceptions=True)

    def _shorten(self, entry: _Entry) -> bool:
        """Bring the end of a run forward to what the current grants allow; say whether that changed it."""
        run = entry.run
        if run.ended is not None or (longest_s := self._ceiling_s(entry)) >= run.deadline.remaining(self._clock):
            return False
        run.deadline = Deadline.after(self._clock, max(0.0, longest_s))
        return True

    async def _write_deadline(self, entry: _Entry) -> None:
        run = entry.run
        await self._store.write(
            lambda db: records.move_end(db, run.run_id, deadline=run.deadline, ceiling=entry.ceiling)
        )

    # --- parts -------------------------------------------------------------------------------------------------

    def _add(self, entry: _Entry) -> None:
        self._live[entry.run.run_id] = entry
        self._by_digest[entry.digest] = entry.run

    def _renamed(self, run_id: str, digest: bytes) -> Run:
        entry = self._live.get(run_id)
        if entry is None or entry.run.ended is not None:
            raise ProblemError("run-ended", "the run that this Idempotency-Key opened has ended")
        self._by_digest.pop(entry.digest, None)
        entry.digest = digest
        self._by_digest[digest] = entry.run
        log.info("run-token-replaced", run_id=run_id, caller=entry.run.caller)
        return entry.run

    def _budget(self, run: Run, profile: Profile, spent: int = 0) -> Budget:
        return Budget(profile.max_calls, self._reserve(run, profile.name), spent=spent)

    def _reserve(self, run: Run, profile: str) -> Reserve:
        async def reserve(wanted: int) -> int:
            limit = run.profiles[profile].max_calls
            return await self._store.write(
                lambda db: records.reserve(db, run.run_id, profile, wanted=wanted, limit=limit)
            )

        return reserve
