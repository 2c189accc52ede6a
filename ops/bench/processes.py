"""Starting what is measured, each on its core, and reading what the kernel counted for it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

CORES = sorted(os.sched_getaffinity(0))
MEASURED_CORE, OTHER_CORE = CORES[0], CORES[-1]


@contextlib.contextmanager
def started(
    argv: Sequence[str], *, core: int, log: Path, env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program pinned to ``core`` for the time of the block; its output goes to ``log``."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *argv],
            stdout=out,
            stderr=out,
            env=dict(os.environ) if env is None else {**os.environ, **env},
            pass_fds=pass_fds,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        process.kill()
        process.wait()


def wait_for(address: tuple[str, int] | str, *, log: Path, seconds: float = 20) -> None:
    """Wait until something listens on a port or a Unix socket."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        with socket.socket(family) as probe:
            if probe.connect_ex(address) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on {address}; its log ends with:\n{log.read_text()[-2000:]}")


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tree(pid: int) -> list[int]:
    """Return a process and its children: nginx works in one."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children so far, threads included.

    From the kernel's clock of a process, whose number is made of the pid (``clock_getcpuclockid(3)``): ``/proc`` counts
    in hundredths of a second, which are many calls.
    """
    return sum(time.clock_gettime(~one << 3 | 2) for one in tree(pid))


def resident_bytes(pid: int) -> int:
    """Return the resident memory of one process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tool(name: str) -> str | None:
    """Find a tool in the peers' environment (``make bench`` makes it), on the path, or where Debian has daemons."""
    places = (f"{sys.prefix}/bench/bin", os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")
    return shutil.which(name, path=os.pathsep.join(places))
