"""The broker, assembled and running.

What does not load stops the start, all faults at once. After that the process ends by SIGTERM or SIGINT, and the runs
that it leaves are taken up again by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar, cast
from urllib.parse import urlsplit

import structlog
from msgspec.structs import replace

from broker.admin import Admin
from broker.app import Control
from broker.call import Calls
from broker.callers import Callers, Failures
from broker.credential import read_credential
from broker.current import Current
from broker.egress import Egress, MinterTransport
from broker.envelope import Envelope
from broker.learned import Learned
from broker.leases import Leases
from broker.metrics import Metrics
from broker.minter_link import MinterLink
from broker.open_calls import OpenCalls
from broker.open_files import OpenFiles
from broker.outbox import Outbox
from broker.placements import Registry as Placements
from broker.reload import Reloader
from broker.runs import Registry
from broker.status import Status, base_url
from broker.store import Store
from broker.wire.exchange import CallsOnTheWire
from config import logs, process, server
from config.asgi import describe
from config.clock import Clock
from config.errors import ConfigurationError, ExitCode, Fault
from config.grants import Grants
from config.listeners import Limits, Listener, ListenerGroup, TLSFiles, affordable
from config.load import load_grants, program_clock
from config.problems import ProblemError
from config.server import Bound
from config.settings import BrokerSettings

T = TypeVar("T")

log = structlog.get_logger("broker")

#: How often runs are swept, traces written, and the callers file looked at.
TICK_S: Final = 1.0
#: How long the end waits for the minter to take what it is being told.
_LAST_WORDS_S: Final = 2.0
#: Open files that connections leave to the state, the minter's socket, what listens and what is read again.
_OWN_FILES: Final = 40
_HOST: Final = re.compile(r"\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z_](?:[0-9A-Za-z_.-]*[0-9A-Za-z_])?", re.ASCII)


def serve(settings: BrokerSettings) -> int:
    """Run the broker until it is asked to end; return the exit status.

    Errors: ``ConfigurationError`` with every fault.
    """
    logs.set_up("broker", settings.log_level)
    process.refuse_root("broker", allowed=settings.allow_root)
    process.harden()
    open_files = process.raise_open_files()
    clock, moved_by = program_clock(os.environ, settings.PREFIX)
    if moved_by is not None:
        log.warning("TEST CLOCK: a file moves the time of this program; never in production", file=str(moved_by))
    # A call takes a connection of the code's and one to its API.
    limits = affordable(settings.limits, open_files, own=_OWN_FILES, each=2)
    server.run(_main(replace(settings, limits=limits), clock))
    return ExitCode.OK


async def _main(settings: BrokerSettings, clock: Clock) -> None:
    broker = Broker(settings, clock)
    try:
        async with broker.running():
            process.settle_memory()
            await server.serve(
                broker.groups,
                on_ready=broker.on_ready,
                on_hup=broker.on_hup,
                on_drain=broker.on_drain,
                drain_s=float(settings.drain),
            )
    finally:
        await broker.close()
    log.info("stopped")


class Broker:
    """Everything that a running broker consists of."""

    def __init__(self, settings: BrokerSettings, clock: Clock) -> None:
        """Read and check all that the settings name. Errors: ``ConfigurationError`` with every fault."""
        faults: list[Fault] = []
        self.settings = settings
        self.metrics = Metrics()
        failures = Failures(clock, self.metrics.authentication_failed)
        self.placements = _part(faults, lambda: Placements(settings.placements))
        grants = _part(faults, self.read_grants) if self.placements else None
        self.callers = _part(faults, lambda: Callers(Path(settings.callers), clock, failures))
        credential = _part(faults, lambda: read_credential(settings.minter_credential))
        self.transport = _part(faults, lambda: MinterTransport(settings.minter, settings.minter_tls))
        self.egress = _part(faults, lambda: Egress(settings.upstream))
        listen = _part(faults, lambda: _listeners("listen", settings.listen))
        admin_listen = _part(faults, lambda: _admin_listeners(settings.admin_listen))
        public_host = _part(faults, lambda: _public_host(settings.public_url))
        hosts = _part(faults, lambda: _hosts(settings.hosts))
        if faults or grants is None:
            raise ConfigurationError(faults)
        # The state comes last: only a broker that can start locks it and brings it up to date.
        self.store = Store.open(settings.state)
        self.leases = Leases(MinterLink(self.transport, credential), clock)
        self.outbox = Outbox(self.store, self.leases.link, clock)
        self.registry = Registry(
            store=self.store,
            leases=self.leases,
            outbox=self.outbox,
            clock=clock,
            current=Current(grants),
            max_runs=settings.max_runs,
            metrics=self.metrics,
            learned=Learned(settings.learned_file()),
        )
        self.open_calls = OpenCalls(
            clock,
            header_timeout_s=float(settings.upstream.header_timeout),
            idle_timeout_s=float(settings.upstream.idle_timeout),
        )
        self.open_files = OpenFiles()
        self.status = Status(self.store, self.leases)
        self.reloader = Reloader(
            read_grants=self.read_grants, callers=self.callers, registry=self.registry, metrics=self.metrics
        )
        calls = Calls(
            runs=self.registry,
            egress=self.egress,
            clock=clock,
            placements=self.placements,
            recorder=self.metrics,
            open_calls=self.open_calls,
        )
        control = Control(
            registry=self.registry,
            callers=self.callers,
            failures=failures,
            store=self.store,
            clock=clock,
            status=self.status,
            envelope=Envelope(
                calls,
                self.metrics.refused,
                max_target_bytes=settings.limits.max_target_bytes,
                max_bytes=settings.limits.max_host_call_bytes,
            ),
        )
        admin = Admin(
            registry=self.registry,
            store=self.store,
            clock=clock,
            status=self.status,
            metrics=self.metrics,
            reloader=self.reloader,
            operators=frozenset(settings.operator_uids if settings.operator_uids is not None else {0, os.geteuid()}),
        )
        limits = Limits.of(settings.limits)
        self.groups = [
            ListenerGroup(
                app=control.app(),
                direct=CallsOnTheWire(calls),
                listeners=listen,
                by="broker",
                limits=limits,
                hosts=hosts | public_host,
                tls=TLSFiles.of(settings.tls),
                on_refused=self.metrics.request_refused,
            )
        ]
        if admin_listen:
            self.groups.append(
                ListenerGroup(
                    app=admin.app(),
                    listeners=admin_listen,
                    by="broker",
                    limits=limits,
                    refuse_forwarded=True,
                    on_refused=self.metrics.request_refused,
                )
            )
        self._measure()

    def read_grants(self) -> Grants:
        """Read the grants file as it is now. Errors: ``ConfigurationError``."""
        return load_grants(Path(self.settings.grants), check_placement=self.placements.check)

    def _measure(self) -> None:
        gauge = self.metrics.gauge
        gauge("broker_runs_live", "Runs that live.", lambda: len(self.registry))
        gauge("broker_calls_open", "Calls that are open.", lambda: len(self.open_calls))
        gauge("broker_minter_notices_waiting", "What the minter is still to be told.", lambda: len(self.outbox))
        gauge("broker_minter_stream_up", "Whether the stream of ended leases is there.", self.status.minter_stream)
        gauge("broker_ready", "Whether the broker is ready.", self.status.ready)

    # --- while it runs -----------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take up what an earlier process left, and do in the background what is done while the block runs."""
        await self.outbox.load()
        await self.registry.restore()
        tasks = [
            asyncio.create_task(_for_ever(work)) for work in (self.leases.watch, self.open_calls.watch, self._tick)
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tick(self) -> None:
        self.open_files.look()
        self.callers.refresh()
        self.outbox.tick()
        await self.registry.tick()
        await asyncio.sleep(TICK_S)

    def on_ready(self, bound: Sequence[Bound]) -> None:
        """Say that the broker serves."""
        self.status.base_url = base_url(self.settings.public_url, bound)
        self.status.serving = True
        log.info("ready", listen=[str(one.listener) for one in bound], base_url=self.status.base_url)

    async def on_hup(self) -> None:
        """Read grants and callers again."""
        await self.reloader.reload()

    def on_drain(self) -> None:
        """Tell balancers to look elsewhere while the last calls finish."""
        self.status.serving = False
        log.info("draining", open_calls=len(self.open_calls))

    async def close(self) -> None:
        """Write what is not written yet, and let go of everything."""
        with contextlib.suppress(ProblemError):  # it has been logged, and there is nobody left to tell
            await self.registry.write_traces(always=True)
        await self.registry.learned.write()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.outbox.settle(), _LAST_WORDS_S)
        await self.egress.close()
        await self.transport.close()
        self.store.close()


