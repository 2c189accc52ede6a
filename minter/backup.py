"""``minter backup``: a whole copy of the state, the audit log and the configuration, taken while the minter works.

1. The database is copied first, as it is at one moment. Then the log, which has a line for all that was committed by
   then: a running minter is asked for that. So the log may know more than the state, and never less.
2. The copy is verified before anything is called a backup: the database by SQLite, the log by its chain and against
   the line that the database knows.
3. What was freed in the database is not in the copy, so a value that was erased is not either.

The files are read by whoever runs the command: the minter's own user. While the copy is taken, which goes at the speed
of the disk, nothing is committed.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from config.clock import Clock, rfc3339
from config.errors import ConfigurationError, Fault
from config.settings import SEALING_KEY, MinterSettings
from minter import backup_file, backup_log, state_copies
from minter.audit_verify import Head, Report
from minter.backup_file import LogHead, Manifest, Sealing
from minter.sources import kind_of
from minter.state_lock import state_path

#: The log goes on in a new file at times; a copy that was taken just then is taken again.
_ATTEMPTS: Final = 3
_HINT: Final = "run this as the minter's user"


@dataclass(frozen=True, slots=True)
class Contents:
    """What the copied database says of itself."""

    installation: str
    schema: str
    head: Head | None
    sealing: Sealing | None
    references: list[tuple[str, str]]


def take(settings: MinterSettings, config: Path, target: Path, *, clock: Clock, copied: Callable[[], None]) -> Manifest:
    """Write a backup to ``target``; ``copied`` is called once the database is copied, and returns when the log has it.

    Errors: ``ConfigurationError`` when something cannot be read or does not verify; ``FileExistsError``.
    """
    if target.exists() or target.is_symlink():
        raise FileExistsError(target)
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=target.absolute().parent) as folder:
        stage = Path(folder)
        paths = {backup_file.STATE: _state(settings, stage)}
        copied()
        contents = read(paths[backup_file.STATE])
        report, log = _log(settings, stage, contents)
        paths |= log | _configuration(settings, config)
        manifest = Manifest(
            format=backup_file.FORMAT,
            program=f"minter {version('minter-broker')}",
            created_at=rfc3339(clock.now()),
            installation=contents.installation,
            schema=contents.schema,
            head=None if report.head is None else LogHead(seq=report.head.seq, hash=report.head.hash),
            sealing=contents.sealing,
            members=[backup_file.member(name, path) for name, path in paths.items()],
            left_out=_left_out(contents, settings),
        )
        backup_file.write(target, manifest, paths)
    return manifest


def read(state: Path) -> Contents:
    """Read what a copied database says of itself. Errors: ``ConfigurationError`` when it is damaged."""
    try:
        with closing(sqlite3.connect(state)) as database:
            if database.execute("PRAGMA integrity_check").fetchone() != ("ok",):
                raise ConfigurationError([Fault("state", "is damaged", "see ops/runbooks/restore.md")])
            meta = dict(database.execute("SELECT name, value FROM meta WHERE name = 'installation'").fetchall())
            head = database.execute("SELECT seq, hash FROM audit_head").fetchone()
            schema = database.execute("SELECT version_num FROM alembic_version").fetchone()
            query = "SELECT alias, version, phase, source_ref, fingerprint FROM key_versions WHERE phase != 'destroyed'"
            keys = database.execute(query).fetchall()
    except sqlite3.Error as error:
        raise ConfigurationError([Fault("state", f"cannot be read: {error.sqlite_errorname}")]) from None
    sealing = next((row for row in keys if row[0] == SEALING_KEY and row[2] == "active"), None)
    return Contents(
        installation=meta.get("installation", ""),
        schema=schema[0] if schema else "",
        head=Head(*head) if head else None,
        sealing=Sealing(version=sealing[1], source_ref=sealing[3], fingerprint=sealing[4]) if sealing else None,
        references=[(row[0], row[3]) for row in keys],
    )


def _state(settings: MinterSettings, stage: Path) -> Path:
    path, copy = state_path(settings.state), stage / "state.db"
    if not path.exists():
        raise ConfigurationError([Fault("state", "is not there", "there is nothing to back up")])
    try:
        state_copies.copy_to(path, copy)
        with closing(sqlite3.connect(copy, isolation_level=None)) as database:
            database.execute("VACUUM")
    except sqlite3.Error as error:
        raise ConfigurationError([Fault("state", f"cannot be copied: {error.sqlite_errorname}", _HINT)]) from None
    return copy


def _log(settings: MinterSettings, stage: Path, contents: Contents) -> tuple[Report, dict[str, Path]]:
    report = None
    for attempt in range(_ATTEMPTS):
        folder = stage / f"log-{attempt}"
        folder.mkdir()
        try:
            paths = backup_log.copy(settings, folder)
            report = backup_log.verify(folder, installation=contents.installation, head=contents.head)
        except OSError as error:
            raise ConfigurationError([Fault("audit", f"cannot be read: {error.strerror}", _HINT)]) from None
        if report.bad is None:
            return report, paths
    what = f"does not verify: line {report.bad.line}: {report.bad.why}" if report and report.bad else "is not there"
    raise ConfigurationError([Fault("audit", what, "see minter audit verify; nothing was written")])


def _configuration(settings: MinterSettings, config: Path) -> dict[str, Path]:
    files = dict(zip(backup_file.CONFIGURATION, (config, Path(settings.grants), Path(settings.brokers)), strict=True))
    return {name: path for name, path in files.items() if path.is_file()}


def _left_out(contents: Contents, settings: MinterSettings) -> list[str]:
    """Name what a restore needs besides, with where it was."""
    known = {alias for alias, _ in contents.references}
    # The state knows where each version is; of a key that it does not know yet, the settings say where it will be.
    unknown = ((alias, key.source) for alias, key in settings.keys.items() if alias not in known)
    left = {f"{alias} ({ref})" for alias, ref in (*contents.references, *unknown) if kind_of(ref) != "sealed"}
    files = [path for path in (settings.tls.key, settings.tls.certificate, settings.tls.client_ca) if path]
    return sorted(left) + files + _preambles(Path(settings.grants))


def _preambles(grants: Path) -> list[str]:
    try:
        document: Any = json.loads(grants.read_bytes())
        found = {profile.get("preamble_file") for profile in document["profiles"].values()}
        return sorted(str(grants.parent / name) for name in found if isinstance(name, str))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []
