"""Keys that operators declare while the minter runs: ``minter keys create`` and ``minter keys import``.

Rules of this module:

1. The row is there before a value is written anywhere: what a killed command left is found and taken back at the next
   start. Until its version is active the key does not exist for anybody else.
2. Nothing that is at a place already is overwritten, and no two keys share a place, of any version
   (minter/key_places.py).
3. No answer holds a value. A key that the minter made is in its source and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from config.clock import Clock
from config.origin import parse_origin
from config.problems import ProblemError
from config.secret import Secret
from config.settings import KeySettings
from minter import declared_keys, failpoints, key_places, key_rows, signing
from minter.audit_events import Event, Value
from minter.custody import MAX_ORIGINS, Custody, Store
from minter.held import OWN_KEYS, Held, key_event, version_row
from minter.key_rows import KeyRow, VersionRow
from minter.sources import MissingError, SourceError, check_text, kind_of
from minter.store import Connection, committed

#: Sources that give a value once: the key would be gone after a restart.
_ONCE: Final = frozenset({"fd"})
#: What is longer is no word for a report.
_MAX_WORDS: Final = 1000


class KeyMaking:
    """Creates and imports custody keys, one at a time."""

    def __init__(self, custody: Custody, store: Store, *, clock: Clock) -> None:
        self._custody = custody
        self._store = store
        self._clock = clock
        self._alone = asyncio.Lock()
        #: A command was cut off, here or in the process before this one: the state is asked what it left.
        self._unsure = True

    async def declare(
        self, alias: str, settings: KeySettings, value: Secret | None, *, in_place: bool = False, uid: int | None = None
    ) -> VersionRow:
        """Take a key into custody and return its version.

        ``value`` is kept at the source of ``settings``; without one the minter makes a signing key. ``in_place``: the
        value is at the source already and stays. Errors: ``body-malformed``, ``key-exists``, ``secret-unavailable``.
        """
        self._check_alias(alias)
        _check_words(settings)
        _check_value(settings, value, in_place=in_place)
        self._check_source(settings.source, in_place=in_place)
        if value is not None:
            try:
                # Before anything is written: what is no key of that algorithm is kept nowhere.
                check_text(value)
                self._custody.reader.take_as(settings, value, 1)
            except SourceError as error:
                raise ProblemError("body-malformed", f"the value {error.told()}") from None
        settings = settings.anchored(Path(self._custody.settings.grants).parent)
        async with self._alone:
            self._unsure = True
            key = await self._new_key(alias, settings)
            try:
                if not in_place:
                    await self._begin(key, settings, uid=uid)
                    await asyncio.to_thread(self._keep, settings, value)
                    failpoints.reached("key.written")
                held = await asyncio.to_thread(self._read, settings)
            except SourceError as error:
                if not in_place:
                    await self._undo(key, settings, uid=uid)
                raise ProblemError("secret-unavailable", f"the source of key {alias} {error.what}") from None
            row, refused = await self._activate(key, held, settings, uid=uid)
            failpoints.reached("key.created")
            self._custody.take(key, row, held)
            self._unsure = False
        if refused is not None:
            raise refused
        return row

    async def tick(self, _now: float) -> None:
        """Take back what a command left that was cut off: nobody was told that there is such a key.

        Errors: ``secret-unavailable`` when its source does not delete; the next tick tries again.
        """
        if not self._unsure:
            return
        async with self._alone:
            keys, versions = await self._store.read(lambda c: (key_rows.keys(c), key_rows.versions(c)))
            for key in keys.values():
                own = [row for row in versions if row.alias == key.alias]
                if key.settings and key.retired_at is None and all(row.activated_at is None for row in own):
                    await self._clear(key, own)
            self._unsure = False

    # --- what may be declared ---

    def _check_alias(self, alias: str) -> None:
        if not declared_keys.ALIAS.fullmatch(alias):
            what = "an alias is 1 to 64 letters, digits and . _ -, and starts with a letter or digit"
            raise ProblemError("body-malformed", what)
        if alias in OWN_KEYS:
            raise ProblemError("key-exists", f"every minter has a key {alias}: minter.toml describes it")
        if alias in self._custody.settings.keys:
            raise ProblemError("key-exists", f"key {alias} stands in minter.toml")

    def _check_source(self, ref: str, *, in_place: bool) -> None:
        sources = self._custody.reader.sources
        try:
            sources.check(ref)
            writable = sources.writable(ref)
        except SourceError as error:
            hint = f" ({error.hint})" if error.hint else ""
            raise ProblemError("body-malformed", f"{ref} {error.what}{hint}") from None
        if kind_of(ref) in _ONCE or not (in_place or writable):
            raise ProblemError("body-malformed", f"{ref} cannot keep a key; give a place such as sealed:NAME")
        try:
            key_places.check_file(ref, self._custody.settings, sources)
        except SourceError as error:
            raise ProblemError("body-malformed", f"{ref} {error.what}") from None

    async def _new_key(self, alias: str, settings: KeySettings) -> KeyRow:
        """Return the row of a key that is not there yet. Errors: ``key-exists``."""
        keys, versions = await self._store.read(lambda c: (key_rows.keys(c), key_rows.versions(c)))
        if alias in keys:
            await self._clear(keys[alias], [row for row in versions if row.alias == alias])
        self._check_place(alias, settings.source, versions)
        return KeyRow(
            alias=alias,
            purpose=settings.purpose,
            owner=settings.owner,
            origins=tuple(sorted(set(settings.origins))),
            created_at=self._clock.now(),
            settings=declared_keys.written(msgspec.structs.replace(settings, origins=[])),
        )

    async def _clear(self, key: KeyRow, versions: Sequence[VersionRow]) -> None:
        """Take back what a command left that was cut off. Errors: ``key-exists`` for a key that is or was in use."""
        if key.retired_at is not None:
            raise ProblemError("key-exists", f"key {key.alias} was retired: its alias is spent, choose another")
        if not key.settings or any(row.activated_at is not None for row in versions):
            raise ProblemError("key-exists", f"key {key.alias} is in custody already; see minter rotate")
        for row in versions:
            await self._delete(row)

        def work(connection: Connection) -> tuple[None, list[Event]]:
            key_rows.forget(connection, key.alias)
            return None, [key_event("key.import-failed", row, reason="interrupted") for row in versions]

        await self._store.write(work)

    def _check_place(self, alias: str, ref: str, versions: Sequence[VersionRow]) -> None:
        family = self._custody.reader.sources.family
        taken = {family(one.source): name for name, one in self._custody.reader.named().items() if name != alias}
        taken |= {family(row.source_ref): row.alias for row in versions if row.phase != "destroyed"}
        other = taken.get(family(ref), alias)
        if other != alias:
            raise ProblemError("key-exists", f"{ref} is where key {other} lives, or a version of it will")

    # --- the steps ---

    async def _begin(self, key: KeyRow, settings: KeySettings, *, uid: int | None) -> None:
        """Write down that a value is coming. Errors: ``key-exists`` when there is one at its place."""
        if not await asyncio.to_thread(self._is_free, settings.source):
            raise ProblemError("key-exists", f"there is something at {settings.source} already; see --in-place")
        coming = _prepared(key, settings)
        fields: dict[str, Value] = {"alias": key.alias, "source": kind_of(settings.source), "uid": uid}

        def work(connection: Connection) -> tuple[None, list[Event]]:
            key_rows.add_key(connection, key)
            key_rows.put_version(connection, coming)
            return None, [Event("key.declared", fields)]

        await self._store.write(work)
        failpoints.reached("key.declared")

    def _is_free(self, ref: str) -> bool:
        try:
            self._custody.reader.sources.read(ref)
        except MissingError:
            return True
        except SourceError:
            # Something that is no secret, or that may not be looked at.
            return False
        return False

    def _keep(self, settings: KeySettings, value: Secret | None) -> None:
        value = signing.generate(settings.algorithm) if value is None else value
        self._custody.reader.sources.write(settings.source, value)

    def _read(self, settings: KeySettings) -> Held:
        reader = self._custody.reader
        return reader.take_as(settings, reader.sources.read(settings.source), 1)

    async def _activate(
        self, key: KeyRow, held: Held, settings: KeySettings, *, uid: int | None
    ) -> tuple[VersionRow, ProblemError | None]:
        now = self._clock.now()
        row = version_row(key.alias, held, settings.source, now=now)
        # Nobody can have met a key that is new, so it needs no time of publication.
        row = replace(row, phase="active", published_at=now, activated_at=now)

        def work(connection: Connection) -> tuple[None, list[Event]]:
            key_rows.add_key(connection, key)
            key_rows.put_version(connection, row)
            return None, [key_event("key.created", row, uid=uid)]

        return row, await committed(self._store.write(work))

    async def _undo(self, key: KeyRow, settings: KeySettings, *, uid: int | None) -> None:
        row = _prepared(key, settings)
        await self._delete(row)

        def work(connection: Connection) -> tuple[None, list[Event]]:
            key_rows.forget(connection, key.alias)
            return None, [key_event("key.import-failed", row, reason="source-failed", uid=uid)]

        await self._store.write(work)

    async def _delete(self, row: VersionRow) -> None:
        try:
            await asyncio.to_thread(self._custody.reader.sources.delete, row.source_ref)
        except SourceError as error:
            raise ProblemError("secret-unavailable", f"the source of key {row.alias} {error.what}") from None


def _check_words(settings: KeySettings) -> None:
    for name in ("owner", "purpose", "second_copy"):
        if len(getattr(settings, name)) > _MAX_WORDS:
            raise ProblemError("body-malformed", f"{name} is longer than {_MAX_WORDS} characters")
    if len(settings.origins) > MAX_ORIGINS:
        raise ProblemError("body-malformed", f"a key may go to {MAX_ORIGINS} origins at most")


def _check_value(settings: KeySettings, value: Secret | None, *, in_place: bool) -> None:
    if settings.use not in ("static", "signing"):
        raise ProblemError("body-malformed", "use is static or signing")
    if in_place and value is not None:
        raise ProblemError("body-malformed", "a value that is in place already is not given again")
    if value is None and not in_place and settings.use != "signing":
        raise ProblemError("body-malformed", "a static key is issued by somebody else: give its value")
    if value is not None and not len(value):
        raise ProblemError("body-malformed", "the value is empty")
    try:
        for origin in settings.origins:
            parse_origin(origin)
    except ValueError as error:
        raise ProblemError("body-malformed", str(error)) from None


def _prepared(key: KeyRow, settings: KeySettings) -> VersionRow:
    return VersionRow(
        alias=key.alias, version=1, phase="prepared", source_ref=settings.source, created_at=key.created_at
    )
