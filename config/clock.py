"""Time, as the two programs see it.

Instants are ``float`` seconds since the Unix epoch and their names end in ``_at``; on the wire they are RFC 3339
UTC with milliseconds. Time enters a program through one :class:`Clock`; pure functions take ``now`` as a keyword.

Two clocks end a loan (a lease, a run): the wall clock, and the boot clock, which counts suspended time and never
jumps. Whichever is first ends it, so a jump of the wall clock may end a loan early and never late.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

#: In seconds since the epoch: from here on RFC 3339 has no instants.
YEAR_10000: Final = 253_402_300_800


class Clock(Protocol):
    """Where a program reads time from."""

    def now(self) -> float:
        """Return the wall clock: seconds since the Unix epoch."""
        ...

    def boottime(self) -> float:
        """Return seconds since boot, suspended time included (``CLOCK_BOOTTIME``)."""
        ...

    def boot_id(self) -> str:
        """Return a name for this boot: two readings of :meth:`boottime` compare only under the same one."""
        ...


#: What :meth:`Clock.now`, :meth:`Clock.boottime` and :meth:`Clock.boot_id` said.
Moment = tuple[float, float, str]


def moment(clock: Clock) -> Moment:
    """Return this moment on both clocks, for those that look at it several times."""
    return clock.now(), clock.boottime(), clock.boot_id()


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's own clocks. ``boot`` is the boot id, read once by :func:`config.load.boot_id`."""

    boot: str

    def now(self) -> float:
        """Return the wall clock: seconds since the Unix epoch."""
        return time.time()

    def boottime(self) -> float:
        """Return seconds since boot, suspended time included."""
        return time.clock_gettime(_BOOT_CLOCK)

    def boot_id(self) -> str:
        """Return the kernel's boot id."""
        return self.boot


# macOS, for development, has no CLOCK_BOOTTIME; its monotonic clock counts neither jumps nor, there, suspension.
_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class ShiftedClock:
    """A clock moved by what ``shift`` returns, for tests of a served process (see ``config.load.test_clock``).

    ``shift`` returns (seconds added to the wall clock, seconds added to the boot clock, boot id or "").
    """

    base: Clock
    shift: Callable[[], tuple[float, float, str]]

    def now(self) -> float:
        """Return the shifted wall clock: seconds since the Unix epoch."""
        return self.base.now() + self.shift()[0]

    def boottime(self) -> float:
        """Return the shifted boot clock in seconds."""
        return self.base.boottime() + self.shift()[1]

    def boot_id(self) -> str:
        """Return the shifted boot id, else the real one."""
        return self.shift()[2] or self.base.boot_id()


@dataclass(slots=True)
class FakeClock:
    """A clock that only its test moves. ``advance`` moves both clocks; assign to ``wall`` for a jump."""

    wall: float = 1_893_456_000.0
    boot: float = 1_000.0
    boot_name: str = "boot-1"

    def now(self) -> float:
        """Return the wall time that the test set."""
        return self.wall

    def boottime(self) -> float:
        """Return the boot time that the test set."""
        return self.boot

    def boot_id(self) -> str:
        """Return the boot name that the test set."""
        return self.boot_name

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass on both clocks."""
        self.wall += seconds
        self.boot += seconds


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a loan ends, on both clocks. Exactly at the end counts as ended (``now >= expires_at``).

    ``boot_expires_at`` is on the boot clock of ``boot_id``; under another boot only the wall clock counts, and with
    it ``highest_wall``: the highest wall time that was seen before this boot, so that a clock which was set back
    across a reboot does not bring a loan to life again.
    """

    expires_at: float
    boot_expires_at: float
    boot_id: str

    @classmethod
    def after(cls, clock: Clock, seconds: float) -> Deadline:
        """Return the deadline ``seconds`` from now on both clocks."""
        return cls(clock.now() + seconds, clock.boottime() + seconds, clock.boot_id())

    def remaining(self, clock: Clock, *, highest_wall: float = 0.0) -> float:
        """Return the seconds left by the clock that ends first; zero or less means ended."""
        now = clock.now()
        if clock.boot_id() == self.boot_id:
            return min(self.expires_at - now, self.boot_expires_at - clock.boottime())
        return self.expires_at - max(now, highest_wall)

    def ended_at(self, moment: Moment) -> bool:
        """Say whether the loan has ended by either clock, at a moment that was read before."""
        now, boot, boot_id = moment
        return now >= self.expires_at or (boot_id == self.boot_id and boot >= self.boot_expires_at)

    def ended(self, clock: Clock, *, highest_wall: float = 0.0) -> bool:
        """Say whether the loan has ended by either clock."""
        return self.remaining(clock, highest_wall=highest_wall) <= 0


def rfc3339(instant: float) -> str:
    """Write seconds since the epoch as ``2026-11-30T12:00:00.123Z`` (RFC 3339, UTC, milliseconds)."""
    return datetime.fromtimestamp(instant, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_rfc3339(text: str) -> float:
    """Read an RFC 3339 instant with its zone.

    Errors: ``ValueError`` when it is not one, or has no zone.
    """
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError("an instant needs its zone")
    return instant.timestamp()
