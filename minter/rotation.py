"""Rotation of custody keys: prepare, publish, activate, retire. Resumable after a kill between any two steps.

Rules of this module:

1. The row of a new version is there before its value is written anywhere: what a killed rotation left is always found.
   A row without a fingerprint is a preparation that was not finished.
2. One transaction makes the new version active and the old one retiring. There is no moment with none or two.
3. A version's number is never used again, so what lies behind its reference is its own.
4. A signing key is published for as long as verifiers may cache before it signs, and verifies until the last token
   signed with it has ended. A static secret's old value is kept until it is finished or its deadline.
5. What a tick finds unfinished it brings to an end: it completes what was prepared and read back, and a key that
   needs nobody, because the minter or an issuer makes it; it gives up a static secret whose new value was not kept, and
   a preparation from before the version that is active now.
6. Where an issuer can say whether a new value works, it is asked before the value is used; one that it does not take
   stays prepared and is never active.
7. What could not be deleted is out of use and says so (``problem``) until it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import structlog

from config.clock import Clock, rfc3339
from config.problems import ProblemError
from config.secret import Secret
from config.settings import AUDIT_SIGNER, SEALING_KEY
from minter import compromise, failpoints, inline_keys, key_rows
from minter.custody import Custody, Store
from minter.held import is_sendable
from minter.issuer_roots import ISSUER, IssuerRoots, RootError
from minter.key_rows import VersionRow
from minter.rotation_plan import ValueFrom, Versions, describe
from minter.rotation_steps import DESTROY_FAILED, NOT_ACCEPTED, EndLeases, Steps
from minter.sealing_rotation import SealingRotation
from minter.sources import SourceError, check_text
from minter.store import Connection

Step = Literal["start", "finish", "abort", "status"]

#: An old value that is kept longer than this is not an overlap.
MAX_OVERLAP_S: Final = 366 * 86400.0
#: An issuer that failed is asked again after so long at the earliest.
ASK_AGAIN_S: Final = 60.0
#: Why a compromised key may have no successor: its old version stays in use, and that is said.
_NO_SUCCESSOR: Final = ("body-malformed", "issuer-failed", "secret-unavailable", "rotation-unsupported")

_log = structlog.get_logger()


async def _end_nothing(_alias: str, _version: int, _reason: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How an operator wants a rotation: see :meth:`Rotation.request`."""

    overlap_s: float
    force: bool = False
    compromised: bool = False
    uid: int | None = None


