"""``broker specgen`` on documents of GitHub's size, beside a bare parse and walk of the same JSON in the same run."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ops.bench.targets import Outcome

_BROKER = str(Path(sys.executable).parent / "broker")
#: The least that any reader must do: parse, then look at every value once.
_PEER = """
import json, sys
todo, references = [json.load(open(sys.argv[1]))], 0
while todo:
    value = todo.pop()
    if isinstance(value, dict):
        references += "$ref" in value
        todo += value.values()
    elif isinstance(value, list):
        todo += value
"""


def measure(base: Path, *, rounds: int) -> list[Outcome]:
    """Print what each takes; return the targets, which are for the JSON document with every file written."""
    base = base / "specgen"
    base.mkdir()
    documents = [base / "large.json", base / "large.yaml"]
    for path in documents:
        # In a process of its own: the kernel counts the memory of the one that starts another for the other, too.
        subprocess.run([sys.executable, "-m", "ops.bench.specgen_document", str(path)], check=True)
    contenders: dict[str, Sequence[str]] = {
        "json.load and a walk": [sys.executable, "-c", _PEER, str(documents[0])],
        **{
            f"broker specgen, {path.suffix[1:].upper()}": [_BROKER, "specgen", str(path), "-o", f"{path}.out"]
            for path in documents
        },
    }
    taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, argv in contenders.items():
            taken[name].append(_run(argv))
    print(f"\n{'medians of ' + str(rounds):24} {'seconds':>8} {'CPU s':>8} {'peak MB':>8}")
    medians = {name: [statistics.median(column) for column in zip(*runs, strict=True)] for name, runs in taken.items()}
    for name, (wall, cpu, memory) in medians.items():
        print(f"{name:24} {wall:8.2f} {cpu:8.2f} {memory:8.0f}")
    wall, _, memory = medians["broker specgen, JSON"]
    return [
        Outcome("specgen of 13 MB of JSON, s", 8, wall, at_least=False),
        Outcome("specgen of 13 MB of JSON, peak MB", 600, memory, at_least=False),
    ]


def _run(argv: Sequence[str]) -> tuple[float, float, float]:
    """Run a program; return its seconds, its CPU seconds and its peak memory in MB."""
    started = time.perf_counter()
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{argv[0]} failed: {said.decode()[-500:]}")
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000
