"""The part of ``minter doctor`` that looks at the state: its schema, what seals it, its leases and backups."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from config.clock import Clock, parse_rfc3339, rfc3339
from config.console import doctor, terminal
from config.console.doctor import Finding
from config.durations import parse_duration
from config.settings import SEALING_KEY, MinterSettings
from minter import state_copies
from minter.admin_state import LAST_BACKUP
from minter.audit_checkpoint import parse_all
from minter.audit_checkpoints import file_of
from minter.audit_segments import read_after
from minter.doctor_keys import rows
from minter.held import own_key
from minter.quarantine import QUARANTINE
from minter.sources import kind_of
from minter.state_lock import mark
from minter.store import SCHEMA

_DAY: Final = 86400.0
#: Without a backup for so long doctor says so.
_OLD_BACKUP_S: Final = 7 * _DAY
#: A checkpoint is late when a line has been without one for so many of its periods.
_LATE: Final = 10


def check_state(settings: MinterSettings, owner: int, clock: Clock) -> Iterator[Finding]:
    """Look at the state from outside."""
    path = Path(settings.state.removeprefix("sqlite:"))
    if path.exists():
        yield doctor.private_file("state", str(path), owner=owner)
    yield from _schema(settings)
    yield from _restoring(settings, path)
    yield from _beside(path, owner)
    yield from _sealing(settings, path, owner)
    yield from _leases(settings)
    yield from _backup(settings, clock)
    yield from _checkpoint(settings, owner, clock)


def _schema(settings: MinterSettings) -> Iterator[Finding]:
    for (version,) in rows(settings, "SELECT version_num FROM alembic_version"):
        if version == SCHEMA:
            yield Finding("ok", "state", "schema", version)
        elif version < SCHEMA:
            what = f"{version}: the next start makes it {SCHEMA}, and puts a copy beside it first"
            yield Finding("note", "state", "schema", what)
        else:
            what = f"{version} is of a newer program than this one, which knows {SCHEMA}"
            yield Finding("fault", "state", "schema", what, "upgrade, or restore a backup")


def _restoring(settings: MinterSettings, path: Path) -> Iterator[Finding]:
    if mark(path).exists():
        yield Finding(
            "fault", "state", str(path), "a restore of it was cut off", "make it again: minter restore SOURCE"
        )
    for (since,) in rows(settings, f"SELECT value FROM meta WHERE name = '{QUARANTINE}'"):  # noqa: S608 - our name
        what = f"restored, in quarantine since {_instant(since)}: nothing is lent or ended"
        yield Finding("warning", "state", "quarantine", what, "minter restore --confirm")


def _beside(path: Path, owner: int) -> Iterator[Finding]:
    for copy in state_copies.of(path):
        try:
            plain = state_copies.holds_plain_keys(copy)
        except sqlite3.Error:
            plain = False
        if plain:
            hint = "the next good start takes them out; or remove it"
            yield Finding(
                "warning", "copies", str(copy), "a copy of an older schema, with its own keys in the clear", hint
            )
        else:
            hint = "remove it once this version has proved itself"
            yield Finding("note", "copies", str(copy), "a copy from before a change of the schema", hint)
        yield doctor.private_file("copies", str(copy), owner=owner)
    for folder in sorted(path.parent.glob("replaced-*")) if path.parent.is_dir() else []:
        yield Finding("note", "copies", str(folder), "what a restore replaced", "remove it once it is not needed")


def _sealing(settings: MinterSettings, path: Path, owner: int) -> Iterator[Finding]:
    key = own_key(settings, SEALING_KEY)
    known = rows(settings, f"SELECT version FROM key_versions WHERE alias = '{SEALING_KEY}' AND phase = 'active'")  # noqa: S608
    if not key.second_copy:
        what = "no second copy is recorded: when it is lost, so is all that the state seals"
        yield Finding("warning", "sealing", SEALING_KEY, what, "keep one, and say where in second_copy")
    if kind_of(key.source) == "file":
        version = known[0][0] if known else 1
        place = Path(key.source.removeprefix("file:") + ("" if version == 1 else f".v{version}"))
        if known or place.exists():
            yield doctor.private_file("sealing", str(place), owner=owner, hint="bring it back from its second copy")
        else:
            yield Finding("note", "sealing", str(place), "is not there yet; the minter makes it at its first start")
        if place.parent.resolve() == path.parent.resolve():
            what = "lies beside the state that it opens: a copy of the folder has both"
            yield Finding("warning", "sealing", str(place), what, "use credential: or keyring:, or another folder")
    old = rows(settings, "SELECT count(*) FROM data_keys WHERE phase != 'active'")
    total = rows(settings, "SELECT count(*) FROM data_keys")
    if total and total[0][0]:
        moving = f", {old[0][0]} of them until their values are moved" if old and old[0][0] else ""
        yield Finding("ok", "sealing", "data keys", f"{total[0][0]}{moving}")


def _leases(settings: MinterSettings) -> Iterator[Finding]:
    counts = dict(rows(settings, "SELECT state, count(*) FROM leases GROUP BY state"))
    for name in ("orphan_suspect", "irrevocable"):
        if number := counts.get(name):
            hint = f"minter leases list --state {name}"
            yield Finding("warning", "leases", name, f"{number} credentials may be alive that nobody holds", hint)


def _backup(settings: MinterSettings, clock: Clock) -> Iterator[Finding]:
    if not rows(settings, "SELECT 1 FROM meta LIMIT 1"):
        return
    last = rows(settings, f"SELECT value FROM meta WHERE name = '{LAST_BACKUP}'")  # noqa: S608 - our name
    if not last:
        yield Finding("note", "backup", "last", "none is recorded", "minter backup FILE")
        return
    age_s = clock.now() - float(last[0][0])
    old = age_s > _OLD_BACKUP_S
    yield Finding("note" if old else "ok", "backup", "last", f"{_instant(last[0][0])}, {_age(age_s)} ago")


def _checkpoint(settings: MinterSettings, owner: int, clock: Clock) -> Iterator[Finding]:
    """Say how long the first line that no checkpoint covers has been without one."""
    log = Path(settings.audit)
    place = file_of(settings.audit_log, log)
    try:
        with place.open("rb") as file:
            covered = max((one.seq for one in parse_all(file)[0]), default=0)
        behind = read_after(log, covered, 1)
    except OSError:
        return
    yield doctor.private_file("audit", str(place), owner=owner)
    age_s = clock.now() - parse_rfc3339(behind[0]["at"]) if behind else 0.0
    late = age_s > _LATE * parse_duration(settings.audit_log.checkpoint_every)
    what = f"covers up to line {covered}" + (f", and nothing since {_age(age_s)}" if late else "")
    yield Finding("warning" if late else "ok", "audit", str(place), what, "see minter audit checkpoint" if late else "")


def _instant(text: str) -> str:
    try:
        return rfc3339(float(text))
    except ValueError:
        return "an unknown time"


def _age(seconds: float) -> str:
    if seconds >= _DAY:
        return terminal.count(int(seconds // _DAY), "day")
    return terminal.count(int(max(0.0, seconds) // 60), "minute")


def owner_of(settings: MinterSettings) -> int:
    """Return the user that the minter's state belongs to, or would."""
    found = doctor.owner_of(os.path.dirname(settings.state.removeprefix("sqlite:")))  # noqa: PTH120 - a text
    return os.geteuid() if found is None else found
