"""The minter, assembled and running.

Order of a start: harden the process, lock and migrate the state, open the audit log, read grants and secrets, take up
what is live, listen, say so. What does not load ends it with every fault named, before anybody is answered.
"""

from __future__ import annotations

import dataclasses
import grp
import os
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import structlog

from config import logs, process, server
from config.clock import Clock
from config.errors import ConfigurationError, ExitCode, Fault
from config.listeners import Limits, Listener, ListenerGroup, TLSFiles
from config.load import program_clock
from config.server import Bound
from config.settings import MinterSettings
from minter.audit_events import Event, Value
from minter.minter import Minter
from minter.reload import summary

_log = structlog.get_logger()

#: Listeners of a few local programs and operators.
_ADMIN_CONNECTIONS: Final = 64


def serve(settings: MinterSettings) -> int:
    """Run the minter until it is asked to end; return the exit status.

    Errors: ``ConfigurationError`` with every fault.
    """
    logs.set_up("minter", settings.log_level)
    process.harden()
    process.refuse_root("minter", allowed=settings.allow_root)
    process.raise_open_files()
    clock, moved_by = program_clock(os.environ, settings.PREFIX)
    if moved_by is not None:
        _log.warning("TEST CLOCK: a file moves this program's time; never do this in production", file=str(moved_by))
    server.run(_main(settings, clock, os.environ))
    return ExitCode.OK


async def _main(settings: MinterSettings, clock: Clock, environ: MutableMapping[str, str]) -> None:
    lists = _listeners(settings)
    group = _group_id(settings.socket_group)
    minter = await Minter.start(settings, clock=clock, environ=environ)

    async def on_ready(bound: Sequence[Bound]) -> None:
        # The uid is who runs it: an auditor's first question.
        started: dict[str, Value] = {"program": f"minter {version('minter-broker')}", "uid": os.geteuid()}
        await minter.tell(Event("service.started", started | summary(minter.admission.policy, minter.custody)))
        _log.info("minter ready", listen=[str(one.listener) for one in bound])

    async def on_hup() -> None:
        await minter.reloader.reload()

    try:
        await server.serve(
            groups(minter, lists, socket_group=group),
            on_ready=on_ready,
            on_hup=on_hup,
            on_drain=minter.hub.close,
            drain_s=float(settings.drain),
        )
    finally:
        await minter.stop(drain_s=float(settings.drain))


def groups(minter: Minter, lists: Lists, *, socket_group: int | None = None) -> list[ListenerGroup]:
    """Return who is answered by what, and where."""
    settings = minter.settings
    limits = Limits.of(settings.limits)
    few = dataclasses.replace(limits, max_connections=min(_ADMIN_CONNECTIONS, limits.max_connections))
    tls = TLSFiles.of(settings.tls)
    # Public keys are for anyone: no client certificate is asked for.
    open_tls = None if tls is None else dataclasses.replace(tls, client_ca="")
    common: dict[str, Any] = {"by": "minter", "refuse_forwarded": True}
    found = [
        ListenerGroup(
            app=minter.broker_api, listeners=lists.brokers, limits=limits, socket_group=socket_group, tls=tls, **common
        ),
        ListenerGroup(app=minter.admin_app, listeners=lists.admin, limits=few, socket_group=socket_group, **common),
        ListenerGroup(app=minter.public_app, listeners=lists.public, limits=limits, tls=open_tls, hosts=None, **common),
    ]
    return [group for group in found if group.listeners]


@dataclass(frozen=True, slots=True)
class Lists:
    """Where the minter listens: for brokers, for operators and auditors, for anyone."""

    brokers: tuple[Listener, ...]
    admin: tuple[Listener, ...] = ()
    public: tuple[Listener, ...] = ()


def _listeners(settings: MinterSettings) -> Lists:
    """Parse all listeners and refuse those that would let in whom nobody vouches for. Errors: every fault."""
    faults: list[Fault] = []

    def parse(name: str, texts: Iterable[str]) -> tuple[Listener, ...]:
        found = []
        for number, text in enumerate(texts):
            where = f"{name}[{number}]"
            try:
                listener = Listener.parse(text)
            except ValueError as error:
                faults.append(Fault(where, str(error)))
                continue
            if name == "listen" and listener.kind != "unix" and not (listener.kind == "tls" and settings.tls.client_ca):
                faults.append(Fault(where, "brokers come by a Unix socket, or by tls: with a client certificate"))
            if name == "admin_listen" and listener.kind != "unix":
                faults.append(Fault(where, "operators are known by their user, which only a Unix socket tells"))
            if name == "public_listen" and listener.kind == "tcp" and not listener.is_loopback:
                faults.append(Fault(where, "a listener that other machines reach needs tls:"))
            found.append(listener)
        return tuple(found)

    lists = Lists(
        parse("listen", settings.listen),
        parse("admin_listen", settings.admin_listen),
        parse("public_listen", settings.public_listen),
    )
    if faults:
        raise ConfigurationError(faults)
    return lists


def _group_id(setting: str, settings: MinterSettings) -> int | None:
    name: str = getattr(settings, setting)
    if not name:
        return None
    if name.isdecimal():
        return int(name)  # a group needs no entry in the system's list
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigurationError([Fault(setting, f"there is no group {name}")]) from None
