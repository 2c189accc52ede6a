"""Code that does not read its answer: it is held up, and in the end cut."""

from __future__ import annotations

import asyncio

import pytest

from broker.wire.exchange import CallsOnTheWire
from config.http_server import GroupServer
from config.listeners import Listener, ListenerGroup
from config.server import bind, release
from tests.broker.calling import nothing_else, world


async def test_code_that_does_not_read_is_cut_after_its_time_and_frees_its_slot(tmp_path):
    """A minute, unless it reads meanwhile. The connection to the API is closed, too."""
    loop = asyncio.get_running_loop()
    sent = 0

    async def endless(_request, writer):
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while True:
            writer.write(bytes(65536))
            await writer.drain()
            sent += 65536

    async with world(tmp_path, max_response="1GiB", scrub="off") as w:
        w.api.answer = endless
        bound = bind(Listener.parse("127.0.0.1:0"))
        group = ListenerGroup(
            app=nothing_else, listeners=(bound.listener,), by="broker", direct=CallsOnTheWire(w.endpoint)
        )
        server = GroupServer(group, [bound], None, 1)
        await server.startup()
        try:
            w.port = bound.listener.port
            code = await w.connect()
            await code.send(w.request("GET", "/v1/items"))
            await code.reader.readuntil(b"\r\n\r\n")
            before = -1
            while sent != before:
                before = sent
                for _ in range(200):
                    await asyncio.sleep(0)
            granted = w.run.profiles["api"]
            server.state.sweep(loop.time() + group.limits.write_idle_s - 5)
            assert granted.in_flight == 1
            server.state.sweep(loop.time() + group.limits.write_idle_s + 1)
            await w.api.until(lambda api: api.gone == 1)
            assert granted.in_flight == 0
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await code.reader.readexactly(1_000_000_000)
        finally:
            server.cut.set()
            await server.shutdown()
            release(bound)
    assert sent < 50_000_000
