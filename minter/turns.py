"""Taking turns: kinds one after the other, within a kind profiles, so that none waits for another's long queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from minter.lease_queue import Group

T = TypeVar("T")


@dataclass(slots=True)
class _Lanes(Generic[T]):
    """What waits in one group: what has just come, and what has waited longest; each second turn is of the other."""

    fresh: deque[T] = field(default_factory=deque)
    old: deque[T] = field(default_factory=deque)
    fresh_next: bool = True

    def __len__(self) -> int:
        return len(self.fresh) + len(self.old)

    def pop(self) -> T:
        lane = self.fresh if self.fresh and (self.fresh_next or not self.old) else self.old
        self.fresh_next = not self.fresh_next
        return lane.popleft()


class Turns(Generic[T]):
    """Things that wait, by (kind, profile)."""

    def __init__(self) -> None:
        #: Kinds and their profiles, whose turn is next first.
        self._waiting: dict[str, dict[str, _Lanes[T]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def of(self, group: Group) -> int:
        """Return how many wait in a group."""
        kind, profile = group
        lanes = self._waiting.get(kind, {}).get(profile)
        return 0 if lanes is None else len(lanes)

    def put(self, group: Group, thing: T, *, fresh: bool) -> None:
        """Let a thing wait."""
        kind, profile = group
        lanes = self._waiting.setdefault(kind, {}).setdefault(profile, _Lanes())
        (lanes.fresh if fresh else lanes.old).append(thing)
        self._count += 1

    def next(self, may: Callable[[Group], bool]) -> Group | None:
        """Return the group whose turn it is, of those that may; None when none may."""
        for kind, profiles in self._waiting.items():
            for profile in profiles:
                if may((kind, profile)):
                    return kind, profile
        return None

    def take(self, group: Group) -> T:
        """Take the next thing of a group: then the turn is the others'."""
        kind, profile = group
        profiles = self._waiting.pop(kind)
        lanes = profiles.pop(profile)
        thing = lanes.pop()
        self._count -= 1
        if lanes:
            profiles[profile] = lanes
        if profiles:
            self._waiting[kind] = profiles
        return thing

    def clear(self) -> None:
        """Forget all."""
        self._waiting.clear()
        self._count = 0
