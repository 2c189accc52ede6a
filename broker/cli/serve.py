"""``broker serve``."""

from __future__ import annotations

import typer

from broker.cli import options
from broker.serve import serve as run
from config.console import commands

app = commands.group("Run the broker.")


@app.command()
def serve(config: options.Config = options.DEFAULT) -> None:
    """Run the broker in the foreground until SIGTERM; SIGHUP reads grants and callers again.

    A line on stderr says when it is ready. Settings or grants that do not load end it with status 3, every fault named.
    """
    raise typer.Exit(run(options.settings(config)))
