"""An API that waits to be told, and what becomes of a call whose client leaves meanwhile."""

from __future__ import annotations

import asyncio
import threading

#: The head of an answer that comes piece by piece.
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Gate:
    """What the API waits for before it answers, and whether its client left it meanwhile."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.left = threading.Event()

    async def passed(self) -> None:
        try:
            while not self.open.is_set():  # noqa: ASYNC110 - the event is another thread's
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def before_the_head(self, _request, writer):
        await self.passed()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async def after_the_head(self, _request, writer):
        writer.write(HEAD + b"4\r\none\n\r\n")
        await self.passed()
        writer.write(b"4\r\ntwo\n\r\n0\r\n\r\n")


def in_flight(house, run, profile: str = "items") -> int:
    reply = house.http("GET", "/v1/self", headers={"Authorization": f"Bearer {run.token}"})
    return reply.json["profiles"][profile]["in_flight"]


def begun(house, run) -> None:
    house.until(lambda: in_flight(house, run) == 1, "the call has begun")


def over(house, upstream, run) -> None:
    """The slot is free, the API was left, and the next call of the run is made as if nothing had been."""
    house.until(lambda: in_flight(house, run) == 0, "the slot is free")
    upstream.forget()
    assert house.call(run, "GET", "/v1/items", profile="items").status == 200
