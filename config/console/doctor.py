"""What ``minter doctor`` and ``broker doctor`` have in common: findings, and checks that only look (``stat``).

Nothing is opened for writing, nothing is mended, and no finding holds a value: names, modes, owners and versions.
A *fault* ends the command with status 8; a *warning* is worth a thought; a *note* says what could not be seen.
"""

from __future__ import annotations

import os
import resource
import sqlite3
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Final, Literal
from urllib.parse import quote

from config.clock import Clock, parse_rfc3339, rfc3339
from config.console import terminal
from config.errors import ConfigurationError
from config.settings import SQLITE_WAL_FROM

Level = Literal["ok", "note", "warning", "fault"]

#: The programs take a descriptor for every open call, twice.
_FEW_DESCRIPTORS: Final = 4096
#: No clock of a running machine stands before this software was written.
_WRITTEN_AT: Final = 1_767_225_600.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check saw. ``hint`` says what to do about it."""

    level: Level
    check: str
    where: str
    what: str
    hint: str = ""


def report(findings: Sequence[Finding], *, json: bool) -> bool:
    """Print the findings; return whether there is no fault among them."""
    faults = sum(finding.level == "fault" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    if json:
        terminal.out_json({"ok": faults == 0, "findings": [asdict(finding) for finding in findings]})
    else:
        terminal.table(
            ("RESULT", "CHECK", "WHERE", "WHAT"),
            (
                (one.level, one.check, one.where, f"{one.what}; {one.hint}" if one.hint else one.what)
                for one in findings
            ),
        )
        terminal.say(
            ", ".join(
                (
                    terminal.count(faults, "fault"),
                    terminal.count(warnings, "warning"),
                    terminal.count(len(findings), "check"),
                )
            )
        )
    return faults == 0


def from_configuration(check: str, error: ConfigurationError) -> Iterator[Finding]:
    """Turn each fault of a file that does not load into a finding."""
    for fault in error.faults:
        yield Finding("fault", check, fault.where, fault.what, fault.hint)


def owner_of(path: str) -> int | None:
    """Return the user id that owns ``path``, None when it cannot be seen."""
    try:
        return os.lstat(path).st_uid
    except OSError:
        return None


def private_file(check: str, path: str, *, owner: int | None, missing: Level = "fault", hint: str = "") -> Finding:
    """Look at a file that only its owner may read: a secret, a state, a log. ``owner`` None takes any."""
    found = _stat(check, path, missing, hint)
    if isinstance(found, Finding):
        return found
    if not stat.S_ISREG(found.st_mode):
        return Finding("fault", check, path, f"is a {_kind(found.st_mode)} where a file belongs")
    if found.st_mode & 0o077:
        return Finding("fault", check, path, f"mode {_mode(found)}: others may use it", f"chmod 600 {path}")
    return _owned(check, path, found, owner)


def public_file(check: str, path: str, *, owner: int | None) -> Finding:
    """Look at a file that others may read and must not change: settings, grants."""
    found = _stat(check, os.path.realpath(path), "fault", "")
    if isinstance(found, Finding):
        return found
    if found.st_mode & 0o022:
        return Finding("fault", check, path, f"mode {_mode(found)}: others may change it", f"chmod go-w {path}")
    return _owned(check, path, found, owner, roots_too=True)


def private_directory(check: str, path: str, *, owner: int | None, group: bool = False) -> Finding:
    """Look at a directory for secrets, state or sockets: 0700, or 0750 when a ``group`` is to reach sockets in it.

    A directory above it that others may write is a fault too: they could put another in its place.
    """
    found = _stat(check, path, "fault", f"mkdir -m 700 {path}")
    if isinstance(found, Finding):
        return found
    if not stat.S_ISDIR(found.st_mode):
        return Finding("fault", check, path, f"is a {_kind(found.st_mode)} where a directory belongs")
    wrong = 0o027 if group else 0o077
    if found.st_mode & wrong:
        should = "750" if group else "700"
        return Finding("fault", check, path, f"mode {_mode(found)}: others reach it", f"chmod {should} {path}")
    above = os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120 - config knows no pathlib
    while True:
        mode = os.stat(above).st_mode  # noqa: PTH116
        if mode & 0o022 and not mode & stat.S_ISVTX:
            return Finding("fault", check, path, f"{above} above it may be changed by others", f"chmod go-w {above}")
        if above == os.path.dirname(above):  # noqa: PTH120
            break
        above = os.path.dirname(above)  # noqa: PTH120
    return _owned(check, path, found, owner)


def sockets(check: str, listeners: Sequence[str], *, owner: int | None) -> Iterator[Finding]:
    """Look at the Unix sockets of a program; where one is missing, the program is not running."""
    for listener in listeners:
        if not listener.startswith("unix:"):
            continue
        path = listener.removeprefix("unix:")
        found = _stat(check, path, "note", "the service is not running")
        if isinstance(found, Finding):
            yield found
        elif not stat.S_ISSOCK(found.st_mode):
            yield Finding("fault", check, path, f"is a {_kind(found.st_mode)} where a socket belongs")
        elif found.st_mode & 0o007:
            yield Finding("fault", check, path, f"mode {_mode(found)}: everybody may connect")
        else:
            yield _owned(check, path, found, owner)


def database(check: str, state: str) -> Iterator[Finding]:
    """Look at SQLite's version and the journal mode that the state uses."""
    wal = sqlite3.sqlite_version_info >= SQLITE_WAL_FROM
    yield Finding(
        "ok", check, "SQLite", f"version {sqlite3.sqlite_version}: {'WAL' if wal else 'rollback journal'} is used"
    )
    path = state.removeprefix("sqlite:")
    if not os.path.exists(path):  # noqa: PTH110
        yield Finding("note", check, path, "is not there yet; the service makes it at its first start")
        return
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=5.0)) as connection:
            mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        yield Finding("fault", check, path, f"cannot be read: {error.sqlite_errorname}", "restore it from a backup")
        return
    if mode == "wal" and not wal:
        yield Finding("fault", check, path, "uses WAL, which this SQLite may corrupt", "use SQLite 3.51.3 or newer")
    else:
        yield Finding("ok", check, path, f"can be read, journal mode {mode}")


