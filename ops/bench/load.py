"""Load: bursts of wrk from the other core, and what the process in the middle spent on them."""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.bench import stacks
from ops.bench.processes import OTHER_CORE, cpu_seconds, tool

#: A run gives way to the next one before its budget is spent: calls under way count too.
_CALLS_OF_A_RUN = stacks.MAX_CALLS * 9 // 10
#: More than anything here answers in a second: so many runs are enough.
_MOST_PER_SECOND = 90_000
_SCRIPT = Path(__file__).with_name("load.lua")


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent. ``different``: every target is another one; ``runs``: so many take turns at every call."""

    connections: int
    path: str = "/v1/items"
    method: str = "GET"
    body_bytes: int = 0
    different: bool = False
    runs: int = 1

    def runs_for(self, seconds: float) -> int:
        """Return how many runs are to be opened for a burst: one after the other spends its budget."""
        return max(self.runs, math.ceil(seconds * _MOST_PER_SECOND / _CALLS_OF_A_RUN))

    def command(self, url: str, tokens: Sequence[str], *, seconds: float) -> tuple[list[str], Mapping[str, str]]:
        """Return what to run, and its environment."""
        argv = ["taskset", "-c", str(OTHER_CORE), tool("wrk") or "wrk", "-t1", f"-c{self.connections}"]
        argv += [f"-d{max(1, round(seconds))}s", "--latency", "--script", str(_SCRIPT), url + self.path]
        return argv, {
            **os.environ,
            "BENCH_TOKENS": " ".join(tokens),
            "BENCH_EACH": str(1 if self.runs > 1 else _CALLS_OF_A_RUN),
            "BENCH_METHOD": self.method,
            "BENCH_BODY_BYTES": str(self.body_bytes),
            "BENCH_DIFFERENT": str(int(self.different)),
            # No burst repeats the targets of another one.
            "BENCH_FIRST": str(time.monotonic_ns() // 1000 % 10**12),
        }


@dataclass(frozen=True, slots=True)
class Sample:
    """One burst of load. Latencies are milliseconds; ``failed`` counts answers other than 2xx and broken sockets."""

    calls: int
    cpu_us: float
    per_second: float
    p50_ms: float
    p99_ms: float
    failed: int


def burst(stack: stacks.Stack, profile: str, load: Load, *, seconds: float) -> Sample:
    """Send load for some seconds, with runs of its own, each of which has made a call: its lease is there."""
    with stacks.runs(stack, profile, load.runs_for(seconds)) as tokens:
        if stack.caller_token:
            warm(stack, profile, tokens)
        return send(stack, profile, load, tokens, seconds=seconds)


def warm(stack: stacks.Stack, profile: str, tokens: Sequence[str]) -> None:
    """Make one call in each run.

    wrk corrects for what it could not send while it waited: it counts the first call's wait for the minter, which a
    proxy without leases does not have, as many waits.
    """
    for token in tokens:
        request = urllib.request.Request(stack.at(profile) + "/v1/items", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()


def send(stack: stacks.Stack, profile: str, load: Load, tokens: Sequence[str], *, seconds: float) -> Sample:
    """Send load for some seconds and read what the process in the middle spent on it."""
    argv, env = load.command(stack.at(profile), tokens, seconds=seconds)
    before = cpu_seconds(stack.pid) if stack.pid else math.nan
    done = subprocess.run(argv, check=True, capture_output=True, text=True, env=env, timeout=seconds + 60)
    spent = cpu_seconds(stack.pid) - before if stack.pid else math.nan
    out = done.stdout
    made = int(_find(r"(\d+) requests in", out))
    if not made:
        raise SystemExit(f"{stack.name} answered no call in {seconds:g} s")
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
    broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", out)
    return Sample(
        calls=made,
        cpu_us=spent / made * 1e6,
        per_second=float(_find(r"Requests/sec:\s+([\d.]+)", out)),
        p50_ms=_milliseconds(_find(r"50%\s+([\d.]+[a-z]+)", out)),
        p99_ms=_milliseconds(_find(r"99%\s+([\d.]+[a-z]+)", out)),
        failed=(int(refused[1]) if refused else 0) + (sum(map(int, broken.groups())) if broken else 0),
    )


def _find(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise SystemExit(f"wrk did not say {pattern}:\n{text}")
    return match[1]


def _milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)([a-z]+)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"us": 0.001, "ms": 1, "s": 1000}[unit]
