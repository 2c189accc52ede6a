"""The calls that are open, and one sweep over them in place of timers of their own.

Four times a second every open call is looked at: one that waits too long for its API is cut. A fast call is over before
anybody looks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.call import Call
    from config.clock import Clock

#: Seconds between two sweeps.
EVERY_S: Final = 0.25


class OpenCalls:
    """All open calls of this broker."""

    def __init__(self, clock: Clock, *, header_timeout_s: float, idle_timeout_s: float) -> None:
        """Take how long an API may let us wait for an answer's head, and for the next piece of it."""
        self._clock = clock
        self._header_timeout_s = header_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._calls: set[Call] = set()

    def __len__(self) -> int:
        """Return how many calls are open."""
        return len(self._calls)

    def add(self, call: Call) -> None:
        """Begin to look after a call."""
        self._calls.add(call)
        call.run.open_calls.add(call)

    def discard(self, call: Call) -> None:
        """Stop looking after a call."""
        self._calls.discard(call)
        call.run.open_calls.discard(call)

    async def watch(self) -> None:
        """Sweep for ever."""
        while True:
            self.sweep()
            await asyncio.sleep(EVERY_S)

    def sweep(self) -> None:
        """Look at every open call once."""
        now = self._clock.boottime()
        for call in tuple(self._calls):
            # What came or went since the last look: pieces need not tell the time themselves.
            moved = call.bytes_sent + call.bytes_back + call.answered
            if moved != call.moved:
                call.moved, call.moved_at = moved, call.moved_at and now
            limit_s = self._idle_timeout_s if call.answered else self._header_timeout_s
            if call.moved_at and now - call.moved_at > limit_s:
                call.cut("upstream-timeout")
