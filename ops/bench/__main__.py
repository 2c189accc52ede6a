"""``make bench``: calls and memory as ratios against peers in the same interleaved run; mints; many leases.

Robust here is the CPU time a call costs the process in the middle, read from the kernel; requests per second depend
on what else the machine does. Every process has one core: what is measured has the first, load and upstream the
last. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from ops.bench import audit, calls, leases, mints


def main() -> int:
    """Run the parts that were asked for and print their tables."""
    parser = argparse.ArgumentParser(prog="python -m ops.bench", description=__doc__)
    parser.add_argument("parts", nargs="*", default=[], help="calls, mints, memory, leases, audit (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds; the median counts")
    parser.add_argument("--seconds", type=float, default=3.0, help="of load in each round")
    parser.add_argument("--calls", type=int, default=200_000, help="for the memory part")
    options = parser.parse_args()
    parts = options.parts or ["calls", "memory", "mints", "leases", "audit"]
    missing = [tool for tool in ("nginx", "wrk") if tool_path(tool) is None]
    if missing and {"calls", "memory"} & set(parts):
        print(f"not installed: {', '.join(missing)} (Debian: apt-get install nginx-light wrk)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="minter-broker-bench-") as directory:
        base = Path(directory)
        if "calls" in parts:
            calls.compare(base, rounds=options.rounds, seconds=options.seconds)
        if "memory" in parts:
            calls.memory(base, calls=options.calls)
        if "mints" in parts:
            mints.measure(base, rounds=options.rounds, seconds=options.seconds)
        if "leases" in parts:
            leases.measure(base)
        if "audit" in parts:
            audit.measure(base)
    return 0


def tool_path(name: str) -> str | None:
    """Find a tool on the path or where Debian keeps its daemons."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


if __name__ == "__main__":
    sys.exit(main())
