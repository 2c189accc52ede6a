"""Reading grants, brokers and secrets: at start, and again while leases are live. All or nothing.

Everything is read and checked before anything changes; with one fault the old state goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import structlog

from config.errors import ConfigurationError, Fault
from config.load import load_grants, read_token_file
from config.problems import ProblemError
from config.profiles import Grants
from config.settings import MinterSettings
from config.tokenfiles import Principal, TokenFile
from minter import failpoints, kinds
from minter.admission import OBJECTIONS, Admission, Policy
from minter.audit_events import Event, Value
from minter.brokers import Brokers
from minter.custody import Custody
from minter.key_loading import Staged
from minter.kinds import Kind
from minter.lease_rows import LeaseRow
from minter.service import LeaseService
from minter.store import Store
from minter.watch import WatchHub

#: Kinds of token objects that no grant names any more, kept to end what was made with them.
_REMEMBERED: Final = 1000

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Read:
    """What was read, to be put in force as a whole."""

    policy: Policy
    brokers: TokenFile
    staged: Staged


async def read(settings: MinterSettings, custody: Custody, store: Store) -> Read:
    """Read and check everything, change nothing.

    Errors: ``ConfigurationError`` with every fault.
    """
    faults: list[Fault] = []
    grants: Grants | None = None
    await custody.learn(store)
    brokers: TokenFile | None = None
    try:
        grants = await asyncio.to_thread(load_grants, Path(settings.grants), check_token=kinds.checker(custody))
    except ConfigurationError as error:
        faults += error.faults
    try:
        brokers = read_token_file(Path(settings.brokers))
    except ConfigurationError as error:
        faults += error.faults
    staged: Staged | None = None
    if grants is not None:
        try:
            staged = await custody.stage(store, grants)
        except ConfigurationError as error:
            faults += error.faults
    if faults or grants is None or brokers is None or staged is None:
        raise ConfigurationError(faults)
    return Read(_policy(grants, brokers, custody), brokers, staged)


def _policy(grants: Grants, brokers: TokenFile, custody: Custody) -> Policy:
    made: dict[str, Kind] = {}
    tokens: dict[str, str] = {}
    keys: dict[str, tuple[str, ...]] = {}
    for name, profile in grants.profiles.items():
        if profile.token is not None:
            made[name] = kinds.build(profile.token, custody, f"profiles.{name}.token")
            tokens[name] = msgspec.json.encode(profile.token, order="sorted").decode()
            keys[name] = tuple(profile.key_aliases())
    return Policy(
        grants=grants,
        kinds=made,
        tokens=tokens,
        keys=keys,
        brokers={principal.id: principal for principal in brokers.brokers},
    )


class KindsOf:
    """Finds the kind that made a lease's credential, though its profile may be gone or changed."""

    def __init__(self, custody: Custody) -> None:
        self._custody = custody
        self._known: dict[str, Kind] = {}

    def take(self, policy: Policy) -> None:
        """Go by these first."""
        self._known |= {token: policy.kinds[name] for name, token in policy.tokens.items()}

    def __call__(self, row: LeaseRow) -> Kind | None:
        """Return the kind, or None when it cannot be had any more."""
        if row.token not in self._known:
            if len(self._known) > _REMEMBERED:
                self._known.clear()
            try:
                self._known[row.token] = kinds.build(msgspec.json.decode(row.token), self._custody, "lease")
            except (ConfigurationError, msgspec.DecodeError):
                # Not remembered: what it lacks, a key perhaps, may come back.
                return None
            except Exception as error:  # noqa: BLE001 - a plug-in's own: one row of its must not stop a sweep
                _log.warning("kind-not-built", kind=row.kind, exc_info=error)
                return None
        return self._known[row.token]


