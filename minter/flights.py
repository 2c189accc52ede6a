"""Mints under way: one at a time for each (broker, run, profile), in a task that belongs to none who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from minter.admission import Asked
from minter.book import Key, Live
from minter.lease_values import Lent


class OvertakenError(Exception):
    """A lease was ended as soon as it was made, but its run may have another: ask again."""


@dataclass(frozen=True, slots=True)
class Order:
    """An end that was asked for while a lease was being made: it applies as soon as the lease is there.

    ``final``: it was meant for the run, which gets no other lease in its place.
    """

    which: Callable[[Live], bool]
    reason: str
    uid: int | None = None
    final: bool = False


@dataclass(slots=True, eq=False)
class Flight:
    """A mint under way, what it is for, and what was ordered meanwhile."""

    asked: Asked
    task: asyncio.Task[Lent] | None = None
    orders: list[Order] = field(default_factory=list)

    async def landed(self) -> Lent:
        """Wait for it. Whoever gives up waiting does not take it along.

        Errors: those of the mint, among them :class:`OvertakenError`.
        """
        if self.task is None:
            raise RuntimeError("a flight is waited for once it has taken off")
        return await asyncio.shield(self.task)


class Flights:
    """All mints under way."""

    def __init__(self) -> None:
        self._flights: dict[Key, Flight] = {}

    def find(self, key: Key) -> Flight | None:
        """Return the mint under way for ``key``; one that has ended is none, also before its end was told."""
        flight = self._flights.get(key)
        return None if flight is None or flight.task is None or flight.task.done() else flight

    def take_off(self, asked: Asked, mint: Callable[[Flight], Coroutine[Any, Any, Lent]]) -> Flight:
        """Begin a mint."""
        flight = self._flights[asked.key] = Flight(asked)
        flight.task = asyncio.create_task(mint(flight))
        flight.task.add_done_callback(lambda task: self._land(flight, task))
        return flight

    def _land(self, flight: Flight, task: asyncio.Task[Lent]) -> None:
        # Another may have taken off between the end of this one and now.
        if self._flights.get(flight.asked.key) is flight:
            del self._flights[flight.asked.key]
        if not task.cancelled():
            task.exception()  # everybody may have gone by now

    def order(self, order: Order, *, of: Callable[[Key], bool] = lambda _key: True) -> None:
        """Have leases that are just being made ended when they are there."""
        for key, flight in self._flights.items():
            if of(key):
                flight.orders.append(order)

    async def drain(self, timeout_s: float) -> None:
        """Wait for all of them, not for ever: what is given up shows as a suspect after the next start."""
        tasks = [flight.task for flight in self._flights.values() if flight.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
