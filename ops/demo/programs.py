"""Starting and ending real processes so that none of them outlives the demo."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit

from ops.demo import DemoError
from ops.demo.users import ROOT, User

_START_S: Final = 60.0
_STOP_S: Final = 15.0
_PR_SET_PDEATHSIG: Final = 1
_INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Programs:
    """The processes that the demo started, by name."""

    def __init__(self, logs: Path) -> None:
        """Write what each program says into a file of ``logs``."""
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> dict[str, int]:
        """Return the number of each process that runs."""
        return {name: process.pid for name, process in self._running.items() if process.poll() is None}

    def log(self, name: str) -> Path:
        """Return the file with what a program said."""
        return self._logs / f"{name}.log"

    def remember(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Take over a process: it is ended with the others if it still runs then."""
        self._running[name] = process

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        user: User,
        environ: Mapping[str, str],
        inherited: Sequence[int] = (),
        ready: Callable[[], bool],
    ) -> None:
        """Start a program and wait until it is ready. Errors: :class:`DemoError` with the end of what it said."""
        folder = ROOT if user.uid is None else Path("/")
        with self.log(name).open("wb") as log, uninterrupted():
            process = spawn(command, user=user, environ=environ, folder=folder, output=log, inherited=inherited)
            self.remember(name, process)
        deadline = time.monotonic() + _START_S
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                said = self.log(name).read_text(errors="replace")[-2000:]
                raise DemoError(f"{name} did not start (status {process.poll()}):\n{said}")
            time.sleep(0.02)

    def end(self) -> list[str]:
        """End every process by its number, the last one first; return those that had to be killed."""
        killed = []
        for name, process in reversed(self._running.items()):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                killed.append(name)
                process.kill()
                process.wait()
        self._running.clear()
        return killed


def spawn(
    command: Sequence[str],
    *,
    user: User,
    environ: Mapping[str, str],
    folder: Path,
    output: IO[bytes] | int,
    inherited: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process with this environment and nothing else of ours; it does not outlive the demo (on Linux).

    Call it within :func:`uninterrupted`, and remember the process there: one that nobody knows of is never ended.
    """
    demo = os.getpid()

    def begin() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)
        if sys.platform == "linux":
            # The kernel ends it when the demo is killed without a chance to do so, even just before this line.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != demo:
                os._exit(1)

    return subprocess.Popen(
        command,
        cwd=folder,
        env=dict(environ),
        pass_fds=inherited,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        # Ctrl-C at the terminal is for the demo, which then ends the others in order.
        start_new_session=True,
        preexec_fn=begin,  # noqa: PLW1509 - the demo starts no threads
        **user.popen,
    )


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C and its like wait until the block is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nothing listens on."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def connects(path: Path) -> bool:
    """Say whether something listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def listens(url: str) -> bool:
    """Say whether something listens where an address points."""
    parts = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((str(parts.hostname), parts.port)) == 0


def answers(url: str, target: str, status: int = 200) -> bool:
    """Say whether a service answers with the status."""
    try:
        return call("GET", url + target)[0] == status
    except OSError:
        return False


def call(
    method: str, url: str, *, token: str = "", body: bytes | None = None, timeout_s: float = 30
) -> tuple[int, bytes]:
    """Make one HTTP call and return status and body."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    headers: dict[str, Any] = {"Content-Type": "application/json"} if body is not None else {}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, parts.path + (f"?{parts.query}" if parts.query else ""), body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
