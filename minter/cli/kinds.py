"""``minter kinds``: how credentials can be obtained."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from config.console import commands, terminal
from config.console.commands import CommandError
from config.errors import ExitCode
from minter import kinds
from minter.cli import options

app = commands.group("List and explain the token kinds.")


@app.command(name="list")
def list_(*, json: options.Json = False, config: options.Config = options.DEFAULT) -> None:
    """List the token kinds that a profile's `token` can have."""
    listed = [_described(name, config) for name in kinds.names(_third_party(config))]
    if json:
        terminal.out_json({"kinds": listed})
        return
    terminal.table(
        ("KIND", "WHAT", "MADE"),
        (
            (kind["name"], kind["doc"].partition("\n")[0], "here" if kind["local"] else "by somebody else")
            for kind in listed
        ),
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The kind.")],
    *,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Explain one token kind, with an example for grants.json."""
    known = kinds.names(_third_party(config))
    if name not in known:
        raise CommandError(ExitCode.USAGE, f"there is no kind {name}; there are: {', '.join(known)}")
    kind = _described(name, config)
    if json:
        terminal.out_json(kind)
        return
    for line in str(kind["doc"]).splitlines():
        terminal.out(line)
    terminal.out("")
    terminal.out(f'"token": {jsonlib.dumps(kind["example"])}')


def _described(name: str, config: Path) -> dict[str, Any]:
    described = kinds.describe(name, _third_party(config))
    return {**described, "doc": described["doc"].replace("``", "`")}


def _third_party(config: Path) -> list[str]:
    """Return the third-party kinds that the settings name; where there are no settings, none."""
    return options.settings(config).kinds if config != options.DEFAULT or config.exists() else []
