"""Where the broker's time goes under load: py-spy's samples, summed by function."""

from __future__ import annotations

import contextlib
import subprocess
from collections import Counter
from pathlib import Path

from ops.bench import stacks, upstreams
from ops.bench.load import Load
from ops.bench.processes import OTHER_CORE, tool

_ROWS = 25


def record(base: Path, *, seconds: float, load: Load) -> None:
    """Print the functions with the most samples, alone and with what they call."""
    spy = tool("py-spy")
    if spy is None:
        raise SystemExit("py-spy is not installed (make bench installs it)")
    base = base / "profile"
    base.mkdir()
    with contextlib.ExitStack() as running:
        upstream = running.enter_context(upstreams.answers(base))
        stack = running.enter_context(stacks.broker(base, stacks.Origins(plain=upstream.plain)))
        tokens = running.enter_context(stacks.runs(stack, "bench", load.runs_for(seconds + 2)))
        argv, env = load.command(stack.at("bench"), tokens, seconds=seconds + 2)
        sending = running.enter_context(subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL))
        command = ["taskset", "-c", str(OTHER_CORE), spy, "record", "--pid", str(stack.pid), "--format", "raw"]
        command += [
            # A process that is stopped to be looked at is stopped most often where it enters the kernel.
            "--nonblocking",
            "--function",
            "--threads",
            "--rate",
            "400",
            "--duration",
            str(max(1, round(seconds))),
            "--output",
            str(base / "samples"),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=seconds + 60)
        sending.wait(60)
    alone: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for line in (base / "samples").read_text().splitlines():
        stack_of, _, count = line.rpartition(" ")
        thread, *frames = stack_of.split(";")
        if "MainThread" not in thread or not frames:
            # The store's thread waits most of the time, and is counted all the same. No frames: it could not be read.
            continue
        alone[frames[-1]] += int(count)
        for frame in set(frames):
            within[frame] += int(count)
    total = alone.total()
    print(
        f"\nshares of {total} samples of the main thread; the loop itself, in C, counts for the function that runs it"
    )
    for title, counted in (("alone", alone), ("with what they call", within)):
        print(f"\nfunctions, {title}")
        # What every sample has in it is how the program was started.
        told = [(frame, samples) for frame, samples in counted.most_common() if samples < total]
        for frame, samples in told[:_ROWS]:
            print(f"  {samples / total:6.1%}  {frame}")
