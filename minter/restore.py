"""``minter restore``: a backup put back where the settings say, in quarantine (minter/quarantine.py).

1. Everything is written beside its place and verified there first: digests, database, schema, the log's chain, the
   sealing key when it is at hand. What does not hold is refused with nothing changed.
2. What stands in the place already is never overwritten: it is refused, or with ``replace`` moved aside whole.
3. The state comes to its place last, in quarantine. Killed before that, a mark beside the state keeps any minter from
   starting, and the restore is simply made again.
4. Configuration is put only where there is none: what an operator has changed since is newer than any backup.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from config.clock import Clock
from config.errors import ConfigurationError, Fault
from config.load import sync_directory
from config.settings import SEALING_KEY, MinterSettings
from minter import audit_segments, backup, backup_file, backup_log, failpoints, quarantine
from minter.audit_checkpoint import Checkpoint
from minter.audit_verify import Bad, Head, Report
from minter.backup import Contents
from minter.backup_file import Backup
from minter.held import own_key
from minter.sealing import SealError, sealing_fingerprint
from minter.sources import Context, MissingError, SourceError, Sources, versioned
from minter.state_lock import lock_state, mark, state_path
from minter.store import SCHEMA

_STAGE: Final = ".restore-"
#: Mode of a restored configuration file: the broker reads the grants too, nobody else the brokers' digests.
_MODES: Final = {"minter.toml": 0o644, "grants.json": 0o644, "brokers.json": 0o600}


class LogFaultError(Exception):
    """The log of a backup does not verify, or lacks a line that a checkpoint names.

    ``lost`` is the last of those lines when that is all that is wrong: the backup is older than the checkpoint.
    """

    def __init__(self, bad: Bad, lost: Head | None = None) -> None:
        self.lost = lost
        super().__init__(f"the audit log in the backup does not verify: line {bad.line}: {bad.why}")


class OccupiedError(Exception):
    """A state stands where the backup belongs."""


@dataclass(slots=True)
class Restored:
    """What was done: paths written, those that were moved aside (and where), and those that differ and were kept."""

    written: list[Path] = field(default_factory=list)
    aside: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)
    sealing: str = ""
    lost: Head | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be restored, and how.

    ``checkpoints`` were kept outside the machine; ``lost`` is the number of the last line that one of them names and
    the backup lacks, when an operator goes on without it.
    """

    settings: MinterSettings
    config: Path
    replace: bool = False
    checkpoints: Sequence[Checkpoint] = ()
    lost: int | None = None


def first_settings(source: Path, config: Path) -> bool:
    """Write the backup's settings where there are none; say whether that was done. Errors: ``ConfigurationError``."""
    if os.path.lexists(config):
        return False
    with backup_file.opened(source) as found:
        if "minter.toml" not in found.names():
            raise ConfigurationError([Fault(str(config), "is not there, and the backup has no settings")])
        config.absolute().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        found.extract("minter.toml", config)
    config.chmod(_MODES["minter.toml"])
    return True


def restore(source: Path, order: Order, *, clock: Clock) -> Restored:
    """Put a backup in its place.

    Errors: ``ConfigurationError``; :class:`OccupiedError`; :class:`LogFaultError`.
    """
    state = state_path(order.settings.state)
    with backup_file.opened(source) as found:
        lock = lock_state(state, restoring=True)
        try:
            unfinished = mark(state).exists()
            there = [path for path in _taken(order.settings) if os.path.lexists(path)]
            if there and not (order.replace or unfinished):
                raise OccupiedError(", ".join(map(str, there)))
            for left in state.parent.glob(f"{_STAGE}*"):
                # Of a restore that was killed; nobody else makes one while the lock is held.
                shutil.rmtree(left)
            with tempfile.TemporaryDirectory(prefix=_STAGE, dir=state.parent) as folder:
                return _restore(found, order, Path(folder), there, clock)
        finally:
            os.close(lock)


