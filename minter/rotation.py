"""Rotation of custody keys: prepare, publish, activate, retire. Resumable after a kill between any two steps.

Rules of this module:

1. The row of a new version is there before its value is written anywhere: what a killed rotation left is always found.
   A row without a fingerprint is a preparation that was not finished.
2. One transaction makes the new version active and the old one retiring. There is no moment with none or two.
3. A version's number is never used again, so what lies behind its reference is its own.
4. A signing key is published for as long as verifiers may cache before it signs, and verifies until the last token
   signed with it has ended. A static secret's old value is kept until it is finished or its deadline.
5. What a tick finds unfinished it brings to an end: it completes what was prepared and read back, and a signing key,
   which needs nobody; it gives up a static secret whose new value was not kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import structlog

from config.clock import Clock, rfc3339
from config.problems import ProblemError
from config.secret import Secret
from minter import failpoints, key_rows
from minter.custody import Custody, Store
from minter.held import is_sendable
from minter.key_rows import VersionRow
from minter.rotation_plan import Versions, describe
from minter.rotation_steps import EndLeases, Steps
from minter.sources import SourceError
from minter.store import Connection

Step = Literal["start", "finish", "abort", "status"]

#: An old value that is kept longer than this is not an overlap.
MAX_OVERLAP_S: Final = 366 * 86400.0

_log = structlog.get_logger()


async def _end_nothing(_alias: str, _version: int, _reason: str) -> None:
    return None


class Rotation:
    """Rotates custody keys.

    ``end_leases(alias, version, reason)`` ends what was made with a version that goes away. ``failpoint`` is called
    with each name of :data:`minter.rotation_steps.FAILPOINTS`; a test raises in it.
    """

    def __init__(
        self,
        custody: Custody,
        store: Store,
        *,
        clock: Clock,
        end_leases: EndLeases = _end_nothing,
        failpoint: Callable[[str], None] = failpoints.reached,
    ) -> None:
        self._custody = custody
        self._store = store
        self._clock = clock
        self._cache_s = float(custody.settings.verifier_cache)
        self._overlap_s = float(custody.settings.rotation_overlap)
        self._steps = Steps(
            custody, store, clock=clock, cache_s=self._cache_s, end_leases=end_leases, failpoint=failpoint
        )
        self._busy: set[str] = set()
        #: Something was cut off in between: the state is asked, not memory.
        self._unsure = True

    async def request(
        self,
        alias: str,
        step: Step,
        *,
        value: Secret | None = None,
        dry_run: bool = False,
        overlap_s: float | None = None,
        force: bool = False,
        uid: int | None = None,
    ) -> dict[str, Any]:
        """Do what an operator asks for and return the rotation's plan and state.

        ``value``: the new value of a static secret. ``overlap_s``: how long its old one is kept. ``force`` skips the
        waiting times. ``dry_run`` changes nothing. Errors: ``key-not-found``, ``rotation-unsupported``,
        ``rotation-running``, ``rotation-not-running``, ``body-malformed``, ``secret-unavailable``.
        """
        if alias not in self._custody.aliases():
            raise ProblemError("key-retired" if alias in self._custody.reader.retired else "key-not-found")
        overlap_s = self._overlap_s if overlap_s is None else overlap_s
        if not 0 <= overlap_s <= MAX_OVERLAP_S:
            raise ProblemError("body-malformed", "overlap_s is not between zero and a year")
        if dry_run or step == "status":
            if step == "start":
                self._check_writable(alias)
            return await self._describe(alias, overlap_s, dry_run=dry_run)
        async with self.alone(alias):
            versions = await self._steps.versions(alias)
            if step == "start":
                await self._start(alias, versions, value, overlap_s, force=force, uid=uid)
            elif step == "finish":
                await self._finish(versions, overlap_s, force=force, uid=uid)
            else:
                await self._abort(versions, "operator", uid=uid)
        return await self._describe(alias, overlap_s, dry_run=False)

    async def tick(self, now: float) -> None:
        """Bring forward what waits for its time, and what a kill left unfinished."""
        if not self._unsure and not self._custody.rotating():
            return
        rows = await self._store.read(key_rows.versions)
        self._unsure = False
        waiting = sorted({row.alias for row in rows if row.phase in ("prepared", "retiring")})
        for alias in waiting:
            if alias in self._busy or alias not in self._custody.aliases():
                continue
            try:
                async with self.alone(alias):
                    await self._advance(alias, await self._steps.versions(alias), now)
            except ProblemError as error:
                # Its detail is our own text: no value, no path.
                _log.warning("rotation-waits", alias=alias, code=error.code, detail=error.detail)

    # --- what is asked for ---

    async def _start(
        self, alias: str, versions: Versions, value: Secret | None, overlap_s: float, *, force: bool, uid: int | None
    ) -> None:
        self._check_writable(alias)
        static = self._steps.use(alias) == "static"
        row = versions.prepared
        if versions.retiring and row is None:
            raise ProblemError("rotation-running", "the version before is still kept: finish that rotation first")
        if not static and value is not None:
            raise ProblemError("body-malformed", "the minter makes signing keys itself: no value can be given")
        if versions.state == "published" and not force:
            raise self._still_published(versions)
        if static:
            value = await self._new_value(alias, versions, value)
        if row is None:
            row = await self._steps.begin(alias, versions.highest + 1, uid=uid)
        if not row.fingerprint or value is not None:
            try:
                row = await self._steps.prepare(row, value, uid=uid)
            except SourceError as error:
                await self._steps.give_up(row, "source-failed", uid=uid)
                raise ProblemError("secret-unavailable", f"the source of key {alias} {error.what}") from None
        if not static and row.published_at is None:
            row = await self._steps.publish(row, uid=uid, forced=force)
        if static or force:
            await self._steps.activate(row, overlap_s, uid=uid, forced=force)

    async def _finish(self, versions: Versions, overlap_s: float, *, force: bool, uid: int | None) -> None:
        row, now = versions.prepared, self._clock.now()
        if row is not None:
            if not row.fingerprint:
                raise ProblemError("rotation-not-running", "it was interrupted: start it again, or abort it")
            if self._steps.use(row.alias) == "signing":
                if not force and (row.published_at is None or now < row.published_at + self._cache_s):
                    raise self._still_published(versions)
                if row.published_at is None:
                    row = await self._steps.publish(row, uid=uid, forced=force)
            await self._steps.activate(row, overlap_s, uid=uid, forced=force)
            return
        if not versions.retiring:
            raise ProblemError("rotation-not-running")
        for old in versions.retiring:
            if self._steps.use(old.alias) == "signing" and not force and now < (old.retire_at or 0.0):
                raise ProblemError(
                    "rotation-running",
                    "tokens that the old key signed are still valid; --force ends them",
                    retry_after=(old.retire_at or now) - now,
                )
            await self._steps.destroy(old, "finished", uid=uid)

    async def _abort(self, versions: Versions, reason: str, *, uid: int | None) -> None:
        if versions.prepared is None:
            what = "the new version is in use already: finish it, or rotate again" if versions.retiring else ""
            raise ProblemError("rotation-not-running", what)
        await self._steps.give_up(versions.prepared, reason, uid=uid)

    async def _advance(self, alias: str, versions: Versions, now: float) -> None:
        row = versions.prepared
        signing_key = self._steps.use(alias) == "signing"
        if row is not None and not row.fingerprint and not signing_key:
            await self._steps.give_up(row, "interrupted", uid=None)
        elif row is not None:
            if not row.fingerprint:
                try:
                    row = await self._steps.prepare(row, None, uid=None)
                except SourceError as error:
                    raise ProblemError("secret-unavailable", f"the source of key {alias} {error.what}") from None
            if signing_key and row.published_at is None:
                row = await self._steps.publish(row, uid=None, forced=False)
            if not signing_key or now >= (row.published_at or now) + self._cache_s:
                await self._steps.activate(row, self._overlap_s, uid=None, forced=False)
        for old in versions.retiring:
            if old.retire_at is not None and now >= old.retire_at:
                await self._steps.destroy(old, "deadline", uid=None)

    # --- small ones ---

    async def _new_value(self, alias: str, versions: Versions, value: Secret | None) -> Secret | None:
        if value is None:
            if versions.prepared is None:
                raise ProblemError("body-malformed", "the new value is missing: give it on standard input")
            if versions.prepared.fingerprint:
                return None
            if await asyncio.to_thread(self._is_missing, versions.prepared):
                raise ProblemError("body-malformed", "the new value was not kept yet: give it again")
            return None
        value = Secret(value.reveal().removesuffix("\n").removesuffix("\r"))
        if not len(value):
            raise ProblemError("body-malformed", "the new value is empty")
        if self._custody.is_lent(alias) and not is_sendable(value):
            raise ProblemError(
                "body-malformed", "the new value is not one line of printable ASCII: no call can carry it"
            )
        if versions.active is not None and self._custody.fingerprint(value) == versions.active.fingerprint:
            raise ProblemError("body-malformed", "the new value is the one that is in use")
        return value

    def _is_missing(self, row: VersionRow) -> bool:
        try:
            self._custody.reader.sources.read(row.source_ref)
        except SourceError:
            return True
        return False

    def _check_writable(self, alias: str) -> None:
        sources, source = self._custody.reader.sources, self._steps.source(alias)
        if not sources.writable(source):
            how = sources.how_to_rotate(source)
            raise ProblemError("rotation-unsupported", f"the minter cannot write where this key is: {how}", how=how)

    def _still_published(self, versions: Versions) -> ProblemError:
        row, now = versions.prepared, self._clock.now()
        ready_at = (row.published_at if row and row.published_at else now) + self._cache_s
        return ProblemError(
            "rotation-running",
            f"the new key is published and signs from {rfc3339(ready_at)} on; --force does not wait",
            retry_after=max(1.0, ready_at - now),
        )

    async def _describe(self, alias: str, overlap_s: float, *, dry_run: bool) -> dict[str, Any]:
        now = self._clock.now()

        def query(connection: Connection) -> dict[str, Any]:
            versions = Versions.of(key_rows.versions(connection), alias)
            old = [*versions.retiring, *([versions.active] if not versions.retiring and versions.active else [])]
            users = [user for row in old for user in key_rows.users(connection, alias, row.version, now=now)]
            return describe(
                alias,
                self._steps.use(alias),
                versions,
                users,
                cache_s=self._cache_s,
                overlap_s=overlap_s,
                now=now,
                dry_run=dry_run,
            )

        return await self._store.read(query)

    @asynccontextmanager
    async def alone(self, alias: str) -> AsyncIterator[None]:
        """Let nobody else change a key meanwhile. Errors: ``rotation-running``."""
        if alias in self._busy:
            raise ProblemError("rotation-running", retry_after=1)
        self._busy.add(alias)
        try:
            yield
        except BaseException:
            self._unsure = True
            raise
        finally:
            self._busy.discard(alias)
