"""``minter rotate``: from one version of a custody key to the next, with no moment without one."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from config.clock import parse_rfc3339
from config.console import commands, terminal, tokenedit
from config.console.commands import CommandError
from config.errors import ExitCode
from config.secret import Secret
from minter.admin_client import AdminClient
from minter.cli import options, rotate_due, rotate_tokens

app = commands.group("Rotate a custody key.")

#: How often a rotation that is waited for is looked at.
_LOOK_S: Final = 1.0
#: How many of the runs that it touches a dry run names on a terminal.
_RUNS_SHOWN: Final = 20


@app.command()
def rotate(
    alias: Annotated[
        str | None,
        typer.Argument(
            metavar="ALIAS",
            help="The key, as minter.toml or grants.json names it; sealing-key, audit-signer, broker:ID or caller:ID.",
        ),
    ] = None,
    *,
    all_due: Annotated[
        bool, typer.Option("--all-due", help="Every key whose age has reached its rotate_every: for a timer.")
    ] = False,
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
    compromised: Annotated[
        bool,
        typer.Option("--compromised", help="It is in the wrong hands: drop all older versions and leases at once."),
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--file", help="Of broker:ID and caller:ID: the file that they stand in.")
    ] = None,
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
    terminal), or made by its issuer where its kind can ask for that; the old one is kept until --finish or its
    deadline. Of broker:ID and caller:ID the new token is printed, alone, on stdout.

    A rotation goes on by itself, also after a restart; give the command again to resume one that was interrupted.
    --all-due ends with 5 when a key is due that needs a person, and names it.
    """
    step = _step(finish=finish, abort=abort, status=status)
    if (alias is None) is not all_due:
        raise CommandError(ExitCode.USAGE, "give a key or --all-due, not both" if alias else "give a key, or --all-due")
    if alias is None:
        if step != "start" or force or compromised or overlap is not None or file is not None:
            raise CommandError(ExitCode.USAGE, "--all-due goes with --dry-run alone")
        rotate_due.rotate_due(AdminClient(options.settings(config)), dry_run=dry_run, json=json)
        return
    if compromised and step in ("finish", "abort"):
        raise CommandError(ExitCode.USAGE, f"--compromised and --{step} exclude each other")
    if rotate_tokens.is_token(alias):
        if step != "start" or force:
            raise CommandError(ExitCode.USAGE, "a token is rotated with --overlap, --compromised and --dry-run alone")
        if json and not dry_run:
            raise CommandError(ExitCode.USAGE, "the new token is printed alone: --json goes with --dry-run")
        terms = rotate_tokens.Terms(overlap=overlap, compromised=compromised, dry_run=dry_run, json=json)
        rotate_tokens.rotate(alias, file, terms, config)
        return
    if file is not None:
        raise CommandError(ExitCode.USAGE, "--file goes with broker:ID and caller:ID")
    overlap_s = None if overlap is None else tokenedit.overlap(overlap)
    body = {"step": step, "force": force, "overlap_s": overlap_s, "compromised": compromised}
    _rotate(AdminClient(options.settings(config)), alias, body, dry_run=dry_run, wait=wait, json=json)


def _rotate(
    client: AdminClient, alias: str, body: Mapping[str, Any], *, dry_run: bool, wait: bool | None, json: bool
) -> None:
    step, compromised = body["step"], body["compromised"]
    target = f"/v1/keys/{commands.in_path(alias)}/rotate"
    if dry_run:
        plan = client.post(target, {**body, "dry_run": True})
    else:
        # Looked at first, so that what would be refused is refused before a new value is asked for. What is compromised
        # is not refused: the minter ends what was made with it even when it can put nothing in its place.
        looking = step == "start" and not compromised
        plan = client.post(target, {"step": "start", "dry_run": True} if looking else {"step": "status"})
        if step != "status":
            value = _new_value(alias, plan, compromised=compromised) if step == "start" else None
            plan = client.post(target, body, secret=value)
    if wait if wait is not None else sys.stderr.isatty():
        plan = _wait(client, target, plan)
    if json:
        terminal.out_json(plan)
    else:
        _show(plan)
    _say(plan, step)
    if compromised and not dry_run and plan.get("problems"):
        what = "what could not be deleted is out of use, and is tried again"
        raise CommandError(ExitCode.UPSTREAM, what, "See: minter doctor")


