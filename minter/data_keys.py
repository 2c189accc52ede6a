"""The data keys of a state: opened at start, renewed each day, moved to another sealing key when that rotates.

Rules of this module:

1. A state that has sealed anything is never given a new sealing key: without the one that it knows it does not start.
2. What is in the state of a data key is wrapped by the *active* version of the sealing key: a rotation rewraps them all
   in the transaction that makes another version active.
3. A data key goes away when no value is sealed with it any more. Values are sealed on the store's thread, in the
   transaction that writes them: none can turn up later.
"""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from config.clock import Clock
from config.errors import ConfigurationError, Fault
from config.problems import ProblemError
from config.secret import Secret
from config.settings import SEALING_KEY, KeySettings
from minter import failpoints, key_rows, resealing, sealed_values
from minter.audit_events import Event
from minter.held import key_event
from minter.key_rows import KeyRow, VersionRow
from minter.sealing import (
    Sealer,
    SealError,
    key_place,
    new_data_key,
    new_sealing_key,
    read_sealing_key,
    sealing_fingerprint,
    unwrap,
    wrap,
)
from minter.sources import MissingError, SourceError, Sources, kind_of, versioned
from minter.store import Connection, Store

#: A data key seals for so long.
USED_S: Final = 86400.0
#: Values that are sealed anew in one transaction.
BATCH: Final = 500
#: Where a sealing key may live: places that outlast the state and are not part of it.
_PLACES: Final = ("file", "keyring", "credential")
_HINT: Final = "bring it back from its second copy; without it the state does not open (see ops/runbooks/restore.md)"


@dataclass(frozen=True, slots=True)
class DataKey:
    """A row of ``data_keys``."""

    number: int
    phase: str
    sealing_version: int
    wrapped: bytes
    created_at: float


@dataclass(frozen=True, slots=True)
class SealingKey:
    """A version of the sealing key, read from its source."""

    ref: str
    version: int
    value: Secret

    @property
    def fingerprint(self) -> str:
        """Tells two of them apart."""
        return sealing_fingerprint(self.value)


