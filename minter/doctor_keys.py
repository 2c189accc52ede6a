"""The part of ``minter doctor`` that looks at custody keys: can each be read, and is one due for rotation."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from config.profiles import Profile
from config.secret import SHORTEST_SCRUBBED
from config.settings import KeySettings, MinterSettings
from minter import declared_keys, kinds
from minter.custody import Custody
from minter.held import is_too_short
from minter.key_age import KeyAge
from minter.key_loading import scrubbed
from minter.sources import Context, MissingError, SourceError, Sources, kind_of
from minter.sources.keyring import KeyringSource

FOR_THE_SERVICE: Final = "run this as the minter's user for a full answer"
#: Sources that only the service itself can read: a pipe that it inherits, a folder that systemd gives it, its state.
_SERVICE_ONLY: Final = frozenset({"fd", "credential", "sealed"})


@dataclass(frozen=True, slots=True)
class _Version:
    """The active version of a custody key, as the state knows it."""

    source_ref: str
    activated_at: float | None


#: What doctor says of a version whose last step failed, by its problem: what is so, and what to do.
_PROBLEMS: Final = {
    "not-accepted": ("is prepared and its issuer does not take it", "minter rotate {alias}, or --abort"),
    "not-proved": ("is prepared and its issuer could not be asked whether it takes it", "see the issuer"),
    "destroy-failed": ("is out of use and could not be deleted", "see its source and its issuer; it is tried again"),
    "source-failed": ("is out of use and could not be deleted", "see its source; it is tried again"),
    "left-in-source": (
        "is destroyed here and still at its place",
        "delete it there, then: minter keys destroy {alias}",
    ),
    "compromised": ("is compromised and still there", "minter rotate {alias} --compromised"),
}


def check_keys(settings: MinterSettings, owner: int, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Read every secret that is in use, and say of each only whether that worked."""
    try:
        sources = _sources(settings, environ)
    except ConfigurationError as error:
        yield from doctor.from_configuration("sources", error)
        return
    active = _active(settings)
    declared = _declared(settings)
    retired = {alias for (alias,) in rows(settings, "SELECT alias FROM custody_keys WHERE retired_at IS NOT NULL")}
    named = {**declared, **settings.keys}
    profiles = _profiles(settings, environ)
    references = {alias: ref for alias, ref in _references(named, profiles).items() if alias not in retired}
    to_scrub = scrubbed(profiles)
    if any(kind_of(reference) == "keyring" for reference in references.values()):
        yield _keyring(_context(settings, environ))
    for alias, reference in references.items():
        version = active.get(alias)
        key = named.get(alias)
        # The minter makes a signing key once; one that it has known before and that is gone is a fault.
        makes = version is None and key is not None and key.use == "signing"
        used = version.source_ref if version else reference
        yield _key(sources, alias, used, makes=makes, owner=owner, to_scrub=alias in to_scrub)
        yield from _age(key, alias, version)
    yield from _problems(settings)


def _references(named: Mapping[str, KeySettings], profiles: Iterable[Profile]) -> dict[str, str]:
    found = {alias: key.source for alias, key in named.items()}
    for profile in profiles:
        found |= {alias: ref for alias, ref in profile.key_aliases().items() if ref is not None}
    return found


def _profiles(settings: MinterSettings, environ: Mapping[str, str]) -> Sequence[Profile]:
    """Return the profiles of the grants file; none when it does not load, which is said elsewhere."""
    try:
        return tuple(load_grants(settings, environ).profiles.values())
    except ConfigurationError:
        return ()


def _declared(settings: MinterSettings) -> dict[str, KeySettings]:
    """Return what operators declared while the minter ran and that is in use."""
    query = (
        "SELECT alias, settings FROM custody_keys WHERE settings != '' "
        "AND alias IN (SELECT alias FROM key_versions WHERE activated_at IS NOT NULL)"
    )
    return {alias: declared_keys.read(text) for alias, text in rows(settings, query)}


