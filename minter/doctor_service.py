"""The part of ``minter doctor`` that asks the running minter: is it well, and what is its process really like."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from config.console.commands import AnswerError, CommandError, UnreachableError
from config.console.doctor import Finding, Level
from config.settings import MinterSettings
from minter.admin_client import AdminClient

#: ``synchronous``: what is committed is on the disk.
_FULL: Final = 2
_UMASK: Final = "0077"
_CHECK: Final = "process"


def check_service(settings: MinterSettings, owner: int) -> Iterator[Finding]:
    """Ask the running minter. One that is not running is a note."""
    try:
        client = AdminClient(settings)
        parts = client.get("/readyz", verbose="")
    except AnswerError as error:
        yield Finding("fault", "service", "minter", error.what)
    except UnreachableError as error:
        yield Finding("note", "service", "minter", error.what)
        return
    except CommandError as error:
        yield Finding("note", "service", "minter", error.what, error.hint)
        return
    else:
        for part, state in parts.items():
            # A part that the minter works without says what is wrong with it.
            yield Finding("ok" if state is True else "warning", "service", part, "is well" if state is True else state)
    try:
        facts = client.get("/v1/process")
    except CommandError as error:
        yield Finding("note", _CHECK, "minter", error.what, error.hint)
        return
    yield from of_facts(facts, owner=owner, allow_root=settings.allow_root)


def of_facts(facts: Mapping[str, Any], *, owner: int, allow_root: bool) -> Iterator[Finding]:
    """Judge what a minter says of its process."""
    yield from _hardened(facts)
    yield _user(facts, owner=owner, allow_root=allow_root)
    same = facts["peer_uid"] == os.geteuid()
    yield Finding(
        "ok" if same else "fault",
        _CHECK,
        "peer credentials",
        f"the kernel tells the minter that user {facts['peer_uid']} asks",
        "" if same else "peers on its sockets are not who they are: no user namespace between them (PrivateUsers)",
    )
    left = facts["secret_variables"]
    yield Finding(
        "fault" if left else "ok",
        _CHECK,
        "secret variables",
        f"still in its environment: {', '.join(left)}" if left else "none is left in its environment",
    )
    yield from _keyring(facts)
    yield _database(facts["database"])


def _hardened(facts: Mapping[str, Any]) -> Iterator[Finding]:
    dumpable, umask, core = facts["dumpable"], facts["umask"], facts["core_limit"]
    if dumpable is None:
        yield Finding(
            "note", _CHECK, "dumpable", "this system has no such protection: debuggers of its user can read it"
        )
    else:
        what = "its memory is open to its own user" if dumpable else "its memory is closed to other processes"
        yield Finding("fault" if dumpable else "ok", _CHECK, "dumpable", what)
    yield Finding("fault" if core else "ok", _CHECK, "core dumps", f"at most {core} bytes" if core else "off")
    if umask is not None:
        yield Finding("ok" if umask == _UMASK else "fault", _CHECK, "umask", umask)
    if facts["swap"]:
        hint = "MemorySwapMax=0 in its unit, or encrypted swap"
        yield Finding("warning", _CHECK, "swap", "part of its memory has been written to swap", hint)


def _user(facts: Mapping[str, Any], *, owner: int, allow_root: bool) -> Finding:
    uid = facts["uid"]
    level: Level = "ok"
    hint = ""
    if uid == 0:
        level, hint = ("warning" if allow_root else "fault"), "give it a user of its own"
    elif uid != owner:
        level, hint = "fault", f"its state belongs to user {owner}"
    return Finding(level, _CHECK, "user", f"runs as user {uid}, process {facts['pid']}", hint)


def _keyring(facts: Mapping[str, Any]) -> Iterator[Finding]:
    if facts["keyring_override"]:
        what = "its environment chooses a keyring backend, so no key is read from one"
        yield Finding("fault", _CHECK, "keyring", what, "unset PYTHON_KEYRING_BACKEND where it is started")
    keyring = facts["keyring"]
    if keyring is not None:
        ok = keyring["backend"]
        yield Finding("ok" if ok else "fault", _CHECK, "keyring", f"backend {ok}" if ok else keyring["problem"])


def _database(database: Mapping[str, Any]) -> Finding:
    mode, full = database["journal_mode"], database["synchronous"] == _FULL
    what = f"SQLite {database['sqlite']}, journal {mode}, " + ("each commit synced" if full else "commits not synced")
    return Finding("ok" if full else "fault", _CHECK, "database", what)
