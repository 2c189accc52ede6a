"""``broker doctor``."""

from __future__ import annotations

import os

import typer

from broker import doctor as broker_doctor
from broker.cli import options
from config.console import commands
from config.console import doctor as findings
from config.errors import ExitCode

app = commands.group("Look for what is wrong with this installation.")


@app.command()
def doctor(*, json: options.Json = False, config: options.Config = options.DEFAULT) -> None:
    """Look for what is wrong: files, grants, state, sockets, the way to the minter, limits. Faults give status 8.

    Nothing is changed and no secret is read. Run it as the broker's user for the whole picture.
    """
    if not findings.report(broker_doctor.examine(config, os.environ), json=json):
        raise typer.Exit(ExitCode.DOCTOR)
