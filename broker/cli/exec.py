"""``broker exec``: a command with a run of its own and no key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from broker import exec as runner
from broker.cli import options
from broker.explain import parameters
from config.console import commands
from config.console.commands import CommandError
from config.errors import ExitCode

app = commands.group("Run a command with a run of its own and no key.")


@app.command(context_settings={"allow_interspersed_args": False})
def exec_(
    command: Annotated[list[str], typer.Argument(metavar="CMD", help="The command, best after --.")],
    *,
    profile: Annotated[list[str], typer.Option("--profile", "-p", help="What the run may call; may be repeated.")],
    param: Annotated[list[str] | None, typer.Option("--param", help="NAME=VALUE: a run parameter.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Run CMD as this user (needs root).")] = None,
    same_user: Annotated[
        bool, typer.Option("--same-user", help="Run CMD as yourself although that is no boundary.")
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", envvar="BROKER_CALLER_TOKEN_FILE", help="The file with the caller's token."),
    ] = None,
    url: Annotated[
        str, typer.Option("--url", envvar="BROKER_URL", help="Where the broker is, when no settings say so.")
    ] = "",
    ca_file: Annotated[str, typer.Option("--ca-file", help="Authorities that sign the broker's certificate.")] = "",
    ttl: Annotated[str | None, typer.Option("--ttl", help="How long the run may last, such as 15m.")] = None,
    trace_id: Annotated[str | None, typer.Option("--trace-id", help="Your own id for the run.")] = None,
    pass_env: Annotated[
        list[str] | None, typer.Option("--pass-env", help="A variable that CMD is to see as well; may be repeated.")
    ] = None,
    config: options.Config = options.DEFAULT,
) -> None:
    """Run CMD with BROKER_URL, BROKER_RUN_TOKEN and what its profiles' SDKs look for, and end the run after it.

    CMD gets a clean environment, stdin, stdout and stderr. It is refused when CMD's user could get around the broker:
    read its or the caller's credentials or state, reach the minter's or an admin socket, or is an operator. The exit
    status is CMD's; 128 and the number for a signal.
    """
    if token_file is None:
        raise CommandError(
            ExitCode.USAGE, "there is no caller token", "Give --token-file or set BROKER_CALLER_TOKEN_FILE."
        )
    if user is not None and same_user:
        raise CommandError(ExitCode.USAGE, "--user and --same-user exclude each other")
    order = runner.Order(
        argv=command,
        profiles=profile,
        params=parameters(param or ()),
        token_file=token_file,
        config=config,
        url=url,
        ca_file=ca_file,
        user=user,
        same_user=same_user,
        ttl=ttl,
        trace_id=trace_id,
        passed=pass_env or [],
    )
    raise typer.Exit(runner.execute(order, os.environ))
