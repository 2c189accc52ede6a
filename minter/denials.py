"""Denials and refusals reach the audit log, at a rate that nobody can use to fill it. They never wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from config.clock import Clock
from config.problems import ProblemError
from minter.audit_events import Event, Value
from minter.limits import Rate
from minter.store import Store

#: Events at once, and then a second, for each peer and code.
_AT_ONCE: Final = 5.0
_PER_S: Final = 0.1


class Recorder:
    """Writes events that nobody waits for: what they tell of has been answered already."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, event: Event) -> None:
        """Write one event soon."""
        task = asyncio.create_task(self._write(event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, event: Event) -> None:
        # A log that cannot be written shows in readiness, and the store owes it the event.
        with contextlib.suppress(ProblemError):
            await self._store.write(lambda _connection: (None, [event]))

    async def drain(self) -> None:
        """Wait until all that was asked for is written."""
        while self._tasks:
            await asyncio.wait(self._tasks)


class Denials:
    """Callers without the right to call. ``count`` is told each of them, by its problem code."""

    def __init__(self, record: Recorder, clock: Clock, *, count: Callable[[str], None]) -> None:
        self._record = record
        self._rate = Rate(clock, per_s=_PER_S, burst=_AT_ONCE)
        self._count = count

    def note(self, code: str, *, uid: int | None, operation: str, principal: str | None = None) -> None:
        """Note one denial. ``operation`` is a route of ours, never what was sent."""
        self._count(code)
        if not self._rate.wait_s((uid, code)):
            given: dict[str, Value] = {"problem": code, "uid": uid, "operation": operation, "principal": principal}
            self._record(Event("access.denied", {name: value for name, value in given.items() if value is not None}))


class Operators:
    """Who may use the admin API, by the user that the peer's process runs as."""

    def __init__(self, *, operators: Iterable[int], auditors: Iterable[int], denials: Denials) -> None:
        self._operators = frozenset(operators)
        self._readers = self._operators | frozenset(auditors)
        self._denials = denials

    def operator(self, scope: Mapping[str, Any], *, operation: str) -> int:
        """Return the operator's uid, or refuse: ``operator-required``."""
        return self._one_of(self._operators, "operator-required", scope, operation)

    def reader(self, scope: Mapping[str, Any], *, operation: str) -> int:
        """Return an operator's or auditor's uid, or refuse: ``auditor-required``."""
        return self._one_of(self._readers, "auditor-required", scope, operation)

    def _one_of(self, allowed: frozenset[int], code: str, scope: Mapping[str, Any], operation: str) -> int:
        peer = scope.get("peer")
        if peer is None or peer.uid not in allowed:
            self._denials.note(code, uid=None if peer is None else peer.uid, operation=operation)
            raise ProblemError(code)
        uid: int = peer.uid
        return uid