class DataKeys:
    """Opens the state's data keys into :attr:`sealer`, and keeps them fresh. Made empty; :meth:`open` fills it."""

    def __init__(self, settings: KeySettings, sources: Sources, clock: Clock) -> None:
        self.settings = settings
        self.sources = sources
        self.sealer = Sealer()
        self._clock = clock
        self._renewed_at = 0.0
        self._old: set[int] = set()
        #: A key may have been committed that this process does not seal with: the log did not take its lines.
        self.unsure = False
        #: Old data keys of values that do not open: told once.
        self._damaged: set[int] = set()

    async def open(self, store: Store) -> None:
        """Load every data key; make the first one, and the sealing key, where nothing was ever sealed.

        Errors: ``ConfigurationError`` when the sealing key cannot be had or does not open the state.
        """
        rows = await store.read(data_keys)
        versions = [row for row in await store.read(key_rows.versions) if row.alias == SEALING_KEY]
        active = next((row for row in versions if row.phase == "active"), None)
        try:
            _check_place(self.settings.source)
            if active is None:
                await self._first(store, rows)
            else:
                await self._load(store, rows, active)
        except SourceError as error:
            where = f"{SEALING_KEY} ({active.source_ref if active else self.settings.source})"
            hint = error.hint if active is None else _HINT
            raise ConfigurationError([Fault(where, error.what, hint)]) from None
        self.sources.sealed.attach(store, self.sealer)

    async def installation_key(self, store: Store, name: str) -> bytes:
        """Return 32 random bytes of this installation under a name, made at the first call and kept sealed.

        A state of the first schema has them in the clear: they are sealed, and wiped where they stood.
        """
        place = (f"installation/{name}", 1)

        def work(connection: Connection) -> tuple[tuple[bytes, bool], Sequence[Event]]:
            found = sealed_values.get(connection, *place)
            if found is not None:
                return (self.sealer.open(key_place(*place), found), False), ()
            plain = connection.exec_driver_sql("SELECT value FROM meta WHERE name = ?", (name,)).scalar()
            value = bytes.fromhex(plain) if plain else secrets.token_bytes(32)
            sealed_values.put(connection, *place, self.sealer.seal(key_place(*place), value))
            connection.exec_driver_sql("PRAGMA secure_delete=ON")
            connection.exec_driver_sql("DELETE FROM meta WHERE name = ?", (name,))
            return (value, plain is not None), ()

        try:
            value, was_plain = await store.write(work)
        except SealError as error:
            raise ConfigurationError([Fault("state", f"{place[0]}: {error}", "restore a backup")]) from None
        if was_plain:
            await asyncio.to_thread(_wipe_journal, store.path)
        return value

    # --- while it runs ---

    async def tick(self, store: Store, now: float) -> None:
        """Take a new data key when the current one has sealed for a day; move values off old ones, then drop them.

        Errors: ``secret-unavailable`` while the sealing key cannot be had: the current data key goes on sealing.
        """
        if not self.unsure and not self._old and 0 <= now - self._renewed_at < USED_S:
            return
        rows = await store.read(data_keys)
        active = next(row for row in rows if row.phase == "active")
        await self._follow(active)
        for number in self._old - {row.number for row in rows}:
            # Its row is gone, and nobody was told: the log did not take that line.
            self.sealer.drop(number)
        self._renewed_at, self._old = active.created_at, {row.number for row in rows if row.phase == "old"}
        # Before a new one is taken: what is old is moved whether the sealing key can be had or not.
        await self.move(store)
        if not 0 <= now - active.created_at < USED_S:
            await self.renew(store, await self._sealing_key(active.sealing_version), now)
            await self.move(store)

    async def renew(self, store: Store, sealing: SealingKey, now: float) -> None:
        """Seal with a new data key from now on."""
        key = new_data_key()

        def work(connection: Connection) -> tuple[int, Sequence[Event]]:
            number = add_data_key(connection, key, sealing, now)
            return number, [Event("data-key.renewed", {"version": sealing.version, "data_key": number})]

        self.unsure = True
        number = await store.write(work)
        failpoints.reached("seal.renewed")
        self.taken_over(number, key, now)

    def taken_over(self, number: int, key: bytes, now: float) -> None:
        """Seal with a data key that was committed; the one before is old."""
        if self.sealer.current:
            self._old.add(self.sealer.current)
        self.sealer.use(number, key, current=True)
        self._renewed_at, self.unsure = now, False

    async def _follow(self, active: DataKey) -> None:
        """Seal with the data key that the state calls active, whether anybody was told of it or not."""
        if active.number != self.sealer.current:
            sealing = await self._sealing_key(active.sealing_version)
            try:
                key = _unwrapped(active, sealing)
            except SealError as error:
                raise ProblemError("secret-unavailable", f"data key {active.number}: {error}") from None
            self.taken_over(active.number, key, active.created_at)
        self.unsure = False

    async def _sealing_key(self, version: int) -> SealingKey:
        try:
            return await asyncio.to_thread(self.read, version)
        except SourceError as error:
            raise ProblemError("secret-unavailable", f"the source of {SEALING_KEY} {error.what}") from None

    async def move(self, store: Store) -> None:
        """Seal one batch of what old data keys sealed with the current one; drop a key that has none left."""

        def work(connection: Connection) -> tuple[list[int], Sequence[Event]]:
            events: list[Event] = []
            gone = []
            for row in data_keys(connection):
                if row.phase == "active" or row.number == self.sealer.current:
                    continue
                leases, told = resealing.leases(connection, self.sealer, row.number, limit=BATCH)
                damaged, more = resealing.keys(connection, self.sealer, row.number)
                if leases < BATCH and not damaged:
                    connection.exec_driver_sql("DELETE FROM data_keys WHERE id = ?", (row.number,))
                    told.append(Event("data-key.destroyed", {"data_key": row.number}))
                    gone.append(row.number)
                if row.number not in self._damaged:
                    events += more
                if damaged:
                    self._damaged.add(row.number)
                events += told
            return gone, events

        gone = await store.write(work)
        failpoints.reached("seal.moved")
        for number in gone:
            self.sealer.drop(number)
            self._old.discard(number)

    @property
    def moving(self) -> bool:
        """Say whether values are still sealed with an old data key, or may be."""
        return bool(self._old)

    # --- the sealing key ---

    def read(self, version: int, ref: str | None = None) -> SealingKey:
        """Read a version of the sealing key. Blocks. Errors: :class:`minter.sources.SourceError`."""
        ref = ref or versioned(self.settings.source, version)
        _check_place(ref)
        value = self.sources.read(ref)
        try:
            read_sealing_key(value)
        except SealError as error:
            raise SourceError(str(error), "openssl rand -base64 32") from None
        return SealingKey(ref, version, value)

    def make(self, version: int, ref: str | None = None) -> SealingKey:
        """Make a version of the sealing key, keep it in its source and read it back. Blocks."""
        ref = ref or versioned(self.settings.source, version)
        try:
            # What a start or a rotation that was killed had written already.
            return self.read(version, ref)
        except MissingError:
            if not self.sources.writable(ref):
                raise
        self.sources.write(ref, new_sealing_key())
        return self.read(version, ref)

    async def _first(self, store: Store, rows: Sequence[DataKey]) -> None:
        sealed = await store.read(_anything_sealed)
        if rows or sealed:
            raise SourceError("is not the key of this state: the state has lost its own record of it")
        sealing = await asyncio.to_thread(self.make, 1)
        key, now = new_data_key(), self._clock.now()

        def work(connection: Connection) -> tuple[int, Sequence[Event]]:
            row = version_row(sealing, now, phase="active", activated_at=now)
            known = key_rows.keys(connection).get(SEALING_KEY) or KeyRow(alias=SEALING_KEY, created_at=now)
            key_rows.add_key(connection, replace(known, owner=self.settings.owner, purpose=self.settings.purpose))
            key_rows.put_version(connection, row)
            return add_data_key(connection, key, sealing, now), [key_event("key.created", row)]

        number = await store.write(work)
        self.taken_over(number, key, now)

    async def _load(self, store: Store, rows: Sequence[DataKey], active: VersionRow) -> None:
        ref = versioned(self.settings.source, active.version)
        sealing = await asyncio.to_thread(self.read, active.version, ref)
        if sealing.fingerprint != active.fingerprint:
            raise SourceError(f"is another key than the one that sealed this state ({active.fingerprint})")
        for row in rows:
            try:
                key = _unwrapped(row, sealing)
            except SealError:
                raise SourceError(f"does not open data key {row.number}: the state was changed") from None
            self.sealer.use(row.number, key, current=row.phase == "active")
            if row.phase == "active":
                self._renewed_at = row.created_at
            else:
                self._old.add(row.number)
        if not self.sealer.current:
            raise SourceError("opens no data key: the state has lost its own")
        if active.source_ref != ref:
            moved = replace(active, source_ref=ref)
            await store.write(functools.partial(_put, moved))


def _unwrapped(row: DataKey, sealing: SealingKey) -> bytes:
    return unwrap(
        read_sealing_key(sealing.value), sealing_version=row.sealing_version, number=row.number, wrapped=row.wrapped
    )


# --- rows; on the store's writer thread ---


def _put(row: VersionRow, connection: Connection) -> tuple[None, Sequence[Event]]:
    key_rows.put_version(connection, row)
    return None, ()


def data_keys(connection: Connection) -> list[DataKey]:
    """Return every data key, the oldest first."""
    rows = connection.exec_driver_sql(
        "SELECT id, phase, sealing_version, wrapped, created_at FROM data_keys ORDER BY id"
    )
    return [DataKey(*row) for row in rows]


def add_data_key(connection: Connection, key: bytes, sealing: SealingKey, now: float) -> int:
    """Make a data key the active one and the one before old; return its number."""
    connection.exec_driver_sql("UPDATE data_keys SET phase = 'old' WHERE phase = 'active'")
    insert = "INSERT INTO data_keys (phase, sealing_version, wrapped, created_at) VALUES ('active', ?, x'', ?)"
    number = connection.exec_driver_sql(insert, (sealing.version, now)).lastrowid
    rewrap(connection, number, key, sealing)
    return number


def rewrap(connection: Connection, number: int, key: bytes, sealing: SealingKey) -> None:
    """Wrap a data key by a version of the sealing key, in place of what wrapped it before."""
    wrapped = wrap(read_sealing_key(sealing.value), sealing_version=sealing.version, number=number, data_key=key)
    connection.exec_driver_sql(
        "UPDATE data_keys SET sealing_version = ?, wrapped = ? WHERE id = ?", (sealing.version, wrapped, number)
    )


def version_row(sealing: SealingKey, now: float, *, phase: key_rows.Phase, activated_at: float | None) -> VersionRow:
    """Return the row of a version of the sealing key."""
    return VersionRow(
        alias=SEALING_KEY,
        version=sealing.version,
        phase=phase,
        source_ref=sealing.ref,
        fingerprint=sealing.fingerprint,
        algorithm="A256GCM",
        created_at=now,
        activated_at=activated_at,
    )


def _anything_sealed(connection: Connection) -> bool:
    for table in ("sealed_values", "leases"):
        if connection.exec_driver_sql(f"SELECT 1 FROM {table} WHERE data_key IS NOT NULL LIMIT 1").first():  # noqa: S608
            return True
    return False


def _check_place(ref: str) -> None:
    if kind_of(ref) not in _PLACES:
        raise SourceError("cannot be where a sealing key lives", f"use {', '.join(f'{place}:' for place in _PLACES)}")


def _wipe_journal(path: Path) -> None:
    """Leave no copy of a page in the rollback journal or the write-ahead log."""
    with closing(sqlite3.connect(path, timeout=5.0, isolation_level=None)) as database:
        mode = database.execute("PRAGMA journal_mode").fetchone()[0]
        if mode == "wal":
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return
        journal = path.with_name(f"{path.name}-journal")
        database.execute("BEGIN EXCLUSIVE")
        try:
            if journal.exists():
                size = journal.stat().st_size
                with journal.open("r+b") as file:
                    file.write(b"\0" * size)
                    file.flush()
                    os.fsync(file.fileno())
        finally:
            database.execute("ROLLBACK")
