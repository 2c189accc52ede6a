"""Resident memory of the broker before and after many calls."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ops.bench import stacks, upstreams
from ops.bench.load import Load, send
from ops.bench.processes import resident_bytes
from ops.bench.targets import Outcome

#: Every target is another one: what is kept of a call would show.
_LOAD = Load(64, different=True, runs=16)
_BURST_S = 5
_WARM_CALLS = 20_000


def measure(base: Path, *, calls: int) -> list[Outcome]:
    """Print the memory, warm and after so many calls."""
    base = base / "memory"
    base.mkdir()
    with contextlib.ExitStack() as running:
        upstream = running.enter_context(upstreams.answers(base))
        stack = running.enter_context(stacks.broker(base, stacks.Origins(plain=upstream.plain)))
        assert stack.pid is not None
        _made(stack, _WARM_CALLS)
        warm = resident_bytes(stack.pid) / 1e6
        made, failed = _made(stack, calls)
        after = resident_bytes(stack.pid) / 1e6
    print(f"\nmemory of the broker: {warm:.1f} MB warm, {after:.1f} MB after {made:,} calls ({failed} failed)")
    note = f"{failed} calls failed" if failed else ""
    return [
        Outcome("resident, MB", 100, after, at_least=False, note=note),
        Outcome(f"growth over {made:,} calls, MB", 10, after - warm, at_least=False, note=note),
    ]


def _made(stack: stacks.Stack, calls: int) -> tuple[int, int]:
    """Make at least so many calls; return how many were made and how many of them failed."""
    made = failed = 0
    # The same runs throughout: what an ended run leaves is another question.
    count = _LOAD.runs + calls // stacks.MAX_CALLS
    with stacks.runs(stack, "bench", count) as tokens:
        while made < calls:
            sample = send(stack, "bench", _LOAD, tokens, seconds=_BURST_S)
            made, failed = made + sample.calls, failed + sample.failed
    return made, failed
