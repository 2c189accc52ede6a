"""Idle event streams through the broker: what they cost in memory, and how late an event is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import statistics
import time
from pathlib import Path
from typing import Final

from ops.bench import stacks, upstreams
from ops.bench.processes import OTHER_CORE, resident_bytes
from ops.bench.targets import Outcome

_EVENT: Final = re.compile(rb"data: (\d+)\n\n")
#: How long all streams may take to get their first event.
_OPENING_S: Final = 60
_RUNS: Final = 10


def measure(base: Path, *, streams: int, seconds: float, every_s: float) -> list[Outcome]:
    """Print the broker's memory before, with the streams open, and at the end; and the delay of the events."""
    base = base / "streams"
    base.mkdir()
    with contextlib.ExitStack() as running:
        origin = running.enter_context(upstreams.events(base, every_s=every_s))
        stack = running.enter_context(stacks.broker(base, stacks.Origins(events=origin)))
        tokens = running.enter_context(stacks.runs(stack, "events", _RUNS))
        os.sched_setaffinity(0, {OTHER_CORE})
        return asyncio.run(_measure(stack, tokens, streams=streams, seconds=seconds))


async def _measure(stack: stacks.Stack, tokens: list[str], *, streams: int, seconds: float) -> list[Outcome]:
    assert stack.pid is not None
    # One of each run first: leases and all that is made once are no growth.
    await _over(_open(stack, tokens, len(tokens)))
    before = resident_bytes(stack.pid) / 1e6
    listeners = _open(stack, tokens, streams)
    await asyncio.wait_for(asyncio.gather(*(listener.opened.wait() for listener in listeners)), _OPENING_S)
    opened = resident_bytes(stack.pid) / 1e6
    await asyncio.sleep(seconds)
    after = resident_bytes(stack.pid) / 1e6
    ended = sum(listener.task.done() for listener in listeners)
    delays = sorted(delay for listener in listeners for delay in listener.delays_ms)
    await _over(listeners)
    p99 = statistics.quantiles(delays, n=100)[98]
    print(f"\n{streams} idle event streams for {seconds:.0f} s ({ended} ended early):")
    print(f"  memory of the broker: {before:.1f} MB before, {opened:.1f} MB with them open, {after:.1f} MB at the end")
    print(f"  delay of {len(delays):,} events: p50 {statistics.median(delays):.2f} ms, p99 {p99:.2f} ms,", end=" ")
    print(f"longest {delays[-1]:.1f} ms")
    note = f"{ended} ended early" if ended else ""
    return [
        Outcome(
            f"growth over {streams} streams for {seconds:.0f} s, MB", 10, after - before, at_least=False, note=note
        ),
        Outcome("an event's delay, p99, ms", 50, p99, at_least=False, note=note),
    ]


def _open(stack: stacks.Stack, tokens: list[str], count: int) -> list[_Listener]:
    return [_Listener(stack, tokens[number % len(tokens)]) for number in range(count)]


async def _over(listeners: list[_Listener]) -> None:
    """Wait for a first event of each, then end them."""
    await asyncio.wait_for(asyncio.gather(*(listener.opened.wait() for listener in listeners)), _OPENING_S)
    for listener in listeners:
        listener.task.cancel()
    await asyncio.gather(*(listener.task for listener in listeners), return_exceptions=True)


class _Listener:
    """One stream and the delays of its events, the first one left out: a connection is opened for it."""

    def __init__(self, stack: stacks.Stack, token: str) -> None:
        self.opened = asyncio.Event()
        self.delays_ms: list[float] = []
        self.task = asyncio.create_task(self._listen(stack, token))

    async def _listen(self, stack: stacks.Stack, token: str) -> None:
        host, port = stack.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(
                f"GET /p/events/v1/events HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
                "Accept: text/event-stream\r\n\r\n".encode()
            )
            text = b""
            while piece := await reader.read(65536):
                text += piece
                now = time.monotonic_ns()
                for event in _EVENT.finditer(text):
                    if self.opened.is_set():
                        self.delays_ms.append((now - int(event[1])) / 1e6)
                    self.opened.set()
                text = text[-64:] if not text.endswith(b"\r\n") else b""
        finally:
            writer.close()
