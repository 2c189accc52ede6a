"""The end of a custody key: ``minter keys retire`` takes it out of use, ``minter keys destroy`` deletes its values.

Rules of this module:

1. A key that the grants in force refer to is retired only by force. A retired key never comes back: its alias is spent.
2. Only a key that is retired, or that never came into use, is destroyed; its rows stay, as the history of it.
3. A value is gone when its source says so. Until then its version says what is wrong, and the command can be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from config.clock import Clock, rfc3339
from config.problems import ProblemError
from minter import failpoints, key_rows
from minter.audit_events import Event, Value
from minter.custody import Custody, Store
from minter.held import OWN_KEYS, key_event
from minter.issuer_roots import ISSUER
from minter.key_rows import KeyRow, VersionRow
from minter.rotation import Rotation
from minter.rotation_steps import DESTROY_FAILED
from minter.sources import MissingError, SourceError
from minter.store import Connection, committed

#: A word of :attr:`minter.key_rows.VersionRow.problem`, beside those of a rotation: the minter may not delete there.
LEFT_IN_SOURCE: Final = "left-in-source"

#: Ends the leases that were made with any version of an alias; returns them.
EndAll = Callable[[str, int | None], Awaitable[list[Any]]]


class KeyEnding:
    """Retires and destroys custody keys. ``end_all(alias, uid)`` ends what was made with a key."""

    def __init__(self, custody: Custody, store: Store, rotation: Rotation, *, clock: Clock, end_all: EndAll) -> None:
        self._custody = custody
        self._store = store
        self._rotation = rotation
        self._clock = clock
        self._end_all = end_all

    async def retire(self, alias: str, *, force: bool = False, uid: int | None = None) -> dict[str, Any]:
        """Take a key out of use; once more is no error.

        Errors: ``key-not-found``, ``key-in-use``, ``rotation-running``.
        """
        if alias in OWN_KEYS:
            raise ProblemError("key-in-use", f"no minter goes without its {alias}")
        refused = None
        async with self._rotation.alone(alias):
            key = await self._key(alias)
            profiles = self._custody.profiles_of(alias)
            if key.retired_at is None:
                if profiles and not force:
                    named = ", ".join(profiles)
                    what = f"the grants refer to it: {named}; take it out of them first, or --force"
                    raise ProblemError("key-in-use", what, profiles=list(profiles))
                # What could not be deleted now is named when the key is destroyed.
                with contextlib.suppress(ProblemError):
                    await self._rotation.drop_prepared(alias, uid=uid)
                key = replace(key, retired_at=self._clock.now())
                refused = await committed(self._out_of_use(key, forced=bool(profiles), uid=uid))
            failpoints.reached("key.retired")
            self._custody.let_go(alias)
            ended = await self._end_all(alias, uid)
        if refused is not None:
            raise refused
        assert key.retired_at is not None  # noqa: S101 - for the type checker
        return {"alias": alias, "retired_at": rfc3339(key.retired_at), "profiles": list(profiles), "leases": ended}

    async def _out_of_use(self, key: KeyRow, *, forced: bool, uid: int | None) -> None:
        fields: dict[str, Value] = {"alias": key.alias, "uid": uid, "forced": forced or None}

        def work(connection: Connection) -> tuple[None, list[Event]]:
            key_rows.retire(connection, key.alias, now=key.retired_at or 0.0)
            return None, [Event("key.out-of-use", fields)]

        await self._store.write(work)

    async def destroy(self, alias: str, *, uid: int | None = None) -> dict[str, Any]:
        """Delete every value of a retired key.

        Return its versions and what a person must still delete; of a place that is shared with another key, nothing is
        deleted. Errors: ``key-not-found``, ``key-in-use``, ``secret-unavailable`` when a source failed.
        """
        async with self._rotation.alone(alias):
            key = await self._key(alias)
            rows = await self._store.read(key_rows.versions)
            own = [row for row in rows if row.alias == alias]
            if key.retired_at is None and any(row.activated_at is not None for row in own):
                raise ProblemError("key-in-use", f"first: minter keys retire {alias}")
            self._check_alone(alias, own, rows)
            done = [await self._end(row, uid=uid) for row in own]
        failed = [row for row in done if row.problem == DESTROY_FAILED]
        if failed:
            named = ", ".join(f"version {row.version} ({row.source_ref})" for row in failed)
            raise ProblemError("secret-unavailable", f"a source did not delete {named}; give the command again")
        at_issuer = [row.version for row in own if row.made_by == ISSUER and row.phase != "destroyed"]
        to_do = self._to_do(done, [self._rotation.name_at_issuer(alias, version) for version in at_issuer])
        return {"alias": alias, "versions": [_shown(row) for row in done], "to_do": to_do}

    def _check_alone(self, alias: str, own: list[VersionRow], rows: list[VersionRow]) -> None:
        """Refuse to delete what another key still needs."""
        place = self._custody.reader.sources.place
        mine = {place(row.source_ref) for row in own if row.phase != "destroyed"}
        others = {row.alias: row.source_ref for row in rows if row.alias != alias and row.phase != "destroyed"}
        others |= {name: known.source for name, known in self._custody.reader.named().items() if name != alias}
        for other, ref in others.items():
            if place(ref) in mine:
                raise ProblemError("key-in-use", f"key {other} lives at the same place, {ref}")

    async def _end(self, row: VersionRow, *, uid: int | None) -> VersionRow:
        if row.phase == "destroyed" and not row.problem:
            return row
        try:
            problem = await asyncio.to_thread(self._delete, row.source_ref)
        except SourceError:
            row = replace(row, problem=DESTROY_FAILED)
            await self._put(row, key_event("key.destroy-failed", row, reason="source-failed", uid=uid))
            return row
        failpoints.reached("key.deleted")
        first = row.phase != "destroyed"
        at = self._clock.now() if first else row.destroyed_at
        row = replace(row, phase="destroyed", destroyed_at=at, problem=problem)
        await self._put(row, key_event("key.destroyed", row, uid=uid, reason=problem or None) if first else None)
        failpoints.reached("key.destroyed")
        return row

    def _delete(self, ref: str) -> str:
        sources = self._custody.reader.sources
        if sources.writable(ref):
            sources.delete(ref)
            return ""
        try:
            sources.read(ref)
        except MissingError:
            return ""
        except SourceError:
            return LEFT_IN_SOURCE
        return LEFT_IN_SOURCE

    def _to_do(self, rows: list[VersionRow], at_issuer: list[str]) -> list[str]:
        found = [f"delete {row.source_ref} yourself: the minter cannot" for row in rows if row.problem]
        settings = self._custody.settings_of(rows[0].alias) if rows else None
        if settings is not None and settings.second_copy:
            found.append(f"delete the other copy: {settings.second_copy}")
        if settings is not None and settings.use == "static":
            names = f" (it is called {', '.join(at_issuer)} there)" if at_issuer else ""
            found.append(f"end the key at its issuer{names}: only that makes it worthless")
        return found

    async def _key(self, alias: str) -> KeyRow:
        key = (await self._store.read(key_rows.keys)).get(alias)
        if key is None:
            raise ProblemError("key-not-found")
        return key

    async def _put(self, row: VersionRow, event: Event | None) -> None:
        def work(connection: Connection) -> tuple[None, list[Event]]:
            key_rows.put_version(connection, row)
            return None, [event] if event is not None else []

        await self._store.write(work)
        self._custody.put([row])


def _shown(row: VersionRow) -> dict[str, Any]:
    return {"version": row.version, "phase": row.phase, "source_ref": row.source_ref, "problem": row.problem}
