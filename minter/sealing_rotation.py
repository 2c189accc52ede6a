"""Rotation of the sealing key: a new version is kept, takes over in one transaction, and what it seals moves to it.

Rules of this module:

1. The row of the new version is there before its value is written anywhere; a row without a fingerprint is a
   preparation that was not finished.
2. One transaction wraps every data key by the new version, makes that one active and the old one retiring, and begins
   a new data key. From there on the old version opens nothing that is in the state.
3. Every value is sealed anew with the new data key, in batches; a kill in between loses nothing and the next tick goes
   on. When none is left the old version is deleted from its source, after the overlap.
4. A backup that was made before needs the old version: the plan says so, and the overlap is the time to make a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from config.clock import Clock, rfc3339
from config.problems import ProblemError
from config.settings import SEALING_KEY
from minter import failpoints, key_rows, resealing, sealed_values
from minter.audit_events import Event
from minter.custody import Store
from minter.data_keys import DataKeys, SealingKey, add_data_key, data_keys, rewrap, version_row
from minter.held import key_event
from minter.key_rows import VersionRow
from minter.rotation_plan import Versions
from minter.rotation_steps import DELETE_AGAIN_S
from minter.sealing import new_data_key, read_sealing_key, unwrap
from minter.sources import SourceError, versioned
from minter.store import Connection

Step = Literal["start", "finish", "abort", "status"]

_NAMED: Final = 100


class SealingRotation:
    """Rotates the custody key ``sealing-key``.

    ``overlap_s``: how long an old version is kept when no other time is given. ``end_all`` ends every live lease:
    after a compromise.
    """

    def __init__(
        self,
        keys: DataKeys,
        store: Store,
        *,
        clock: Clock,
        overlap_s: float,
        end_all: Callable[[str], Awaitable[object]],
    ) -> None:
        self._keys = keys
        self._store = store
        self._clock = clock
        self._overlap_s = overlap_s
        self._end_all = end_all
        self._alone = asyncio.Lock()

    async def request(
        self,
        step: Step,
        *,
        overlap_s: float | None = None,
        dry_run: bool = False,
        uid: int | None = None,
        compromised: bool = False,
    ) -> dict[str, Any]:
        """Do what an operator asks for and return the rotation's plan and state (:mod:`minter.rotation_plan`).

        ``compromised``: every live lease ends, and no older version is kept.

        Errors: ``rotation-running``, ``rotation-not-running``, ``rotation-unsupported``, ``secret-unavailable``.
        """
        overlap_s = self._overlap_s if overlap_s is None else overlap_s
        if dry_run or step == "status":
            return await self._describe(overlap_s, dry_run=dry_run, compromised=compromised)
        if self._alone.locked():
            raise ProblemError("rotation-running", retry_after=1)
        async with self._alone:
            versions = await self._versions()
            try:
                if step == "abort":
                    await self._abort(versions, uid=uid)
                elif step == "start" or versions.prepared is not None:
                    if not compromised:
                        self._refuse_another(versions)
                    await self._start(versions, overlap_s, uid=uid)
                    # What is little is sealed anew at once.
                    await self._keys.move(self._store)
                elif not versions.retiring:
                    raise ProblemError("rotation-not-running")
            finally:
                # Also when no new version can be had. Last, so that whatever is minted anew is sealed with it.
                if compromised:
                    await self._end_all("key-compromised")
            if compromised or (step == "finish" and versions.prepared is None):
                await self._finish(uid=uid)
        return await self._describe(overlap_s, dry_run=False, compromised=compromised)

    async def tick(self, now: float) -> None:
        """Bring to an end what is under way, a batch at a time; take a new data key when it is time for one.

        Errors: ``secret-unavailable``, ``state-unavailable``, ``audit-unavailable``; the next tick tries again.
        """
        if self._alone.locked():
            return
        async with self._alone:
            versions = await self._versions()
            if versions.prepared is not None:
                await self._start(versions, self._overlap_s, uid=None)
            try:
                await self._keys.tick(self._store, now)
            except SourceError as error:
                raise ProblemError("secret-unavailable", f"the source of {SEALING_KEY} {error.what}") from None
            await self._destroy_retired(now, uid=None)

    # --- steps ---

    def _refuse_another(self, versions: Versions) -> None:
        """Refuse a start while the version before is kept; one that cannot be deleted holds nobody up.

        Errors: ``rotation-running``.
        """
        if versions.prepared is None and not self._keys.moving and any(not old.problem for old in versions.retiring):
            how = (
                f"the version before is still kept: first minter rotate {SEALING_KEY} --finish, when no backup needs it"
            )
            raise ProblemError("rotation-running", how)

    async def _start(self, versions: Versions, overlap_s: float, *, uid: int | None) -> None:
        row = versions.prepared
        if self._keys.moving and row is None:
            raise ProblemError("rotation-running", "values are still being moved off the version before", retry_after=5)
        if row is None:
            row = await self._begin(versions.highest + 1, uid=uid)
        sealing = await self._prepare(row)
        if not row.fingerprint:
            row = version_row(sealing, row.created_at, phase="prepared", activated_at=None)
            await self._write(row, key_event("key.rotation-prepared", row, uid=uid))
            failpoints.reached("rewrap.prepared")
        await self._activate(sealing, row, overlap_s, uid=uid)

    async def _begin(self, version: int, *, uid: int | None) -> VersionRow:
        ref = versioned(self._keys.settings.source, version)
        if not self._keys.sources.writable(ref):
            # A credential that systemd gives: the operator puts the new one beside the old one first.
            await self._read(version, ref)
        row = VersionRow(
            alias=SEALING_KEY, version=version, phase="prepared", source_ref=ref, created_at=self._clock.now()
        )
        await self._write(row, key_event("key.rotation-begun", row, uid=uid))
        failpoints.reached("rewrap.begun")
        return row

    async def _prepare(self, row: VersionRow) -> SealingKey:
        try:
            sealing = await asyncio.to_thread(self._keys.make, row.version, row.source_ref)
        except SourceError as error:
            raise ProblemError("secret-unavailable", f"the source of {SEALING_KEY} {error.what}") from None
        if row.fingerprint and sealing.fingerprint != row.fingerprint:
            raise ProblemError("secret-unavailable", f"the source of {SEALING_KEY} no longer has what was prepared")
        failpoints.reached("rewrap.written")
        return sealing

    async def _activate(self, sealing: SealingKey, row: VersionRow, overlap_s: float, *, uid: int | None) -> None:
        now, fresh = self._clock.now(), new_data_key()
        old = (await self._versions()).active
        if old is None:
            raise ProblemError("rotation-not-running")
        before = await self._read(old.version, old.source_ref)
        if before.fingerprint == sealing.fingerprint:
            raise ProblemError("secret-unavailable", f"the new version of {SEALING_KEY} is the one that is in use")

        def work(connection: Connection) -> tuple[int, Sequence[Event]]:
            for one in data_keys(connection):
                key = unwrap(
                    read_sealing_key(before.value),
                    sealing_version=one.sealing_version,
                    number=one.number,
                    wrapped=one.wrapped,
                )
                rewrap(connection, one.number, key, sealing)
            number = add_data_key(connection, fresh, sealing, now)
            # The old one first: the table takes no second active version, not even for a moment.
            key_rows.put_version(connection, replace(old, phase="retiring", retire_at=now + overlap_s))
            active = replace(row, phase="active", activated_at=now)
            key_rows.put_version(connection, active)
            key_rows.rotated(connection, SEALING_KEY, now=now)
            return number, [key_event("key.rotation-activated", active, retire_at=now + overlap_s, uid=uid)]

        failpoints.reached("rewrap.activating")
        self._keys.unsure = True
        number = await self._store.write(work)
        failpoints.reached("rewrap.activated")
        self._keys.taken_over(number, fresh, now)

    async def _finish(self, *, uid: int | None) -> None:
        """Move everything that is left now; a tick does the same, a batch at a time."""
        left = -1
        while self._keys.moving and (now_left := await self._store.read(resealing.left)) != left:
            left = now_left
            await self._keys.move(self._store)
        if self._keys.moving:
            raise ProblemError("secret-unavailable", "values do not open: see seal.refused in the audit log")
        await self._destroy_retired(self._clock.now(), at_once=True, uid=uid)

    async def _destroy_retired(self, now: float, *, at_once: bool = False, uid: int | None) -> None:
        for old in (await self._versions()).retiring:
            if self._keys.moving or (not at_once and now < (old.retire_at or 0.0)):
                continue
            failpoints.reached("rewrap.moved")
            if self._keys.sources.writable(old.source_ref):
                try:
                    await asyncio.to_thread(self._keys.sources.delete, old.source_ref)
                except SourceError:
                    again = replace(old, retire_at=now + DELETE_AGAIN_S, problem="source-failed")
                    await self._write(again, key_event("key.destroy-failed", old, uid=uid))
                    continue
            failpoints.reached("rewrap.deleted")
            gone = replace(old, phase="destroyed", destroyed_at=self._clock.now(), problem="")
            await self._write(gone, key_event("key.destroyed", gone, uid=uid))

    async def _abort(self, versions: Versions, *, uid: int | None) -> None:
        row = versions.prepared
        if row is None:
            what = "the new version is in use already" if versions.retiring else ""
            raise ProblemError("rotation-not-running", what)
        if self._keys.sources.writable(row.source_ref):
            try:
                await asyncio.to_thread(self._keys.sources.delete, row.source_ref)
            except SourceError as error:
                raise ProblemError("secret-unavailable", f"the source of {SEALING_KEY} {error.what}") from None
        gone = replace(row, phase="destroyed", destroyed_at=self._clock.now())
        await self._write(gone, key_event("key.rotation-aborted", gone, uid=uid))

    # --- small ones ---

    async def _versions(self) -> Versions:
        return Versions.of(await self._store.read(key_rows.versions), SEALING_KEY)

    async def _read(self, version: int, ref: str) -> SealingKey:
        try:
            return await asyncio.to_thread(self._keys.read, version, ref)
        except SourceError as error:
            how = f"put version {version} at {ref} first (openssl rand -base64 32)"
            raise ProblemError(
                "rotation-unsupported", f"version {version} of {SEALING_KEY} at {ref} {error.what}: {how}", how=how
            ) from None

    async def _write(self, row: VersionRow, event: Event) -> None:
        def work(connection: Connection) -> tuple[None, Sequence[Event]]:
            key_rows.put_version(connection, row)
            return None, [event]

        await self._store.write(work)

    async def _describe(self, overlap_s: float, *, dry_run: bool, compromised: bool) -> dict[str, Any]:
        now = self._clock.now()

        def query(connection: Connection) -> tuple[Versions, int, int, list[key_rows.User], list[str]]:
            versions = Versions.of(key_rows.versions(connection), SEALING_KEY)
            names = sorted(
                {name for name, _ in sealed_values.names(connection) if not name.startswith("installation/")}
            )
            sealed = connection.exec_driver_sql("SELECT count(*) FROM leases WHERE data_key IS NOT NULL").scalar_one()
            # A pass through all that is lent, while writes wait: not for whoever only looks how far it is.
            holders = _holders(connection) if compromised else []
            return versions, resealing.left(connection), sealed, holders, names

        versions, left, sealed, holders, names = await self._store.read(query)
        if compromised and dry_run:
            # It begins anew, wherever a rotation stands: with a new version, and no older one is kept.
            versions = replace(versions, prepared=None, retiring=())
        if versions.state == "idle" and dry_run:
            # Nothing waits for another data key yet; a rotation makes one, and all that is sealed moves to it.
            left = sealed + len(names)
        steps = _steps(
            versions, now, 0.0 if compromised else overlap_s, left=left, moving=self._keys.moving, at_once=compromised
        )
        coming = (
            next((step for step in steps if not step["done"]), None) if versions.state != "idle" or dry_run else None
        )
        return {
            "alias": SEALING_KEY,
            "use": "sealing",
            "dry_run": dry_run,
            "state": versions.state,
            "active_version": versions.active.version if versions.active else None,
            "new_version": versions.prepared.version if versions.prepared else None,
            "old_versions": [row.version for row in versions.retiring],
            "steps": steps,
            "next_step": coming["step"] if coming else None,
            "next_at": coming["at"] if coming else None,
            "sealed_values": sealed + len(names),
            "left": left,
            "affected": {
                "leases": sum(user.leases for user in holders),
                "runs": sorted({user.run_id for user in holders})[:_NAMED],
                "callers": sorted({user.caller for user in holders}),
                "brokers": sorted({user.broker for user in holders}),
            },
            "to_do": _to_do(names) if compromised else [_BACKUPS] if versions.retiring or dry_run else [],
        }


_BACKUPS: Final = "backups from before need the old version: make a new one (minter backup) while it is kept"


def _to_do(names: Sequence[str]) -> list[str]:
    """Return what a person must still do when somebody may have had the sealing key and a copy of the state."""
    return [
        f"keys that were kept in the state may be known, too: {', '.join(names) or 'there is none'}",
        "copies of the state (backups, snapshots) that the old version opens are to be destroyed",
        "find out how the old version left its place before the new one goes the same way",
    ]


def _holders(connection: Connection) -> list[key_rows.User]:
    rows = connection.exec_driver_sql(
        "SELECT run_id, caller, broker, count(*) FROM leases WHERE data_key IS NOT NULL "
        "GROUP BY run_id, caller, broker ORDER BY run_id LIMIT 10000"
    )
    return [key_rows.User(*row) for row in rows]


def _steps(
    versions: Versions, now: float, overlap_s: float, *, left: int, moving: bool, at_once: bool
) -> list[dict[str, Any]]:
    new, old = versions.prepared, versions.retiring
    activated = bool(old) and new is None
    moved = activated and not moving
    retire_at = (old[-1].retire_at if activated else None) or now + overlap_s

    def step(name: str, does: str, *, done: bool, at: float = now) -> dict[str, Any]:
        return {"step": name, "at": rfc3339(at), "does": does, "done": done}

    return [
        step(
            "prepare",
            "make a new key, keep it in its source and read it back",
            done=activated or bool(new and new.fingerprint),
        ),
        step(
            "activate",
            "wrap every data key by it, in one transaction; a new data key seals from then on",
            done=activated,
        ),
        step("move", f"seal what is there anew with the new data key ({left} left)", done=moved),
        step(
            "retire",
            "end every live lease and delete the old key from its source"
            if at_once
            else "delete the old key from its source (at once with --finish)",
            done=False,
            at=now if at_once else retire_at,
        ),
    ]
