"""``broker init``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from broker import initdir
from config.console import commands, terminal
from config.console.commands import CommandError
from config.errors import ExitCode

app = commands.group("Write a directory to start from.")


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Where to write; made when it is missing.")],
) -> None:
    """Write settings, an example grants file and an empty callers file into DIRECTORY.

    Nothing that is there is overwritten. Together with `minter init DIRECTORY` it makes a working pair.
    """
    try:
        written = initdir.write(directory)
    except OSError as error:
        raise CommandError(ExitCode.CONFIGURATION, f"{directory}: cannot be written: {error.strerror}") from None
    for name in written.made:
        terminal.say(f"wrote {directory / name}")
    for name in written.kept:
        terminal.say(f"kept {directory / name}, which was there")
    minter = "" if (directory / "minter.toml").exists() else f"\n  minter init {directory}"
    terminal.note(
        f"Next:{minter}\n"
        f"  broker callers create me --file {directory / 'callers.json'}   (prints the caller's token)\n"
        f"  broker serve --config {directory / 'broker.toml'}"
    )
    if os.geteuid() == 0:
        terminal.note(
            "You are root, and the broker does not run as root: give the directory to a user of its own,\n"
            "or set BROKER_ALLOW_ROOT=1 for a trial."
        )
