"""What a call costs: the broker with everything on, against peers in the same interleaved rounds."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from ops.bench import peers, stacks, upstreams
from ops.bench.load import Sample, burst
from ops.bench.processes import MEASURED_CORE
from ops.bench.scenarios import AIOHTTP, MITMPROXY, SCENARIOS, Contender, Scenario, Target
from ops.bench.targets import Outcome

Rounds = Mapping[Contender, list[Sample]]


@contextlib.contextmanager
def _all(base: Path) -> Iterator[dict[str, stacks.Stack]]:
    with contextlib.ExitStack() as running:
        upstream = running.enter_context(upstreams.answers(base))
        across = running.enter_context(upstreams.answers(base, "across", core=MEASURED_CORE))
        origins = stacks.Origins(plain=upstream.plain, secure=upstream.secure)
        found = (
            peers.direct(upstream),
            peers.direct(across, "direct, across"),
            running.enter_context(peers.nginx(base, upstream)),
            running.enter_context(peers.aiohttp(base, upstream)),
            running.enter_context(peers.mitmproxy(base, upstream)),
            running.enter_context(stacks.broker(base, origins, ca_file=upstream.ca_file)),
        )
        yield {stack.name: stack for stack in found if stack is not None}


def compare(base: Path, *, rounds: int, seconds: float) -> list[Outcome]:
    """Print a table for each load and return what became of the targets."""
    base = base / "calls"
    base.mkdir()
    outcomes = []
    with _all(base) as running:
        for scenario in SCENARIOS:
            here = [contender for contender in scenario.contenders if contender[0] in running]
            samples: dict[Contender, list[Sample]] = {contender: [] for contender in here}
            for _ in range(rounds):
                for contender in here:
                    name, profile = contender
                    samples[contender].append(burst(running[name], profile, scenario.load, seconds=seconds))
            _table(scenario, samples)
            outcomes += [_outcome(target, samples) for target in scenario.targets]
    return outcomes


def _outcome(target: Target, samples: Rounds) -> Outcome:
    sides = [samples.get(side, []) for side in (target.first, target.second)]
    failed = sum(sample.failed for side in sides for sample in side)
    measured = _against(*sides, field=target.field, difference=target.difference)
    return Outcome(target.what, target.limit, measured, target.at_least, f"{failed} calls failed" if failed else "")


def _against(first: list[Sample], second: list[Sample], *, field: str, difference: bool = False) -> float:
    """Compare within each round, because a shared machine changes its speed; return the median."""
    if not first or not second:
        return math.nan
    pairs = [(getattr(one, field), getattr(other, field)) for one, other in zip(first, second, strict=True)]
    found: float = statistics.median(one - other if difference else one / other for one, other in pairs)
    return found


def _table(scenario: Scenario, samples: Rounds) -> None:
    nginx = next((rows for (name, _), rows in samples.items() if name == "nginx"), [])
    print(f"\n{scenario.title}: median of {len(next(iter(samples.values())))} interleaved rounds")
    columns = ("CPU us/call", "calls/s", "p50 ms", "p99 ms", "of nginx", "x aiohttp", "x mitmproxy", "failed")
    print("  " + " " * 18 + "".join(f"{column:>12}" for column in columns))
    for (name, profile), rows in samples.items():
        of = {field: statistics.median(getattr(row, field) for row in rows) for field in Sample.__dataclass_fields__}
        figures = (
            _figure(of["cpu_us"], 1),
            _figure(of["per_second"], 0),
            _figure(of["p50_ms"], 3),
            _figure(of["p99_ms"], 2),
            _figure(_against(nginx, rows, field="cpu_us"), 2),
            _figure(_against(samples.get(AIOHTTP, []), rows, field="cpu_us"), 2),
            _figure(_against(samples.get(MITMPROXY, []), rows, field="cpu_us"), 1),
            str(sum(row.failed for row in rows)),
        )
        label = name if profile in {"", "bench"} else f"{name}, {profile}"
        print(f"  {label:18}" + "".join(f"{figure:>12}" for figure in figures), flush=True)


def _figure(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
