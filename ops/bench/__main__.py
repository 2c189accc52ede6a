"""``make bench``: calls, memory, event streams and specgen against targets; mints; many leases; the audit log.

What a call costs is given as ratios against peers in the same interleaved run. Robust here is the CPU time that it
costs the process in the middle, read from the kernel; requests per second depend on what else the machine does. Every
process has one core: what is measured has the first, load and upstream the last. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from ops.bench import audit, calls, leases, memory, mints, profiling, scenarios, specgen, streams, targets
from ops.bench.processes import tool

PARTS = ("calls", "memory", "streams", "mints", "leases", "audit", "specgen")


def main() -> int:
    """Run the parts that were asked for, print their tables, then what became of the targets."""
    options = _options()
    parts = set(options.parts or PARTS)
    missing = _missing(parts)
    if missing:
        print(f"not installed: {', '.join(missing)} (Debian: apt-get install nginx-light wrk)", file=sys.stderr)
        return 2
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="minter-broker-bench-") as directory:
        base = Path(directory)
        if "calls" in parts:
            outcomes += calls.compare(base, rounds=options.rounds, seconds=options.load_s)
        if "memory" in parts:
            outcomes += memory.measure(base, calls=options.calls)
        if "streams" in parts:
            outcomes += streams.measure(base, streams=options.streams, seconds=options.stream_s, every_s=options.every)
        if "mints" in parts:
            mints.measure(base, rounds=options.rounds, seconds=options.load_s, live=round(mints.LIVE * options.share))
        if "leases" in parts:
            leases.measure(base, share=options.share)
        if "audit" in parts:
            audit.measure(base, records=round(audit.RECORDS * options.share))
        if "specgen" in parts:
            outcomes += specgen.measure(base, rounds=options.rounds)
        if "profile" in parts:
            load = scenarios.SCENARIOS[options.scenario - 1].load
            profiling.record(base, seconds=options.profile_s, load=load)
    targets.summary(outcomes)
    return 0


def _missing(parts: set[str]) -> list[str]:
    """Return the tools that these parts need and that are not installed."""
    needed = ("nginx", "wrk") if parts & {"calls", "memory", "profile"} else ()
    return [name for name in needed if tool(name) is None]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m ops.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: these), or profile")
    parser.add_argument("--quick", action="store_true", help="a look in three minutes: few rounds, small numbers")
    parser.add_argument("--rounds", type=int, help="interleaved rounds; the median counts (5)")
    parser.add_argument("--seconds", type=float, help="of load in each round (3), of streams (120), of a profile (10)")
    parser.add_argument("--calls", type=int, help="for memory (1,000,000)")
    parser.add_argument("--streams", type=int, help="event streams (200)")
    parser.add_argument("--every", type=float, help="seconds between two events of a stream (15)")
    parser.add_argument(
        "--scenario",
        type=int,
        default=1,
        choices=range(1, len(scenarios.SCENARIOS) + 1),
        help="whose load the profile is taken under, as numbered in scenarios.py",
    )
    options = parser.parse_args()
    unknown = set(options.parts) - {*PARTS, "profile"}
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    options.share = 0.02 if options.quick else 1.0
    for name, usual, quick in (
        ("rounds", 5, 2),
        ("calls", 1_000_000, 50_000),
        ("streams", 200, 50),
        ("every", 15.0, 1.0),
        ("load_s", options.seconds or 3.0, options.seconds or 1.0),
        ("stream_s", options.seconds or 120.0, options.seconds or 10.0),
        ("profile_s", options.seconds or 10.0, options.seconds or 3.0),
    ):
        if getattr(options, name, None) is None:
            setattr(options, name, quick if options.quick else usual)
    return options


if __name__ == "__main__":
    sys.exit(main())
