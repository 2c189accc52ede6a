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
#: A broker needs one stream. Of more than these the oldest is cut: it may be one that a restarted broker left.
MAX_STREAMS: Final = 16
_CHUNK: Final = 500
_BEAT: Final = msgspec.json.encode(EndedLease()) + b"\n"


class _Watcher:
    __slots__ = ("cut", "ended", "last", "wake")

    def __init__(self) -> None:
        self.ended: deque[bytes] = deque()
        self.wake = asyncio.Event()
        self.cut = False
        #: It ends once what is there was told.
        self.last = False


class WatchHub:
    """Hands each broker the ends of its own leases, and a beat when nothing ends."""

    def __init__(self) -> None:
        #: Of each broker, the oldest first.
        self._watchers: dict[str, dict[_Watcher, None]] = {}
        self._closed = False

    def publish(self, rows: Iterable[LeaseRow], reason: str) -> None:
        """Tell whoever watches that these leases have ended."""
        for row in rows:
            watchers = self._watchers.get(row.broker)
            if not watchers:
                continue
            ended = EndedLease(lease_id=row.id, run_id=row.run_id, profile=row.profile, reason=reason)
            line = msgspec.json.encode(ended) + b"\n"
            for watcher in tuple(watchers):
                if len(watcher.ended) >= MAX_BEHIND:
                    self._cut(row.broker, watcher)
                else:
                    watcher.ended.append(line)
                    watcher.wake.set()

    async def lines(self, broker: str, *, beat_s: float = WATCH_BEAT_S) -> AsyncIterator[bytes]:
        """Yield JSON lines until the service closes or the reader is too far behind. The first is a beat, at once."""
        watcher = _Watcher()
        watchers = self._watchers.setdefault(broker, {})
        watchers[watcher] = None
        if len(watchers) > MAX_STREAMS:
            self._cut(broker, next(iter(watchers)))
        try:
            yield _BEAT
            while not (self._closed or watcher.cut or (watcher.last and not watcher.ended)):
                try:
                    async with asyncio.timeout(beat_s):
                        await watcher.wake.wait()
                except TimeoutError:
                    yield _BEAT
                    continue
                watcher.wake.clear()
                while watcher.ended:
                    count = min(_CHUNK, len(watcher.ended))
                    yield b"".join(watcher.ended.popleft() for _ in range(count))
        finally:
            self._cut(broker, watcher)

    def _cut(self, broker: str, watcher: _Watcher) -> None:
        """Have a stream end, and forget at once what it was still to be told: its reader may never take it."""
        watcher.cut = True
        watcher.ended.clear()
        watcher.wake.set()
        watchers = self._watchers.get(broker, {})
        watchers.pop(watcher, None)
        if not watchers:
            self._watchers.pop(broker, None)

    def dismiss(self, broker: str) -> None:
        """End the streams of a broker, once what has ended was told: whoever may still watch asks anew."""
        for watcher in self._watchers.pop(broker, {}):
            watcher.last = True
            watcher.wake.set()

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.wake.set()
