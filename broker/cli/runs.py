"""``broker runs``: what is running, and the kill switch."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from broker.admin_client import AdminClient
from broker.cli import options
from config.console import commands, terminal
from config.console.commands import CommandError
from config.errors import ExitCode

app = commands.group("List and show runs; end one, many or all.")

_RUNS = "/v1/admin/runs"

Profile = Annotated[str | None, typer.Option("--profile", help="Only with this profile.")]
Caller = Annotated[str | None, typer.Option("--caller", help="Only of this caller.")]


@app.command(name="list")
def list_(
    *,
    profile: Profile = None,
    caller: Caller = None,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """List the live runs. Caller, profiles, end, calls and refusals of each: no token."""
    answer = AdminClient(options.settings(config)).get(_RUNS, profile=profile, caller=caller)
    if json:
        terminal.out_json(answer)
        return
    terminal.table(
        ("RUN", "CALLER", "PROFILES", "EXPIRES", "CALLS", "DENIED", "OPEN", "TRACE ID"),
        (
            (
                run["run_id"],
                run["caller"],
                sorted(run["profiles"]),
                terminal.instant(run["expires_at"]),
                run["trace"]["total"],
                run["trace"]["denied"],
                run.get("open_calls"),
                run.get("trace_id"),
            )
            for run in answer["runs"]
        ),
    )


@app.command()
def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    *,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Show a run with its trace. Route templates, status and sizes: no path, body or credential."""
    found = AdminClient(options.settings(config)).get(f"{_RUNS}/{commands.in_path(run)}")
    if json:
        terminal.out_json(found)
        return
    trace = found["trace"]
    terminal.pairs(
        (
            *((name, found.get(name)) for name in ("run_id", "caller", "state", "end_reason", "trace_id")),
            ("params", [f"{name}={value}" for name, value in found["params"].items()]),
            ("created_at", terminal.instant(found["created_at"])),
            ("expires_at", terminal.instant(found["expires_at"])),
            ("profiles", sorted(found["profiles"])),
            *((name, trace[name]) for name in ("total", "denied", "shed", "dropped")),
        )
    )
    terminal.table(
        ("N", "ROUTE", "STATUS", "DELIVERED", "SENT", "BACK", "MS"),
        (_cells(row) for row in trace.get("rows", [])),
    )
    if trace["denied_by"]:
        terminal.table(
            ("REFUSED BY", "CATALOG ROUTE", "COUNT"),
            ((one["code"], one["template"], one["count"]) for one in trace["denied_by"]),
        )


@app.command()
def end(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="One run, by its id.")] = None,
    *,
    profile: Profile = None,
    caller: Caller = None,
    all_: Annotated[bool, typer.Option("--all", help="Every live run.")] = False,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """End one run, many or all of them: the kill switch. Many: those of a profile, a caller or both.

    Open calls are cut, further ones refused, and the leases revoked; a minter that is away is told later.
    """
    if [run is not None, bool(profile or caller), all_].count(True) != 1:
        raise CommandError(ExitCode.USAGE, "give one RUN, or --profile and --caller, or --all")
    client = AdminClient(options.settings(config))
    if run is not None:
        answer = client.delete(f"{_RUNS}/{commands.in_path(run)}")
        ended = [answer]
        granted = True
    else:
        answer = client.delete(_RUNS, profile=profile, caller=caller, all="true" if all_ else None)
        ended = answer["runs"]
        granted = answer.get("profile_granted", True)
    if json:
        terminal.out_json(answer)
    else:
        terminal.table(("RUN", "CALLER", "LEASES"), ((one["run_id"], one["caller"], _leases(one)) for one in ended))
    terminal.say(f"{terminal.count(len(ended), 'run')} ended")
    if not granted:
        terminal.say(f"there is no profile {profile} in the grants: is it written as meant?")


def _cells(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        row[name] for name in ("n", "route", "status", "delivered", "bytes_sent", "bytes_back", "milliseconds")
    )


def _leases(run: dict[str, Any]) -> str:
    leases = run.get("leases")
    if leases is None:
        return "the minter is yet to answer"
    return ", ".join(f"{lease['profile']}: {lease.get('how') or lease['state']}" for lease in leases)
