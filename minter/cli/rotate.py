"""``minter rotate``: from one version of a custody key to the next, with no moment without one."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from config.clock import parse_rfc3339
from config.console import commands, terminal, tokenedit
from config.console.commands import CommandError
from config.errors import ExitCode
from config.secret import Secret
from minter.admin_client import AdminClient
from minter.cli import options

app = commands.group("Rotate a custody key.")

#: How often a rotation that is waited for is looked at.
_LOOK_S: Final = 1.0


@app.command()
def rotate(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="The key, as minter.toml or grants.json names it.")],
    *,
    finish: Annotated[
        bool, typer.Option("--finish", help="Go on to the next step now: take the new key, or drop the old one.")
    ] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Drop a new key that is not in use yet.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Only say where the rotation stands.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen and whom it touches.")] = False,
    overlap: Annotated[
        str | None, typer.Option("--overlap", help="How long the old value of a static key is kept, such as 24h.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Do not wait: tokens may be refused by verifiers that cache, or end early."),
    ] = False,
    wait: Annotated[
        bool | None,
        typer.Option("--wait/--no-wait", help="Wait until the new key is in use; default: only on a terminal."),
    ] = None,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Rotate a custody key.

    A signing key is made by the minter: it is published, signs once verifiers must know it, and the old one verifies
    until its last token has ended. The new value of a static key is read from standard input (without echo on a
    terminal); the old one is kept until --finish or its deadline.

    A rotation goes on by itself, also after a restart; give the command again to resume one that was interrupted.
    """
    step = _step(finish=finish, abort=abort, status=status)
    overlap_s = None if overlap is None else tokenedit.overlap(overlap)
    client = AdminClient(options.settings(config))
    target = f"/v1/keys/{commands.in_path(alias)}/rotate"
    # Looked at first, so that what would be refused is refused before a new value is asked for.
    plan = client.post(target, {"step": "start", "dry_run": True} if step == "start" else {"step": "status"})
    if step != "status" and not dry_run:
        body = {"step": step, "force": force, "overlap_s": overlap_s}
        value = _new_value(alias, plan) if step == "start" else None
        plan = client.post(target, body, secret=value)
    elif dry_run:
        plan = client.post(target, {"step": step, "dry_run": True, "overlap_s": overlap_s})
    if wait if wait is not None else sys.stderr.isatty():
        plan = _wait(client, target, plan)
    if json:
        terminal.out_json(plan)
    else:
        _show(plan)
    _say(plan, step)


def _step(*, finish: bool, abort: bool, status: bool) -> str:
    chosen = [name for name, given in (("finish", finish), ("abort", abort), ("status", status)) if given]
    if len(chosen) > 1:
        raise CommandError(ExitCode.USAGE, "give one of --finish, --abort and --status")
    return chosen[0] if chosen else "start"


def _new_value(alias: str, plan: Mapping[str, Any]) -> Secret | None:
    """Read the new value of a static key, unless it is there already or would be refused anyway."""
    if plan["use"] != "static" or plan["state"] in ("prepared", "retiring"):
        return None
    value = terminal.ask_secret(f"New value of {alias}")
    if not len(value):
        raise CommandError(
            ExitCode.USAGE, "there is no new value on standard input", f"For example: minter rotate {alias} < FILE"
        )
    return value


def _wait(client: AdminClient, target: str, plan: Any) -> Any:
    """Look at the rotation until its new key is in use. Leaving early (Ctrl-C) does not stop it."""
    if plan["dry_run"] or plan["next_step"] != "activate" or plan["next_at"] is None:
        return plan
    left_s = parse_rfc3339(plan["next_at"]) - options.now()
    with terminal.waiting("published; waiting until every verifier knows it", left_s) as passed:
        started = time.monotonic()
        while plan["next_step"] == "activate":
            time.sleep(_LOOK_S)
            passed(time.monotonic() - started)
            plan = client.post(target, {"step": "status"})
    return plan


def _show(plan: Mapping[str, Any]) -> None:
    if plan["state"] == "idle" and not plan["dry_run"]:
        terminal.out(f"{plan['alias']}: version {plan['active_version']} is in use, no rotation is running")
        return
    terminal.table(
        ("STEP", "WHEN", "WHAT"),
        ((one["step"], "done" if one["done"] else terminal.instant(one["at"]), one["does"]) for one in plan["steps"]),
    )


def _say(plan: Mapping[str, Any], step: str) -> None:
    affected = plan["affected"]
    if plan["dry_run"]:
        leases, runs = terminal.count(affected["leases"], "live lease"), terminal.count(len(affected["runs"]), "run")
        terminal.say(f"nothing was done; {leases} of {runs} made with the key that would retire")
        return
    if step == "status":
        return
    if step == "abort":
        terminal.say(f"the rotation was given up; version {plan['active_version']} stays in use")
    elif plan["state"] == "retiring":
        terminal.say(f"version {plan['active_version']} is in use; the old one is kept for now")
        if plan["use"] == "static":
            terminal.say(f"when every consumer has the new value: minter rotate {plan['alias']} --finish")
    elif plan["state"] == "published":
        terminal.say(f"version {plan['new_version']} is published and signs by itself from {plan['next_at']} on")
    elif plan["state"] == "idle":
        terminal.say(f"version {plan['active_version']} is in use and the only one")
