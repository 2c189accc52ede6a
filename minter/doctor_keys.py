"""The part of ``minter doctor`` that looks at custody keys: can each be read, and is one due for rotation."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from config import load
from config.console import doctor
from config.console.doctor import Finding
from config.errors import ConfigurationError
from config.grants import Grants
from config.settings import MinterSettings
from minter import kinds
from minter.custody import Custody
from minter.sources import Context, MissingError, SourceError, Sources, kind_of
from minter.sources.keyring import KeyringSource

FOR_THE_SERVICE: Final = "run this as the minter's user for a full answer"
#: Sources that only the service itself can read: a pipe that it inherits, a folder that systemd gives it.
_SERVICE_ONLY: Final = frozenset({"fd", "credential"})


@dataclass(frozen=True, slots=True)
class _Version:
    """The active version of a custody key, as the state knows it."""

    source_ref: str
    activated_at: float | None


def check_keys(settings: MinterSettings, owner: int, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Read every secret that is in use, and say of each only whether that worked."""
    try:
        sources = _sources(settings, environ)
    except ConfigurationError as error:
        yield from doctor.from_configuration("sources", error)
        return
    active = _active(settings)
    references = dict(_references(settings, environ))
    if any(kind_of(reference) == "keyring" for reference in references.values()):
        yield _keyring(_context(settings, environ))
    for alias, reference in references.items():
        version = active.get(alias)
        key = settings.keys.get(alias)
        # The minter makes a signing key once; one that it has known before and that is gone is a fault.
        makes = version is None and key is not None and key.use == "signing"
        yield _key(sources, alias, version.source_ref if version else reference, makes=makes, owner=owner)
        yield from _age(settings, alias, version)


def _references(settings: MinterSettings, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for alias, key in settings.keys.items():
        yield alias, key.source
    try:
        profiles: Iterable[Any] = load_grants(settings, environ).profiles.values()
    except ConfigurationError:
        return
    for profile in profiles:
        yield from ((alias, ref) for alias, ref in profile.key_aliases().items() if ref is not None)


def _active(settings: MinterSettings) -> dict[str, _Version]:
    found = rows(settings, "SELECT alias, source_ref, activated_at FROM key_versions WHERE phase = 'active'")
    return {alias: _Version(reference, activated_at) for alias, reference, activated_at in found}


def _keyring(context: Context) -> Finding:
    try:
        return Finding("ok", "keyring", "backend", KeyringSource(context).backend())
    except SourceError as error:
        return Finding("fault", "keyring", "backend", error.what, error.hint)


def _key(sources: Sources, alias: str, reference: str, *, makes: bool, owner: int) -> Finding:
    where = alias if alias == reference else f"{alias} ({reference})"
    if kind_of(reference) in _SERVICE_ONLY:
        return Finding("note", "keys", where, "only the service itself can read it")
    if os.geteuid() != owner:
        return Finding("note", "keys", where, "was not read", FOR_THE_SERVICE)
    try:
        sources.read(reference)
    except MissingError as error:
        return _missing(where, reference, error, makes=makes)
    except SourceError as error:
        return Finding("fault", "keys", where, error.what, error.hint)
    return Finding("ok", "keys", where, "can be read")


def _missing(where: str, reference: str, error: MissingError, *, makes: bool) -> Finding:
    if makes:
        return Finding("note", "keys", where, "is not there yet; the minter makes it at its first start")
    if kind_of(reference) == "env":
        return Finding("warning", "keys", where, f"{error.what} here", "the minter's environment must have it")
    return Finding("fault", "keys", where, error.what, error.hint)


def _age(settings: MinterSettings, alias: str, version: _Version | None) -> Iterator[Finding]:
    key = settings.keys.get(alias)
    if key is None or key.rotate_every is None or version is None or version.activated_at is None:
        return
    clock, _ = load.program_clock(os.environ, "MINTER_")
    days = (clock.now() - version.activated_at) / 86400
    if clock.now() >= version.activated_at + float(key.rotate_every):
        what = f"is {days:.0f} days old, which is more than rotate_every"
        yield Finding("warning", "keys", alias, what, f"minter rotate {alias}")


def load_grants(settings: MinterSettings, environ: Mapping[str, str]) -> Grants:
    """Load the grants file with everything that the minter checks. Errors: ``ConfigurationError``."""
    clock, _ = load.program_clock(environ, "MINTER_")
    custody = Custody(settings, sources=_sources(settings, environ), clock=clock)
    return load.load_grants(Path(settings.grants), check_token=kinds.checker(custody))


def _context(settings: MinterSettings, environ: Mapping[str, str]) -> Context:
    # A copy: looking takes nothing out of the environment.
    return Context.of(settings, dict(environ))


def _sources(settings: MinterSettings, environ: Mapping[str, str]) -> Sources:
    return Sources(_context(settings, environ), third_party=settings.sources)


def rows(settings: MinterSettings, query: str) -> list[tuple[Any, ...]]:
    """Read the state from outside; nothing when it is not there or not readable (which is said elsewhere)."""
    path = settings.state.removeprefix("sqlite:")
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=5.0)) as database:
            return database.execute(query).fetchall()
    except sqlite3.Error:
        return []
