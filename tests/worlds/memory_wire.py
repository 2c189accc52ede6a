"""A connection without a network: a transport in memory, and a loop that has no clock but its own.

For tests of protocols that try many thousand inputs. Nothing here waits: when nothing is ready, time jumps to the next
timer, and when there is none either, what was waited for never comes and the loop says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any


class StuckError(AssertionError):
    """What is waited for cannot come any more."""


class _NoSelector:
    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise StuckError
        self.loop.now += timeout
        return []


class Loop(asyncio.BaseEventLoop):
    """An event loop of callbacks, timers and tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self._selector = _NoSelector(self)
        #: What escaped a callback or a task.
        self.escaped: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.escaped.append(context))

    def time(self) -> float:
        return self.now

    def _process_events(self, events: list[Any]) -> None:
        assert not events

    async def settle(self) -> None:
        """Let run what is ready, and what that makes ready, but no timer."""
        turns = 0
        while self._ready:
            await asyncio.sleep(0)
            turns += 1
            assert turns < 10_000, "something runs for ever"


class Wire(asyncio.Transport):
    """One end of a connection. ``written`` is what the protocol wrote; ``ended``: it ended its own side in order."""

    def __init__(self, loop: Loop, protocol: Any, **extra: Any) -> None:
        super().__init__(extra)
        self.loop = loop
        self.protocol = protocol
        self.written = b""
        self.paused = False
        self.ended = False
        self.aborted = False
        self.closing = False
        self.lost = False

    # --- what the protocol calls ---

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: Any) -> None:
        assert not self.ended, "written after the end"
        if not self.closing:
            self.written += bytes(data)

    def writelines(self, lines: Iterable[Any]) -> None:
        self.write(b"".join(lines))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_reading(self) -> bool:
        return not self.paused and not self.closing

    def close(self) -> None:
        self._close()

    def abort(self) -> None:
        self.aborted = True
        self._close()

    def _close(self) -> None:
        if not self.closing:
            self.closing = True
            self.loop.call_soon(self._lose)

    def _lose(self) -> None:
        self.lost = True
        self.protocol.connection_lost(None)

    # --- what the other end does ---

    async def deliver(self, pieces: Iterable[bytes], *, turns: bool) -> None:
        """Deliver pieces while the connection is read; ``turns``: the loop settles after each."""
        for piece in pieces:
            if self.paused:
                await self.loop.settle()
            if self.closing:
                return
            assert not self.paused, "nothing runs, and the connection is not read"
            self.protocol.data_received(piece)
            if turns:
                await self.loop.settle()
        await self.loop.settle()

    async def end(self) -> None:
        """End the other side's sending, in order."""
        if not self.closing and not self.protocol.eof_received():
            self.close()
        await self.loop.settle()


def play(main: Callable[[Loop], Any]) -> Any:
    """Run ``main(loop)``; whatever escaped a callback or was left unhandled fails."""
    loop = Loop()
    try:
        result = loop.run_until_complete(main(loop))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()
    assert not loop.escaped, loop.escaped
    return result
