"""``minter audit tail|search|export|events``: what the log says, from the running minter."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer

from config.console import terminal
from minter.admin_client import AdminClient
from minter.audit_events import EVENTS, FIELDS
from minter.cli import options

#: Events that are asked for at once, and how often a reader that follows asks.
_PAGE: Final = 500
_POLL_S: Final = 1.0

Since = Annotated[str | None, typer.Option("--since", help="Only from this instant on (RFC 3339).")]
Until = Annotated[str | None, typer.Option("--until", help="Only before this instant (RFC 3339).")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to their group."""
    for command in (tail, search, export, events):
        app.command()(command)


def tail(
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=10_000, help="How many events.")] = 20,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written from now on.")] = False,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Show the last events."""
    client = AdminClient(options.settings(config))
    found = list(_events(client, {}, last=str(lines)))
    _show(found, as_json=json)
    last = found[-1]["seq"] if found else 0
    while follow:
        # Into a pipe, lines would otherwise wait until there are many.
        sys.stdout.flush()
        time.sleep(_POLL_S)
        for event in _events(client, {}, after=last):
            if json:
                terminal.out_json_line(event)
            else:
                terminal.out("  ".join(map(str, _row(event))))
            last = event["seq"]


def search(
    *,
    code: Annotated[str | None, typer.Option("--code", help="An event's code: see minter audit events.")] = None,
    run: Annotated[str | None, typer.Option("--run", help="Id of a run.")] = None,
    lease: Annotated[str | None, typer.Option("--lease", help="Id of a lease.")] = None,
    caller: Annotated[str | None, typer.Option("--caller", help="Id of a caller.")] = None,
    broker: Annotated[str | None, typer.Option("--broker", help="Id of a broker.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Alias of a custody key.")] = None,
    uid: Annotated[int | None, typer.Option("--uid", min=0, help="User who did it or was refused.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="How many events at most.")] = 1000,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Show the events that fit every option, the oldest first."""
    client = AdminClient(options.settings(config))
    wanted = {"code": code, "run": run, "lease": lease, "caller": caller, "broker": broker, "key": key}
    wanted |= {"uid": None if uid is None else str(uid), "since": since, "until": until}
    found = list(itertools.islice(_events(client, wanted), limit + 1))
    _show(found[:limit], as_json=json)
    if len(found) > limit:
        terminal.say(f"note: there are more than {limit}; narrow it down, or raise --limit")


def export(
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this sequence number.")] = 0,
    since: Since = None,
    config: options.Config = options.DEFAULT,
) -> None:
    """Print the events as lines of JSON.

    For a copy that can be verified take the files: their lines are byte for byte what the chain covers.
    """
    for event in _events(AdminClient(options.settings(config)), {"since": since}, after=after):
        terminal.out_json_line(event)


def events(
    *,
    json: options.Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print what ops/audit-events.md holds.")] = False,
) -> None:
    """List every event that the log may hold, with its fields.

    Their codes are stable.
    """
    if markdown:
        for line in as_markdown().splitlines():
            terminal.out(line)
        return
    if json:
        terminal.out_json(
            {
                "events": {code: {"doc": kind.doc, "fields": sorted(kind.fields)} for code, kind in EVENTS.items()},
                "fields": {name: doc for name, (_, doc) in FIELDS.items()},
            }
        )
        return
    terminal.table(("EVENT", "MEANING", "FIELDS"), ((c, kind.doc, sorted(kind.fields)) for c, kind in EVENTS.items()))


def as_markdown() -> str:
    """Return the document of the events."""
    types = {str: "text", int: "number", float: "number", bool: "yes or no", list: "list of text"}
    rows = [f"| `{code}` | {kind.doc} | {_named(sorted(kind.fields))} |" for code, kind in EVENTS.items()]
    fields = [
        f"| `{name}` | {'instant' if name.endswith('_at') else types[kinds[0]]} | {doc} |"
        for name, (kinds, doc) in FIELDS.items()
    ]
    return "\n".join(
        (
            "# The events of the audit log",
            "",
            "Made by `minter audit events --markdown` from `minter/audit_events.py`. A code never changes its meaning;",
            "what succeeded and what failed have codes of their own. An event has no other fields than these, each of",
            "them optional, and the members of every line: `seq`, `at`, `code`, `prev`. None holds a path, a query, a",
            "body, a credential or a run parameter's value.",
            "",
            "| event | meaning | fields |",
            "|---|---|---|",
            *rows,
            "",
            "| field | is | |",
            "|---|---|---|",
            *fields,
            "",
        )
    )


def _named(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _events(
    client: AdminClient, wanted: Mapping[str, str | None], *, after: int = 0, last: str | None = None
) -> Iterator[Any]:
    more: int | None = after
    while more is not None:
        position = {"last": last} if last is not None else {"after": str(more)}
        page = client.get("/v1/audit", limit=str(_PAGE), **position, **wanted)
        yield from page["events"]
        more, last = page["more_after"], None


def _show(found: list[Any], *, as_json: bool) -> None:
    if as_json:
        for event in found:
            terminal.out_json_line(event)
    else:
        terminal.table(("SEQ", "AT", "EVENT", "WHAT"), map(_row, found))


def _row(event: dict[str, Any]) -> tuple[Any, ...]:
    told = {name: value for name, value in event.items() if name not in ("seq", "at", "code", "prev")}
    words = " ".join(f"{name}={','.join(v) if isinstance(v, list) else v}" for name, v in told.items())
    return event["seq"], event["at"], event["code"], words
