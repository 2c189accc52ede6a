"""``minter serve``."""

from __future__ import annotations

import typer

from config.console import commands
from minter.cli import options
from minter.serve import serve as run

app = commands.group("Run the minter.")


@app.command()
def serve(config: options.Config = options.DEFAULT) -> None:
    """Run the minter in the foreground until SIGTERM; SIGHUP reads grants and brokers again.

    A line on stderr says when it is ready. Settings or grants that do not load end it with status 3, every fault named.
    """
    raise typer.Exit(run(options.settings(config), config))
