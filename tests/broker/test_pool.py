"""The connections to one origin: used again, bounded, in turn, and never given to two."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from broker.egress import Egress
from broker.wire.pool import Origin
from broker.wire.upstream import NO_BODY, UpstreamConnection
from broker.wire.whole import fetch
from config.problems import ProblemError
from config.settings import UpstreamSettings
from tests.worlds.recording import OK, Recording, recording


class World:
    """An API, and the pool of connections to it."""

    def __init__(self, api: Recording, egress: Egress):
        self.api = api
        self.egress = egress
        self.origin: Origin = egress.origin(api.url, private=False)

    async def ask(self, target: bytes = b"/a", *, limit: int = 1000) -> bytes:
        return (await fetch(self.origin, self.request(target), limit=limit)).body

    def request(self, target: bytes = b"/a") -> bytes:
        return b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target, self.origin.authority)

    async def use(self, connection: UpstreamConnection) -> None:
        """Make a call on a connection that was taken, so that the pool has it again."""
        await Given(connection).ask(self.request())


class Given:
    """A stand-in for an origin that has just this connection."""

    def __init__(self, connection: UpstreamConnection):
        self.connection = connection

    async def connect(self) -> UpstreamConnection:
        return self.connection

    async def ask(self, request: bytes) -> None:
        await fetch(self, request, limit=1000)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def world(**settings) -> AsyncIterator[World]:
    async with recording() as api:
        egress = Egress(UpstreamSettings(**settings))
        try:
            yield World(api, egress)
        finally:
            await egress.close()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def until(condition) -> None:
    """Wait for what a real socket brings about."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


# --- used again ---


async def test_calls_one_after_the_other_use_one_connection():
    async with world() as w:
        for number in range(20):
            assert await w.ask(b"/%d" % number) == b'{"ok":true}'
        assert (len(w.api.raw), len(w.api.requests)) == (1, 20)


async def test_the_connection_that_was_used_last_is_used_next():
    async with world() as w:
        first, second = await w.origin.connect(), await w.origin.connect()
        await w.use(first)
        await w.use(second)
        assert w.origin.idle() is second
        assert w.origin.idle() is first
        assert w.origin.idle() is None


async def test_a_fresh_connection_is_new_though_there_is_an_idle_one():
    async with world() as w:
        await w.ask()
        connection = await w.origin.connect(fresh=True)
        assert not connection.used
        await w.use(connection)
        assert len(w.api.raw) == 2


async def test_an_idle_connection_that_the_api_closes_is_not_used_again():
    async with world() as w:
        w.api.says(OK, then_close=True)
        for _ in range(3):
            await w.ask()
            await until(lambda: not w.origin._open)
            assert w.origin.idle() is None
        assert len(w.api.raw) == 3


async def test_an_api_that_closes_on_receipt_of_the_second_call_makes_it_stale():
    """Between the API's decision to close and our notice of it a call can go out."""
    async with world() as w:
        await w.ask()

        async def leave(_request, writer):
            writer.close()

        w.api.on_head = leave
        with pytest.raises(ProblemError, match="upstream-broke-off"):
            await w.ask()
        assert (w.origin._places, len(w.origin._open)) == (0, 0)


async def test_an_answer_that_nobody_asked_for_reaches_no_later_call():
    async with world() as w:
        w.api.says(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        for _ in range(3):
            assert await w.ask() == b'{"ok":true}'
        assert len(w.api.raw) == 3


async def test_an_idle_connection_is_closed_after_its_time(monkeypatch):
    async with world(keep_alive=30.0) as w:
        await w.ask()
        loop = asyncio.get_running_loop()
        timer = w.origin._timer
        assert timer is not None
        assert timer.when() - loop.time() == pytest.approx(30, abs=0.5)
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + 29)
        w.origin._expire()
        assert len(w.origin._idle) == 1
        monkeypatch.setattr(loop, "time", lambda: real() + 31)
        await w.api.until(lambda api: api.gone == 1)
        assert (w.origin._idle, w.origin._places, w.origin._timer) == ([], 0, None)
        await w.ask()
        assert len(w.api.raw) == 2


async def test_of_two_idle_connections_the_one_that_was_used_meanwhile_is_kept(monkeypatch):
    async with world(keep_alive=30.0) as w:
        first, second = await w.origin.connect(), await w.origin.connect()
        await w.use(first)
        loop = asyncio.get_running_loop()
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + 20)
        await w.use(second)
        monkeypatch.setattr(loop, "time", lambda: real() + 31)
        w.origin._expire()
        await w.api.until(lambda api: api.gone == 1)
        assert w.origin._idle == [second]
        assert w.origin._timer is not None


