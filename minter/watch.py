"""The stream of ended leases: what tells a broker within moments that a credential is no longer to be used."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final

import msgspec

from config.contract import WATCH_BEAT_S, EndedLease
from minter.lease_rows import LeaseRow

#: A broker that is so far behind is cut off: it revalidates what it holds and watches anew.
MAX_BEHIND: Final = 100_000
_CHUNK: Final = 500
_BEAT: Final = msgspec.json.encode(EndedLease()) + b"\n"


class _Watcher:
    __slots__ = ("cut", "ended", "wake")

    def __init__(self) -> None:
        self.ended: deque[EndedLease] = deque()
        self.wake = asyncio.Event()
        self.cut = False


class WatchHub:
    """Hands each broker the ends of its own leases, and a beat when nothing ends."""

    def __init__(self) -> None:
        self._watchers: dict[str, set[_Watcher]] = {}
        self._closed = False

    def publish(self, rows: Iterable[LeaseRow], reason: str) -> None:
        """Tell whoever watches that these leases have ended."""
        for row in rows:
            for watcher in self._watchers.get(row.broker, ()):
                if len(watcher.ended) >= MAX_BEHIND:
                    watcher.cut = True
                else:
                    watcher.ended.append(
                        EndedLease(lease_id=row.id, run_id=row.run_id, profile=row.profile, reason=reason)
                    )
                watcher.wake.set()

    async def lines(self, broker: str, *, beat_s: float = WATCH_BEAT_S) -> AsyncIterator[bytes]:
        """Yield JSON lines until the service closes or the reader is too far behind. The first is a beat, at once."""
        watcher = _Watcher()
        self._watchers.setdefault(broker, set()).add(watcher)
        try:
            yield _BEAT
            while not (self._closed or watcher.cut):
                try:
                    async with asyncio.timeout(beat_s):
                        await watcher.wake.wait()
                except TimeoutError:
                    yield _BEAT
                    continue
                watcher.wake.clear()
                while watcher.ended:
                    count = min(_CHUNK, len(watcher.ended))
                    yield b"".join(msgspec.json.encode(watcher.ended.popleft()) + b"\n" for _ in range(count))
        finally:
            self._watchers[broker].discard(watcher)
            if not self._watchers[broker]:
                del self._watchers[broker]

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.wake.set()
