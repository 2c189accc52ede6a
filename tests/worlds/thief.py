"""What a process that is up to no good tries against another one. Each raises what it was refused with."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

_ATTACH: Final = 16
_SEIZE: Final = 0x4206
_INTERRUPT: Final = 0x4207
_WALL: Final = 0x40000000
_DETACH: Final = 17
_libc = ctypes.CDLL(None, use_errno=True)


class NothingFound(Exception):  # noqa: N818 - an outcome
    """The way was open, and the secret not where it led."""


class _IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def attempts(pid: int, needle: bytes, *, scratch: Path) -> dict[str, Callable[[], object]]:
    """Return every way to what the process ``pid`` holds, by name."""
    ways: dict[str, Callable[[], object]] = {
        "memory file": lambda: _search_memory(pid, needle),
        "memory call": lambda: _read_call(pid),
        "environment": lambda: _found(needle in Path(f"/proc/{pid}/environ").read_bytes()),
        "maps": Path(f"/proc/{pid}/maps").read_bytes,
        "open files": lambda: os.listdir(f"/proc/{pid}/fd"),
        "folder": Path(f"/proc/{pid}/cwd").readlink,
        "root": Path(f"/proc/{pid}/root").readlink,
        "attach": lambda: _trace(pid, _ATTACH),
        "seize": lambda: _trace(pid, _SEIZE),
    }
    if shutil.which("gcore"):
        ways["gcore"] = lambda: _gcore(pid, needle, scratch)
    return ways


def _found(found: bool) -> None:
    if not found:
        raise NothingFound


def _search_memory(pid: int, needle: bytes) -> None:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            start, end = (int(one, 16) for one in place.split("-"))
            memory.seek(start)
            try:
                if needle in memory.read(end - start):
                    return
            except (OSError, OverflowError):
                continue
    raise NothingFound


def _read_call(pid: int) -> None:
    """Read a page of what is mapped where this program's own code is: the fork and its parent have that alike."""
    page = ctypes.create_string_buffer(16)
    ours = _IoVec(ctypes.cast(page, ctypes.c_void_p), 16)
    theirs = _IoVec(ctypes.cast(_libc.getpid, ctypes.c_void_p), 16)
    if _libc.process_vm_readv(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) < 0:
        error = ctypes.get_errno()
        if error == 14:  # EFAULT: allowed, and nothing is mapped there
            return
        raise OSError(error, os.strerror(error))


def _trace(pid: int, request: int) -> None:
    if _libc.ptrace(request, pid, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    if request == _SEIZE:
        _libc.ptrace(_INTERRUPT, pid, 0, 0)
    os.waitpid(pid, _WALL)
    _libc.ptrace(_DETACH, pid, 0, 0)


def _gcore(pid: int, needle: bytes, scratch: Path) -> None:
    done = subprocess.run(
        ["gcore", "-o", str(scratch / "taken"), str(pid)], capture_output=True, check=False, timeout=60, cwd=scratch
    )
    cores = list(scratch.glob("taken*"))
    found = any(needle in core.read_bytes() for core in cores)
    for core in cores:
        core.unlink()
    if done.returncode != 0 or not cores:
        raise PermissionError
    _found(found)
