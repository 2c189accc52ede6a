"""What an application is told of a request, and how bodies reach it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config.listeners import Limits, Peer
from tests.config.serving import GET, hello, served

POST = b"POST /a HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def world():
    with served(hello) as world:
        yield world


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/a", "/a", b""),
        (b"/a?", "/a", b""),
        (b"/a?b=c?d", "/a", b"b=c?d"),
        (b"//evil.test/a", "//evil.test/a", b""),
        (b"/a/../b/./c", "/a/../b/./c", b""),
        (b"/a%2Fb%20c?%2F", "/a/b c", b"%2F"),
        (b"/a;b", "/a;b", b""),
        (b"/%ff", "/\ufffd", b""),
        (b"/\"<>\\^`{|}!$&'()*+,;=:@", "/\"<>\\^`{|}!$&'()*+,;=:@", b""),
    ],
)
def test_the_target_is_told_byte_for_byte(world, target, path, query):
    assert world.ask(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n").status == 200
    scope = world.seen[-1]
    assert (scope["target"], scope["path"], scope["query_string"]) == (target, path, query)
    assert scope["raw_path"] == target.partition(b"?")[0]


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rest=st.binary(max_size=30))
def test_any_target_is_refused_or_told_byte_for_byte(world, rest):
    before = len(world.seen)
    with world.client() as client:
        client.send(b"GET /" + rest + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        client.sock.shutdown(socket.SHUT_WR) if b"\r" in rest or b"\n" in rest else None
        client.rest()
    # A target that holds line ends or spaces may itself look like a whole request line.
    for scope in world.seen[before:]:
        assert scope["target"] in b"/" + rest


def test_header_names_are_lower_case_and_repeats_stay_repeats(world):
    world.ask(b"GET /a HTTP/1.1\r\nHOST: localhost\r\nX-A: 1\r\nx-a: 2\r\nX_a:  3 \r\nCookie: a\r\nCookie: b\r\n\r\n")
    assert world.seen[-1]["headers"] == [
        (b"host", b"localhost"),
        (b"x-a", b"1"),
        (b"x-a", b"2"),
        (b"x_a", b"3 "),
        (b"cookie", b"a"),
        (b"cookie", b"b"),
    ]


def test_the_scope_names_method_listener_version_and_length(world):
    world.ask(GET)
    scope = world.seen[-1]
    assert (scope["type"], scope["method"], scope["http_version"], scope["scheme"]) == ("http", "GET", "1.1", "http")
    assert scope["listener"] == str(world.bound[0].listener)
    assert (scope["body_length"], scope["peer"], scope["tls_subject"]) == (0, None, None)
    world.ask(POST + b"Content-Length: 5\r\n\r\nhello")
    assert world.seen[-1]["body_length"] == 5
    world.ask(POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert world.seen[-1]["body_length"] is None


def test_a_unix_socket_tells_who_connected_and_takes_any_host_name(tmp_path):
    with served(hello, f"unix:{tmp_path}/run/s.sock") as world:
        assert world.ask(b"GET /a HTTP/1.1\r\nHost: minter\r\n\r\n").status == 200
        assert world.seen[-1]["peer"] == Peer(uid=os.getuid(), gid=os.getgid(), pid=os.getpid())
        assert world.seen[-1]["listener"] == f"unix:{tmp_path}/run/s.sock"
        assert world.ask(b"GET /a HTTP/1.1\r\nHost: a/b\r\n\r\n").status == 400
        assert world.ask(b"GET /a HTTP/1.1\r\nHost: minter\r\nOrigin: null\r\n\r\n").status == 403


def test_two_hundred_requests_go_over_one_connection(world):
    with world.client() as client:
        for number in range(200):
            client.send(POST + b"Content-Length: %d\r\n\r\n" % number + b"x" * number)
            assert client.reply().body == b"%d" % number


def test_pipelined_requests_are_answered_in_their_order():
    gate = threading.Event()

    async def app(scope, receive, send):
        if scope["path"] == "/0":
            await asyncio.get_running_loop().run_in_executor(None, gate.wait, 5)
        body = scope["path"].encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    with served(app) as world, world.client() as client:
        client.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % number for number in range(5)))
        client.send(b"GET /5 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        gate.set()
        assert [client.reply().body for _ in range(6)] == [b"/%d" % number for number in range(6)]


def test_a_refusal_waits_for_the_answers_before_it_and_the_requests_after_it_are_not_read():
    gate = threading.Event()

    async def app(scope, receive, send):
        await asyncio.get_running_loop().run_in_executor(None, gate.wait, 5)
        await hello(scope, receive, send)

    with served(app) as world, world.client() as client:
        client.send(GET + GET + b"GET /a HTTP/1.1\r\nHost: evil.test\r\n\r\n" + GET)
        gate.set()
        assert [client.reply().status for _ in range(3)] == [200, 200, 421]
        client.assert_closed()
        assert len(world.seen) == 2


def test_a_bad_body_of_a_request_that_waits_removes_that_request_only():
    gate = threading.Event()

    async def app(scope, receive, send):
        await asyncio.get_running_loop().run_in_executor(None, gate.wait, 5)
        await hello(scope, receive, send)

    with served(app) as world, world.client() as client:
        client.send(GET + POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcxx")
        gate.set()
        assert client.reply().status == 200
        assert client.reply().code == "request-malformed"
        client.assert_closed()
        assert [scope["method"] for scope in world.seen] == ["GET"]


def test_only_so_many_requests_may_wait_on_one_connection():
    gate = threading.Event()

    async def app(scope, receive, send):
        await asyncio.get_running_loop().run_in_executor(None, gate.wait, 5)
        await hello(scope, receive, send)

    with served(app, limits=Limits(max_pipelined=3)) as world, world.client() as client:
        client.send(GET * 1000)
        gate.set()
        assert [client.reply().status for _ in range(5)] == [200, 200, 200, 200, 429]
        client.assert_closed()


def test_a_request_after_connection_close_is_not_answered(world):
    with world.client() as client:
        client.send(b"GET /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" + GET)
        assert client.reply().header("connection") == "close"
        client.assert_closed()


def test_http_1_0_is_answered_and_closed(world):
    with world.client() as client:
        client.send(b"GET /a HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n\r\n")
        reply = client.reply()
        assert (reply.status, reply.header("connection")) == (200, "close")
        client.assert_closed()
        assert world.seen[-1]["http_version"] == "1.0"


def test_a_large_chunked_body_arrives_whole(world):
    with world.client() as client:
        client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(100):
            client.send(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
        client.send(b"0\r\n\r\n")
        assert client.reply().body == b"%d" % (100 * 0x8000)


def test_a_body_is_not_read_faster_than_the_application_takes_it():
    gate = threading.Event()

    async def app(scope, receive, send):
        await receive()
        await asyncio.get_running_loop().run_in_executor(None, gate.wait, 5)
        await hello(scope, receive, send)

    with served(app) as world, world.client(timeout=1) as client:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        client.send(POST + b"Content-Length: 100000000\r\n\r\n")
        client.sock.settimeout(0.3)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 100_000_000:
                sent += client.sock.send(b"x" * 65536)
        # What fits into the kernel's buffers and one step beyond the mark, not a hundred megabytes.
        assert sent < 20_000_000
        gate.set()


def test_a_body_that_is_shorter_than_announced_never_looks_complete():
    got = []

    async def app(scope, receive, send):
        while True:
            message = await receive()
            got.append((message["type"], message.get("more_body")))
            if not message.get("more_body"):
                return

    with served(app) as world, world.client() as client:
        client.send(POST + b"Content-Length: 10\r\n\r\nhello")
        client.sock.shutdown(socket.SHUT_WR)
        assert client.reply().code == "request-malformed"
        client.assert_closed()
    assert got[-1] == ("http.disconnect", None)
    assert ("http.request", False) not in got


def test_a_head_that_breaks_off_is_refused(world):
    with world.client() as client:
        client.send(b"GET /a HTTP/1.1\r\nHost: loc")
        client.sock.shutdown(socket.SHUT_WR)
        assert client.reply().code == "request-malformed"
        client.assert_closed()


def test_the_application_learns_that_its_client_left():
    left = threading.Event()
    began = threading.Event()

    async def app(scope, receive, send):
        await receive()
        began.set()
        if (await receive())["type"] == "http.disconnect":
            left.set()

    with served(app) as world:
        with world.client() as client:
            # A second request waits behind it: it is the first, running one that has to learn it.
            client.send(GET + GET)
            assert began.wait(5)
        assert left.wait(5)


def test_continue_is_said_when_the_application_wants_the_body(world):
    with world.client() as client:
        client.send(POST + b"Expect: 100-continue\r\nContent-Length: 2000000\r\n\r\n")
        assert client.reply().status == 100
        client.send(b"x" * 2_000_000)
        assert client.reply().body == b"2000000"
        client.send(GET)
        assert client.reply().status == 200


def test_continue_is_not_said_when_there_is_no_body(world):
    with world.client() as client:
        client.send(b"GET /a HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n\r\n")
        reply = client.reply()
        assert (reply.status, reply.header("connection")) == (200, None)


def test_continue_is_not_said_when_the_answer_comes_first_and_the_connection_closes():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    with served(app) as world, world.client() as client:
        client.send(POST + b"Expect: 100-continue\r\nContent-Length: 10\r\n\r\n")
        reply = client.reply()
        assert (reply.status, reply.header("connection")) == (403, "close")
        client.assert_closed()


@pytest.mark.parametrize(("size", "kept"), [(100_000, True), (3_000_000, False)])
def test_a_body_that_nobody_reads_is_thrown_away_up_to_a_limit(size, kept):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    with served(app) as world, world.client() as client:
        client.send(POST + b"Content-Length: %d\r\n\r\n" % size)
        assert client.reply().status == 413
        try:
            client.send(b"x" * size + GET)
            reply = client.reply()
        except (AssertionError, OSError):
            assert not kept
        else:
            assert kept
            assert reply.status == 413
