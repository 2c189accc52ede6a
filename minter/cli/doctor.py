"""``minter doctor``."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from config.console import commands
from config.console import doctor as findings
from config.errors import ExitCode
from minter import doctor as minter_doctor
from minter.cli import options

app = commands.group("Look for what is wrong with this installation.")


@app.command()
def doctor(
    *,
    online: Annotated[
        bool, typer.Option("--online", help="Also ask every profile's origin for its time, without a credential.")
    ] = False,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Look for what is wrong: files, state, audit log, keys, sockets, clock, limits. Faults give status 8.

    Nothing is changed, no secret is shown, and without --online nothing leaves the machine. A running minter is asked
    what its process is like. Run it as the minter's user for the whole picture.
    """
    if not findings.report(minter_doctor.examine(config, os.environ, online=online), json=json):
        raise typer.Exit(ExitCode.DOCTOR)
