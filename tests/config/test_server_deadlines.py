"""Slow clients: each limit is tiny here, and what is asserted is who is closed and how, never when."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from config.listeners import Limits
from tests.config.serving import GET, hello, served

POST = b"POST /a HTTP/1.1\r\nHost: localhost\r\n"


def test_a_connection_that_says_nothing_is_closed_without_a_word():
    with served(hello, limits=Limits(header_s=0.1)) as world, world.client() as client:
        client.assert_closed()


def test_headers_that_drip_are_refused_however_steadily_they_drip():
    with served(hello, limits=Limits(header_s=0.2)) as world, world.client(timeout=0.01) as client:
        client.send(b"GET /a HTTP/1.1\r\n")
        for _ in range(1000):
            client.send(b"X: a\r\n")
            try:
                client._more()
            except TimeoutError:
                continue
            break
        reply = client.reply()
        assert (reply.status, reply.code, reply.header("connection")) == (408, "request-timeout", "close")
        assert world.seen == []


def test_an_idle_connection_is_kept_for_its_time_and_then_closed_without_a_word():
    with served(hello, limits=Limits(keep_alive_s=0.2)) as world, world.client() as client:
        for _ in range(3):
            client.send(GET)
            assert client.reply().status == 200
        client.assert_closed()


def test_a_second_request_has_its_own_time_for_its_headers():
    with served(hello, limits=Limits(header_s=0.1)) as world, world.client() as client:
        client.send(GET + b"GET /a HTT")
        assert client.reply().status == 200
        assert client.reply().code == "request-timeout"
        client.assert_closed()


def test_a_body_that_stops_is_refused_and_the_application_sees_its_client_gone():
    got = []

    async def app(scope, receive, send):
        while True:
            message = await receive()
            got.append(message["type"])
            if message["type"] == "http.disconnect":
                return

    with served(app, limits=Limits(body_idle_s=0.1)) as world, world.client() as client:
        client.send(POST + b"Content-Length: 10\r\n\r\nhello")
        assert client.reply().code == "request-timeout"
        client.assert_closed()
    assert got == ["http.request", "http.disconnect"]


def test_a_body_that_drips_is_refused_however_steadily_it_drips():
    with served(hello, limits=Limits(body_idle_s=0.2)) as world, world.client(timeout=0.01) as client:
        client.send(POST + b"Content-Length: 1000000\r\n\r\n")
        for _ in range(1000):
            client.send(b"x")
            try:
                client._more()
            except TimeoutError:
                continue
            break
        assert client.reply().code == "request-timeout"


def test_a_body_that_stops_after_the_answer_began_cuts_the_answer():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ab", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    with served(app, limits=Limits(body_idle_s=0.1)) as world, world.client() as client:
        client.send(POST + b"Content-Length: 10\r\n\r\nhello")
        client.line_block()
        assert client.rest() == b"2\r\nab\r\n"


def test_an_application_that_takes_its_time_with_a_body_does_not_time_its_client_out():
    gate = threading.Event()

    async def app(scope, receive, send):
        await asyncio.get_running_loop().run_in_executor(None, gate.wait, 5)
        await hello(scope, receive, send)

    with contextlib.ExitStack() as stack:
        world = stack.enter_context(served(app, limits=Limits(body_idle_s=0.05, body_rate=10**9)))
        paused, waiting, other = (stack.enter_context(world.client()) for _ in range(3))
        paused.send(POST + b"Content-Length: 300000\r\n\r\n" + b"x" * 300_000)
        waiting.send(POST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        # Somebody else's timeout shows that the sweep came round.
        other.send(POST + b"Content-Length: 10\r\n\r\n")
        assert other.reply().code == "request-timeout"
        gate.set()
        assert waiting.reply().status == 100
        waiting.send(b"hello")
        assert waiting.reply().body == b"5"
        assert paused.reply().body == b"300000"


def test_an_application_may_take_longer_than_every_limit_to_answer():
    gate = threading.Event()

    async def app(scope, receive, send):
        await asyncio.get_running_loop().run_in_executor(None, gate.wait, 5)
        await hello(scope, receive, send)

    limits = Limits(header_s=0.05, body_idle_s=0.05, keep_alive_s=0.05)
    with served(app, limits=limits) as world, world.client() as client, world.client() as other:
        client.send(GET)
        other.assert_closed()
        gate.set()
        assert client.reply().status == 200


def test_many_slow_clients_do_not_slow_a_quick_one():
    with served(hello) as world:
        slow = [world.connect() for _ in range(200)]
        for client in slow:
            client.send(b"GET /a HTTP/1.1\r\nX: ")
        assert world.ask(GET).status == 200
        for client in slow:
            client.sock.close()


def test_a_client_that_ignores_its_refusal_is_dropped():
    with served(hello) as world, world.client() as client:
        client.send(POST + b"Origin: a\r\nContent-Length: 100000000\r\n\r\n")
        assert client.reply().status == 403
        try:
            for _ in range(1000):
                client.send(b"x" * 65536)
        except OSError:
            return
        raise AssertionError("it was read for ever")
