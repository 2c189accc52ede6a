"""The recording API of ``tests/worlds/recording.py`` in a thread, for tests that talk to real processes."""

from __future__ import annotations

import asyncio
import threading
from typing import Self

from tests.worlds.recording import OK, Answer, Recording, Request, recording


class Upstream:
    """Records the bytes of every connection. ``requests`` and ``received`` count from the last :meth:`forget`."""

    def __init__(self) -> None:
        self._recording: Recording
        self._loop: asyncio.AbstractEventLoop
        self._begun = threading.Event()
        self._stop: asyncio.Event
        self._seen: dict[int, int] = {}
        self._requests_seen = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with recording() as self._recording:
            self._begun.set()
            await self._stop.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._begun.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def origin(self) -> str:
        return self._recording.url

    @property
    def requests(self) -> list[Request]:
        """The complete requests."""
        return self._recording.requests[self._requests_seen :]

    @property
    def received(self) -> bytes:
        """Every byte, whether it was part of a complete request or not."""
        return b"".join(bytes(raw[self._seen.get(n, 0) :]) for n, raw in enumerate(self._recording.raw))

    @property
    def connections(self) -> int:
        return len(self._recording.raw)

    @property
    def gone(self) -> int:
        """How many connections have ended."""
        return self._recording.gone

    def forget(self) -> None:
        """Begin anew, with the usual answer."""
        self._seen = {n: len(raw) for n, raw in enumerate(self._recording.raw)}
        self._requests_seen = len(self._recording.requests)
        self._recording.on_head = None
        self.says(OK)

    def says(self, data: bytes, *, then_close: bool = False) -> None:
        self._recording.says(data, then_close=then_close)

    def answers(self, answer: Answer) -> None:
        self._recording.answer = answer

    def answers_heads(self, answer: Answer) -> None:
        """Answer as soon as the head of a request is there, or not at all; the body is not read before."""
        self._recording.on_head = answer
