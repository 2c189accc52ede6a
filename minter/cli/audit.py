"""``minter audit``: verify, read and export the audit log; go on after a loss of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from config.console import commands, terminal
from config.console.commands import CommandError
from config.errors import ConfigurationError, ExitCode, Fault
from minter import audit_loss, audit_state
from minter.admin_client import AdminClient
from minter.cli import options

app = commands.group("Verify, read and export the audit log.")

#: Events that are asked for at once.
_PAGE = 500


@app.command()
def verify(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The log; default: the one that the settings name.")
    ] = None,
    *,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Check the log's chain. It shows every edit, removal, reorder and splice, by the first bad line (status 7).

    The log that the settings name is also held against the last line that the minter's state knows, which shows a
    log that was cut. A FILE from elsewhere is checked by itself, and its end cannot be vouched for.
    """
    state = None
    if file is None:
        settings = options.settings(config)
        file, state = Path(settings.audit), settings.state
    try:
        report, known = audit_state.check(file, state)
    except OSError as error:
        raise ConfigurationError([Fault(str(file), f"cannot be read: {error.strerror}")]) from None
    against_state = known is not None and known.head is not None
    if json:
        terminal.out_json(
            {
                "file": str(file),
                "ok": report.bad is None,
                "lines": report.lines,
                "head": {"seq": report.head.seq, "hash": report.head.hash} if report.head else None,
                "installation": report.installation,
                "checked_against_state": against_state,
                "bad": {"line": report.bad.line, "why": report.bad.why} if report.bad else None,
                "notable": [{"seq": seq, "code": code} for seq, code in report.notable],
            }
        )
    if report.bad is not None:
        raise CommandError(
            ExitCode.AUDIT,
            f"{file} does not verify: line {report.bad.line}: {report.bad.why}",
            f"Good before it: {terminal.count(report.lines, 'line')}. Keep the file as it is and compare with a copy.",
        )
    if not json:
        head = f", head {report.head.seq} {report.head.hash}" if report.head else ""
        terminal.out(f"{file} verifies: {terminal.count(report.lines, 'line')}{head}")
    for seq, code in report.notable:
        terminal.say(f"note: {code} at seq {seq}")
    if not against_state:
        terminal.say("note: without the minter's state the end of a log cannot be vouched for")


@app.command("accept-loss")
def accept_loss(
    *,
    line: Annotated[
        int | None, typer.Option("--line", min=1, help="The line that is lost, as this command names it without.")
    ] = None,
    config: options.Config = options.DEFAULT,
) -> None:
    """Go on after a loss of the log. A minter whose log lacks a line that its state knows does not start.

    Without --line it only says what is lost. Bring the file back if it is anywhere. Run it as the minter's user while
    the minter is stopped. What is left is kept: continued when it is good as far as it goes, else set aside beside a
    new log. The log records who accepted what.
    """
    settings = options.settings(config)
    loss = audit_loss.find(settings)
    if loss is None:
        terminal.say(f"nothing is lost: the minter can go on with {settings.audit}")
        return
    what = f"{settings.audit} cannot be continued from line {loss.line.seq} ({loss.line.hash}), which the state knows"
    if line is None:
        left = f"{terminal.count(loss.left, 'line')} of it are good{f'; behind them {loss.why}' if loss.why else ''}."
        again = f"To go on without what is lost: minter audit accept-loss --line {loss.line.seq}"
        raise CommandError(ExitCode.AUDIT, what, f"{left} {again}")
    if line != loss.line.seq:
        raise CommandError(ExitCode.CONFLICT, what, f"You named line {line}: look at what is lost first.")
    aside = audit_loss.accept(settings, loss, clock=options.clock())
    terminal.say(f"accepted: {what}; the log goes on and says so")
    if aside is not None:
        terminal.say(f"what was left of the log is kept as {aside}")


@app.command()
def tail(
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=10_000, help="How many events.")] = 20,
    *,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Show the last events, from the running minter."""
    client = AdminClient(options.settings(config))
    events = list(_events(client, max(0, _last(client) - lines)))
    if json:
        for event in events:
            terminal.out_json_line(event)
        return
    terminal.table(("SEQ", "AT", "EVENT", "WHAT"), (_row(event) for event in events))


@app.command()
def export(
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this sequence number.")] = 0,
    config: options.Config = options.DEFAULT,
) -> None:
    """Print the events as lines of JSON, from the running minter.

    For a copy that can be verified take the file itself: its lines are byte for byte what the chain covers.
    """
    for event in _events(AdminClient(options.settings(config)), after):
        terminal.out_json_line(event)


def _events(client: AdminClient, after: int) -> Iterator[dict[str, Any]]:
    while True:
        page = client.get("/v1/audit", after=str(after), limit=str(_PAGE))["events"]
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1]["seq"]


def _last(client: AdminClient) -> int:
    """Return the last sequence number, found by halves: the log may be long and is not to be read through."""
    low, high = 0, 1
    while _one(client, high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _one(client, middle) else (low, middle)
    return low + 1 if _one(client, low) else low


def _one(client: AdminClient, after: int) -> bool:
    return bool(client.get("/v1/audit", after=str(after), limit="1")["events"])


def _row(event: dict[str, Any]) -> tuple[Any, ...]:
    told = {name: value for name, value in event.items() if name not in ("seq", "at", "code", "prev")}
    words = " ".join(f"{name}={','.join(v) if isinstance(v, list) else v}" for name, v in told.items())
    return event["seq"], event["at"], event["code"], words
