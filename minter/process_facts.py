"""What the running minter is: its process, its keyring, its database; for auditors and ``doctor``.

Names, numbers and modes only. What a shell sees of itself says nothing about a service that systemd started.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from config import process
from config.settings import MinterSettings
from minter.sources import Context, SourceError, kind_of
from minter.sources.keyring import KeyringSource
from minter.store import Connection


def of_this_process(references: Iterable[str], environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the process's facts; ``references`` are those of all keys in use.

    ``secret_variables`` are the variables that hold keys and that a child or a later look could still find: none.
    """
    named = {reference.partition(":")[2] for reference in references if kind_of(reference) == "env"}
    return asdict(process.facts()) | {"secret_variables": sorted(name for name in named if name in environ)}


def keyring(settings: MinterSettings, references: Iterable[str]) -> dict[str, str] | None:
    """Return the class of the keyring's backend, or why there is none; None when no key lives in a keyring.

    It may take as long as a keyring may: call it in a thread.
    """
    if not any(kind_of(reference) == "keyring" for reference in references):
        return None
    try:
        return {"backend": KeyringSource(Context.of(settings, {})).backend(), "problem": ""}
    except SourceError as error:
        return {"backend": "", "problem": error.what}


def database(connection: Connection) -> dict[str, Any]:
    """Return how the state is kept, as the writer's own connection has it."""
    names = ("journal_mode", "synchronous", "foreign_keys", "trusted_schema", "secure_delete")
    modes = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names}
    return {"sqlite": sqlite3.sqlite_version, **modes}
