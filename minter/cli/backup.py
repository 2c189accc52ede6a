"""``minter backup``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from config.console import commands, terminal
from config.console.commands import CommandError
from config.errors import ConfigurationError, ExitCode
from config.settings import MinterSettings
from minter import backup as taking
from minter.admin_client import AdminClient
from minter.cli import options
from minter.state_lock import lock_state, state_path

app = commands.group("Write a backup of the state, the audit log and the configuration.")


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The file to write. Nothing is overwritten.")],
    *,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Write a backup to TARGET, a tar file, while the minter works or when it is stopped. Run it as the minter's user.

    It is verified before it is there. The sealing key and whatever lies in files, keyrings or the environment is
    never in it: what is left out is named, and a restore needs it. Without that key it reveals no secret.
    """
    settings = options.settings(config)
    with _minter(settings) as client:
        try:
            manifest = taking.take(
                settings, config, target, clock=options.clock(), copied=lambda: _tell(client, "copied")
            )
        except FileExistsError:
            raise CommandError(ExitCode.CONFLICT, f"{target} is there already; nothing was written") from None
        except OSError as error:
            raise CommandError(ExitCode.CONFIGURATION, f"{target}: cannot be written: {error.strerror}") from None
        _tell(client, "written")
    if json:
        terminal.out_json(msgspec.to_builtins(manifest))
        return
    head = f", audit log up to line {manifest.head.seq}" if manifest.head else ""
    terminal.say(f"wrote {target}: schema {manifest.schema}{head}")
    for one in manifest.left_out:
        terminal.say(f"not in it: {one}")
    for name in sorted(name for name, command in settings.commands.items() if command.env):
        terminal.say(f"in it as they are written: the variables of commands.{name}; keep no secret there")
    if manifest.sealing is not None:
        key = manifest.sealing
        terminal.say(f"it opens with sealing key version {key.version}, fingerprint {key.fingerprint}: keep that apart")


@contextlib.contextmanager
def _minter(settings: MinterSettings) -> Iterator[AdminClient | None]:
    """Yield the way to the running minter; None where there is none, which then cannot start in the meantime."""
    path = state_path(settings.state)
    if path.exists() and path.stat().st_uid != os.geteuid():
        raise CommandError(ExitCode.REFUSED, "the state belongs to another user", "Run this as the minter's user.")
    try:
        lock = lock_state(path) if path.exists() else None
    except ConfigurationError:
        yield AdminClient(settings)
        return
    try:
        yield None
    finally:
        if lock is not None:
            os.close(lock)


def _tell(client: AdminClient | None, step: str) -> None:
    if client is not None:
        client.post("/v1/backup", {"step": step})