def process(prefix: str, environ: Mapping[str, str], *, allow_root: bool, owner: int | None) -> Iterator[Finding]:
    """Look at who the service runs as (the owner of its state), and the limits that it would inherit from here."""
    program = prefix.rstrip("_").lower()
    if owner == 0:
        level: Level = "warning" if allow_root else "fault"
        hint = "give its files to a user of its own" + ("" if allow_root else f", or set {prefix}ALLOW_ROOT=1")
        yield Finding(level, "user", program, "the service's files belong to root", hint)
    elif owner is not None:
        yield Finding("ok", "user", program, f"the service's files belong to user {owner}")
    if environ.get(f"{prefix}TEST_CLOCK"):
        yield Finding("fault", "test clock", f"{prefix}TEST_CLOCK", "a test clock is set", "unset it outside tests")
    soft, _ = resource.getrlimit(resource.RLIMIT_CORE)
    yield Finding(
        "ok", "core dumps", "RLIMIT_CORE", "off here" if soft == 0 else "on here; the service turns them off for itself"
    )
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < _FEW_DESCRIPTORS
    yield Finding(
        "warning" if few else "ok",
        "descriptors",
        "RLIMIT_NOFILE",
        "no limit" if soft == resource.RLIM_INFINITY else f"{soft} open files",
        f"raise it to {_FEW_DESCRIPTORS} or more for many calls at once" if few else "",
    )


def clock(wall: Clock, *, last_seen: str | None) -> Finding:
    """Say whether the wall clock can be right: after this software was written, and after the last thing recorded."""
    now = wall.now()
    if now < _WRITTEN_AT:
        return Finding("fault", "clock", "wall clock", f"stands at {rfc3339(now)}", "set it")
    if last_seen is not None and now < parse_rfc3339(last_seen):
        return Finding(
            "fault", "clock", "wall clock", f"stands before the last recorded event at {last_seen}", "set it"
        )
    return Finding("ok", "clock", "wall clock", rfc3339(now))


def _stat(check: str, path: str, missing: Level, hint: str) -> os.stat_result | Finding:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return Finding(missing, check, path, "is not there", hint)
    except OSError as error:
        return Finding("note", check, path, f"cannot be seen from here: {error.strerror}", "run this as its user")
    if stat.S_ISLNK(found.st_mode):
        return Finding("fault", check, path, "is a symbolic link", "put the file itself there")
    return found


def _owned(check: str, path: str, found: os.stat_result, owner: int | None, *, roots_too: bool = False) -> Finding:
    if owner is not None and found.st_uid != owner and not (roots_too and found.st_uid == 0):
        return Finding("fault", check, path, f"belongs to user {found.st_uid}, not {owner}", f"chown {owner} {path}")
    return Finding("ok", check, path, f"mode {_mode(found)}, user {found.st_uid}")


def _mode(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):04o}"


def _kind(mode: int) -> str:
    for test, name in ((stat.S_ISDIR, "directory"), (stat.S_ISREG, "file"), (stat.S_ISSOCK, "socket")):
        if test(mode):
            return name
    return "special file"