class Reloader:
    """What SIGHUP and ``minter reload`` do, and what follows when the brokers file is replaced."""

    def __init__(
        self,
        *,
        settings: MinterSettings,
        custody: Custody,
        store: Store,
        admission: Admission,
        brokers: Brokers,
        service: LeaseService,
        kinds_of: KindsOf,
        hub: WatchHub,
    ) -> None:
        self._settings = settings
        self._custody = custody
        self._store = store
        self._admission = admission
        self._brokers = brokers
        self._service = service
        self._kinds_of = kinds_of
        self._hub = hub
        self._alone = asyncio.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._unended = False

    async def reload(self, *, uid: int | None = None) -> Sequence[Fault]:
        """Read everything again and go by it; return the faults, with which nothing has changed.

        Leases of a profile, caller or broker that may no longer have them, and those of a key whose value is another
        than before, are ended before this returns; so are the streams of brokers that have lost something.
        """
        self._service.check()
        async with self._alone:
            by: dict[str, Value] = {} if uid is None else {"uid": uid}
            try:
                found = await read(self._settings, self._custody, self._store)
                failpoints.reached("reload.read")
                changed = await self._custody.adopt(self._store, found.staged)
            except ConfigurationError as error:
                _log.error("reload-refused", faults=[str(fault) for fault in error.faults])
                await self._tell(Event("reload.refused", {"faults": len(error.faults), **by}))
                return error.faults
            failpoints.reached("reload.adopted")
            self._kinds_of.take(found.policy)
            before = self._admission.policy.brokers
            self._brokers.swap(found.brokers)
            self._admission.policy = found.policy
            failpoints.reached("reload.swapped")
            # Before anything is waited for: from here on every lease is of the new values.
            await self._service.end(lambda live: any(map(live.row.made_with, changed)), "key-changed", uid=uid)
            await self._tell(Event("service.reloaded", {**summary(found.policy, self._custody), **by}))
            await self.end_what_may_not_go_on()
            failpoints.reached("reload.ended")
            # Last, so that they have been told which of their leases have ended.
            self._dismiss(before, found.policy.brokers)
            _log.info("reloaded", grants=found.policy.grants.digest, profiles=len(found.policy.grants.profiles))
            return ()

    async def follow_brokers(self, *, wait: bool = True) -> None:
        """Go by the brokers file alone when it was replaced, as every change of a broker's token does it.

        A file that does not load is told of once, and the brokers stay as they were. Without ``wait``, while a reload
        runs, it is left to the next call: a reload may wait for a keyring.
        """
        if not wait and self._alone.locked():
            return
        async with self._alone:
            stamp = _stamp(Path(self._settings.brokers))
            if stamp == self._seen and not self._unended:
                return
            before = self._admission.policy.brokers
            try:
                file = await asyncio.to_thread(read_token_file, Path(self._settings.brokers))
            except ConfigurationError as error:
                self._seen = stamp
                _log.error("brokers-not-read", faults=[str(fault) for fault in error.faults])
                await self._tell(Event("brokers.refused", {"faults": len(error.faults)}))
                return
            self._seen = stamp
            now = {principal.id: principal for principal in file.brokers}
            if now == before and not self._unended:
                return
            # Before anything is waited for or can fail: an old token is worth nothing from here on.
            self._brokers.swap(file)
            self._admission.policy = replace(self._admission.policy, brokers=now)
            self._unended = True
            await self._tell(Event("brokers.read", {"brokers": len(now)}))
            _log.info("brokers-read", brokers=len(now))
            try:
                await self.end_what_may_not_go_on()
                self._unended = False
            finally:
                self._dismiss(before, now)

    def _dismiss(self, before: Mapping[str, Principal], now: Mapping[str, Principal]) -> None:
        for id_, broker in before.items():
            if _has_lost(broker, now.get(id_)):
                self._hub.dismiss(id_)

    async def end_what_may_not_go_on(self) -> None:
        """End the live leases that the policy in force has something against."""
        policy = self._admission.policy
        for reason in OBJECTIONS:
            await self._service.end(lambda live, reason=reason: policy.objection(live.row) == reason, reason)  # type: ignore[misc]

    async def _tell(self, event: Event) -> None:
        try:
            await self._store.write(lambda _connection: (None, [event]))
        except ProblemError as error:
            _log.error("reload-not-audited", code=error.code)


def _has_lost(before: Principal, now: Principal | None) -> bool:
    """Say whether a broker is gone or another than before. A token that is added is all that may change."""
    if now is None or msgspec.structs.replace(now, tokens=before.tokens) != before:
        return True
    return any(token not in now.tokens for token in before.tokens)


def summary(policy: Policy, custody: Custody) -> dict[str, Value]:
    """Return what is in force, for the audit log."""
    return {
        "profiles": len(policy.grants.profiles),
        "keys": len(custody.aliases()),
        "brokers": len(policy.brokers),
        "grants_digest": policy.grants.digest,
    }


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what tells one state of a file from another, None when there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
