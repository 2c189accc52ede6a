"""The minter, assembled and running.

Order of a start: harden the process, lock and migrate the state, open the audit log, read grants and secrets, take up
what is live, listen, say so. What does not load ends it with every fault named, before anybody is answered.
"""

from __future__ import annotations

import dataclasses
import grp
import os
from collections.abc import Iterable, MutableMapping, Sequence
from importlib.metadata import version
from typing import Final

import structlog

from config import logs, process, server
from config.clock import Clock
from config.errors import ConfigurationError, ExitCode, Fault
from config.listeners import App, Limits, Listener, ListenerGroup, TLSFiles
from config.load import program_clock
from config.server import Bound
from config.settings import ListenSettings, MinterSettings
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
    listen, admin, public = _listeners(settings)
    minter = await Minter.start(settings, clock=clock, environ=environ)
    # Brokers and auditors are other people: whoever may reach one socket has no business at the other.
    brokers, auditors = _group_id("socket_group", settings), _group_id("admin_socket_group", settings)
    groups = [
        _group(minter.broker_api, listen, settings.limits, group=brokers, tls=TLSFiles.of(settings.tls)),
        _group(minter.admin_app, admin, settings.limits, group=auditors, connections=_ADMIN_CONNECTIONS),
        _group(minter.public_app, public, settings.limits, tls=_server_only(settings)),
    ]

    async def on_ready(bound: Sequence[Bound]) -> None:
        # The uid is who runs it: an auditor's first question.
        started: dict[str, Value] = {"program": f"minter {version('minter-broker')}", "uid": os.geteuid()}
        await minter.tell(Event("service.started", started | summary(minter.admission.policy, minter.custody)))
        _log.info("minter ready", listen=[str(one.listener) for one in bound])

    async def on_hup() -> None:
        await minter.reloader.reload()

    try:
        await server.serve(
            [group for group in groups if group.listeners],
            on_ready=on_ready,
            on_hup=on_hup,
            on_drain=minter.hub.close,
            drain_s=float(settings.drain),
        )
    finally:
        await minter.stop(drain_s=float(settings.drain))


def _listeners(settings: MinterSettings) -> tuple[list[Listener], list[Listener], list[Listener]]:
    """Parse all listeners and refuse those that would let in whom nobody vouches for. Errors: every fault."""
    faults: list[Fault] = []

    def parse(name: str, texts: Iterable[str]) -> list[Listener]:
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
        return found

    lists = (
        parse("listen", settings.listen),
        parse("admin_listen", settings.admin_listen),
        parse("public_listen", settings.public_listen),
    )
    if faults:
        raise ConfigurationError(faults)
    return lists


def _group(
    app: App,
    listeners: Sequence[Listener],
    limits: ListenSettings,
    *,
    group: int | None = None,
    tls: TLSFiles | None = None,
    connections: int | None = None,
) -> ListenerGroup:
    taken = Limits.of(limits)
    if connections is not None:
        taken = dataclasses.replace(taken, max_connections=min(connections, taken.max_connections))
    return ListenerGroup(
        app=app,
        listeners=tuple(listeners),
        by="minter",
        limits=taken,
        refuse_forwarded=True,
        socket_group=group,
        tls=tls if any(listener.kind == "tls" for listener in listeners) else None,
    )


def _server_only(settings: MinterSettings) -> TLSFiles | None:
    """Return the certificate without the demand for a client's: public keys are for anyone."""
    files = TLSFiles.of(settings.tls)
    return None if files is None else TLSFiles(certificate=files.certificate, key=files.key)


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