def _step(*, finish: bool, abort: bool, status: bool) -> str:
    chosen = [name for name, given in (("finish", finish), ("abort", abort), ("status", status)) if given]
    if len(chosen) > 1:
        raise CommandError(ExitCode.USAGE, "give one of --finish, --abort and --status")
    return chosen[0] if chosen else "start"


def _new_value(alias: str, plan: Mapping[str, Any], *, compromised: bool) -> Secret | None:
    """Read the new value of a static key, unless it is there already or would be refused anyway."""
    if plan["use"] != "static" or (plan["state"] in ("prepared", "retiring") and not compromised):
        return None
    by_issuer = plan["value_from"] == "issuer"
    if by_issuer and sys.stdin.isatty():
        return None
    value = terminal.ask_secret(f"New value of {alias}")
    if len(value):
        return value
    if by_issuer:
        return None
    if compromised:
        # Let the minter end what was made with the old one; it says that the new value is missing.
        return None
    raise CommandError(
        ExitCode.USAGE, "there is no new value on standard input", f"For example: minter rotate {alias} < FILE"
    )


def _wait(client: AdminClient, target: str, plan: Any) -> Any:
    """Look at the rotation until its new key is in use and seals everything. Leaving early (Ctrl-C) stops nothing."""
    if plan["dry_run"]:
        return plan
    if plan["next_step"] == "activate" and plan["next_at"] is not None:
        left_s = parse_rfc3339(plan["next_at"]) - options.now()
        with terminal.waiting("published; waiting until every verifier knows it", left_s) as passed:
            started = time.monotonic()
            while plan["next_step"] == "activate":
                time.sleep(_LOOK_S)
                passed(time.monotonic() - started)
                plan = client.post(target, {"step": "status"})
    elif plan["next_step"] == "move":
        whole = plan["left"]
        with terminal.waiting("sealing what is there with the new key", whole) as passed:
            while plan["next_step"] == "move":
                time.sleep(_LOOK_S)
                plan = client.post(target, {"step": "status"})
                passed(max(0, whole - plan["left"]))
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
    for version, problem in plan.get("problems", {}).items():
        terminal.say(f"version {version}: {problem}")
    for one in plan.get("to_do", ()):
        terminal.say(f"{'then it is left to you' if plan['dry_run'] else 'still to do'}: {one}")
    affected = plan["affected"]
    if plan["dry_run"]:
        leases, runs = terminal.count(affected["leases"], "live lease"), terminal.count(len(affected["runs"]), "run")
        terminal.say(f"nothing was done; {leases} of {runs} made with the key that would retire")
        for run in affected["runs"][:_RUNS_SHOWN]:
            terminal.say(f"  {run}")
        if (more := len(affected["runs"]) - _RUNS_SHOWN) > 0:
            terminal.say(f"  and {more} more: see --json")
    elif step == "abort":
        terminal.say(f"the rotation was given up; version {plan['active_version']} stays in use")
    elif step != "status":
        _say_state(plan)


def _say_state(plan: Mapping[str, Any]) -> None:
    if plan["state"] == "retiring":
        terminal.say(f"version {plan['active_version']} is in use; the old one is kept for now")
        when = {"static": "every consumer has the new value", "sealing": "no backup needs the old one"}.get(plan["use"])
        if when is not None:
            terminal.say(f"when {when}: minter rotate {plan['alias']} --finish")
    elif plan["state"] == "published":
        terminal.say(f"version {plan['new_version']} is published and signs by itself from {plan['next_at']} on")
    elif plan["state"] == "idle":
        terminal.say(f"version {plan['active_version']} is in use and the only one")
