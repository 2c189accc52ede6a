"""The steps of a rotation, each ending in a transaction. ``minter/rotation.py`` says in which order and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from config.clock import Clock
from config.problems import ProblemError
from config.secret import Secret
from minter import key_rows, signing
from minter.audit_events import Event
from minter.custody import Custody, Store
from minter.held import SIGNERS, Held, key_event, version_row
from minter.issuer_roots import ISSUER, IssuerRoots, RootError
from minter.key_rows import VersionRow
from minter.rotation_plan import SKEW_S, Versions
from minter.sources import MissingError, SourceError, versioned
from minter.store import Connection

#: Where a test may stop a rotation: between any two steps, in this order.
FAILPOINTS: Final = (
    "rotate.begun",
    "rotate.made",
    "rotate.written",
    "rotate.read-back",
    "rotate.prepared",
    "rotate.proved",
    "rotate.published",
    "rotate.activating",
    "rotate.activated",
    "rotate.retiring",
    "rotate.ended",
    "rotate.deleted-upstream",
    "rotate.deleted",
    "rotate.destroyed",
)
#: A source that does not delete is asked again after so long.
DELETE_AGAIN_S: Final = 3600.0

EndLeases = Callable[[str, int, str], Awaitable[object]]

#: Words of :attr:`minter.key_rows.VersionRow.problem`. A version that the issuer does not take waits for a person; the
#: others are tried again. ``compromised`` is no failure: the version goes as soon as another one is active.
NOT_PROVED: Final = "not-proved"
NOT_ACCEPTED: Final = "not-accepted"
DESTROY_FAILED: Final = "destroy-failed"
COMPROMISED: Final = "compromised"


class Steps:
    """What :class:`minter.rotation.Rotation` does one by one; ``uid`` is the operator who asked."""

    def __init__(
        self,
        custody: Custody,
        store: Store,
        *,
        clock: Clock,
        cache_s: float,
        end_leases: EndLeases,
        failpoint: Callable[[str], None],
        roots: IssuerRoots,
    ) -> None:
        self._custody = custody
        self._store = store
        self._clock = clock
        self._cache_s = cache_s
        self._end_leases = end_leases
        self._failpoint = failpoint
        self._roots = roots

    async def versions(self, alias: str) -> Versions:
        """Return the versions by the state, and make memory follow it where a rotation was cut off in between."""
        rows = await self._store.read(key_rows.versions)
        self._custody.put(rows)
        versions = Versions.of(rows, alias)
        active = versions.active
        if active is not None and self._custody.version_in_use(alias) != active.version:
            try:
                held = await asyncio.to_thread(self._custody.reader.read, alias, active.source_ref, active.version)
            except SourceError as error:
                raise ProblemError("secret-unavailable", f"the source of key {alias} {error.what}") from None
            self._custody.hold(alias, held, rotated_at=active.activated_at or self._clock.now())
        return versions

    def use(self, alias: str) -> str:
        """Return the use of a key: static, signing or checkpoints."""
        settings = self._custody.settings_of(alias)
        return settings.use if settings is not None else "static"

    def source(self, alias: str) -> str:
        """Return where version 1 of a key is."""
        settings = self._custody.settings_of(alias)
        if settings is None:
            raise ProblemError("key-not-found")
        return settings.source

    async def begin(self, alias: str, version: int, *, uid: int | None, made_by: str = "") -> VersionRow:
        """Write down that a version is coming, before its value is made or written anywhere."""
        source = self.source(alias)
        row = VersionRow(
            alias=alias,
            version=version,
            phase="prepared",
            source_ref=versioned(source, version),
            created_at=self._clock.now(),
            made_by=made_by,
        )
        await self._write([row], [key_event("key.rotation-begun", row, uid=uid)])
        self._failpoint("rotate.begun")
        return row

    async def mark_compromised(self, versions: Versions, *, uid: int | None) -> None:
        """Write down what the operator said: from here on whatever takes over drops the active version at once."""
        if versions.active is not None:
            marked = replace(versions.active, problem=COMPROMISED)
            await self._write([marked], [key_event("key.compromised", marked, uid=uid)])

    async def prepare(self, row: VersionRow, value: Secret | None, *, uid: int | None) -> VersionRow:
        """Keep the new value in its source and read it back, as every later start will.

        Without a ``value``: what is there already, else a new signing key. Errors: ``SourceError``.
        """
        held = await asyncio.to_thread(self._keep, row, value)
        self._failpoint("rotate.read-back")
        read = version_row(row.alias, held, row.source_ref, now=row.created_at)
        row = replace(read, published_at=row.published_at, made_by=row.made_by)
        await self._write([row], [key_event("key.rotation-prepared", row, uid=uid)])
        self._failpoint("rotate.prepared")
        return row

    def _keep(self, row: VersionRow, value: Secret | None) -> Held:
        reader = self._custody.reader
        if value is None:
            try:
                # What a killed rotation had written already.
                return reader.read(row.alias, row.source_ref, row.version)
            except MissingError:
                settings = reader.settings_of(row.alias)
                if settings is None or settings.use not in SIGNERS:
                    raise
                value = signing.generate(settings.algorithm)
        reader.sources.write(row.source_ref, value)
        self._failpoint("rotate.written")
        return reader.read(row.alias, row.source_ref, row.version)

    async def make_at_issuer(self, row: VersionRow, *, again: bool) -> Secret | None:
        """Have the issuer make the value of a version; None when its source has it already.

        ``again``: an attempt was cut off, and what it may have made at the issuer goes first. Errors: ``RootError``.
        """
        if again:
            if not await asyncio.to_thread(self.is_missing, row):
                return None
            await self._roots.delete(row)
        value = await self._roots.create(row)
        self._failpoint("rotate.made")
        return value

    def is_missing(self, row: VersionRow) -> bool:
        """Say whether the source of a version does not give it. Blocks."""
        try:
            self._custody.reader.sources.read(row.source_ref)
        except SourceError:
            return True
        return False

    async def prove(self, row: VersionRow, *, uid: int | None) -> VersionRow:
        """Prove at the issuer that a prepared version works. One that does not stays prepared and says so.

        Errors: ``issuer-failed``.
        """
        if not self._roots.offers(row.alias):
            return row
        value = await self._read(row)
        try:
            await self._roots.prove(row.alias, value.secret)
        except RootError as error:
            problem = NOT_ACCEPTED if error.permanent else NOT_PROVED
            if row.problem != problem:
                row = replace(row, problem=problem)
                await self._write([row], [key_event("key.prove-failed", row, reason=problem, uid=uid)])
            who = "does not take" if error.permanent else "could not be asked about"
            what = f"the issuer {who} the new version of key {row.alias}, so it is not in use"
            raise ProblemError(
                "issuer-failed",
                f"{what}; give the command again, or --abort",
                retry_after=error.retry_after,
            ) from None
        self._failpoint("rotate.proved")
        if row.problem:
            row = replace(row, problem="")
            await self._write([row], [])
        return row

    async def _read(self, row: VersionRow) -> Held:
        try:
            held = await asyncio.to_thread(self._custody.reader.read, row.alias, row.source_ref, row.version)
        except SourceError as error:
            raise ProblemError("secret-unavailable", f"the source of key {row.alias} {error.what}") from None
        if held.fingerprint != row.fingerprint:
            raise ProblemError("secret-unavailable", f"the source of key {row.alias} no longer has what was prepared")
        return held

    async def publish(self, row: VersionRow, *, uid: int | None, forced: bool) -> VersionRow:
        """List the new public key beside the others."""
        now = self._clock.now()
        row = replace(row, published_at=now)
        event = key_event(
            "key.rotation-published", row, publish_until_at=now + self._cache_s, uid=uid, forced=forced or None
        )
        await self._write([row], [event])
        self._failpoint("rotate.published")
        return row

    async def activate(self, row: VersionRow, overlap_s: float, *, uid: int | None, forced: bool) -> None:
        """Make the prepared version active and the active one retiring, in one transaction.

        After a compromise every version before it goes at once, also when a kill came between.
        """
        held = await self._read(row)
        self._failpoint("rotate.activating")
        now = self._clock.now()
        use = self.use(row.alias)

        def work(connection: Connection) -> tuple[list[VersionRow], Sequence[Event]]:
            before = Versions.of(key_rows.versions(connection), row.alias)
            old = before.active
            new = replace(row, phase="active", activated_at=now, problem="")
            changed = [new]
            retire_at = None
            if old is not None:
                last = key_rows.last_end(connection, old.alias, old.version) if use == "signing" else None
                # What checkpoints were signed with stands in the log: nobody needs the old signer.
                retire_at = now if use == "checkpoints" else now + overlap_s
                if use == "signing":
                    retire_at = max(last or now, now) + SKEW_S
                if old.problem == COMPROMISED:
                    retire_at = now
                # The old one first: the table takes no second active version, not even for a moment.
                changed = [replace(old, phase="retiring", retire_at=retire_at), new]
            if old is not None and old.problem == COMPROMISED:
                going = [row for row in (*before.retiring, *changed) if row.phase == "retiring"]
                changed = [*(replace(row, retire_at=now, problem=COMPROMISED) for row in going), new]
            for version in changed:
                key_rows.put_version(connection, version)
            key_rows.rotated(connection, row.alias, now=now)
            return changed, [
                key_event("key.rotation-activated", new, retire_at=retire_at, uid=uid, forced=forced or None)
            ]

        changed = await self._store.write(work)
        self._failpoint("rotate.activated")
        self._custody.hold(row.alias, held, rotated_at=now)
        self._custody.put(changed)

    async def destroy(self, row: VersionRow, reason: str, *, uid: int | None) -> None:
        """End what was made with a retiring version and delete it from its source."""
        now = self._clock.now()
        if reason == "deadline" and self.use(row.alias) == "signing" and not row.problem:
            last = await self._store.read(lambda c: key_rows.last_end(c, row.alias, row.version))
            if last is not None and now < last + SKEW_S:
                # Signed while the new key was taking over.
                await self._write([replace(row, retire_at=last + SKEW_S)], [])
                return
        await self._write([replace(row, retire_at=now)], [key_event("key.retired", row, reason=reason, uid=uid)])
        self._failpoint("rotate.retiring")
        await self._end_leases(row.alias, row.version, "key-retired")
        self._failpoint("rotate.ended")
        try:
            if await self._is_the_issuers_to_delete(row):
                await self._roots.delete(row)
                self._failpoint("rotate.deleted-upstream")
            await asyncio.to_thread(self._custody.reader.sources.delete, row.source_ref)
        except (SourceError, RootError) as error:
            by_source = isinstance(error, SourceError)
            again = replace(row, retire_at=now + DELETE_AGAIN_S, problem=DESTROY_FAILED)
            why = "source-failed" if by_source else "issuer-failed"
            await self._write([again], [key_event("key.destroy-failed", row, reason=why, uid=uid)])
            who = f"its source {error.what}" if isinstance(error, SourceError) else "its issuer did not delete it"
            what = f"the old version of key {row.alias} is out of use, but {who}; it is tried again"
            raise ProblemError("secret-unavailable" if by_source else "issuer-failed", what) from None
        self._failpoint("rotate.deleted")
        gone = replace(row, phase="destroyed", retire_at=now, destroyed_at=self._clock.now(), problem="")
        await self._write([gone], [key_event("key.destroyed", row, uid=uid)])
        self._failpoint("rotate.destroyed")

    async def _is_the_issuers_to_delete(self, row: VersionRow) -> bool:
        """Say whether the issuer is asked to delete an old version: what took over is of the issuer's making."""
        active = (await self.versions(row.alias)).active
        return active is not None and active.made_by == ISSUER

    async def give_up(self, row: VersionRow, reason: str, *, uid: int | None) -> None:
        """Delete a prepared version, also at the issuer that made it. Its number is spent."""
        try:
            if row.made_by == ISSUER:
                await self._roots.delete(row)
        except RootError as error:
            again = replace(row, problem=DESTROY_FAILED)
            await self._write([again], [key_event("key.destroy-failed", row, reason="issuer-failed", uid=uid)])
            name = self._roots.name(row.alias, row.version)
            raise ProblemError(
                "issuer-failed",
                f"the issuer did not delete {name}, the new version of key {row.alias}",
                retry_after=error.retry_after,
            ) from None
        try:
            await asyncio.to_thread(self._custody.reader.sources.delete, row.source_ref)
        except SourceError as error:
            what = f"the new version of key {row.alias} is not in use, but its source {error.what}"
            raise ProblemError("secret-unavailable", what) from None
        gone = replace(row, phase="destroyed", destroyed_at=self._clock.now(), problem="")
        await self._write([gone], [key_event("key.rotation-aborted", row, reason=reason, uid=uid)])

    async def _write(self, rows: Sequence[VersionRow], events: Sequence[Event]) -> None:
        def work(connection: Connection) -> tuple[None, Sequence[Event]]:
            for row in rows:
                key_rows.put_version(connection, row)
            return None, events

        await self._store.write(work)
        self._custody.put(rows)
