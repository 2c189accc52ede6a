"""``minter restore``: a backup is put back; the quarantine that it begins in is lifted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from config.console import commands, terminal
from config.console.commands import CommandError
from config.errors import ConfigurationError, ExitCode, Fault
from minter import backup_log, failpoints
from minter import restore as restoring
from minter.admin_client import AdminClient
from minter.audit_checkpoint import Checkpoint, CheckpointError
from minter.cli import options
from minter.restore import LogFaultError, OccupiedError, Order, Restored
from minter.state_lock import state_path

app = commands.group("Put a backup back, and confirm it.")


@app.command()
def restore(
    source: Annotated[Path | None, typer.Argument(metavar="SOURCE", help="The file that minter backup wrote.")] = None,
    *,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Lift the quarantine of the restored state that the minter runs with.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Move a state that is there aside.")] = False,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="Checkpoints of the audit log that were kept elsewhere.")
    ] = None,
    lost: Annotated[
        int | None,
        typer.Option("--lost", min=1, help="Go on without the lines up to this one, which --checkpoint names."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --confirm: only say what it would do.")] = False,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Put a backup back while the minter is stopped; then start it, look, and lift the quarantine with --confirm.

    Run it as the minter's user. The backup is verified first; a log that lacks a line of --checkpoint is refused
    (status 7) until --lost accepts that, another sealing key than the backup's too (3). Until --confirm nothing is
    lent, ended or revoked.
    """
    if confirm == (source is not None) or (dry_run and not confirm) or (confirm and (replace or checkpoint or lost)):
        raise CommandError(ExitCode.USAGE, "give a SOURCE, or --confirm", "See: minter restore --help")
    if confirm or source is None:
        _confirm(AdminClient(options.settings(config)), dry_run=dry_run, json=json)
    else:
        _restore(source, config, replace=replace, checkpoints=_checkpoints(checkpoint), lost=lost, json=json)


def _restore(
    source: Path, config: Path, *, replace: bool, checkpoints: list[Checkpoint], lost: int | None, json: bool
) -> None:
    failpoints.arm(os.environ)
    new = restoring.first_settings(source, config)
    try:
        done = _placed(source, config, replace=replace, checkpoints=checkpoints, lost=lost)
    except BaseException:
        if new:
            config.unlink()
        raise
    if new:
        done.written.append(config)
    if json:
        named = {name: [str(path) for path in getattr(done, name)] for name in ("written", "aside", "kept")}
        seq = None if done.lost is None else done.lost.seq
        terminal.out_json({**named, "sealing": done.sealing, "lost_seq": seq, "checkpoints": len(checkpoints)})
        return
    _say(done, checked=bool(checkpoints))


def _placed(source: Path, config: Path, *, replace: bool, checkpoints: list[Checkpoint], lost: int | None) -> Restored:
    settings = options.settings(config)
    state = state_path(settings.state)
    if state.parent.exists() and state.parent.stat().st_uid != os.geteuid():
        raise CommandError(ExitCode.REFUSED, "the state belongs to another user", "Run this as the minter's user.")
    order = Order(settings=settings, config=config, replace=replace, checkpoints=checkpoints, lost=lost)
    try:
        return restoring.restore(source, order, clock=options.clock())
    except OccupiedError as error:
        raise CommandError(
            ExitCode.CONFLICT, f"there is a state already: {error}", "With --replace it is moved aside, not removed."
        ) from None
    except LogFaultError as error:
        hint = "Nothing was restored. Keep this backup, and find another."
        if error.lost is not None:
            seq = error.lost.seq
            hint = f"A newer backup may have them. To go on without them: --lost {seq}, which the log records."
        raise CommandError(ExitCode.AUDIT, str(error), hint) from None


def _say(done: Restored, *, checked: bool) -> None:
    for path in done.written:
        terminal.say(f"wrote {path}")
    for path in done.aside:
        terminal.say(f"what was there is kept as {path}")
    for path in done.kept:
        terminal.say(f"kept {path}, which differs from the backup's")
    terminal.say(f"sealing key: {done.sealing}")
    if done.lost is not None:
        terminal.say(f"lines of the audit log up to {done.lost.seq} are lost; the log will say so at --confirm")
    if not checked:
        terminal.say("the log's end was not held against a checkpoint: give --checkpoint to find a rollback")
    terminal.note(
        "Next:\n  minter doctor\n  minter serve\n  minter restore --confirm --dry-run\n  minter restore --confirm"
    )


def _checkpoints(path: Path | None) -> list[Checkpoint]:
    if path is None:
        return []
    try:
        return backup_log.read_checkpoints(path)
    except OSError as error:
        raise ConfigurationError([Fault(str(path), f"cannot be read: {error.strerror}")]) from None
    except CheckpointError as error:
        raise CommandError(ExitCode.AUDIT, f"{path}: {error}", "A checkpoint that is none says nothing.") from None


def _confirm(client: AdminClient, *, dry_run: bool, json: bool) -> None:
    found: dict[str, Any] = client.get("/v1/quarantine") if dry_run else client.delete("/v1/quarantine")
    if json:
        terminal.out_json(found)
        return
    will = "would end" if dry_run else "ended"
    terminal.say(f"in quarantine since {found['since']}")
    terminal.say(f"{terminal.count(found['leases'], 'lease')} of the backup {will}: their runs mint again")
    suspects = terminal.count(found["suspects"], "credential")
    terminal.say(f"{suspects} may exist that nobody holds, {found['irrevocable']} could not be revoked")
    terminal.say("nothing was done" if dry_run else "the quarantine is lifted")
