"""``minter init``: a directory to start from.

It fits together with what ``broker init`` writes into the same directory, whichever comes first: the grants file is
the same, and the broker's credential is made here, where brokers are known. Nothing that is there is overwritten.
"""

from __future__ import annotations

import importlib.resources
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from config import load
from config.console import tokenedit
from config.console.commands import CommandError
from config.console.tokenedit import TokensOf
from config.errors import ExitCode
from config.tokenfiles import Principal

#: Id of the broker that the first credential is for.
BROKER: Final = "broker"


@dataclass(frozen=True, slots=True)
class Written:
    """What ``init`` did: the names that it wrote and those that it found and kept."""

    made: tuple[str, ...]
    kept: tuple[str, ...]


def write(directory: Path, *, uid: int) -> Written:
    """Write settings, grants, brokers and the first broker's credential; ``uid`` is the user it connects from.

    Errors: ``CommandError`` when the directory has a ``minter.toml`` already, or cannot be written.
    """
    if os.path.lexists(directory / "minter.toml"):
        raise CommandError(
            ExitCode.CONFLICT,
            f"{directory / 'minter.toml'} is there already; nothing was written",
            "To start anew, choose another directory.",
        )
    made: list[str] = []
    kept: list[str] = []
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("run", "state", "secrets"):
        (directory / name).mkdir(mode=0o700, exist_ok=True)
    templates = importlib.resources.files("minter") / "templates"
    grants = importlib.resources.files("config") / "example-grants.json"
    for name, data in (("grants.json", grants.read_bytes()), ("minter.toml", (templates / "minter.toml").read_bytes())):
        _new(directory / name, data, made, kept)
    _first_broker(directory, uid, made, kept)
    return Written(tuple(made), tuple(kept))


def _first_broker(directory: Path, uid: int, made: list[str], kept: list[str]) -> None:
    brokers, credential = directory / "brokers.json", directory / "run" / "broker.credential"
    if os.path.lexists(brokers) or os.path.lexists(credential):
        kept += [str(path.relative_to(directory)) for path in (brokers, credential) if os.path.lexists(path)]
        return
    token = TokensOf(brokers, "brokers").create(Principal(id=BROKER, uid=uid))
    tokenedit.store(credential, token)
    made += ["brokers.json", "run/broker.credential"]


def _new(path: Path, data: bytes, made: list[str], kept: list[str]) -> None:
    if os.path.lexists(path):
        kept.append(path.name)
        return
    load.write_atomic(path, data)
    made.append(path.name)
