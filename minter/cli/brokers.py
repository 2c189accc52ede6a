"""``minter brokers``: who may ask for credentials."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from config.clock import rfc3339
from config.console import commands, terminal, tokenedit
from config.console.commands import CommandError
from config.console.tokenedit import TokensOf
from config.errors import ExitCode
from config.tokenfiles import Principal
from minter.cli import options

app = commands.group("Create, list, rotate and revoke the credentials of brokers: who may ask for leases.")

Id = Annotated[str, typer.Argument(metavar="ID", help="The broker.")]
File = Annotated[Path | None, typer.Option("--file", help="The brokers file; default: the one that the settings name.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="Write the token into this file (0600) and not to stdout.")
]


def _brokers(file: Path | None, config: Path) -> TokensOf:
    return TokensOf(file or Path(options.settings(config).brokers), "brokers")


@app.command()
def create(
    id_: Id,
    uid: Annotated[
        int | None, typer.Option("--uid", min=0, help="The user that the broker connects as; default: you.")
    ] = None,
    profile: Annotated[
        list[str] | None, typer.Option("--profile", help="A profile it may ask for; repeatable; default: all.")
    ] = None,
    *,
    introspect_only: Annotated[
        bool, typer.Option("--introspect-only", help="It may only ask whether a token is active: for an API's server.")
    ] = False,
    file: File = None,
    token_file: TokenFile = None,
    config: options.Config = options.DEFAULT,
) -> None:
    """Create a broker's credential and print it, alone, on stdout. It is shown this once.

    Works with the minter running, which picks the change up, and without it. An id that is taken ends with status 6.
    """
    if introspect_only and (profile or uid is not None):
        raise CommandError(ExitCode.USAGE, "--introspect-only goes with neither --profile nor --uid")
    if introspect_only:
        principal = Principal(id=id_, profiles=[], introspect=True)
    else:
        principal = Principal(id=id_, uid=os.geteuid() if uid is None else uid, profiles=profile or None)
    brokers = _brokers(file, config)
    tokenedit.hand_over(brokers.create(principal), token_file)
    terminal.say(f"broker {id_} is in {brokers.path}; give it the credential as the file that minter_credential names")


@app.command(name="list")
def list_(file: File = None, *, json: options.Json = False, config: options.Config = options.DEFAULT) -> None:
    """List the brokers and what each may ask for."""
    now = options.now()
    listed = [
        {
            **tokenedit.described(broker, now=now),
            "uid": broker.uid,
            "profiles": broker.profiles,
            "introspect": broker.introspect,
        }
        for broker in _brokers(file, config).listed()
    ]
    if json:
        terminal.out_json({"brokers": listed})
        return
    terminal.table(
        ("BROKER", "UID", "MAY ASK FOR", "TOKENS", "OVERLAP ENDS"),
        ((row["id"], row["uid"], _may(row), row["tokens"], row["overlap_ends_at"]) for row in listed),
    )


def _may(row: Mapping[str, Any]) -> str:
    if row["profiles"] is None:
        return "all profiles"
    asked = [*row["profiles"], *(["introspection"] if row["introspect"] else [])]
    return ", ".join(asked) or "nothing"


@app.command()
def rotate(
    id_: Id,
    overlap: Annotated[str, typer.Option(help="How long the old one stays valid: 0s ends it at once.")] = "24h",
    file: File = None,
    token_file: TokenFile = None,
    config: options.Config = options.DEFAULT,
) -> None:
    """Give a broker a new credential. It is printed, alone, on stdout; the old one ends after the overlap."""
    overlap_s = tokenedit.overlap(overlap)
    now = options.now()
    tokenedit.hand_over(_brokers(file, config).rotate(id_, now=now, overlap_s=overlap_s), token_file)
    terminal.say(f"broker {id_} has a new credential; the old one ends at {rfc3339(now + overlap_s)}")
    terminal.say("a running broker reads its credential when it starts")


@app.command()
def revoke(id_: Id, file: File = None, config: options.Config = options.DEFAULT) -> None:
    """Remove a broker with all its credentials. A running minter lends it nothing any more and ends what it has."""
    brokers = _brokers(file, config)
    brokers.revoke(id_)
    terminal.say(f"broker {id_} is gone from {brokers.path}")
    terminal.say(
        "a running minter takes that up within seconds, and ends the leases that it has; at once: minter reload"
    )
