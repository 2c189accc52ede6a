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


def lock_state(path: Path) -> int:
    """Make the state's directory when it is missing, and hold the lock beside the state; return its descriptor."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent.stat().st_mode & 0o022:
        raise ConfigurationError([Fault("state", "its directory may be written by others", "chmod 0700")])
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 20).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise ConfigurationError([Fault("state", f"in use by process {holder}", "one minter per state")]) from None
    os.truncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock
