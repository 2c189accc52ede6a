"""What a call costs: the broker with everything on, nginx adding the same header, an aiohttp reverse proxy."""

from __future__ import annotations

import contextlib
import re
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ops.bench import stacks
from ops.bench.processes import OTHER_CORE, cpu_seconds, resident_mib

#: A run makes at most 100,000 calls: a burst stays below that, and each has a run of its own.
BURST_S = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """One burst of load. Latencies are milliseconds."""

    calls: int
    cpu_us: float
    per_second: float
    p50_ms: float
    p99_ms: float
    refused: int


def burst(stack: stacks.Stack, token: str, *, path: str, connections: int, seconds: float) -> Sample:
    """Send load for some seconds and read what the process in the middle spent on it."""
    before = cpu_seconds(stack.pid)
    argv = ["taskset", "-c", str(OTHER_CORE), "wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s"]
    argv += ["--latency", "-H", f"Authorization: Bearer {token}", stack.url + path]
    out = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    spent = cpu_seconds(stack.pid) - before
    made = int(_find(r"(\d+) requests in", out))
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
    return Sample(
        calls=made,
        cpu_us=spent / max(1, made) * 1e6,
        per_second=float(_find(r"Requests/sec:\s+([\d.]+)", out)),
        p50_ms=_milliseconds(_find(r"50%\s+([\d.]+[a-z]+)", out)),
        p99_ms=_milliseconds(_find(r"99%\s+([\d.]+[a-z]+)", out)),
        refused=int(refused[1]) if refused else 0,
    )


def _find(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise SystemExit(f"wrk did not say {pattern}:\n{text}")
    return match[1]


def _milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)([a-z]+)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"us": 0.001, "ms": 1, "s": 1000}[unit]


@contextlib.contextmanager
def _all(base: Path) -> Iterator[list[stacks.Stack]]:
    with contextlib.ExitStack() as running:
        port = running.enter_context(stacks.upstream(base))
        yield [
            running.enter_context(stacks.nginx(base, port)),
            running.enter_context(stacks.aiohttp_proxy(base, port)),
            running.enter_context(stacks.broker(base, port)),
        ]


def compare(base: Path, *, rounds: int, seconds: float) -> None:
    """Print the table of ratios for each load, medians of interleaved rounds."""
    with _all(base) as running:
        for title, path, connections in (
            ("236-byte JSON, 16 connections", "/v1/items", 16),
            ("236-byte JSON, 64 connections", "/v1/items", 64),
            ("236-byte JSON, 1 connection", "/v1/items", 1),
            ("64 KiB body, 16 connections", "/v1/big", 16),
        ):
            samples: dict[str, list[Sample]] = {stack.name: [] for stack in running}
            for _ in range(rounds):
                for stack in running:
                    samples[stack.name].append(_burst_with_a_run(base, stack, path, connections, seconds))
            _table(title, samples)


def _burst_with_a_run(base: Path, stack: stacks.Stack, path: str, connections: int, seconds: float) -> Sample:
    token = stack.token
    if stack.name == "broker":
        token = stacks.open_run(base, stack.url.removesuffix("/p/bench"))
    return burst(stack, token, path=path, connections=connections, seconds=seconds)


def _table(title: str, samples: dict[str, list[Sample]]) -> None:
    middle = {
        name: {
            field: statistics.median(getattr(s, field) for s in rows)
            for field in ("cpu_us", "per_second", "p50_ms", "p99_ms")
        }
        for name, rows in samples.items()
    }
    print(f"\n{title}: median of {len(next(iter(samples.values())))} interleaved rounds")
    columns = ("CPU us/call", "calls/s", "p50 ms", "p99 ms", "of nginx", "x aiohttp", "refused")
    print("  " + " " * 10 + "".join(f"{column:>12}" for column in columns))
    for name, row in middle.items():
        figures = (
            f"{row['cpu_us']:.1f}",
            f"{row['per_second']:.0f}",
            f"{row['p50_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
            f"{middle['nginx']['cpu_us'] / row['cpu_us']:.2f}",
            f"{middle['aiohttp']['cpu_us'] / row['cpu_us']:.2f}",
            str(sum(sample.refused for sample in samples[name])),
        )
        print(f"  {name:10}" + "".join(f"{figure:>12}" for figure in figures))


def memory(base: Path, *, calls: int) -> None:
    """Print the broker's resident memory before and after many calls."""
    with contextlib.ExitStack() as running:
        port = running.enter_context(stacks.upstream(base))
        stack = running.enter_context(stacks.broker(base, port))
        url = stack.url.removesuffix("/p/bench")
        burst(stack, stacks.open_run(base, url), path="/v1/items", connections=64, seconds=2)
        warm = resident_mib(stack.pid)
        made = refused = 0
        while made < calls:
            sample = burst(stack, stacks.open_run(base, url), path="/v1/items", connections=64, seconds=BURST_S)
            made, refused = made + sample.calls, refused + sample.refused
            print(f"  memory: {made} of {calls} calls", flush=True)
        after = resident_mib(stack.pid)
    print(f"\nbroker memory: {warm:.1f} MiB warm, {after:.1f} MiB after {made} calls ({refused} refused),")
    print(f"  growth {after - warm:+.1f} MiB")