def _restore(found: Backup, order: Order, stage: Path, there: Sequence[Path], clock: Clock) -> Restored:
    state = state_path(order.settings.state)
    done = Restored()
    contents = _unpack(found, stage)
    done.lost = _verify(found, contents, order, stage)
    done.sealing = _sealing(contents, order.settings)
    quarantine.begin(stage / backup_file.STATE, now=clock.now(), lost=done.lost)
    os.close(os.open(mark(state), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    sync_directory(state.parent)
    failpoints.reached("restore.staged")
    done.aside = _move_aside(there, state.parent / f"replaced-{secrets.token_hex(4)}")
    failpoints.reached("restore.aside")
    for name in found.names():
        if name.startswith("audit/"):
            done.written.append(_put(backup_log.copy_of(stage, name), backup_log.place_of(order.settings, name)))
    failpoints.reached("restore.log-placed")
    for name, place in _configuration(order):
        if name in found.names():
            _configure(found, stage / name, place, done)
    done.written.append(_put(stage / backup_file.STATE, state))
    failpoints.reached("restore.state-placed")
    mark(state).unlink()
    sync_directory(state.parent)
    return done


def _unpack(found: Backup, stage: Path) -> Contents:
    for name in found.names():
        found.extract(name, backup_log.copy_of(stage, name) if name.startswith("audit/") else stage / name)
    contents = backup.read(stage / backup_file.STATE)
    if (contents.installation, contents.schema) != (found.manifest.installation, found.manifest.schema):
        raise found.bad("its state is not the one that its manifest describes")
    if contents.schema > SCHEMA:
        what = f"has schema {contents.schema}, and this program knows {SCHEMA}"
        raise ConfigurationError([Fault(str(found.source), what, "restore it with the program that made it, or newer")])
    return contents


def _verify(found: Backup, contents: Contents, order: Order, stage: Path) -> Head | None:
    """Verify the log; return the last line that it is known to lack, when an operator accepted that.

    A checkpoint is believed by its signer, who may have been rotated since the log began: the backup's own checkpoints
    say who came after whom. They judge nothing that the log lacks.
    """
    head = found.manifest.head
    end = 0 if head is None else head.seq
    within = [one for one in order.checkpoints if one.seq <= end]
    if within:
        within += [one for one in backup_log.known(stage) if one.seq <= end]
    report = _report(contents, within, stage)
    if report.bad is not None:
        raise LogFaultError(report.bad)
    if report.head is None or head is None or (report.head.seq, report.head.hash) != (head.seq, head.hash):
        raise found.bad("its audit log does not end where its manifest says")
    beyond = [one for one in order.checkpoints if one.seq > end]
    if not beyond:
        return None
    if any(one.installation != contents.installation for one in beyond):
        raise LogFaultError(
            Bad(report.lines + 1, "a checkpoint belongs to another installation", "installation", end + 1)
        )
    newest = max(beyond, key=lambda one: one.seq)
    lost = Head(newest.seq, newest.hash)
    if order.lost != lost.seq:
        why = f"the log ends at seq {end}; seq {lost.seq} was signed: it was cut"
        raise LogFaultError(Bad(report.lines + 1, why, "cut", end + 1), lost)
    return lost


def _report(contents: Contents, checkpoints: Sequence[Checkpoint], stage: Path) -> Report:
    return backup_log.verify(stage, installation=contents.installation, head=contents.head, checkpoints=checkpoints)


def _sealing(contents: Contents, settings: MinterSettings) -> str:
    """Hold the sealing key at hand against the one that the state needs; return what was found.

    Errors: ``ConfigurationError`` when it is another.
    """
    wanted = contents.sealing
    if wanted is None:
        return "the state seals nothing yet"
    sources = Sources(Context.of(settings, dict(os.environ)), third_party=settings.sources)
    ref = versioned(own_key(settings, SEALING_KEY).source, wanted.version)
    needed = f"version {wanted.version}, fingerprint {wanted.fingerprint}"
    try:
        at_hand = sealing_fingerprint(sources.read(ref))
    except MissingError:
        return f"missing: put the sealing key ({needed}) at {ref} before the minter is started"
    except (SourceError, SealError) as error:
        return f"not read from {ref} ({type(error).__name__}): the state needs {needed}"
    if at_hand != wanted.fingerprint:
        what = f"the sealing key there has fingerprint {at_hand}; this backup opens with {needed}"
        raise ConfigurationError([Fault(ref, what, "put the right one there; nothing was restored")])
    return f"the sealing key at {ref} is the one that opens it"


def _taken(settings: MinterSettings) -> Iterator[Path]:
    """Yield the places that a restored state and its log take, with what belongs to what may stand there."""
    state, audit = state_path(settings.state), Path(settings.audit)
    yield from (state.with_name(state.name + behind) for behind in ("", "-journal", "-wal", "-shm"))
    yield from (segment.path for segment in audit_segments.segments(audit))
    yield backup_log.checkpoint_file(settings)


def _move_aside(there: Sequence[Path], folder: Path) -> list[Path]:
    if not there:
        return []
    folder.mkdir(mode=0o700)
    moved = [_put(path, folder / path.name) for path in there]
    sync_directory(folder.parent)
    return moved


def _configuration(order: Order) -> Iterator[tuple[str, Path]]:
    places = (order.config, Path(order.settings.grants), Path(order.settings.brokers))
    yield from zip(backup_file.CONFIGURATION, places, strict=True)


def _configure(found: Backup, copy: Path, place: Path, done: Restored) -> None:
    if os.path.lexists(place):
        if not found.same(copy.name, place):
            done.kept.append(place)
        return
    done.written.append(_put(copy, place))
    place.chmod(_MODES[copy.name])


def _put(path: Path, to: Path) -> Path:
    """Move a file to its place, on another file system if need be, durably."""
    to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        path.rename(to)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        half = to.with_name(f".{to.name}.half")
        shutil.copyfile(path, half, follow_symlinks=False)
        half.chmod(0o600)
        fd = os.open(half, os.O_RDONLY | os.O_CLOEXEC)
        os.fsync(fd)
        os.close(fd)
        half.rename(to)
        path.unlink()
    sync_directory(to.parent)
    return to
