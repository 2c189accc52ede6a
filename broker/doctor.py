"""``broker doctor``: what an operator would check by hand, without changing anything.

It looks as the calling user sees things; run it as the broker's user for the whole picture. The broker's credential
is only looked at from outside.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from broker import check
from broker.admin_client import AdminClient
from config import load
from config.console import doctor, terminal
from config.console.commands import CommandError, UnreachableError
from config.console.doctor import Finding
from config.errors import ConfigurationError
from config.settings import BrokerSettings


def examine(config: Path, environ: Mapping[str, str]) -> list[Finding]:
    """Return everything that was looked at, faults or not."""
    try:
        settings = load.load_settings(BrokerSettings, config, environ)
    except ConfigurationError as error:
        return list(doctor.from_configuration("settings", error))
    state = settings.state.removeprefix("sqlite:")
    found = doctor.owner_of(os.path.dirname(state))  # noqa: PTH120 - a text in, a text out
    owner = os.geteuid() if found is None else found
    clock, _ = load.program_clock(environ, "BROKER_")
    return [
        Finding("ok", "settings", str(config), "load"),
        *doctor.process("BROKER_", environ, allow_root=settings.allow_root, owner=owner),
        doctor.clock(clock, last_seen=None),
        doctor.public_file("files", str(config), owner=owner),
        *_files(settings, owner),
        *_grants(settings),
        *doctor.database("state", settings.state),
        *_listeners(settings),
        *_minter(settings, owner),
        *_service(settings),
    ]


def _files(settings: BrokerSettings, owner: int) -> Iterator[Finding]:
    yield doctor.public_file("files", settings.grants, owner=owner)
    yield doctor.private_file("files", settings.callers, owner=owner, hint="broker callers create makes it")
    yield doctor.private_directory("files", str(Path(settings.state.removeprefix("sqlite:")).parent), owner=owner)
    listeners = [one for one in (*settings.listen, *settings.admin_listen) if one.startswith("unix:")]
    for listener in settings.admin_listen:
        if listener.startswith("unix:"):
            directory = str(Path(listener.removeprefix("unix:")).parent)
            yield doctor.private_directory("files", directory, owner=owner)
    yield from doctor.sockets("sockets", listeners, owner=owner)
    for path in filter(None, (settings.tls.key, settings.minter_tls.key)):
        yield doctor.private_file("files", path, owner=owner)


def _grants(settings: BrokerSettings) -> Iterator[Finding]:
    try:
        grants = check.load_grants(Path(settings.grants), placements=settings.placements)
    except ConfigurationError as error:
        yield from doctor.from_configuration("grants", error)
        return
    yield Finding("ok", "grants", settings.grants, f"{terminal.count(len(grants.profiles), 'profile')} loaded")
    try:
        callers = {caller.id for caller in load.read_token_file(Path(settings.callers)).callers}
    except ConfigurationError as error:
        if os.path.lexists(settings.callers):
            yield from doctor.from_configuration("callers", error)
        return
    yield Finding(
        "ok" if callers else "warning", "callers", settings.callers, f"{terminal.count(len(callers), 'caller')} known"
    )
    for profile in grants.profiles.values():
        if profile.learn:
            where = f"{settings.grants}: profiles.{profile.name}.learn"
            what = f"values of calls' paths are kept in {settings.learned_file()}"
            yield Finding("warning", "grants", where, what, "take it out again after broker specgen suggest")
        for caller in sorted(profile.allowed_callers - callers - {"*"}):
            where = f"{settings.grants}: profiles.{profile.name}.allowed_callers"
            hint = f"broker callers create {caller}"
            yield Finding("warning", "callers", where, f"{caller} has no token in {settings.callers}", hint)


def _listeners(settings: BrokerSettings) -> Iterator[Finding]:
    """Warn of run tokens that cross a network in the clear."""
    for listener in settings.listen:
        if listener.startswith(("unix:", "tls:", "127.", "localhost:", "[::1]:")):
            continue
        hint = "use tls:, or see to it that only this machine's containers reach it"
        yield Finding("warning", "listen", listener, "run tokens come in without TLS", hint)


def _minter(settings: BrokerSettings, owner: int) -> Iterator[Finding]:
    reference = settings.minter_credential
    if reference.startswith("file:"):
        hint = "minter brokers create ID --token-file makes it"
        yield doctor.private_file("minter", reference.removeprefix("file:"), owner=owner, hint=hint)
    else:
        yield Finding("note", "minter", reference.partition(":")[0], "only the service itself can read its credential")
    if settings.minter.startswith("unix:"):
        path = settings.minter.removeprefix("unix:")
        if os.path.lexists(path):
            yield Finding("ok", "minter", path, "the socket is there")
        else:
            yield Finding("warning", "minter", path, "there is no socket", "is the minter running?")


def _service(settings: BrokerSettings) -> Iterator[Finding]:
    try:
        client = AdminClient(settings)
        report = client.readiness()
    except UnreachableError as error:
        yield Finding("note", "service", "broker", error.what)
        return
    except CommandError as error:
        yield Finding("fault", "service", "broker", error.what, error.hint)
        return
    yield Finding("ok", "service", client.socket_path, "a broker answers")
    for part, well in report["parts"].items():
        yield Finding("ok" if well else "fault", "service", part, "is well" if well else "is not well")
    stream = "fresh" if report["minter_stream"] else "stale: leases are checked with the minter before each use"
    yield Finding("ok" if report["minter_stream"] else "warning", "service", "stream of ended leases", stream)
