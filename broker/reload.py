"""Reading grants and callers again while runs are open: all or nothing.

Both files are read and checked before anything changes; with a fault in either, both stay as they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from broker.callers import Callers
from broker.current import Current
from broker.metrics import Metrics
from broker.runs import Registry
from config.errors import ConfigurationError, Fault
from config.grants import Grants

log = structlog.get_logger("broker.reload")


class Reloader:
    """What SIGHUP and ``broker reload`` do."""

    def __init__(
        self, *, read_grants: Callable[[], Grants], callers: Callers, registry: Registry, metrics: Metrics
    ) -> None:
        """Take how the grants are read, and who goes by them."""
        self._read_grants = read_grants
        self._callers = callers
        self._registry = registry
        self._metrics = metrics
        self._alone = asyncio.Lock()

    async def reload(self) -> Sequence[Fault]:
        """Read everything again and go by it; return the faults, with which nothing has changed."""
        async with self._alone:
            faults: list[Fault] = []
            callers = current = None
            try:
                # A large file takes seconds to read and compile: calls and streams go on meanwhile.
                current = await asyncio.to_thread(lambda: Current(self._read_grants()))
            except ConfigurationError as error:
                faults += error.faults
            try:
                callers = self._callers.read()
            except ConfigurationError as error:
                faults += error.faults
            if current is None or callers is None:
                log.error("reload-refused", faults=[str(fault) for fault in faults])
                self._metrics.reloaded("refused")
                return faults
            before = self._registry.current.grants.digest
            self._callers.take(callers)
            await self._registry.regrant(current)
            self._metrics.reloaded("ok")
            log.info("reloaded", grants=current.grants.digest, before=before, profiles=len(current.grants.profiles))
            return ()
