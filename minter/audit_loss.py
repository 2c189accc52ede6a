"""Going on after a loss of the audit log, which only an operator decides, offline, and the log itself records.

A minter whose log lacks a line that its state knows does not start. Where the line cannot be brought back, the
operator names it: only the loss that was looked at is accepted. What is left of the log is never changed: a chain
that is good as far as it goes is continued, anything else is kept aside and a new log begins.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from config.clock import Clock
from config.errors import ConfigurationError, Fault
from config.load import sync_directory
from config.settings import MinterSettings
from minter import audit_state
from minter.audit import MAX_TORN, AuditLog, AuditUnavailable
from minter.audit_checkpoint import parse_all
from minter.audit_checkpoints import file_of
from minter.audit_events import Event
from minter.audit_segments import lines_of, segments
from minter.audit_verify import Head, line_hash, parse_line, verify
from minter.state_lock import lock_state, state_path
from minter.store import Connection, Store, identity, migrate


@dataclass(frozen=True, slots=True)
class Loss:
    """The last line that the state knows, from which the log cannot be continued.

    ``left`` is how many lines of the log are good; ``why`` is what is wrong behind them when they are not all that is
    left of it, else empty.
    """

    line: Head
    left: int
    why: str


def find(settings: MinterSettings) -> Loss | None:
    """Return what is lost, or None when a minter can go on with the log.

    Errors: ``ConfigurationError`` when the state or the log cannot be read.
    """
    known = audit_state.known(settings.state)
    if known is None:
        raise ConfigurationError([Fault("state", "it cannot be read", "run this as the minter's user")])
    if known.head is None:
        return None
    path = Path(settings.audit)
    files = [segment.path for segment in segments(path) if segment.path.exists()]
    try:
        whole = (line for line in lines_of(files) if line.endswith(b"\n"))
        report = verify(whole, installation=known.installation)
        behind = _behind(lines_of(files), known.head)
        empty = not any(file.stat().st_size for file in files)
    except OSError as error:
        raise ConfigurationError([Fault("audit", f"the log cannot be read ({error.strerror})")]) from None
    if behind is not None and behind <= MAX_TORN:
        return None
    why = "" if behind is None else f"{behind} bytes stand that are no part of the chain"
    if report.bad is not None and not empty:
        why = report.bad.why
    return Loss(known.head, report.lines, why)


def _behind(lines: Iterable[bytes], known: Head) -> int | None:
    """Return how many bytes stand behind the chain that goes on from the known line; None when that is not there."""
    behind: int | None = None
    last = known.hash
    for line in lines:
        digest = line_hash(line.removesuffix(b"\n"))
        if digest == known.hash or (behind == 0 and _goes_on(line, last)):
            behind, last = 0, digest
        elif behind is not None:
            behind += len(line)
    return behind


def _goes_on(line: bytes, last: str) -> bool:
    try:
        return line.endswith(b"\n") and parse_line(line[:-1])["prev"] == last
    except ValueError:
        return False


def accept(settings: MinterSettings, loss: Loss, *, clock: Clock) -> Path | None:
    """Go on without what is lost; return where the log that cannot be continued is kept now.

    Errors: ``ConfigurationError``, also while a minter runs.
    """
    state, path = state_path(settings.state), Path(settings.audit)
    if state.stat().st_uid != os.geteuid():
        raise ConfigurationError([Fault("state", "it belongs to another user", "run this as the minter's user")])
    lock = lock_state(state)
    try:
        migrate(state)
        installation, known = identity(state)
        if known != loss.line:
            raise ConfigurationError([Fault("audit", "the minter has run in between", "look at the loss again")])
        aside = _keep_aside(path, loss.line.seq) if loss.why and path.exists() else None
        if aside is not None and settings.audit_log.second.startswith("file:"):
            second = Path(settings.audit_log.second.removeprefix("file:"))
            if second.exists():
                _keep_aside(second, loss.line.seq)
        try:
            log = AuditLog(
                path,
                installation=installation,
                known=known,
                now=clock.now(),
                settings=settings.audit_log,
                accepted_by=os.getuid(),
            )
        except AuditUnavailable as error:
            raise ConfigurationError([Fault("audit", str(error))]) from None
        try:
            forget = _contradicted(settings, loss.line.seq)
            asyncio.run(_remember(Store(state, audit=log, clock=clock), forget=forget))
        finally:
            log.close()
        return aside
    finally:
        os.close(lock)


def _contradicted(settings: MinterSettings, seq: int) -> bool:
    """Say whether a checkpoint names a line that is lost. Then the file of them is kept aside with what it convicts.

    The minter's own checks would end there for ever. Who keeps checkpoints elsewhere still sees the loss, and the log
    says who accepted it.
    """
    path = Path(settings.audit)
    checkpoints = file_of(settings.audit_log, path)
    known = audit_state.known(settings.state)
    texts = [known.checkpoint] if known is not None else []
    if checkpoints.exists():
        texts += checkpoints.read_bytes().split(b"\n")
    files = [segment.path for segment in segments(path)]
    if verify(lines_of(files), checkpoints=parse_all(texts)[0]).bad is None:
        return False
    if checkpoints.exists():
        _keep_aside(checkpoints, seq)
    return True


async def _remember(store: Store, *, forget: bool) -> None:
    """Let the state know the log's new end: closing it keeps the last line. ``forget``: its checkpoint is void."""

    def work(connection: Connection) -> tuple[None, Sequence[Event]]:
        if forget:
            connection.exec_driver_sql("DELETE FROM meta WHERE name = 'audit_checkpoint'")
        return None, ()

    await store.write(work)
    await store.close()


def _keep_aside(path: Path, seq: int) -> Path:
    """Give the log another name, one that nothing has."""
    number = 0
    while True:
        aside = path.with_name(f"{path.name}.lost-{seq}" + (f".{number}" if number else ""))
        try:
            aside.hardlink_to(path)
        except FileExistsError:
            number += 1
            continue
        path.unlink()
        sync_directory(path.parent)
        return aside
