"""``minter init``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from config.console import commands, terminal
from config.console.commands import CommandError
from config.errors import ExitCode
from minter import initdir

app = commands.group("Write a directory to start from.")


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Where to write; made when it is missing.")],
    uid: Annotated[
        int | None, typer.Option("--uid", min=0, help="The user that the broker runs as; default: you.")
    ] = None,
) -> None:
    """Write settings, an example grants file and the first broker's credential into DIRECTORY.

    Nothing that is there is overwritten. Together with `broker init DIRECTORY` it makes a working pair.
    """
    try:
        written = initdir.write(directory, uid=os.geteuid() if uid is None else uid)
    except OSError as error:
        raise CommandError(ExitCode.CONFIGURATION, f"{directory}: cannot be written: {error.strerror}") from None
    for name in written.made:
        terminal.say(f"wrote {directory / name}")
    for name in written.kept:
        terminal.say(f"kept {directory / name}, which was there")
    broker = "" if (directory / "broker.toml").exists() else f"\n  broker init {directory}"
    terminal.note(f"Next:{broker}\n  minter serve --config {directory / 'minter.toml'}")
    if os.geteuid() == 0:
        terminal.note(
            "You are root, and the minter does not run as root: give the directory to a user of its own,\n"
            "or set MINTER_ALLOW_ROOT=1 for a trial."
        )
