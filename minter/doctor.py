"""``minter doctor``: what an operator would check by hand, without changing anything.

It looks at files, state and sources as the calling user sees them; run it as the minter's user, with the minter's
environment, for the whole picture. Secrets are read to see that they can be, and dropped; only references are named.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from config import load
from config.console import doctor, terminal
from config.console.doctor import Finding
from config.errors import ConfigurationError
from config.settings import MinterSettings
from minter import audit_state, doctor_state
from minter.audit_checkpoints import file_of
from minter.doctor_keys import FOR_THE_SERVICE, check_keys, load_grants
from minter.doctor_online import check_online
from minter.doctor_service import check_service


def examine(config: Path, environ: Mapping[str, str], *, online: bool = False) -> list[Finding]:
    """Return everything that was looked at, faults or not; ``online``: also the clocks of the profiles' origins."""
    try:
        settings = load.load_settings(MinterSettings, config, environ)
    except ConfigurationError as error:
        return list(doctor.from_configuration("settings", error))
    owner = doctor_state.owner_of(settings)
    clock, _ = load.program_clock(environ, "MINTER_")
    findings = [
        Finding("ok", "settings", str(config), "load"),
        *doctor.process("MINTER_", environ, allow_root=settings.allow_root, owner=owner),
        doctor.public_file("files", str(config), owner=owner),
        *_files(settings, owner),
        *_grants(settings, environ),
        *doctor.database("state", settings.state),
        *doctor_state.check_state(settings, owner, clock),
        *_audit(settings, owner),
        *_commands(settings),
        *check_keys(settings, owner, environ),
        *check_service(settings, owner),
    ]
    if online:
        findings += check_online(settings, environ, clock)
    return findings


def _files(settings: MinterSettings, owner: int) -> Iterator[Finding]:
    yield doctor.public_file("files", settings.grants, owner=owner)
    yield doctor.private_file("files", settings.brokers, owner=owner, hint="minter brokers create makes it")
    yield from _brokers(settings)
    places = [settings.state.removeprefix("sqlite:"), settings.audit]
    for directory in dict.fromkeys(os.path.dirname(place) for place in places):  # noqa: PTH120
        yield doctor.private_directory("files", directory, owner=owner)
    open_to_group: dict[str, bool] = {}
    for listeners, group in (
        (settings.listen, settings.socket_group),
        (settings.admin_listen, settings.admin_socket_group),
    ):
        for listener in listeners:
            if listener.startswith("unix:"):
                directory = os.path.dirname(listener.removeprefix("unix:"))  # noqa: PTH120
                open_to_group[directory] = open_to_group.get(directory, False) or bool(group)
    for directory, group_allowed in open_to_group.items():
        yield doctor.private_directory("files", directory, owner=owner, group=group_allowed)
    yield from doctor.sockets("sockets", [*settings.listen, *settings.admin_listen], owner=owner)
    if settings.tls.key:
        yield doctor.private_file("files", settings.tls.key, owner=owner)


def _brokers(settings: MinterSettings) -> Iterator[Finding]:
    try:
        brokers = load.read_token_file(Path(settings.brokers)).brokers
    except ConfigurationError as error:
        if os.path.lexists(settings.brokers):
            yield from doctor.from_configuration("brokers", error)
        return
    yield Finding(
        "ok" if brokers else "warning", "brokers", settings.brokers, f"{terminal.count(len(brokers), 'broker')} known"
    )


def _grants(settings: MinterSettings, environ: Mapping[str, str]) -> Iterator[Finding]:
    try:
        grants = load_grants(settings, environ)
    except ConfigurationError as error:
        yield from doctor.from_configuration("grants", error)
        return
    yield Finding("ok", "grants", settings.grants, f"{terminal.count(len(grants.profiles), 'profile')} loaded")


def _audit(settings: MinterSettings, owner: int) -> Iterator[Finding]:
    path = Path(settings.audit)
    clock, _ = load.program_clock(os.environ, "MINTER_")
    if not os.path.lexists(path):
        level: doctor.Level = "fault" if audit_state.known(settings.state) else "note"
        yield Finding(level, "audit", str(path), "is not there", "the minter makes it at its first start")
        yield doctor.clock(clock, last_seen=None)
        return
    yield doctor.private_file("audit", str(path), owner=owner)
    if os.geteuid() == owner and not os.access(path, os.W_OK):
        yield Finding("fault", "audit", str(path), "cannot be written, so nothing would be released")
    try:
        report, known = audit_state.check(path, settings.state, [file_of(settings.audit_log, path)])
    except OSError as error:
        yield Finding("note", "audit", str(path), f"cannot be read: {error.strerror}", FOR_THE_SERVICE)
        return
    if report.bad is not None:
        what = f"does not verify: line {report.bad.line}: {report.bad.why}"
        yield Finding("fault", "audit", str(path), what, "see minter audit verify, and keep the file")
    elif report.head is not None:
        against = "held against the state" if known is not None and known.head is not None else "by itself"
        proven = f"proven to seq {report.proven.seq}" if report.proven is not None else "no checkpoint"
        what = f"{report.lines} lines verify ({against}, {proven}), head {report.head.hash[:16]}"
        yield Finding("ok", "audit", str(path), what)
    yield doctor.clock(clock, last_seen=audit_state.last_instant(path))


def _commands(settings: MinterSettings) -> Iterator[Finding]:
    for name, command in settings.commands.items():
        program = Path(command.argv[0])
        where = f"commands.{name}"
        if not program.is_absolute():
            yield Finding("fault", "commands", where, "argv[0] is not an absolute path")
        elif not os.access(program, os.X_OK):
            yield Finding("fault", "commands", where, f"{program} cannot be run by this user")
        else:
            yield doctor.public_file("commands", str(program), owner=0)
