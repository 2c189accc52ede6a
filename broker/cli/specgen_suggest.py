"""``broker specgen suggest``."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.admin_client import AdminClient
from broker.cli import options
from broker.specgen.model import route_text
from broker.suggest import Suggestion
from broker.suggest import suggest as suggested
from config.console import commands, terminal
from config.console.commands import CommandError
from config.errors import ExitCode
from config.load import load_grants

app = commands.group("Say which granted routes runs really used, and how the grant could be narrowed.")

_RUNS = "/v1/admin/runs"


@app.command()
def suggest(
    *,
    run: Annotated[list[str], typer.Option("--run", metavar="ID", help="A run, live or ended; repeatable.")],
    profile: Annotated[str | None, typer.Option("--profile", help="The profile, where the runs have several.")] = None,
    literals: Annotated[
        bool, typer.Option("--literals", help="Print the routes with literals where a wildcard took one value only.")
    ] = False,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Say which entries of a profile's allow list the runs used, and print the list without the others.

    What is printed is JSON to put in the place of `allow`. With the profile's "learn": true it is also said which
    wildcards took only one value; --literals puts that value in their place. Few runs show little: what they did not
    need, others may.
    """
    settings = options.settings(config)
    client = AdminClient(settings)
    runs = [client.get(f"{_RUNS}/{commands.in_path(one)}") for one in run]
    learned = [client.get(f"{_RUNS}/{commands.in_path(one)}/learned")["learned"] for one in run]
    name = profile or _profile(runs)
    granted = load_grants(Path(settings.grants)).profiles.get(name)
    if granted is None:
        raise CommandError(ExitCode.USAGE, f"{settings.grants} has no profile {terminal.plain(name)}")
    written = jsonlib.loads(granted.source).get("allow", [])
    found = suggested(name, written, [one["trace"] for one in runs], learned)
    if json:
        terminal.out_json(_as_json(name, found))
        return
    _tell(name, len(runs), found, learns=granted.learn)
    terminal.out_json(found.narrowed if literals else found.allow)


def _profile(runs: list[Any]) -> str:
    names: list[str] = sorted({name for run in runs for name in run["profiles"]})
    if len(names) != 1:
        listed = ", ".join(names) or "none"
        raise CommandError(ExitCode.USAGE, f"the runs have the profiles {listed}", "Say which with --profile.")
    return names[0]


def _as_json(profile: str, found: Suggestion) -> dict[str, Any]:
    return {
        "profile": profile,
        "used": [{"entry": entry, "calls": calls} for entry, calls in found.used],
        "unused": list(found.unused),
        "gone": list(found.gone),
        "one_value": [asdict(one) for one in found.only],
        "denied": [
            {"code": code, "template": template or None, "count": count} for code, template, count in found.denied
        ],
        "allow": found.allow,
        "allow_with_literals": found.narrowed,
    }


def _tell(profile: str, runs: int, found: Suggestion, *, learns: bool) -> None:
    entries = len(found.used) + len(found.unused)
    terminal.say(f"{terminal.count(runs, 'run')} used {len(found.used)} of the {entries} routes of {profile}")
    for entry, calls in found.used:
        terminal.note(f"  used    {route_text(entry)}  ({terminal.count(calls, 'call')})")
    for entry in found.unused:
        terminal.note(f"  unused  {route_text(entry)}")
    for text in found.gone:
        terminal.note(f"  used, and not granted any more: {text}")
    for one in found.only:
        terminal.note(f"  segment {one.segment} of {one.route} was always {one.value}")
    for code, template, count in found.denied:
        terminal.note(f"  refused {count} times: {code}" + (f", {template}" if template else ""))
    if not learns:
        terminal.note('  with "learn": true in the profile it is also said which wildcards took one value only')
