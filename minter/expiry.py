"""When leases end: the only file that imports APScheduler.

The lease table is the truth; the scheduler is a clock tick that calls ``sweep``. One job is armed to the earliest
end, another ticks every five seconds in case the first is wrong. Three habits of APScheduler 3 are answered here:

- A job that is late is dropped by default: ``misfire_grace_time=None`` runs it however late it is.
- It sleeps until a wall-clock time and does not notice that the clock was set: :meth:`Expiry.look` compares the
  clocks once a second and arms everything anew when one of them jumped.
- An interval trigger counts through every run that a jump forward made it miss: :class:`_Every` does not.

A lease that is past its end is refused at use whatever happens here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

from config.clock import Clock

TICK_S: Final = 5.0
#: Without a complete sweep for so long the service is not ready.
STALE_S: Final = 3 * TICK_S
_LOOK_S: Final = 1.0
_JUMP_S: Final = 0.5

_log = structlog.get_logger()


class _Every(BaseTrigger):  # type: ignore[misc]
    """Fire so many seconds after now, whenever now is."""

    def __init__(self, seconds: float) -> None:
        self._step = timedelta(seconds=seconds)

    def get_next_fire_time(self, _previous: datetime | None, now: datetime) -> datetime:
        return now + self._step


class Expiry:
    """Calls ``sweep`` when the next lease ends, and every five seconds.

    ``sweep`` ends what is due, may be called at any time, and returns when it is to be called next (seconds since
    the epoch) or None.
    """

    def __init__(self, sweep: Callable[[], Awaitable[float | None]], *, clock: Clock) -> None:
        self._sweep = sweep
        self._clock = clock
        self._sweeping = asyncio.Lock()
        self._armed_at: float | None = None
        self._seen: tuple[float, float] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._swept_boot: float | None = None
        self._first: asyncio.Task[None] | None = None
        self._stopping = False
        # A run that comes while another sweeps waits for it (see tick); to skip it could lose what it was armed for.
        self.scheduler = AsyncIOScheduler(timezone=UTC, job_defaults={"coalesce": True, "max_instances": 10})

    def start(self) -> None:
        """Begin to tick, at once for the first time. Call it on the running loop."""
        self._swept_boot = self._clock.boottime()
        self.scheduler.start()
        self._first = asyncio.get_running_loop().create_task(self.tick())
        self._tick_from_now()
        self.look()

    def arm(self, at: float | None) -> None:
        """Make sure that a sweep runs at ``at``, or earlier."""
        if at is None or self._stopping or (self._armed_at is not None and at >= self._armed_at):
            return
        self._armed_at = at
        # A distance from now, not an instant: the scheduler goes by the system's clock, leases by the injected one.
        run_date = datetime.now(UTC) + timedelta(seconds=max(0.0, at - self._clock.now()))
        self.scheduler.add_job(
            self.tick, "date", run_date=run_date, id="earliest-end", replace_existing=True, misfire_grace_time=None
        )

    async def tick(self) -> None:
        """Sweep now, once for all who ask at the same time, and arm for what ends next."""
        async with self._sweeping:
            if self._stopping:
                return
            self._armed_at = None
            try:
                next_at = await self._sweep()
            except Exception as error:  # noqa: BLE001 - the next tick tries again; readiness tells
                _log.error("sweep-failed", exc_info=error)
                return
            self._swept_boot = self._clock.boottime()
            self.arm(next_at)

    def look(self) -> bool:
        """Compare the clocks; say whether one jumped. What was armed by the old one is then armed anew, for now."""
        self._timer = None
        loop = asyncio.get_running_loop()
        seen = (self._clock.now() - loop.time(), self._clock.boottime() - loop.time())
        jumped = self._seen is not None and any(
            abs(now - before) > _JUMP_S for now, before in zip(seen, self._seen, strict=True)
        )
        self._seen = seen
        if jumped:
            _log.warning("clock-jumped")
            self._tick_from_now()
            self._armed_at = None
            self.arm(self._clock.now())
        if not self._stopping:
            self._timer = loop.call_later(_LOOK_S, self.look)
        return jumped

    def _tick_from_now(self) -> None:
        self.scheduler.add_job(self.tick, _Every(TICK_S), id="tick", replace_existing=True, misfire_grace_time=None)

    def wake(self) -> None:
        """Let the scheduler look at what is due, for a test that moved its time."""
        self.scheduler.wakeup()

    def lag_s(self) -> float:
        """Return the seconds since the last complete sweep."""
        return 0.0 if self._swept_boot is None else self._clock.boottime() - self._swept_boot

    def healthy(self) -> bool:
        """Say whether leases are being swept."""
        return bool(self.scheduler.running) and self.lag_s() <= STALE_S

    async def stop(self) -> None:
        """Let the running sweep finish, then stop. The scheduler itself would cancel it half-way."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        if self._first is not None:
            # It may not have begun: then it finds that there is nothing to do any more.
            await self._first
        async with self._sweeping:
            if self.scheduler.running:
                self.scheduler.shutdown(wait=False)
        await asyncio.sleep(0)
