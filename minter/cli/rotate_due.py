"""``minter rotate --all-due``: what a timer runs. A key that is not due, or is being rotated, is left alone."""

from __future__ import annotations

from typing import Any

from config.console import commands, terminal
from config.console.commands import CommandError
from config.errors import ExitCode
from minter.admin_client import AdminClient


def rotate_due(client: AdminClient, *, dry_run: bool, json: bool) -> None:
    """Rotate every key whose period has passed and that the minter can rotate by itself.

    Errors: ``CommandError`` (refused) when one needs a person, (try again) when one failed; the others are done then.
    """
    outcomes = [_one(client, key, dry_run=dry_run) for key in client.get("/v1/ages")["keys"] if key["level"] == "alarm"]
    if json:
        terminal.out_json({"dry_run": dry_run, "keys": outcomes})
    elif not outcomes:
        terminal.say("no key is due")
    else:
        terminal.table(("KEY", "OUTCOME", "WHY"), ([one["alias"], one["outcome"], one["why"]] for one in outcomes))
    for outcome, status, what in (
        ("needs a person", ExitCode.REFUSED, "due and cannot be rotated without a person"),
        ("failed", ExitCode.TRY_AGAIN, "due and could not be rotated now"),
    ):
        named = [one["alias"] for one in outcomes if one["outcome"] == outcome]
        if named:
            raise CommandError(status, f"{what}: {', '.join(named)}")


def _one(client: AdminClient, key: dict[str, Any], *, dry_run: bool) -> dict[str, Any]:
    alias = key["alias"]
    if not key["by_itself"]:
        return {"alias": alias, "outcome": "needs a person", "why": key["why"]}
    if key["rotating"]:
        return {"alias": alias, "outcome": "running", "why": "a rotation of it is under way"}
    try:
        target = f"/v1/keys/{commands.in_path(alias)}/rotate"
        plan = client.post(target, {"step": "start", "dry_run": dry_run})
    except CommandError as error:
        outcomes = {ExitCode.REFUSED: "needs a person", ExitCode.CONFLICT: "running"}
        return {"alias": alias, "outcome": outcomes.get(error.status, "failed"), "why": error.what}
    if dry_run:
        return {"alias": alias, "outcome": "due", "why": ""}
    return {"alias": alias, "outcome": "rotated", "why": f"it is {plan['state']}"}
