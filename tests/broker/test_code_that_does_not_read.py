"""Code that does not read its answer: it is held up, and in the end cut."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator

import pytest

from broker.wire.exchange import CallsOnTheWire
from config.http_server import GroupServer
from config.listeners import Listener, ListenerGroup
from config.server import bind, release
from tests.broker.calling import World, eventually, nothing_else, world


@contextlib.asynccontextmanager
async def serving(w: World) -> AsyncIterator[GroupServer]:
    """The calls of ``w`` on a server of their own."""
    bound = bind(Listener.parse("127.0.0.1:0"))
    group = ListenerGroup(app=nothing_else, listeners=(bound.listener,), by="broker", direct=CallsOnTheWire(w.endpoint))
    server = GroupServer(group, [bound], None, 1)
    await server.startup()
    try:
        w.port = bound.listener.port
        yield server
    finally:
        server.cut.set()
        await server.shutdown()
        release(bound)


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
        async with serving(w) as server:
            code = await w.connect()
            await code.send(w.request("GET", "/v1/items"))
            await code.reader.readuntil(b"\r\n\r\n")
            before = -1
            while sent != before:
                before = sent
                for _ in range(200):
                    await asyncio.sleep(0)
            granted = w.run.profiles["api"]
            limits = server.group.limits
            server.state.sweep(loop.time() + limits.write_idle_s - 5)
            assert granted.in_flight == 1
            server.state.sweep(loop.time() + limits.write_idle_s + 1)
            await w.api.until(lambda api: api.gone == 1)
            assert granted.in_flight == 0
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await code.reader.readexactly(1_000_000_000)
    assert sent < 50_000_000


async def test_a_small_body_that_opens_to_many_pieces_does_not_lie_in_memory(tmp_path):
    """Each compressed part is small when it is opened, and a segment holds hundreds of them."""
    part, parts = bytes(16_000), 900
    body = gzip.compress(part) * parts
    async with world(tmp_path) as w:
        w.api.says(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        async with serving(w) as server:
            code = await w.connect()
            code.writer.transport.pause_reading()
            await code.send(w.request("GET", "/v1/items"))
            await eventually(lambda: w.run.profiles["api"].in_flight)
            [connection] = server.state.server_state.connections
            await eventually(lambda: connection.flow.write_paused)
            assert sum(map(len, connection.active.out)) < 2_000_000
            assert connection.transport.get_write_buffer_size() < 4_000_000
            code.writer.transport.resume_reading()
            assert (await code.reply()).body == part * parts
