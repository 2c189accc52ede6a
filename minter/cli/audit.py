"""``minter audit``: verify the audit log, keep checkpoints of it, go on after a loss; reading: ``audit_read.py``."""

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
from minter.audit_checkpoints import file_of
from minter.audit_state import Examined
from minter.cli import audit_read, options

app = commands.group("Verify, read, search and export the audit log; keep checkpoints of it.")
audit_read.add_to(app)


@app.command()
def verify(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="The log; default: the one of the settings.")
    ] = None,
    *,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option("--checkpoint", help="A file of checkpoints kept elsewhere; may be given again."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="Key id or fingerprint of the checkpoints' signer; may be given again."),
    ] = None,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Check the log's chain and checkpoints. Every change shows, by the first bad record (status 7).

    The log of the settings is also held against what the minter's state knows, and against the minter's own file of
    checkpoints. Only a checkpoint that is kept where whoever changes the log cannot reach shows a log that was
    rewritten as a whole; only --key makes sure that it was signed by the minter.
    """
    state = None
    if files:
        paths = list(files)
        known_checkpoints = [Path(f"{path}.checkpoints") for path in paths[-1:]]
    else:
        settings = options.settings(config)
        paths, state = [Path(settings.audit)], settings.state
        known_checkpoints = [file_of(settings.audit_log, paths[0])]
    given = checkpoint or []
    try:
        found = audit_state.examine(
            paths, state, checkpoints=[*given, *(one for one in known_checkpoints if one.exists())], pins=key or ()
        )
    except OSError as error:
        raise ConfigurationError([Fault(str(error.filename), f"cannot be read: {error.strerror}")]) from None
    report = found.report
    if json:
        terminal.out_json(_shown(paths[-1], found))
    if report.bad is not None:
        where = f"line {found.bad_line}" + (f" (seq {report.bad.seq})" if report.bad.seq != found.bad_line else "")
        raise CommandError(
            ExitCode.AUDIT,
            f"{found.bad_file} does not verify: {where}: {report.bad.why}",
            f"Good before it: {terminal.count(report.lines, 'line')}. Keep the files as they are and compare with a "
            "copy; see the runbook the-audit-log-does-not-verify.",
        )
    if not json:
        head = f", head {report.head.seq} {report.head.hash}" if report.head else ""
        terminal.out(f"{paths[-1]} verifies: {terminal.count(report.lines, 'line')}{head}")
    for line in _said(found, pinned=bool(key)):
        terminal.say(line)


def _said(found: Examined, *, pinned: bool) -> Iterator[str]:
    """Say what was proven and what was not."""
    report, proven = found.report, found.report.proven
    if proven is not None:
        yield f"integrity is proven up to the checkpoint of seq {proven.seq}, signed at {proven.at} by key {proven.kid}"
        if not pinned:
            yield "note: that this key is the minter's is what the log says; name the key with --key to be sure"
        if report.head is not None and report.head.seq > proven.seq:
            after = terminal.count(report.head.seq - proven.seq, "line")
            yield f"note: {after} after it could have been rewritten by whoever can write the log"
    else:
        yield "note: no checkpoint: that the log was not rewritten as a whole is not proven"
    for first, last in found.missing:
        vouched = "the checkpoint vouches for them" if proven is not None else "nothing vouches for them"
        yield f"note: lines {first} to {last} are in no file that is here; {vouched}"
    for seq, code in report.notable:
        yield f"note: {code} at seq {seq}"
    if found.unread:
        yield f"note: {terminal.count(found.unread, 'line')} in the files of checkpoints cannot be read"
    if found.known is None or found.known.head is None:
        yield "note: without the minter's state the end of a log cannot be vouched for"


def _shown(path: Path, found: Examined) -> dict[str, Any]:
    report, proven, bad = found.report, found.report.proven, found.report.bad
    return {
        "file": str(path),
        "files": [str(one) for one in found.files],
        "ok": bad is None,
        "lines": report.lines,
        "first": report.first,
        "missing": [{"first": first, "last": last} for first, last in found.missing],
        "head": {"seq": report.head.seq, "hash": report.head.hash} if report.head else None,
        "installation": report.installation,
        "checked_against_state": found.known is not None and found.known.head is not None,
        "checkpoints": found.checkpoints,
        "proven": None if proven is None else {"seq": proven.seq, "at": proven.at, "kid": proven.kid},
        "signer_pinned": report.pinned,
        "bad": None
        if bad is None
        else {
            "file": str(found.bad_file),
            "line": found.bad_line,
            "seq": bad.seq,
            "reason": bad.reason,
            "why": bad.why,
        },
        "notable": [{"seq": seq, "code": code} for seq, code in report.notable],
    }


@app.command("checkpoint")
def make_checkpoint(config: options.Config = options.DEFAULT) -> None:
    """Let the running minter sign a checkpoint now, and print it.

    It is of the log's last line. Keep it where nobody who can write the log can reach: minter audit verify
    --checkpoint FILE reads it.
    """
    answer = AdminClient(options.settings(config)).post("/v1/audit/checkpoint", {})
    terminal.out(answer["checkpoint"])


@app.command()
def rotate(config: options.Config = options.DEFAULT) -> None:
    """Let the running minter go on in a new file. The finished one is named by its first and last line."""
    AdminClient(options.settings(config)).post("/v1/audit/rotate", {})
    terminal.say("the log goes on in a new file")


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
