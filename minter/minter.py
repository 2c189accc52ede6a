"""Everything that a running minter consists of, put together in one place."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import MutableMapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from config.clock import Clock
from config.contract import RevokedLease
from config.errors import ConfigurationError, Fault
from config.problems import ProblemError
from config.settings import MinterSettings
from minter import key_age, lease_rows, quarantine, reload, state_copies
from minter.admin import AdminApi
from minter.admin_audit import CHECKPOINTS_AT_ONCE, CHECKPOINTS_PER_S, AuditCalls
from minter.admin_keys import KeyCalls
from minter.admin_report import ReportCalls
from minter.admin_state import StateCalls
from minter.admission import Admission
from minter.app import BrokerApi
from minter.audit import AuditLog, AuditUnavailable
from minter.audit_checkpoints import Checkpoints
from minter.audit_events import Event
from minter.audit_state import last_instant
from minter.book import Book, Live
from minter.brokers import Brokers
from minter.custody import Custody
from minter.custody_report import ChainHead, CustodyReport
from minter.denials import Denials, Operators, Recorder
from minter.expiry import Expiry
from minter.forgetting import Forgetting
from minter.issuer_roots import IssuerRoots
from minter.key_age import KeyAge
from minter.key_ending import KeyEnding
from minter.key_making import KeyMaking
from minter.lease_endpoint import LeaseEndpoint
from minter.lease_values import LeaseValues
from minter.limits import MintLimits, Rate
from minter.metrics import Metrics, Snapshot
from minter.public import PublicApi
from minter.quarantine import Quarantine
from minter.readiness import Readiness
from minter.recovery import recover
from minter.reload import KindsOf, Reloader
from minter.revocation import Endings
from minter.rotation import Rotation
from minter.sealing_rotation import SealingRotation
from minter.service import LeaseService
from minter.sources import Context, Sources
from minter.state_lock import lock_state, state_path
from minter.store import Store, identity, migrate
from minter.watch import WatchHub

#: How long a lease that is over stays in the table; its story stays in the audit log.
KEEP_S: Final = 86400.0
#: A tick forgets so many at most: as many as can be minted between two.
_FORGET_AT_ONCE: Final = 1000
_FORGET_BATCHES: Final = 20

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Found:
    """What a start has read."""

    custody: Custody
    read: reload.Read
    checkpoints: Checkpoints


class Minter:
    """A minter that has started: it lends, ends and sweeps. ``config.server`` listens for it."""

    def __init__(self, settings: MinterSettings, *, clock: Clock, store: Store, audit: AuditLog, found: Found) -> None:
        self.settings = settings
        self.clock = clock
        self.store = store
        self.audit = audit
        self.checkpoints = found.checkpoints
        self.custody = found.custody
        self.book = Book()
        self.hub = WatchHub()
        self.metrics = Metrics()
        self._counted: tuple[dict[tuple[str, str], int], Sequence[KeyAge]] = ({}, ())
        self.recorder = Recorder(store)
        self.denials = Denials(self.recorder, clock, count=self.metrics.access_denied)
        self.brokers = Brokers(found.read.brokers, clock=clock, denials=self.denials)
        self.kinds_of = KindsOf(self.custody)
        self.kinds_of.take(found.read.policy)
        self.admission = Admission(found.read.policy, custody=self.custody, clock=clock)
        values = LeaseValues(store, self.custody.data_keys.sealer)
        self.endings = Endings(
            store=store,
            book=self.book,
            hub=self.hub,
            kind_of=self.kinds_of,
            values=values,
            clock=clock,
            metrics=self.metrics,
            per_s=settings.lease_limits.revocation_rate,
        )
        self.quarantine = Quarantine(store, self.book, self.endings, clock=clock)
        self.expiry = Expiry(self._sweep, clock=clock)
        self.service = LeaseService(
            check=self.quarantine.check,
            admission=self.admission,
            custody=self.custody,
            limits=MintLimits(settings.lease_limits, clock),
            endings=self.endings,
            expiry=self.expiry,
            book=self.book,
            store=store,
            clock=clock,
            metrics=self.metrics,
            margin_s=float(settings.safety_margin),
            values=values,
        )
        self.reloader = Reloader(
            settings=settings,
            custody=self.custody,
            store=store,
            admission=self.admission,
            brokers=self.brokers,
            service=self.service,
            kinds_of=self.kinds_of,
            hub=self.hub,
        )
        self.sealing = SealingRotation(
            self.custody.data_keys,
            store,
            clock=clock,
            overlap_s=float(settings.rotation_overlap),
            end_all=self._end_all,
        )
        self.rotation = Rotation(
            self.custody,
            store,
            clock=clock,
            end_leases=self._end_made_with,
            roots=IssuerRoots(
                self.custody, kinds=lambda: list(self.admission.policy.kinds.values()), installation=audit.installation
            ),
            sealing=self.sealing,
        )
        self.making = KeyMaking(self.custody, store, clock=clock)
        self._rotating: asyncio.Task[None] | None = None
        self._undo = AsyncExitStack()
        self.readiness = Readiness()
        self.readiness.add("state", store.trouble)
        self.readiness.add("audit", lambda: "it cannot be written" if store.failing == "audit" else "")
        self.readiness.add("quarantine", self.quarantine.reason)
        self.readiness.add("expiry", lambda: "" if self.expiry.healthy() else "no sweep has ended for too long")
        self.readiness.note("audit-checkpoints", lambda: self.checkpoints.problem or self.checkpoints.ahead)
        self.readiness.note("audit-places", lambda: "; ".join(self.audit.problems().values()))
        self.audit_calls = AuditCalls(
            path=Path(settings.audit),
            log=audit,
            checkpoints=self.checkpoints,
            store=store,
            rate=Rate(clock, per_s=CHECKPOINTS_PER_S, burst=CHECKPOINTS_AT_ONCE),
        )

        self.broker_api = BrokerApi(
            lease_endpoint=LeaseEndpoint(
                service=self.service, brokers=self.brokers, record=self.recorder, clock=clock, metrics=self.metrics
            ),
            service=self.service,
            brokers=self.brokers,
            hub=self.hub,
            readiness=self.readiness,
        )
        self.custody_report = self._custody_report()
        own = os.geteuid()
        operators = {0, own} if settings.operator_uids is None else settings.operator_uids
        self.admin_app = AdminApi(
            operators=Operators(operators=operators, auditors=settings.auditor_uids, denials=self.denials),
            service=self.service,
            store=store,
            keys=self._key_calls(),
            state=StateCalls(settings=settings, store=store, quarantine=self.quarantine, clock=clock),
            reports=ReportCalls(report=self.custody_report, clock=clock),
            forgetting=Forgetting(store, self.endings, clock=clock),
            reloader=self.reloader,
            readiness=self.readiness,
            metrics=self.exposition,
            audit=self.audit_calls,
            third_party_kinds=tuple(settings.kinds),
        ).app()
        self.public_app = PublicApi(
            custody=self.custody,
            book=self.book,
            brokers=self.brokers,
            clock=clock,
            highest_wall=lambda: store.highest_wall,
            verifier_cache_s=float(settings.verifier_cache),
            check=self.quarantine.check,
        ).app()

    def _custody_report(self) -> CustodyReport:
        return CustodyReport(
            custody=self.custody,
            store=self.store,
            grants=lambda: self.admission.policy.grants,
            brokers=lambda: self.brokers.principals,
            head=lambda: ChainHead(*self.audit.head(), last_instant(Path(self.settings.audit))),
            checkpoint=self.checkpoints.shown,
            third_party_kinds=tuple(self.settings.kinds),
        )

    @classmethod
    async def start(cls, settings: MinterSettings, *, clock: Clock, environ: MutableMapping[str, str]) -> Minter:
        """Open the state and the log, read grants and secrets, take up what is live, begin to sweep.

        Errors: ``ConfigurationError`` with every fault; nothing is left open then.
        """
        try:
            return await cls._start(settings, clock, environ)
        except AuditUnavailable as error:
            raise ConfigurationError([Fault("audit", str(error))]) from None
        except ProblemError as error:
            raise ConfigurationError([Fault(error.code, error.detail)]) from None

    @classmethod
    async def _start(cls, settings: MinterSettings, clock: Clock, environ: MutableMapping[str, str]) -> Minter:
        async with AsyncExitStack() as undo:
            path = state_path(settings.state)
            lock = lock_state(path)
            undo.callback(os.close, lock)
            migrate(path)
            installation, known = identity(path)
            log = Path(settings.audit)
            audit = AuditLog(log, installation=installation, known=known, now=clock.now(), settings=settings.audit_log)
            undo.callback(audit.close)
            store = Store(path, audit=audit, clock=clock)
            undo.push_async_callback(store.close)
            await quarantine.doubt(store, log, clock=clock)
            sources = Sources(Context.of(settings, environ), third_party=settings.sources)
            custody = Custody(settings, sources=sources, clock=clock)
            read = await reload.read(settings, custody, store)
            await custody.adopt(store, read.staged)
            checkpoints = Checkpoints(
                settings.audit_log,
                log=log,
                installation=installation,
                clock=clock,
                signer=custody.checkpoint_signer,
                previous=custody.checkpoint_signer_before,
            )
            audit.listen(checkpoints)
            found = Found(custody, read, checkpoints)
            minter = cls(settings, clock=clock, store=store, audit=audit, found=found)
            recovered = await recover(store, minter.book, clock=clock)
            await minter.quarantine.look()
            if minter.quarantine.since is None:
                minter.endings.close_later(recovered.misdated, "clock-set-back")
                minter.endings.close_later(recovered.valueless, "value-lost")
                minter.endings.close_later(recovered.marked, "key-changed")
                await minter.end_what_may_not_go_on()
                with contextlib.suppress(ProblemError):
                    await minter.making.tick(clock.now())
            # What is overdue is ended while the minter serves: its use is refused at use.
            minter.expiry.start()
            await asyncio.to_thread(state_copies.scrub, path)
            minter._undo = undo.pop_all()
            return minter

    async def stop(self, *, drain_s: float) -> None:
        """End in order: what is being made and revoked finishes, what is counted is written."""
        self.hub.close()
        await self.service.flights.drain(drain_s)
        self.endings.halt()
        await self.expiry.stop()
        if self._rotating is not None:
            # One that is cut off is taken up at the next start.
            await asyncio.wait([self._rotating], timeout=drain_s)
            self._rotating.cancel()
            await asyncio.wait([self._rotating])
        left = await self.endings.stop_trying(drain_s)
        await self.recorder.drain()
        with contextlib.suppress(ProblemError):
            await self.store.write(self.custody.flush)
        await self.tell(Event("service.stopped", {"reason": "asked", "count": left}))
        await self._undo.aclose()

    def _key_calls(self) -> KeyCalls:
        async def end_all(alias: str, uid: int | None) -> list[RevokedLease]:
            return await self.service.end(lambda live: live.row.made_with(alias), "key-out-of-use", uid=uid)

        ending = KeyEnding(self.custody, self.store, self.rotation, clock=self.clock, end_all=end_all)
        return KeyCalls(
            custody=self.custody,
            rotation=self.rotation,
            making=self.making,
            ending=ending,
            store=self.store,
            service=self.service,
            clock=self.clock,
        )

    async def _end_all(self, reason: str) -> None:
        await self.service.end(lambda _live: True, reason)

    async def end_what_may_not_go_on(self) -> None:
        """End what a start finds live though the grants object."""
        policy = self.admission.policy
        for some in self.book.slices():
            against: dict[str, list[Live]] = {}
            for live in some:
                objection = policy.objection(live.row)
                if objection is not None:
                    against.setdefault(objection, []).append(live)
            for reason, leases in against.items():
                self.endings.close_later(leases, reason)
            await asyncio.sleep(0)

    async def _end_made_with(self, alias: str, version: int, reason: str) -> None:
        await self.service.end(lambda live: live.row.made_with(alias, version), reason)

    async def tell(self, event: Event) -> None:
        """Write an event to the audit log; what cannot be written shows in readiness."""
        with contextlib.suppress(ProblemError):
            await self.store.write(lambda _connection: (None, [event]))

    async def exposition(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        now, said = self.clock.now(), self.custody.settings_of
        with contextlib.suppress(ProblemError):
            # What a state that cannot be read said last is better than no metrics of its trouble.
            self._counted = await self.store.read_beside(
                lambda found: (lease_rows.counts(found), key_age.ages(found, said, now=now))
            )
        stuck, keys = self._counted
        counts = stuck | {("active", kind): count for kind, count in self.book.by_kind().items()}
        return self.metrics.text(
            Snapshot(
                leases=counts,
                sweep_lag_s=self.expiry.lag_s(),
                audit_sequence=self.audit.head()[0],
                audit_owed=self.store.owed,
                audit_checkpoint_age_s=self.checkpoints.age_s(),
                audit_places_behind=len(self.audit.problems()),
                checks={name: not reason for name, reason in self.readiness.report().items()},
                keys=keys,
            )
        )

    async def _sweep(self) -> float | None:
        self.checkpoints.tick()
        if self.quarantine.since is not None:
            return None
        await self.quarantine.tick()
        await self.reloader.follow_brokers(wait=False)
        next_at = await self.endings.sweep()
        await self.store.write(self.custody.flush)
        await self.audit_calls.keep_checkpoint()
        if self._rotating is None or self._rotating.done():
            # Beside the sweep: a keyring that does not answer must not hold up what ends now.
            self._rotating = asyncio.create_task(self._rotate())
        before = self.clock.now() - KEEP_S
        for _ in range(_FORGET_BATCHES):
            forgotten = await self.store.write(
                lambda found: (lease_rows.forget(found, before=before, limit=_FORGET_AT_ONCE), ())
            )
            if forgotten < _FORGET_AT_ONCE:
                break
        return next_at

    async def _rotate(self) -> None:
        for turning in (self.making, self.rotation, self.sealing):
            try:
                await turning.tick(self.clock.now())
            except ProblemError as error:
                _log.warning("rotation-waits", code=error.code, detail=error.detail)
            except Exception as error:  # noqa: BLE001 - nobody awaits this task, and the others have their turn
                _log.error("rotation-failed", exc_info=error)