class Rotation:
    """Rotates custody keys.

    ``end_leases(alias, version, reason)`` ends what was made with a version that goes away. ``roots`` are the secrets
    that their issuers make anew, ``sealing`` rotates the key behind the state. ``failpoint`` is called with each name
    of :data:`minter.rotation_steps.FAILPOINTS`; a test raises in it.
    """

    def __init__(
        self,
        custody: Custody,
        store: Store,
        *,
        clock: Clock,
        end_leases: EndLeases = _end_nothing,
        failpoint: Callable[[str], None] = failpoints.reached,
        roots: IssuerRoots | None = None,
        sealing: SealingRotation | None = None,
    ) -> None:
        self._custody = custody
        self._store = store
        self._clock = clock
        self._cache_s = float(custody.settings.verifier_cache)
        self._overlap_s = float(custody.settings.rotation_overlap)
        self._end_leases = end_leases
        self._roots = roots or IssuerRoots(custody, kinds=tuple, installation="")
        self._sealing = sealing
        self._steps = Steps(
            custody,
            store,
            clock=clock,
            cache_s=self._cache_s,
            end_leases=end_leases,
            failpoint=failpoint,
            roots=self._roots,
        )
        self._busy: set[str] = set()
        #: Something was cut off in between: the state is asked, not memory.
        self._unsure = True
        #: An issuer that failed is not asked at every tick.
        self._not_before: dict[str, float] = {}

    async def request(
        self,
        alias: str,
        step: Step,
        *,
        value: Secret | None = None,
        dry_run: bool = False,
        overlap_s: float | None = None,
        force: bool = False,
        compromised: bool = False,
        uid: int | None = None,
    ) -> dict[str, Any]:
        """Do what an operator asks for and return the rotation's plan and state.

        ``value``: the new value of a static secret; without one its issuer makes it, when it can. ``overlap_s``: how
        long the old one is kept. ``force`` skips the waiting times. ``compromised`` skips the overlap as well: every
        older version goes at once with all that was made with it, and the answer says what a person must still do.
        ``dry_run`` changes nothing. Errors: ``key-not-found``, ``key-retired``, ``rotation-unsupported``,
        ``rotation-running``, ``rotation-not-running``, ``body-malformed``, ``secret-unavailable``, ``issuer-failed``.
        """
        if compromised and step not in ("start", "status"):
            raise ProblemError("body-malformed", "compromised goes with a start")
        if alias not in self._custody.aliases() and alias != SEALING_KEY:
            raise ProblemError("key-retired" if alias in self._custody.reader.retired else "key-not-found")
        overlap_s = self._overlap_s if overlap_s is None else overlap_s
        if not 0 <= overlap_s <= MAX_OVERLAP_S:
            raise ProblemError("body-malformed", "overlap_s is not between zero and a year")
        terms = Terms(overlap_s=overlap_s, force=force or compromised, compromised=compromised, uid=uid)
        if alias == SEALING_KEY:
            return await self._of_the_sealing_key(step, value, terms, dry_run=dry_run)
        if dry_run or step == "status":
            if step == "start":
                self._check_rotatable(alias)
            return await self._describe(alias, terms, dry_run=dry_run)
        async with self.alone(alias):
            versions = await self._steps.versions(alias)
            if step == "start" and compromised:
                await self._replace_compromised(alias, versions, value, terms)
            elif step == "start":
                await self._start(alias, versions, value, terms)
            elif step == "finish":
                await self._finish(versions, terms)
            else:
                await self._abort(versions, "operator", uid=uid)
        return await self._describe(alias, terms, dry_run=False)

    async def tick(self, now: float) -> None:
        """Bring forward what waits for its time, and what a kill left unfinished."""
        if not self._unsure and not self._custody.rotating():
            return
        rows = await self._store.read(key_rows.versions)
        self._custody.put(rows)
        self._unsure = False
        waiting = sorted({row.alias for row in rows if row.phase in ("prepared", "retiring")})
        for alias in waiting:
            if alias in self._busy or alias not in self._custody.aliases() or now < self._not_before.get(alias, 0.0):
                continue
            try:
                async with self.alone(alias):
                    await self._advance(alias, await self._steps.versions(alias), now)
            except ProblemError as error:
                if error.code == "issuer-failed":
                    self._not_before[alias] = now + max(ASK_AGAIN_S, error.retry_after or 0.0)
                # Its detail is our own text: no value, no path.
                _log.warning("rotation-waits", alias=alias, code=error.code, detail=error.detail)

    def makes_itself(self, alias: str) -> bool:
        """Say whether a key can be rotated without a person who brings a value. Errors: ``rotation-unsupported``."""
        if alias == SEALING_KEY:
            return True
        self._check_rotatable(alias)
        return self._steps.use(alias) != "static" or self._roots.offers(alias)

    async def drop_prepared(self, alias: str, *, uid: int | None) -> None:
        """Give up what is prepared of a key that is about to be retired; its caller has the key for itself.

        Errors: ``secret-unavailable``, ``issuer-failed`` when it could not be deleted.
        """
        row = (await self._steps.versions(alias)).prepared
        if row is not None:
            await self._steps.give_up(row, "key-retired", uid=uid)

    def name_at_issuer(self, alias: str, version: int) -> str:
        """Return what a version that the issuer made is called there."""
        return self._roots.name(alias, version)

    # --- what is asked for ---

    async def _start(self, alias: str, versions: Versions, value: Secret | None, terms: Terms) -> None:
        self._check_rotatable(alias)
        versions = await self._without_stale(versions)
        use = self._steps.use(alias)
        row = versions.prepared
        if row is None and not terms.compromised and any(not old.problem for old in versions.retiring):
            raise ProblemError("rotation-running", "the version before is still kept: finish that rotation first")
        if use != "static" and value is not None:
            raise ProblemError("body-malformed", "the minter makes signing keys itself: no value can be given")
        if versions.state == "published" and not terms.force:
            raise self._still_published(versions)
        if use == "static" and (value is not None or not self._from_issuer(alias, row)):
            value = await self._new_value(alias, versions, value)
        row = await self._prepared(alias, versions, value, terms)
        if use == "signing" and row.published_at is None:
            row = await self._steps.publish(row, uid=terms.uid, forced=terms.force)
        if use != "signing" or terms.force:
            await self._take(row, terms)
        if use == "checkpoints":
            for old in (await self._steps.versions(alias)).retiring:
                await self._steps.destroy(old, "replaced", uid=terms.uid)

    def _from_issuer(self, alias: str, row: VersionRow | None) -> bool:
        """Say whether the issuer makes the value; of a rotation that was cut off, whether it has made it."""
        return self._roots.offers(alias) if row is None else row.made_by == ISSUER

    async def _prepared(self, alias: str, versions: Versions, value: Secret | None, terms: Terms) -> VersionRow:
        """Return the new version, in its source and read back."""
        row, again = versions.prepared, versions.prepared is not None
        if row is not None and row.made_by == ISSUER and value is not None:
            # A person brings a value in place of what the issuer made.
            await self._steps.give_up(row, "operator", uid=terms.uid)
            row, again = None, False
        if row is None:
            highest = max(versions.highest, versions.prepared.version if versions.prepared else 0)
            static_here = self._steps.use(alias) == "static" and value is None
            made_by = ISSUER if static_here and self._roots.offers(alias) else ""
            row = await self._steps.begin(alias, highest + 1, uid=terms.uid, made_by=made_by)
        if not row.fingerprint or value is not None:
            row = await self._prepare(row, value, again=again, uid=terms.uid)
        return row

    async def _prepare(self, row: VersionRow, value: Secret | None, *, again: bool, uid: int | None) -> VersionRow:
        try:
            if row.made_by == ISSUER and value is None:
                value = await self._steps.make_at_issuer(row, again=again)
            return await self._steps.prepare(row, value, uid=uid)
        except SourceError as error:
            await self._steps.give_up(row, "source-failed", uid=uid)
            raise ProblemError("secret-unavailable", f"the source of key {row.alias} {error.what}") from None
        except RootError as error:
            what = "refuses to make" if error.permanent else "did not make"
            if error.permanent:
                await self._steps.give_up(row, "issuer-failed", uid=uid)
            raise ProblemError(
                "issuer-failed", f"the issuer {what} a new key {row.alias}", retry_after=error.retry_after
            ) from None

    async def _take(self, row: VersionRow, terms: Terms) -> None:
        """Put a prepared version in force, once it is proved."""
        row = await self._steps.prove(row, uid=terms.uid)
        await self._steps.activate(row, terms.overlap_s, uid=terms.uid, forced=terms.force)

    async def _replace_compromised(self, alias: str, versions: Versions, value: Secret | None, terms: Terms) -> None:
        """Put a new version in force and drop every older one at once, with all that was made with it."""
        try:
            await self._steps.mark_compromised(versions, uid=terms.uid)
            for row in versions.retiring:
                # First: an issuer may have two slots. One that does not go now is tried again below and by every tick.
                with contextlib.suppress(ProblemError):
                    await self._steps.destroy(row, "compromised", uid=terms.uid)
            versions = await self._steps.versions(alias)
            if versions.prepared is not None and (value is not None or self._makes(alias)):
                # Whoever had the key may have had what was prepared beside it.
                await self._steps.give_up(versions.prepared, "compromised", uid=terms.uid)
                versions = await self._steps.versions(alias)
            await self._start(alias, versions, value, terms)
        except ProblemError as error:
            # No new one: what was made with the old one ends all the same.
            for old in range(1, versions.highest + 1):
                await self._end_leases(alias, old, "key-compromised")
            if error.code in _NO_SUCCESSOR:
                detail = f"{error.detail}; {self._still_used(alias)}"
                raise ProblemError(error.code, detail, retry_after=error.retry_after, **error.members) from None
            raise
        now = await self._steps.versions(alias)
        for old in range(1, now.active.version if now.active else now.highest):
            await self._end_leases(alias, old, "key-compromised")
        for row in now.retiring:
            # One that cannot be deleted now is out of use and says so: the answer has what is left to a person.
            with contextlib.suppress(ProblemError):
                await self._steps.destroy(row, "compromised", uid=terms.uid)

    def _still_used(self, alias: str) -> str:
        told = "what was made with it has ended; until it has a new version, the old one stays in use"
        if inline_keys.is_inline(alias) or alias == AUDIT_SIGNER:
            return told
        return f"{told} (minter keys retire {alias} ends that)"

    def _makes(self, alias: str) -> bool:
        return self._steps.use(alias) != "static" or self._roots.offers(alias)

    async def _finish(self, versions: Versions, terms: Terms) -> None:
        versions = await self._without_stale(versions)
        row, now = versions.prepared, self._clock.now()
        if row is not None:
            if not row.fingerprint:
                raise ProblemError("rotation-not-running", "it was interrupted: start it again, or abort it")
            if self._steps.use(row.alias) == "signing":
                if not terms.force and (row.published_at is None or now < row.published_at + self._cache_s):
                    raise self._still_published(versions)
                if row.published_at is None:
                    row = await self._steps.publish(row, uid=terms.uid, forced=terms.force)
            await self._take(row, terms)
            return
        if not versions.retiring:
            raise ProblemError("rotation-not-running")
        for old in versions.retiring:
            early = now < (old.retire_at or 0.0) and not old.problem
            if self._steps.use(old.alias) == "signing" and early and not terms.force:
                raise ProblemError(
                    "rotation-running",
                    "tokens that the old key signed are still valid; --force ends them",
                    retry_after=(old.retire_at or now) - now,
                )
            await self._steps.destroy(old, "finished", uid=terms.uid)

    async def _abort(self, versions: Versions, reason: str, *, uid: int | None) -> None:
        if versions.prepared is None:
            what = "the new version is in use already: finish it, or rotate again" if versions.retiring else ""
            raise ProblemError("rotation-not-running", what)
        await self._steps.give_up(versions.prepared, reason, uid=uid)

    async def _advance(self, alias: str, versions: Versions, now: float) -> None:
        versions = await self._without_stale(versions)
        row = versions.prepared
        use = self._steps.use(alias)
        terms = Terms(overlap_s=self._overlap_s)
        lost = row is not None and not row.fingerprint and use == "static" and row.made_by != ISSUER
        if row is not None and (lost or row.problem == DESTROY_FAILED):
            await self._steps.give_up(row, "interrupted", uid=None)
        elif row is not None and row.problem != NOT_ACCEPTED:
            if not row.fingerprint:
                row = await self._prepare(row, None, again=True, uid=None)
            if use == "signing" and row.published_at is None:
                row = await self._steps.publish(row, uid=None, forced=False)
            if use != "signing" or now >= (row.published_at or now) + self._cache_s:
                await self._take(row, terms)
        for old in (await self._steps.versions(alias)).retiring if use == "checkpoints" else versions.retiring:
            if old.retire_at is not None and now >= old.retire_at:
                await self._steps.destroy(old, "deadline", uid=None)

    async def _without_stale(self, versions: Versions) -> Versions:
        """Give up a preparation from before the active version: it was meant to take over from another one."""
        new, active = versions.prepared, versions.active
        if new is None or active is None:
            return versions
        if new.version > active.version and new.created_at >= (active.activated_at or 0.0):
            return versions
        await self._steps.give_up(new, "stale", uid=None)
        return await self._steps.versions(new.alias)

    async def _of_the_sealing_key(
        self, step: Step, value: Secret | None, terms: Terms, *, dry_run: bool
    ) -> dict[str, Any]:
        if value is not None:
            raise ProblemError("body-malformed", "the minter makes this key itself: no value can be given")
        if self._sealing is None:
            raise ProblemError("key-not-found")
        plan = await self._sealing.request(
            step, overlap_s=terms.overlap_s, dry_run=dry_run, uid=terms.uid, compromised=terms.compromised
        )
        self._custody.put(await self._store.read(key_rows.versions))
        return {"value_from": "minter", **plan}

    # --- small ones ---

    async def _new_value(self, alias: str, versions: Versions, value: Secret | None) -> Secret | None:
        if value is None:
            if versions.prepared is None:
                raise ProblemError("body-malformed", "the new value is missing: give it on standard input")
            if versions.prepared.fingerprint:
                return None
            if await asyncio.to_thread(self._steps.is_missing, versions.prepared):
                raise ProblemError("body-malformed", "the new value was not kept yet: give it again")
            return None
        value = Secret(value.reveal().removesuffix("\n").removesuffix("\r"))
        if not len(value):
            raise ProblemError("body-malformed", "the new value is empty")
        try:
            check_text(value)
        except SourceError as error:
            raise ProblemError("body-malformed", f"the new value {error.told()}") from None
        if self._custody.is_lent(alias) and not is_sendable(value):
            raise ProblemError(
                "body-malformed", "the new value is not one line of printable ASCII: no call can carry it"
            )
        if versions.active is not None and self._custody.fingerprint(value) == versions.active.fingerprint:
            raise ProblemError("body-malformed", "the new value is the one that is in use")
        return value

    def _check_rotatable(self, alias: str) -> None:
        sources, source = self._custody.reader.sources, self._steps.source(alias)
        if inline_keys.is_inline(alias):
            profiles = self._custody.profiles_of(alias)
            by_hand = "" if sources.writable(source) else sources.how_to_rotate(source)
            raise ProblemError(
                "rotation-unsupported",
                "the grants name this key inline; move it to minter.toml first",
                faults=inline_keys.lines(alias, profiles, by_hand),
                move=inline_keys.move(alias, profiles),
            )
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

    async def _describe(self, alias: str, terms: Terms, *, dry_run: bool) -> dict[str, Any]:
        now = self._clock.now()
        offers = self._roots.offers(alias)
        value_from: ValueFrom = "issuer" if offers else "operator"

        # What is compromised begins anew, wherever a rotation stands: with a new version, and no older one is kept.
        anew = terms.compromised and dry_run

        def query(connection: Connection) -> dict[str, Any]:
            versions = Versions.of(key_rows.versions(connection), alias)
            goes = versions.active if anew or not versions.retiring else None
            old = [*versions.retiring, *([goes] if goes else [])]
            if anew:
                prepared = None if self._makes(alias) else versions.prepared
                versions = replace(versions, prepared=prepared, retiring=())
            users = [user for row in old for user in key_rows.users(connection, alias, row.version, now=now)]
            return describe(
                alias,
                self._steps.use(alias),
                versions,
                users,
                cache_s=self._cache_s,
                overlap_s=0.0 if terms.compromised else terms.overlap_s,
                now=now,
                dry_run=dry_run,
                value_from="minter" if self._steps.use(alias) != "static" else value_from,
                at_once=terms.compromised,
            )

        plan = await self._store.read(query)
        if terms.compromised:
            settings = self._custody.settings_of(alias)
            plan["to_do"] = compromise.to_do(
                alias,
                settings,
                deleted_by_issuer=offers,
                cache_s=self._cache_s,
                at=now,
                version=None if dry_run else plan["active_version"],
            )
        return plan

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
