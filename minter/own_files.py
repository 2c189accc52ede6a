"""The files that decide what the minter does, and the state: a start refuses what somebody else may change.

Secrets, the sealing key and the audit log are looked at where they are opened; directories in
``minter/state_lock.py`` and ``config/server.py``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from config.errors import ConfigurationError, Fault
from config.settings import MinterSettings
from minter.audit_checkpoints import file_of
from minter.state_lock import state_path


def check(settings: MinterSettings, config: Path) -> None:
    """Look at the settings file, grants, brokers, the state and the checkpoints. One that is missing is not looked at.

    Errors: ``ConfigurationError`` with every fault.
    """
    faults = [
        *_rules("settings", config),
        *_rules("grants", Path(settings.grants)),
        *_rules("brokers", Path(settings.brokers)),
        *_private("state", state_path(settings.state)),
        *_private("checkpoints", file_of(settings.audit_log, Path(settings.audit))),
    ]
    if faults:
        raise ConfigurationError(faults)


def _rules(what: str, path: Path) -> Iterator[Fault]:
    """Look at a file that others may read. Root may own it: root decides what the minter does in any case."""
    found = _stat(path)
    if found is None:
        return
    if found.st_mode & 0o022:
        yield Fault(what, f"{path} may be changed by others ({_mode(found)})", "chmod go-w")
    if found.st_uid not in (0, os.geteuid()):
        yield Fault(what, f"{path} belongs to user {found.st_uid}", "chown it to the minter's user or root")


def _private(what: str, path: Path) -> Iterator[Fault]:
    found = _stat(path)
    if found is None:
        return
    if found.st_mode & 0o077:
        yield Fault(what, f"{path} can be opened by others ({_mode(found)})", "chmod 0600")
    if found.st_uid != os.geteuid():
        yield Fault(what, f"{path} belongs to user {found.st_uid}", "chown it to the minter's user")


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        # Whoever opens it says so, and better.
        return None


def _mode(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):04o}"
