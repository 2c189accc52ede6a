"""What both programs do to their own process before they touch a secret, and what a child of theirs is given.

Not dumpable means: no core file, no ``ptrace``, and ``/proc/PID/{mem,environ,maps}`` closed to other processes of the
same user; root stays root.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from config.errors import ConfigurationError, Fault

_PR_GET_DUMPABLE: Final = 3
_PR_SET_DUMPABLE: Final = 4
_DEFAULT_PATH: Final = "/usr/local/bin:/usr/bin:/bin"

#: What a child gets from our environment: where programs are, and how the person at the terminal reads.
HARMLESS: Final = ("PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "LC_TIME", "TZ", "TERM", "NO_COLOR")


def harden() -> None:
    """Close the process: new files are the owner's only, no core dumps, not dumpable (Linux).

    Errors: ``ConfigurationError`` when the kernel refuses; a program that holds secrets must not go on then.
    """
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0 or libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise ConfigurationError([Fault("process", "the kernel does not let this process be made undumpable")])


@dataclass(frozen=True, slots=True)
class Facts:
    """What a process is, as it sees itself. None: this system does not say."""

    pid: int
    uid: int
    dumpable: bool | None
    core_limit: int
    umask: str | None
    open_files: int
    swap: bool | None


def facts() -> Facts:
    """Return what :func:`harden` and the others have made of this process."""
    dumpable = None
    if sys.platform == "linux":
        dumpable = ctypes.CDLL(None, use_errno=True).prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0
    status = _status()
    return Facts(
        pid=os.getpid(),
        uid=os.geteuid(),
        dumpable=dumpable,
        core_limit=resource.getrlimit(resource.RLIMIT_CORE)[0],
        umask=status.get("Umask"),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        swap=_swapped(status.get("VmSwap")),
    )


def _status() -> dict[str, str]:
    """Return what the kernel says of this process: the only system call that tells the umask also sets it."""
    if sys.platform != "linux":
        return {}
    fd = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, 65536).decode("ascii", "replace")
    finally:
        os.close(fd)
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in lines}


def _swapped(text: str | None) -> bool | None:
    return None if text is None else not text.startswith("0 ")


def settle_memory() -> None:
    """Leave what is loaded by now out of every later garbage collection; call it once, when the program is ready.

    To look through all modules again and again would only stop the loop. With a hundred thousand live leases a full
    collection takes a good part of a second: young ones do most of the work.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def raise_open_files() -> int:
    """Take as many open files as the hard limit allows (a call of the broker needs two), and return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            # macOS reports an unlimited hard limit that it does not grant; the soft one stays.
            return soft
    return hard


def refuse_root(program: str, *, allowed: bool) -> None:
    """Refuse to run as root unless the settings allow it.

    Errors: ``ConfigurationError``.
    """
    if os.geteuid() == 0 and not allowed:
        raise ConfigurationError(
            [
                Fault(
                    program,
                    "runs as root, and nothing here needs root",
                    f"start it as a user of its own, or set allow_root = true or {program.upper()}_ALLOW_ROOT=1",
                )
            ]
        )


def child_environment(
    environ: Mapping[str, str], *, extra: Mapping[str, str] | None = None, passed: Iterable[str] = HARMLESS
) -> dict[str, str]:
    """Return the whole environment of a child: the ``passed`` names of ``environ``, then ``extra``.

    Nothing else of ours gets through: not a token, a proxy, a path of a credential, a switch of the dynamic linker.
    """
    child = {name: environ[name] for name in passed if environ.get(name)}
    child.setdefault("PATH", _DEFAULT_PATH)
    child.update(extra or {})
    return child