async def _for_ever(work: Callable[[], Awaitable[None]]) -> None:
    """Do ``work`` again and again: an error in it is logged and does not end it."""
    while True:
        try:
            await work()
        except ProblemError as problem:
            log.error("background-work-failed", code=problem.code)  # noqa: TRY400 - the code says it
            await asyncio.sleep(TICK_S)
        except Exception as error:  # noqa: BLE001 - runs must be swept whatever happened
            describe(error, log)
            await asyncio.sleep(TICK_S)


def _part(faults: list[Fault], make: Callable[[], T]) -> T:
    """Return what ``make`` makes; its faults go to the others, and what is returned then is never used."""
    try:
        return make()
    except ConfigurationError as error:
        faults += error.faults
        return cast("T", None)


def _listeners(where: str, written: Sequence[str]) -> tuple[Listener, ...]:
    found, faults = [], []
    for number, text in enumerate(written):
        try:
            found.append(Listener.parse(text))
        except ValueError as error:
            faults.append(Fault(f"{where}[{number}]", f"{text}: {error}"))
    if not written:
        faults.append(Fault(where, "names no address"))
    if faults:
        raise ConfigurationError(faults)
    return tuple(found)


def _admin_listeners(written: Sequence[str]) -> tuple[Listener, ...]:
    if not written:
        return ()
    listeners = _listeners("admin_listen", written)
    if any(listener.kind != "unix" for listener in listeners):
        raise ConfigurationError(
            [Fault("admin_listen", "takes unix:PATH only", "operators are known by the user at a Unix socket")]
        )
    return listeners


def _hosts(written: Sequence[str]) -> frozenset[str]:
    """Return further names under which requests come: without a port, which is not looked at."""
    faults = [
        Fault(f"hosts[{number}]", "expected a name or an address without a port, such as broker.internal or [fd00::1]")
        for number, text in enumerate(written)
        if not _HOST.fullmatch(text)
    ]
    if faults:
        raise ConfigurationError(faults)
    return frozenset(written)


def _public_host(url: str) -> frozenset[str]:
    """Return the host of ``public_url``, under which requests come then."""
    if not url:
        return frozenset()
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("http", "https") or parts.query or parts.fragment or parts.username:
        raise ConfigurationError([Fault("public_url", "expected http://HOST[:PORT] or https://HOST[:PORT]")])
    return frozenset({f"[{host}]" if ":" in host else host})
