"""The minter, assembled and running.

Order of a start: harden the process, look at who may change its files, lock and migrate the state, open the audit log,
read grants and secrets, take up what is live, listen, say so. What does not load ends it with every fault named, before
anybody is answered.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Final

import structlog
from msgspec.structs import replace

from config import logs, process, server
from config.clock import Clock
from config.errors import ConfigurationError, ExitCode, Fault
from config.listeners import affordable
from config.load import program_clock
from config.problems import ProblemError
from config.server import Bound
from config.settings import MinterSettings
from minter import failpoints, own_files
from minter.audit_events import Event, Value
from minter.listening import ADMIN_CONNECTIONS, Listening
from minter.minter import Minter
from minter.reload import summary

#: Open files that connections leave to the state, the audit log, sources and helpers.
_OWN_FILES: Final = 64

_log = structlog.get_logger()


def serve(settings: MinterSettings, config: Path) -> int:
    """Run the minter until it is asked to end; return the exit status. ``config`` is where the settings stand.

    Errors: ``ConfigurationError`` with every fault.
    """
    logs.set_up("minter", settings.log_level)
    _arm_failpoint(os.environ)
    process.harden()
    process.refuse_root("minter", allowed=settings.allow_root)
    own_files.check(settings, config)
    open_files = process.raise_open_files()
    clock, moved_by = program_clock(os.environ, settings.PREFIX)
    if moved_by is not None:
        _log.warning("TEST CLOCK: a file moves this program's time; never do this in production", file=str(moved_by))
    # Brokers and verifiers have as many connections each.
    limits = affordable(settings.limits, open_files, own=_OWN_FILES + ADMIN_CONNECTIONS, each=2)
    server.run(_main(replace(settings, limits=limits), clock, os.environ))
    return ExitCode.OK


def _arm_failpoint(environ: MutableMapping[str, str]) -> None:
    try:
        name = failpoints.arm(environ)
    except ValueError as error:
        raise ConfigurationError([Fault(failpoints.VARIABLE, str(error))]) from None
    if name is not None:
        _log.warning("TEST FAILPOINT: this program kills itself; never do this in production", failpoint=name)


async def _main(settings: MinterSettings, clock: Clock, environ: MutableMapping[str, str]) -> None:
    listening = Listening.of(settings)
    minter = await Minter.start(settings, clock=clock, environ=environ)
    process.settle_memory()

    async def on_ready(bound: Sequence[Bound]) -> None:
        # The uid is who runs it: an auditor's first question.
        started: dict[str, Value] = {"program": f"minter {version('minter-broker')}", "uid": os.geteuid()}
        await minter.tell(Event("service.started", started | summary(minter.admission.policy, minter.custody)))
        _log.info("ready", listen=[str(one.listener) for one in bound], **asdict(process.facts()))

    async def on_hup() -> None:
        try:
            await minter.reloader.reload()
        except ProblemError as error:
            _log.warning("reload-refused", code=error.code)

    async def on_usr1() -> None:
        await minter.audit_calls.go_on_anew()

    def on_drain() -> None:
        _log.info("draining")
        minter.hub.close()

    try:
        await server.serve(
            listening.groups(minter),
            on_ready=on_ready,
            on_hup=on_hup,
            on_usr1=on_usr1,
            on_drain=on_drain,
            drain_s=float(settings.drain),
        )
    finally:
        await minter.stop(drain_s=float(settings.drain))
        _log.info("stopped")
