"""``broker init``: a directory to start from.

It fits together with what ``minter init`` writes into the same directory, whichever comes first: the grants file is
the same, and the broker's credential comes from the minter's side. Nothing that is there is overwritten.
"""

from __future__ import annotations

import importlib.resources
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from config import load
from config.console.commands import CommandError
from config.errors import ExitCode

_NO_CALLERS: Final = b'{"callers": []}\n'


@dataclass(frozen=True, slots=True)
class Written:
    """What ``init`` did: the names that it wrote and those that it found and kept."""

    made: tuple[str, ...]
    kept: tuple[str, ...]


def write(directory: Path) -> Written:
    """Write settings, grants and an empty callers file.

    Errors: ``CommandError`` when the directory has a ``broker.toml`` already; ``OSError`` when it cannot be written.
    """
    if os.path.lexists(directory / "broker.toml"):
        raise CommandError(
            ExitCode.CONFLICT,
            f"{directory / 'broker.toml'} is there already; nothing was written",
            "To start anew, choose another directory.",
        )
    made: list[str] = []
    kept: list[str] = []
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("run", "state"):
        (directory / name).mkdir(mode=0o700, exist_ok=True)
    grants = importlib.resources.files("config") / "example-grants.json"
    settings = importlib.resources.files("broker") / "templates" / "broker.toml"
    for name, data in (
        ("grants.json", grants.read_bytes()),
        ("callers.json", _NO_CALLERS),
        ("broker.toml", settings.read_bytes()),
    ):
        if os.path.lexists(directory / name):
            kept.append(name)
        else:
            load.write_atomic(directory / name, data)
            made.append(name)
    return Written(tuple(made), tuple(kept))