def _problems(settings: MinterSettings) -> Iterator[Finding]:
    """Say which versions could not be made, proved or deleted."""
    for alias, version, problem in rows(
        settings, "SELECT alias, version, problem FROM key_versions WHERE problem != ''"
    ):
        what, hint = _PROBLEMS.get(problem, (problem, "see the audit log"))
        yield Finding("fault", "keys", alias, f"version {version} {what}", hint.format(alias=alias))


def _active(settings: MinterSettings) -> dict[str, _Version]:
    found = rows(settings, "SELECT alias, source_ref, activated_at FROM key_versions WHERE phase = 'active'")
    return {alias: _Version(reference, activated_at) for alias, reference, activated_at in found}


def _keyring(context: Context) -> Finding:
    try:
        return Finding("ok", "keyring", "backend", KeyringSource(context).backend())
    except SourceError as error:
        return Finding("fault", "keyring", "backend", error.what, error.hint)


def _key(sources: Sources, alias: str, reference: str, *, makes: bool, owner: int, to_scrub: bool) -> Finding:
    where = alias if alias == reference else f"{alias} ({reference})"
    if kind_of(reference) in _SERVICE_ONLY:
        return Finding("note", "keys", where, "only the service itself can read it")
    if os.geteuid() != owner:
        return Finding("note", "keys", where, "was not read", FOR_THE_SERVICE)
    try:
        value = sources.read(reference)
    except MissingError as error:
        return _missing(where, reference, error, makes=makes)
    except SourceError as error:
        return Finding("fault", "keys", where, error.what, error.hint)
    if to_scrub and is_too_short(value):
        what = f"has fewer than {SHORTEST_SCRUBBED} bytes: answers are not scrubbed of it"
        return Finding("warning", "keys", where, what, 'have a longer one issued, or say "scrub": "off"')
    return Finding("ok", "keys", where, "can be read")


def _missing(where: str, reference: str, error: MissingError, *, makes: bool) -> Finding:
    if makes:
        return Finding("note", "keys", where, "is not there yet; the minter makes it at its first start")
    if kind_of(reference) == "env":
        return Finding("warning", "keys", where, f"{error.what} here", "the minter's environment must have it")
    return Finding("fault", "keys", where, error.what, error.hint)


def _age(key: KeySettings | None, alias: str, version: _Version | None) -> Iterator[Finding]:
    if key is None or key.rotate_every is None or version is None or version.activated_at is None:
        return
    clock, _ = load.program_clock(os.environ, "MINTER_")
    period_s = float(key.rotate_every)
    age = KeyAge(alias=alias, use=key.use, since_at=version.activated_at, now=clock.now(), period_s=period_s)
    old = f"is {_span(age.age_s)} old"
    if age.level == "alarm":
        yield Finding("fault", "keys", alias, f"{old}, which is more than rotate_every", f"minter rotate {alias}")
    elif age.level == "warning":
        # Cut off, not rounded: 100 % is a fault.
        what = f"{old}, {int(100 * (age.ratio or 0.0))}% of rotate_every"
        yield Finding("warning", "keys", alias, what, f"minter rotate {alias}")


def _span(seconds: float) -> str:
    """Return whole days, of less than two whole hours, of less than two seconds.

    >>> _span(7_775_999), _span(172_799), _span(100)
    ('89 days', '47 hours', '100 seconds')
    """
    unit, name = next(((s, n) for s, n in ((86400, "days"), (3600, "hours")) if seconds >= 2 * s), (1, "seconds"))
    return f"{int(seconds // unit)} {name}"


def load_grants(settings: MinterSettings, environ: Mapping[str, str]) -> Grants:
    """Load the grants file with everything that the minter checks. Errors: ``ConfigurationError``."""
    clock, _ = load.program_clock(environ, "MINTER_")
    custody = Custody(settings, sources=_sources(settings, environ), clock=clock)
    custody.reader.declared = _declared(settings)
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
