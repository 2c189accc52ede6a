"""Live leases in memory: a cache of the lease table, without their values, rebuilt at every start.

A million of them must fit, and must not slow down whatever else happens. So a lease is a packed row and not an
object: dicts of text and bytes are what the garbage collector does not look into.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from config.clock import Clock, Deadline
from minter.lease_rows import LeaseRow
from minter.packing import pack, unpack

Key = tuple[str, str, str]

#: So many leases are looked at before others are answered: some milliseconds.
SLICE: Final = 2000


class Live:
    """A live lease: its id, and its row in few bytes. Its credential stands sealed in the state alone."""

    __slots__ = ("id", "packed")

    def __init__(self, row: LeaseRow) -> None:
        self.id = row.id
        self.packed = pack(row)

    @classmethod
    def of(cls, id_: str, packed: bytes) -> Live:
        """Return the lease of a row that was packed."""
        live = cls.__new__(cls)
        live.id, live.packed = id_, packed
        return live

    @property
    def row(self) -> LeaseRow:
        """A copy of the row: ask once for several fields."""
        return unpack(self.id, self.packed)

    @property
    def key(self) -> Key:
        """What there is at most one current lease of."""
        return _key(self.row)

    def remaining(self, clock: Clock, *, highest_wall: float) -> float:
        """Return the seconds left by whichever clock ends it first; zero or less means ended."""
        row = self.row
        deadline = Deadline(row.expires_at, row.boot_expires_at, row.boot_id)
        return deadline.remaining(clock, highest_wall=highest_wall)


class Book:
    """All live leases, by id and by run.

    A lease that was replaced because it is near its end is no longer current, and stays live until its end: calls
    that are under way carry it. :meth:`take` is how a lease ends: whoever takes it is the one who ends it, and
    nobody can take it again.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, bytes] = {}
        #: Ids of a run's leases, the newest last, with blanks between. Runs of two brokers may have the same id.
        self._by_run: dict[str, str] = {}
        self._replaced: set[str] = set()
        self._count: Counter[tuple[str, str]] = Counter()
        self._kinds: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._by_id

    def __iter__(self) -> Iterator[Live]:
        """Yield the leases that are live now, without those that end meanwhile."""
        return self._live(list(self._by_id))

    def slices(self) -> Iterator[list[Live]]:
        """Yield the leases that are live now in parts, between which others may be answered."""
        leases = iter(self)
        while some := list(islice(leases, SLICE)):
            yield some

    def add(self, row: LeaseRow) -> Live:
        """Note a lease that was committed as the current one of its key, and return it."""
        before = self.current(_key(row))
        if before is not None:
            self._replaced.add(before.id)
        live = Live(row)
        self._by_id[row.id] = live.packed
        others = self._by_run.get(row.run_id)
        self._by_run[row.run_id] = row.id if others is None else f"{others} {row.id}"
        self._count[row.broker, row.profile] += 1
        self._kinds[row.kind] += 1
        return live

    def current(self, key: Key) -> Live | None:
        """Return the current lease of (broker, run, profile)."""
        for live in self._of(key[1]):
            if live.id not in self._replaced and live.key == key:
                return live
        return None

    def get(self, id_: str) -> Live | None:
        """Return a live lease by its id."""
        packed = self._by_id.get(id_)
        return None if packed is None else Live.of(id_, packed)

    def of_run(self, broker: str, run_id: str) -> list[Live]:
        """Return the live leases of a run."""
        return [live for live in self._of(run_id) if live.row.broker == broker]

    def take(self, leases: Iterable[Live]) -> list[Live]:
        """Remove leases, and return those that were still there."""
        return [live for live in leases if self._take(live)]

    def _take(self, live: Live) -> bool:
        if self._by_id.pop(live.id, None) is None:
            return False
        row = live.row
        others = [id_ for id_ in self._by_run[row.run_id].split() if id_ != live.id]
        if others:
            self._by_run[row.run_id] = " ".join(others)
        else:
            del self._by_run[row.run_id]
        self._replaced.discard(live.id)
        _less(self._count, (row.broker, row.profile))
        _less(self._kinds, row.kind)
        return True

    def count(self, broker: str, profile: str) -> int:
        """Return how many leases of a broker and profile are live."""
        return self._count[broker, profile]

    def by_kind(self) -> Counter[str]:
        """Return how many leases are live of each kind."""
        return self._kinds.copy()

    def _of(self, run_id: str) -> Iterator[Live]:
        return self._live(self._by_run.get(run_id, "").split())

    def _live(self, ids: Iterable[str]) -> Iterator[Live]:
        for id_ in ids:
            packed = self._by_id.get(id_)
            if packed is not None:
                yield Live.of(id_, packed)


def _key(row: LeaseRow) -> Key:
    return (row.broker, row.run_id, row.profile)


def _less(counter: Counter[Any], of: Any) -> None:
    counter[of] -= 1
    if not counter[of]:
        del counter[of]
