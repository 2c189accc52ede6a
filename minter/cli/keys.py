"""``minter keys``: the custody keys one by one, and where each may go."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from config.console import commands, terminal
from config.console.commands import CommandError
from config.errors import ExitCode
from minter.admin_client import AdminClient
from minter.cli import options

app = commands.group("List and show custody keys; pin one to other origins.")

Alias = Annotated[str, typer.Argument(metavar="ALIAS", help="The key, as minter.toml or grants.json names it.")]


@app.command(name="list")
def list_(*, json: options.Json = False, config: options.Config = options.DEFAULT) -> None:
    """List the custody keys. Where each is, its active version and where it may go: names only, no value."""
    answer = AdminClient(options.settings(config)).get("/v1/custody")
    if json:
        terminal.out_json(answer)
        return
    terminal.table(
        ("KEY", "USE", "WHERE", "ACTIVE", "ORIGINS", "PROFILES", "LAST USED"),
        (
            (
                *(key[name] for name in ("alias", "use", "source_ref")),
                active(key),
                key["origins"],
                key["profiles"],
                terminal.instant(key["last_used_at"]),
            )
            for key in answer["keys"]
        ),
    )


@app.command()
def show(alias: Alias, *, json: options.Json = False, config: options.Config = options.DEFAULT) -> None:
    """Show one custody key with all its versions and their phases."""
    keys = AdminClient(options.settings(config)).get("/v1/custody")["keys"]
    key = next((key for key in keys if key["alias"] == alias), None)
    if key is None:
        raise CommandError(ExitCode.USAGE, f"there is no custody key {alias}", "See: minter keys list")
    if json:
        terminal.out_json(key)
        return
    terminal.pairs((name, value) for name, value in key.items() if name != "versions")
    terminal.table(
        ("VERSION", "PHASE", "FINGERPRINT", "CREATED", "ACTIVATED", "RETIRES", "DESTROYED"),
        (
            (
                *(version[name] for name in ("version", "phase", "fingerprint")),
                *(
                    terminal.instant(version[name])
                    for name in ("created_at", "activated_at", "retire_at", "destroyed_at")
                ),
            )
            for version in key["versions"]
        ),
    )


@app.command()
def rebind(
    alias: Alias,
    origin: Annotated[list[str], typer.Option("--origin", help="https://HOST[:PORT]; repeatable.")],
    *,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Pin a key to other origins than those it was first used for.

    Until this is done a grants file that sends the key elsewhere is refused. Give every origin that it may go to:
    the list replaces the one before.
    """
    answer = AdminClient(options.settings(config)).post(
        f"/v1/keys/{commands.in_path(alias)}/rebind", {"origins": origin}
    )
    if json:
        terminal.out_json(answer)
    else:
        terminal.say(f"{alias} may go to {', '.join(answer['origins'])} and nowhere else")
        if ended := len(answer["leases"]):
            terminal.say(f"{terminal.count(ended, 'live lease')} for other origins ended")


def active(key: dict[str, Any]) -> str:
    """Return the active version of a key, with what stands beside it during a rotation."""
    phases = {version["phase"]: version["version"] for version in key["versions"]}
    words = [f"v{phases['active']}"] if "active" in phases else ["none"]
    words += [f"v{phases[phase]} {phase}" for phase in ("prepared", "retiring") if phase in phases]
    return ", ".join(words)