async def test_without_keep_alive_each_call_has_a_connection_of_its_own():
    async with world(keep_alive=0.0) as w:
        await w.ask()
        assert w.origin.idle() is None
        await w.ask()
        assert len(w.api.raw) == 2


# --- bounded, and in turn ---


async def test_no_more_than_the_limit_are_open_and_who_comes_first_is_served_first():
    async with world(max_connections=2) as w:
        taken = [await w.origin.connect(), await w.origin.connect()]
        order = []

        async def come(number):
            connection = await w.origin.connect()
            order.append(number)
            taken.append(connection)

        waiting = []
        for number in range(6):
            waiting.append(asyncio.create_task(come(number)))
            await turns()
        assert (order, w.origin._places) == ([], 2)
        for number in range(6):
            await w.use(taken.pop(0))
            await turns()
            assert order == list(range(number + 1))
        assert len(w.api.raw) == 2
        await asyncio.gather(*waiting)


async def test_a_closed_connection_makes_a_place_for_the_next():
    async with world(max_connections=1) as w:
        first = await w.origin.connect()
        waiting = asyncio.create_task(w.origin.connect())
        await turns()
        first.abandon()
        second = await waiting
        assert second is not first
        assert w.origin._places == 1


async def test_who_waits_for_a_fresh_connection_gets_the_place_of_the_next_that_is_free():
    async with world(max_connections=1) as w:
        first = await w.origin.connect()
        await w.use(first)
        taken = await w.origin.connect()
        assert taken is first
        waiting = asyncio.create_task(w.origin.connect(fresh=True))
        await turns()
        await w.use(first)
        fresh = await waiting
        assert first.closed
        assert not fresh.used
        await w.use(fresh)
        # One that is idle makes room at once.
        again = await w.origin.connect(fresh=True)
        assert (fresh.closed, again.used, w.origin._places) == (True, False, 1)


async def test_who_waits_too_long_is_told_so():
    async with world(max_connections=1, connect_timeout=0.05) as w:
        connection = await w.origin.connect()
        with pytest.raises(ProblemError, match="upstream-unreachable") as caught:
            await w.origin.connect()
        assert caught.value.retry_after == 1
        await w.use(connection)
        assert w.origin.idle() is connection


@pytest.mark.parametrize("fresh", [True, False])
async def test_who_gives_up_waiting_takes_nothing_with_them(fresh):
    async with world(max_connections=1) as w:
        connection = await w.origin.connect()
        waiting = [asyncio.create_task(w.origin.connect(fresh=fresh)) for _ in range(3)]
        await turns()
        waiting[0].cancel()
        waiting[2].cancel()
        await turns()
        await w.use(connection)
        got = await waiting[1]
        assert (got is connection, w.origin._places, len(w.origin._waiters)) == (not fresh, 1, 0)


@pytest.mark.parametrize("fresh", [True, False])
async def test_what_was_given_to_one_who_gives_up_goes_to_the_next(fresh):
    """Given and cancelled within one turn of the loop, in either order."""
    async with world(max_connections=1) as w:
        connection = await w.origin.connect()
        await w.use(connection)
        for given_first in (True, False):
            taken = await w.origin.connect()
            leaving = asyncio.create_task(w.origin.connect(fresh=fresh))
            staying = asyncio.create_task(w.origin.connect())
            await turns()
            if not given_first:
                leaving.cancel()
            w.origin.release(taken)
            if given_first:
                leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            got = await staying
            assert (w.origin._places, len(w.origin._open), len(w.origin._waiters)) == (1, 1, 0)
            await w.use(got)


async def test_a_connection_that_is_lost_on_its_way_to_one_who_waits_is_replaced():
    async with world(max_connections=1) as w:
        connection = await w.origin.connect()
        waiting = asyncio.create_task(w.origin.connect())
        await turns()
        w.origin.release(connection)
        connection.close()
        got = await waiting
        assert (got is not connection, got.closed, w.origin._places) == (True, False, 1)


async def test_a_connection_that_is_closed_when_it_comes_back_is_not_kept():
    async with world() as w:
        connection = await w.origin.connect()
        connection.close()
        w.origin.release(connection)
        assert (w.origin.idle(), w.origin._places) == (None, 0)


