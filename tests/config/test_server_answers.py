"""What a client gets: whole answers, or a connection that visibly breaks off."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
import structlog

from config.listeners import Limits
from config.problems import ProblemError
from tests.config.serving import GET, served

CANARY = "canary-5f3a"


def start(status=200, *headers):
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data=b"", more=False):
    return {"type": "http.response.body", "body": data, "more_body": more}


def sends(*messages):
    async def app(scope, receive, send):
        for message in messages:
            if isinstance(message, Exception):
                raise message
            await send(message)

    return app


async def exits(scope, receive, send):
    raise SystemExit(CANARY)


@contextlib.contextmanager
def asking(app, data=GET, **group):
    with served(app, **group) as world, world.client() as client:
        client.send(data)
        yield client


def test_an_answer_without_a_length_is_chunked_and_the_connection_stays():
    with asking(sends(start(), body(b"ab", more=True), body(b"", more=True), body(b"c"))) as client:
        reply = client.reply()
        assert (reply.header("transfer-encoding"), reply.body) == ("chunked", b"abc")
        assert reply.header("date")
        assert reply.header("server") is None
        client.send(GET)
        assert client.reply().body == b"abc"


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"4")]])
def test_an_answer_that_breaks_off_is_cut_so_that_the_client_notices(headers):
    with asking(sends(start(200, *headers), body(b"ab", more=True), ValueError(CANARY))) as client, \
            pytest.raises(AssertionError, match="closed after"):  # fmt: skip
        client.reply()


def test_an_answer_to_http_1_0_that_breaks_off_is_reset():
    old = b"GET /a HTTP/1.0\r\nHost: localhost\r\n\r\n"
    with asking(sends(start(), body(b"ab", more=True), ValueError(CANARY)), old) as client, \
            pytest.raises(ConnectionResetError):  # fmt: skip
        client.reply()


def test_an_answer_to_http_1_0_ends_with_the_connection():
    with asking(sends(start(), body(b"ab", more=True), body(b"c")), b"GET /a HTTP/1.0\r\nHost: localhost\r\n\r\n") as c:
        reply = c.reply()
        assert (reply.header("transfer-encoding"), reply.body) == (None, b"abc")


@pytest.mark.parametrize(
    "app",
    [
        sends(ValueError(CANARY)),
        exits,
        sends(),
        sends(body(b"x")),
        sends(start(100), body()),
        sends(start(200, (b"x", b"a\r\nset-cookie: b")), body()),
        sends(start(200, (b"x y", b"a")), body()),
        sends(start(200, (b"content-length", b"1"), (b"content-length", b"1")), body(b"x")),
    ],
    ids=[
        "raises",
        "exits",
        "sends nothing",
        "sends a body first",
        "interim",
        "injects a header",
        "bad name",
        "two lengths",
    ],
)
def test_an_application_that_fails_is_answered_500_without_a_word_of_why(app):
    with structlog.testing.capture_logs() as logs, asking(app) as client:
        reply = client.reply()
        assert (reply.status, reply.code, reply.header("connection")) == (500, "internal-error", "close")
        client.assert_closed()
    assert CANARY not in str(reply) + str(logs)
    assert logs


def test_a_failure_is_logged_with_its_type_its_place_and_the_id_that_the_client_got():
    with structlog.testing.capture_logs() as logs, asking(sends(ValueError(CANARY))) as client:
        reply = client.reply()
    (entry,) = logs
    assert entry["type"] == "ValueError"
    assert "test_server_answers:" in entry["at"]
    assert entry["request_id"].encode() in reply.body


def test_a_problem_that_an_application_raises_is_answered_as_such():
    with asking(sends(ProblemError("not-found"))) as client:
        assert client.reply().code == "not-found"


@pytest.mark.parametrize("data", [b"abc", b"abcde"])
def test_an_answer_that_is_not_as_long_as_it_says_is_cut(data):
    with asking(sends(start(200, (b"content-length", b"4")), body(data))) as client:
        client.line_block()
        assert len(client.rest()) < 4


def test_an_answer_to_head_has_its_headers_and_no_body():
    head = b"HEAD /a HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with asking(sends(start(200, (b"content-length", b"1488324")), body(b"x" * 10, more=True), body(b"y")), head) as c:
        assert c.reply(head=True).header("content-length") == "1488324"
        c.send(head)
        reply = c.reply(head=True)
        assert (reply.status, reply.header("transfer-encoding")) == (200, None)


def test_an_answer_to_head_arrives_before_the_connection_is_closed():
    head = b"HEAD /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with asking(sends(start(), body()), head) as client:
        assert client.reply(head=True).status == 200
        client.assert_closed()


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_that_can_have_no_body_has_none(status):
    with asking(sends(start(status, (b"content-length", b"7")), body(b"GET /x "))) as client:
        assert client.reply().status == status
        client.send(GET)
        assert client.reply().status == status


def test_framing_headers_of_the_application_are_not_passed_on():
    with asking(sends(start(200, (b"Transfer-Encoding", b"gzip, chunked")), body(b"abc"))) as client:
        reply = client.reply()
        assert (reply.header("transfer-encoding"), reply.body) == ("chunked", b"abc")


def test_repeated_headers_stay_repeated_and_are_never_folded():
    with asking(sends(start(200, (b"X-A", b"1"), (b"x-a", b"2")), body())) as client:
        assert [value for name, value in client.reply().headers if name == "x-a"] == ["1", "2"]


def test_events_are_seen_one_by_one_as_they_are_sent():
    gate = threading.Semaphore(0)

    async def app(scope, receive, send):
        await send(start(200, (b"content-type", b"Text/Event-Stream")))
        for number in range(5):
            await asyncio.get_running_loop().run_in_executor(None, gate.acquire, True, 5)
            await send(body(b"data: %d\n\n" % number, more=number < 4))

    with asking(app) as client:
        assert b"Text/Event-Stream" in client.line_block()
        for number in range(5):
            gate.release()
            assert client.take(14) == b"9\r\ndata: %d\n\n\r\n" % number


def test_an_application_that_streams_stops_when_its_client_is_gone():
    stopped = threading.Event()

    async def app(scope, receive, send):
        await send(start())
        try:
            while True:
                await send(body(b"x" * 65536, more=True))
                await asyncio.sleep(0)
        except OSError:
            stopped.set()
            raise

    with structlog.testing.capture_logs() as logs, served(app) as world:
        with world.client() as client:
            client.send(GET)
            client.take(100_000)
        assert stopped.wait(5)
    assert logs == []


def test_a_client_that_stops_reading_holds_up_the_application_and_is_cut_in_the_end():
    sent = 0
    cut = threading.Event()

    async def app(scope, receive, send):
        nonlocal sent
        await send(start())
        try:
            for _ in range(2000):
                await send(body(b"x" * 65536, more=True))
                sent += 65536
        except OSError:
            cut.set()
            raise

    with served(app, limits=Limits(write_idle_s=0.1)) as world, world.client() as client:
        client.send(GET)
        client.take(1000)
        assert cut.wait(5)
        assert sent < 50_000_000
        with pytest.raises((ConnectionResetError, AssertionError)):
            client.take(100_000_000)
