"""``minter leases``: what is on loan, taking it back, and what cannot be taken back."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from config.clock import parse_rfc3339, rfc3339
from config.console import commands, terminal
from config.console.commands import CommandError
from config.durations import parse_duration
from config.errors import ExitCode
from minter.admin_client import AdminClient
from minter.cli import options

app = commands.group("List leases; revoke one, many or all; forget one that cannot be revoked.")

#: States in which a credential may still be good for something.
LIVE = ("intent", "active", "revoking", "orphan_suspect", "irrevocable")

Run = Annotated[str | None, typer.Option("--run", help="Only of this run.")]
Key = Annotated[str | None, typer.Option("--key", help="Only made with this custody key.")]
Kind = Annotated[str | None, typer.Option("--kind", help="Only of this token kind.")]
Caller = Annotated[str | None, typer.Option("--caller", help="Only of this caller's runs.")]
Profile = Annotated[str | None, typer.Option("--profile", help="Only of this profile.")]


@app.command(name="list")
def list_(
    *,
    run: Run = None,
    key: Key = None,
    kind: Kind = None,
    caller: Caller = None,
    profile: Profile = None,
    state: Annotated[str | None, typer.Option("--state", help="Only in this state.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Ended ones too.")] = False,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """List the leases that are not over.

    First those that nobody can end (orphan_suspect, irrevocable). Id, run, profile, state and end of each, and until
    when its credential lives at the latest: no credential.
    """
    leases = _find(
        AdminClient(options.settings(config)), run=run, key=key, kind=kind, caller=caller, profile=profile, state=state
    )
    if not (all_ or state):
        leases = [lease for lease in leases if lease["state"] in LIVE]
    if json:
        terminal.out_json({"leases": leases})
        return
    _show(leases)


@app.command()
def revoke(
    lease: Annotated[str | None, typer.Argument(metavar="LEASE", help="One lease, by its id.")] = None,
    *,
    run: Run = None,
    key: Key = None,
    kind: Kind = None,
    caller: Caller = None,
    profile: Profile = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only made since then: 2h, or 2026-11-30T12:00:00Z.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every live lease.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be revoked.")] = False,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """End one lease, those that match every given filter, or all.

    Brokers drop the credentials within a second. How each ended is said as it is: a static key that was lent stays
    valid upstream until it is rotated (key_still_valid).
    """
    filters = {"run": run, "key": key, "kind": kind, "caller": caller, "profile": profile}
    given = any(filters.values()) or since is not None
    if [lease is not None, given, all_].count(True) != 1:
        raise CommandError(ExitCode.USAGE, "give one LEASE, or filters, or --all", "See: minter leases revoke --help")
    instant = None if since is None else _since(since)
    client = AdminClient(options.settings(config))
    if dry_run:
        found = [
            one
            for one in _find(client, **filters)
            if one["state"] in LIVE
            and (lease is None or one["lease_id"] == lease)
            and (instant is None or parse_rfc3339(one["created_at"]) >= parse_rfc3339(instant))
        ]
        if json:
            terminal.out_json({"leases": found})
        else:
            _show(found)
        terminal.say(f"{terminal.count(len(found), 'lease')} would be revoked; nothing was done")
        return
    if lease is not None:
        answer = client.delete(f"/v1/leases/{commands.in_path(lease)}")
    else:
        answer = client.delete("/v1/leases", **filters, since=instant, all="true" if all_ else None)
    ended = answer["leases"]
    if json:
        terminal.out_json(answer)
    else:
        terminal.table(
            ("LEASE", "PROFILE", "KIND", "STATE", "HOW"),
            ((one["lease_id"], one["profile"], one["kind"], one["state"], one.get("how")) for one in ended),
        )
    _say_how(ended)


@app.command()
def forget(
    lease: Annotated[str, typer.Argument(metavar="LEASE", help="The lease, by its id.")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why, in your own words; the audit log keeps them.")],
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Forget a lease that cannot be revoked.

    That is one which is orphan_suspect or irrevocable, or whose row is damaged. It ends nothing. Look at the issuer
    first: what was lent may be good there until the time that the list shows.
    """
    answer = AdminClient(options.settings(config)).post(
        f"/v1/leases/{commands.in_path(lease)}/forget", {"reason": reason}
    )
    if json:
        terminal.out_json(answer)
    terminal.say("1 lease forgotten; what it lent was not revoked")


def _say_how(ended: list[dict[str, Any]]) -> None:
    terminal.say(f"{terminal.count(len(ended), 'lease')} revoked")
    if pending := sum(one["state"] == "revoking" for one in ended):
        terminal.say(f"{pending} still being revoked at the issuer; see: minter leases list")
    if valid := sum(one.get("how") == "key_still_valid" for one in ended):
        terminal.say(f"{valid} of a static key, which stays valid upstream; to end it: minter rotate ALIAS")
    if signed := sum(one.get("how") == "expired_only" for one in ended):
        terminal.say(f"{signed} that an API which does not ask the minter accepts until its end")


def _find(client: AdminClient, **filters: str | None) -> list[dict[str, Any]]:
    answer = client.get("/v1/leases", **filters)
    if answer.get("truncated"):
        terminal.say("there are more leases than are listed here: narrow the filters")
    leases: list[dict[str, Any]] = answer["leases"]
    return leases


def _show(leases: list[dict[str, Any]]) -> None:
    terminal.table(
        ("LEASE", "BROKER", "CALLER", "RUN", "PROFILE", "KIND", "STATE", "EXPIRES", "LIVES UNTIL", "HOW"),
        (
            (
                *(one.get(name) for name in ("lease_id", "broker", "caller", "run_id", "profile", "kind", "state")),
                terminal.instant(one.get("expires_at")),
                _lives_until(one),
                one.get("how"),
            )
            for one in leases
        ),
    )


def _lives_until(lease: dict[str, Any]) -> str | None:
    if lease["state"] not in LIVE:
        return None
    none = "its key is rotated" if lease["kind"] == "static" else "it is ended"
    return terminal.instant(lease.get("lives_until")) or none


def _since(text: str) -> str:
    try:
        return rfc3339(parse_rfc3339(text))
    except ValueError:
        pass
    try:
        return rfc3339(options.now() - parse_duration(text))
    except ValueError:
        raise CommandError(
            ExitCode.USAGE, "--since takes a duration such as 2h or an instant such as 2026-11-30T12:00:00Z"
        ) from None