async def test_many_calls_at_once_share_few_connections():
    async with world(max_connections=3) as w:
        bodies = await asyncio.gather(*(w.ask(b"/%d" % number) for number in range(60)))
        assert bodies == [b'{"ok":true}'] * 60
        assert (len(w.api.raw), len(w.api.requests)) == (3, 60)


async def test_a_dial_that_fails_or_is_given_up_leaves_its_place():
    async with world(max_connections=1, connect_timeout=5.0) as w:
        hold = asyncio.Event()
        dial = w.origin._dial

        async def never(_owner):
            await hold.wait()

        async def shut(_owner):
            raise ConnectionRefusedError

        w.origin._dial = shut
        for _ in range(3):
            with pytest.raises(ProblemError, match="upstream-unreachable"):
                await w.origin.connect()
        w.origin._dial = never
        dialling = asyncio.create_task(w.origin.connect())
        await turns()
        waiting = asyncio.create_task(w.origin.connect())
        await turns()
        w.origin._dial = dial
        dialling.cancel()
        await w.use(await waiting)
        assert (w.origin._places, len(w.api.raw)) == (1, 1)


# --- the end ---


async def test_closing_ends_idle_and_busy_connections_and_who_waits():
    async with world(max_connections=2) as w:
        stuck = asyncio.Event()

        async def never(_request, _writer):
            await stuck.wait()

        await w.ask()
        w.api.answer = never
        busy = [asyncio.create_task(w.ask()), asyncio.create_task(w.ask())]
        await w.api.until(lambda api: len(api.requests) == 3)
        waiting = asyncio.create_task(w.ask())
        await turns()
        await w.egress.close()
        async with asyncio.timeout(2):
            codes = [outcome.code for outcome in await asyncio.gather(*busy, waiting, return_exceptions=True)]
        assert codes == ["upstream-broke-off", "upstream-broke-off", "upstream-unreachable"]
        await w.api.until(lambda api: api.gone == 2)
        with pytest.raises(ProblemError, match="upstream-unreachable"):
            await w.origin.connect()
        assert len(w.api.raw) == 2


async def test_a_connection_that_is_dialled_while_all_are_closed_is_closed_too():
    async with world() as w:
        dial = w.origin._dial
        hold = asyncio.Event()

        async def slow(owner):
            connection = await dial(owner)
            await hold.wait()
            return connection

        w.origin._dial = slow
        dialling = asyncio.create_task(w.origin.connect())
        await until(lambda: len(w.api.raw) == 1)
        await w.egress.close()
        hold.set()
        with pytest.raises(ProblemError, match="upstream-unreachable"):
            await dialling
        await w.api.until(lambda api: api.gone == 1)


async def test_a_connection_that_is_lost_before_it_is_taken_is_not_handed_out():
    async with world(max_connections=1) as w:
        dial = w.origin._dial

        async def lose(owner):
            connection = await dial(owner)
            connection.close()
            return connection

        w.origin._dial = lose
        with pytest.raises(ProblemError, match="upstream-unreachable"):
            await w.origin.connect()
        w.origin._dial = dial
        await w.ask()
        assert w.origin._places == 1


# --- a whole answer ---


async def test_an_answer_longer_than_asked_for_is_not_gathered():
    async with world() as w:
        w.api.says(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world")
        assert await w.ask(limit=11) == b"hello world"
        with pytest.raises(ProblemError, match="response-too-large"):
            await w.ask(limit=10)
        w.api.says(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\nhello world")
        with pytest.raises(ProblemError, match="response-too-large"):
            await w.ask(limit=10)
        await w.api.until(lambda api: api.gone == 1)
        assert w.origin.idle() is None


async def test_who_gives_up_on_an_answer_closes_its_connection():
    async with world() as w:
        stuck = asyncio.Event()

        async def never(_request, _writer):
            await stuck.wait()

        w.api.answer = never
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await w.ask()
        await w.api.until(lambda api: api.gone == 1)
        assert w.origin._places == 0


async def test_small_pieces_leave_at_once():
    async with world() as w:
        connection = await w.origin.connect()
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.send(_Nobody(), w.request(), head_only=False, body=NO_BODY)
        connection.abandon()


class _Nobody:
    """A receiver that is told nothing."""

    def __getattr__(self, name):
        raise AssertionError(name)
