"""Where the state is, and that one process has it: an exclusive lock on a file beside it names the holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from config.errors import ConfigurationError, Fault


def state_path(state: str) -> Path:
    """Return the path of ``sqlite:PATH``."""
    scheme, _, path = state.partition(":")
    if scheme != "sqlite" or not path:
        raise ConfigurationError([Fault("state", "expected sqlite:PATH")])
    return Path(path)


def mark(path: Path) -> Path:
    """Return the file that stands beside a state while it is being restored."""
    return path.with_name(f"{path.name}.restoring")


def lock_state(path: Path, *, restoring: bool = False) -> int:
    """Make the state's directory when it is missing, and hold the lock beside the state; return its descriptor.

    Errors: ``ConfigurationError``, also for a state whose restore was cut off, unless it is ``restoring``.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.parent.stat().st_mode & 0o022:
            raise ConfigurationError([Fault("state", "its directory may be written by others", "chmod 0700")])
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(path.with_name(path.name + ".lock"), flags, 0o600)
    except OSError as error:
        # A full or read-only disk, a directory of somebody else's.
        raise ConfigurationError([Fault("state", f"its lock cannot be opened: {error.strerror}")]) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 20).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise ConfigurationError([Fault("state", f"in use by process {holder}", "one minter per state")]) from None
    if mark(path).exists() and not restoring:
        os.close(lock)
        hint = "make it again: minter restore SOURCE"
        raise ConfigurationError([Fault("state", "a restore of it was cut off before its end", hint)])
    os.truncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock
