"""The copy of a state that is put beside it before its schema is changed: ``minter.db.before-0001``.

A copy is whole or not there: it is made under another name, synced, and renamed. What a later schema keeps sealed
stands in the clear in a copy of the first one: once the changed state has opened, the copy loses it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from config.load import sync_directory
from minter import failpoints

#: What the first schema kept in the clear in ``meta``.
PLAIN_KEYS: Final = ("fingerprint_key", "params_key")
_PLACES: Final = ", ".join("?" * len(PLAIN_KEYS))


def make(path: Path, version: str) -> Path:
    """Copy the state at ``path``, which has the schema ``version``; return where."""
    to = path.with_name(f"{path.name}.before-{version}")
    copy_to(path, to)
    failpoints.reached("migrate.copied")
    return to


def copy_to(path: Path, to: Path) -> None:
    """Copy a database as it is at one moment, durably and whole or not at all; readable by its owner only."""
    half = to.with_name(f"{to.name}.half")
    half.unlink(missing_ok=True)
    os.close(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    with closing(sqlite3.connect(path, timeout=5.0)) as source, closing(sqlite3.connect(half)) as target:
        source.backup(target)
        # One file: whatever it was copied from, nothing of it stands in a log beside it.
        target.execute("PRAGMA journal_mode=DELETE")
    _sync(half)
    failpoints.reached("migrate.copying")
    half.rename(to)
    sync_directory(to.parent)


def of(path: Path) -> Sequence[Path]:
    """Return the copies that stand beside the state at ``path``."""
    return sorted(path.parent.glob(f"{path.name}.before-*"))


def holds_plain_keys(copy: Path) -> bool:
    """Say whether a copy still has what later schemas seal. Errors: ``sqlite3.Error``."""
    with closing(sqlite3.connect(copy)) as database:
        found = database.execute(f"SELECT 1 FROM meta WHERE name IN ({_PLACES})", PLAIN_KEYS)  # noqa: S608 - marks
        return found.fetchone() is not None


def scrub(path: Path) -> None:
    """Take what the state keeps sealed by now out of the copies beside it; a copy that is no database is left alone."""
    for copy in of(path):
        if copy.suffix == ".half":
            copy.unlink(missing_ok=True)
            continue
        with contextlib.suppress(sqlite3.Error):
            if holds_plain_keys(copy):
                _scrub(copy)


def _scrub(copy: Path) -> None:
    clean = copy.with_name(f"{copy.name}.half")
    copy_to(copy, clean)
    with closing(sqlite3.connect(clean, isolation_level=None)) as database:
        database.execute("PRAGMA secure_delete=ON")
        database.execute(f"DELETE FROM meta WHERE name IN ({_PLACES})", PLAIN_KEYS)  # noqa: S608 - marks
        # What else was freed in the life of the state goes with it.
        database.execute("VACUUM")
    _sync(clean)
    clean.rename(copy)
    sync_directory(copy.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
