"""Live leases in memory: a cache of the lease table, without their values, rebuilt at every start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from config.clock import Clock, Deadline
from minter.lease_rows import LeaseRow

Key = tuple[str, str, str]


@dataclass(slots=True, eq=False)
class Live:
    """A live lease. Its credential stands sealed in the state alone: see minter/lease_values.py."""

    row: LeaseRow

    @property
    def key(self) -> Key:
        """What there is at most one live lease of."""
        return (self.row.broker, self.row.run_id, self.row.profile)

    def remaining(self, clock: Clock, *, highest_wall: float) -> float:
        """Return the seconds left by whichever clock ends it first; zero or less means ended."""
        row = self.row
        deadline = Deadline(row.expires_at, row.boot_expires_at, row.boot_id)
        return deadline.remaining(clock, highest_wall=highest_wall)


class Book:
    """All live leases, by id, by run and, the current ones, by (broker, run, profile).

    A lease that was replaced because it is near its end is no longer current, and stays live until its end: calls
    that are under way carry it. :meth:`take` is how a lease ends: whoever takes it is the one who ends it, and
    nobody can take it again.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Live] = {}
        self._by_run: dict[tuple[str, str], set[Live]] = {}
        self._current: dict[Key, Live] = {}
        self._count: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Live]:
        return iter(list(self._by_id.values()))

    def add(self, live: Live) -> None:
        """Note a lease that was committed as the current one of its key."""
        row = live.row
        self._by_id[row.id] = live
        self._by_run.setdefault((row.broker, row.run_id), set()).add(live)
        self._current[live.key] = live
        self._count[row.broker, row.profile] += 1

    def current(self, key: Key) -> Live | None:
        """Return the current lease of (broker, run, profile)."""
        return self._current.get(key)

    def get(self, id_: str) -> Live | None:
        """Return a live lease by its id."""
        return self._by_id.get(id_)

    def of_run(self, broker: str, run_id: str) -> list[Live]:
        """Return the live leases of a run."""
        return list(self._by_run.get((broker, run_id), ()))

    def take(self, leases: Iterable[Live]) -> list[Live]:
        """Remove leases, and return those that were still there."""
        taken = []
        for live in leases:
            row = live.row
            if self._by_id.get(row.id) is not live:
                continue
            del self._by_id[row.id]
            of_run = self._by_run[row.broker, row.run_id]
            of_run.discard(live)
            if not of_run:
                del self._by_run[row.broker, row.run_id]
            if self._current.get(live.key) is live:
                del self._current[live.key]
            self._count[row.broker, row.profile] -= 1
            if not self._count[row.broker, row.profile]:
                del self._count[row.broker, row.profile]
            taken.append(live)
        return taken

    def count(self, broker: str, profile: str) -> int:
        """Return how many leases of a broker and profile are live."""
        return self._count[broker, profile]

    def by_kind(self) -> Counter[str]:
        """Return how many leases are live of each kind."""
        return Counter(live.row.kind for live in self._by_id.values())
