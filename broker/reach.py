"""Whether a user of this machine could get around the broker: what it could read, change or connect to.

Asked of the kernel, not computed from modes: as root a forked child becomes that user and tries, so that groups, ACLs
and closed directories count as they will for the command that is to be started.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from config.console.commands import CommandError
from config.errors import ExitCode
from config.settings import BrokerSettings, MinterSettings

_READ: Final = os.R_OK
_CHANGE: Final = os.W_OK
#: Connecting to a Unix socket takes the right to write to it.
_CONNECT: Final = os.W_OK


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine, with the groups that a login would have."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    @classmethod
    def named(cls, name: str) -> Account:
        """Find a user by name, or by number. Errors: ``CommandError``."""
        try:
            entry = pwd.getpwuid(int(name)) if name.isascii() and name.isdigit() else pwd.getpwnam(name)
        except (KeyError, OverflowError):
            raise CommandError(ExitCode.USAGE, f"there is no user {name!r} on this machine") from None
        return cls._of(entry, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))

    @classmethod
    def own(cls) -> Account:
        """Return who runs this process."""
        uid, gid = os.geteuid(), os.getegid()
        groups = tuple(os.getgroups())
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            # In containers a process may have a number that nobody has.
            return cls(str(uid), uid, gid, groups, "/", "/bin/sh")
        return cls(entry.pw_name, uid, gid, groups, entry.pw_dir, entry.pw_shell or "/bin/sh")

    @classmethod
    def _of(cls, entry: pwd.struct_passwd, groups: tuple[int, ...]) -> Account:
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, entry.pw_shell or "/bin/sh")

    def is_own(self) -> bool:
        """Say whether this process already has this user's rights, and no others."""
        return (self.uid, self.uid) == (os.getuid(), os.geteuid())


@dataclass(frozen=True, slots=True)
class Way:
    """One way around the broker: ``right`` on ``path`` and what it would give."""

    path: str
    right: int
    what: str


def reasons(account: Account, ways: Iterable[Way], settings: BrokerSettings | None) -> list[str]:
    """Return why ``account`` is no other side of a boundary, a sentence each; empty when the broker is one."""
    if account.uid == 0:
        return ["it is root"]
    found = list(_standing(account, settings))
    listed = list({(way.path, way.right): way for way in reversed(list(ways))}.values())[::-1]
    open_to = _granted(listed) if account.is_own() else _granted_to(account, listed)
    found += [f"it could {way.what} ({way.path})" for way, granted in zip(listed, open_to, strict=True) if granted]
    return list(dict.fromkeys(found))


def _standing(account: Account, settings: BrokerSettings | None) -> Iterator[str]:
    if settings is None:
        return
    if account.uid in (settings.operator_uids or ()):
        yield "it is an operator of the broker (operator_uids)"
    owners = {
        "broker": [_file(settings.state), *map(_file, settings.admin_listen)],
        "minter": [_file(settings.minter)],
    }
    for program, paths in owners.items():
        if account.uid in {_owner(path) for path in paths if path}:
            yield f"it is the {program}'s own user"


def _owner(path: str) -> int | None:
    try:
        return Path(path).stat().st_uid
    except OSError:
        return None


def ways_to_caller(token_file: Path) -> Iterator[Way]:
    """Yield the ways to the caller's credential."""
    yield Way(str(token_file.absolute()), _READ, "read the caller's token")


def ways_to_broker(settings: BrokerSettings, config: Path) -> Iterator[Way]:
    """Yield the ways to what the broker keeps, listens on or goes by."""
    for reference, what in (
        (settings.minter_credential, "read the broker's credential to the minter"),
        (settings.state, "read the broker's state"),
    ):
        if path := _file(reference):
            yield Way(path, _READ, what)
    for key in (settings.tls.key, settings.minter_tls.key):
        if key:
            yield Way(key, _READ, "read a private TLS key of the broker")
    for listener in settings.admin_listen:
        yield from _socket(listener, "reach the broker's admin socket")
    yield from _socket(settings.minter, "reach the minter's socket")
    for path, what in (
        (settings.callers, "make itself a caller"),
        (settings.grants, "change the grants"),
        (str(config.absolute()), "change the broker's settings"),
        (_file(settings.state), "change the broker's state"),
    ):
        if path:
            yield from _changing(path, what)


def ways_to_minter(settings: MinterSettings, config: Path) -> Iterator[Way]:
    """Yield the same for the minter, where its settings are at hand."""
    for alias, key in settings.keys.items():
        if path := _file(key.source):
            yield Way(path, _READ, f"read custody key {alias}")
    yield Way(_file(settings.state), _READ, "read the minter's state")
    for listener in (*settings.listen, *settings.admin_listen):
        yield from _socket(listener, "reach the minter's socket")
    for path, what in (
        (settings.brokers, "make itself a broker"),
        (settings.audit, "change the audit log"),
        (_file(settings.state), "change the minter's state"),
        (str(config.absolute()), "change the minter's settings"),
    ):
        yield from _changing(path, what)


def _changing(path: str, what: str) -> Iterator[Way]:
    yield Way(path, _CHANGE, what)
    directory = Path(path).parent
    with contextlib.suppress(OSError):
        if not directory.stat().st_mode & stat.S_ISVTX:
            # Whoever may write to the directory can put another file in its place.
            yield Way(str(directory), _CHANGE, what)


def _socket(listener: str, what: str) -> Iterator[Way]:
    if path := _file(listener):
        yield Way(path, _CONNECT, what)


def beside(ways: Iterable[Way]) -> Iterator[Way]:
    """Yield the sockets beside those of ``ways``: the minter's admin socket, for one, is not in our settings."""
    listed = list(ways)
    known = {way.path for way in listed}
    for directory in {str(Path(way.path).parent) for way in listed if _is_socket(Path(way.path))}:
        with contextlib.suppress(OSError):
            for entry in sorted(Path(directory).iterdir()):
                if str(entry) not in known and _is_socket(entry):
                    yield Way(str(entry), _CONNECT, f"reach the socket {entry.name}")


def _is_socket(path: Path) -> bool:
    try:
        return path.is_socket()
    except OSError:
        return False


def _file(reference: str) -> str:
    """Return the path that a reference names, or an empty text when it names something else."""
    scheme, _, path = reference.partition(":")
    return path if scheme in ("unix", "file", "sqlite") else ""


def _granted(ways: list[Way]) -> list[bool]:
    return [os.access(way.path, way.right) for way in ways]


def _granted_to(account: Account, ways: list[Way]) -> list[bool]:
    """Ask as ``account``. A child that does not answer for every way has answered for none: all count as open."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _answer_as(account, ways, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answers = pipe.read()
    _, status = os.waitpid(child, 0)
    if status != 0 or len(answers) != len(ways):
        return [True] * len(ways)
    return [answer == ord("y") for answer in answers]


def _answer_as(account: Account, ways: list[Way], pipe: int) -> None:
    """Become the user for good, answer, and end: nothing of this process's clean-up may run twice."""
    try:
        os.setgroups(list(account.groups))
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
        os.write(pipe, b"".join(b"y" if granted else b"n" for granted in _granted(ways)))
        os._exit(0)
    finally:
        os._exit(1)
