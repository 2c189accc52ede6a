"""What never reaches an application: one table of bad requests over raw sockets, each with its answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time

import pytest

from config.listeners import Limits
from tests.config.serving import GET, hello, served

G = b"GET /a HTTP/1.1\r\nHost: localhost\r\n"
P = b"POST /a HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = P + b"Transfer-Encoding: chunked\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"

MALFORMED = {
    "content length and chunked": P + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "chunked and content length": P + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "chunked twice": P + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked then identity in another line": P
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "chunked, identity": P + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunked, chunked": P + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "gzip, chunked": P + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "identity": P + b"Transfer-Encoding: identity\r\n\r\n" + SMUGGLED,
    "xchunked": P + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "empty transfer encoding": P + b"Transfer-Encoding:\r\n\r\n0\r\n\r\n",
    "vertical tab before chunked": P + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunked with a parameter": P + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "chunked over 1.0": b"POST /a HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "length twice, the same": P + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "length twice, different": P + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "length zero twice": P + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "length as a list": P + b"Content-Length: 5, 5\r\n\r\nhello",
    "negative length": P + b"Content-Length: -1\r\n\r\n",
    "length with a plus": P + b"Content-Length: +5\r\n\r\nhello",
    "huge length": P + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "length of nineteen digits": P + b"Content-Length: 1000000000000000000\r\n\r\n",
    "length in hex": P + b"Content-Length: 0x5\r\n\r\nhello",
    "length of two words": P + b"Content-Length: 5 5\r\n\r\nhello",
    "empty length": P + b"Content-Length:\r\n\r\n",
    "bare line feed in the request line": b"GET /a HTTP/1.1\nHost: localhost\r\n\r\n",
    "bare line feed after a header": b"GET /a HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n",
    "bare line feed at the end": G + b"\n" + SMUGGLED,
    "bare carriage return": b"GET /a HTTP/1.1\r\nHost: localhost\rX: y\r\n\r\n",
    "a folded line": G + b"X: a\r\n b\r\n\r\n",
    "a folded first line": b"GET /a HTTP/1.1\r\n X: y\r\nHost: localhost\r\n\r\n",
    "space before the colon": G + b"X : a\r\n\r\n",
    "space before Content-Length's colon": P + b"Content-Length : 5\r\n\r\nhello",
    "no name": G + b": a\r\n\r\n",
    "no colon": G + b"abc\r\n\r\n",
    "a name that is not ASCII": G + b"X\xc3\xa9: a\r\n\r\n",
    "NUL in a value": G + b"X: a\x00b\r\n\r\n",
    "NUL in a name": G + b"X\x00Y: a\r\n\r\n",
    "a control character in a value": G + b"X: a\x01b\r\n\r\n",
    "DEL in a value": G + b"X: a\x7fb\r\n\r\n",
    "no request line at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a version that is none": b"GET /a HTTP/1.2\r\nHost: localhost\r\n\r\n",
    "another protocol": b"GET /a HTTQ/1.1\r\nHost: localhost\r\n\r\n",
    "an unknown method": b"FOO /a HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a method in lower case": b"get /a HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an empty target": b"GET  HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a target that is no path": b"GET a/b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a tab in the target": b"GET /a\tb HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a raw non-ASCII byte in the target": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no Host": b"GET /a HTTP/1.1\r\n\r\n",
    "no Host over 1.0": b"GET /a HTTP/1.0\r\n\r\n",
    "two Hosts, the same": G + b"Host: localhost\r\n\r\n",
    "two Hosts, different": G + b"Host: evil.test\r\n\r\n",
    "an empty Host": b"GET /a HTTP/1.1\r\nHost:\r\n\r\n",
    "userinfo in Host": b"GET /a HTTP/1.1\r\nHost: localhost@evil.test\r\n\r\n",
    "Host with a path": b"GET /a HTTP/1.1\r\nHost: localhost/../admin\r\n\r\n",
    "Host with a query": b"GET /a HTTP/1.1\r\nHost: localhost?b\r\n\r\n",
    "Host with a fragment": b"GET /a HTTP/1.1\r\nHost: localhost#b\r\n\r\n",
    "Host with a backslash": b"GET /a HTTP/1.1\r\nHost: localhost\\b\r\n\r\n",
    "Host with a space": b"GET /a HTTP/1.1\r\nHost: local host\r\n\r\n",
    "Host with a port that is none": b"GET /a HTTP/1.1\r\nHost: localhost:80a\r\n\r\n",
    "Host as a list": b"GET /a HTTP/1.1\r\nHost: localhost, evil.test\r\n\r\n",
}

REFUSED = [
    *((name, data, 400, "request-malformed") for name, data in MALFORMED.items()),
    ("0.9", b"GET /a\r\n\r\n", 505, "version-not-supported"),
    ("0.9 written out", b"GET /a HTTP/0.9\r\nHost: localhost\r\n\r\n", 505, "version-not-supported"),
    ("2.0 without the preface", b"GET /a HTTP/2.0\r\nHost: localhost\r\n\r\n", 505, "version-not-supported"),
    ("1.0 with a body of unknown length", b"POST /a HTTP/1.0\r\nHost: localhost\r\n\r\nx", 411, "length-required"),
    ("CONNECT", b"CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method-not-supported"),
    ("TRACE", b"TRACE /a HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method-not-supported"),
    ("OPTIONS *", b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "target-malformed"),
    ("absolute form", b"GET http://localhost/a HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "target-malformed"),
    ("absolute form elsewhere", b"GET http://evil/a HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "target-malformed"),
    ("a fragment", b"GET /a#b HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "target-malformed"),
    ("a fragment in the query", b"GET /a?b#c HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "target-malformed"),
    ("upgrade to WebSocket", G + b"Connection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n\x81\x05", 400, "upgrade-refused"),
    ("upgrade to h2c", G + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n\r\n", 400,
     "upgrade-refused"),
    ("upgrade that Connection does not name", G + b"Upgrade: h2c\r\n\r\n", 400, "upgrade-refused"),
    ("settings of h2c alone", G + b"HTTP2-Settings: AAMAAABk\r\n\r\n", 400, "upgrade-refused"),
    ("foreign Host", b"GET /a HTTP/1.1\r\nHost: evil.test\r\n\r\n", 421, "host-not-allowed"),
    ("foreign Host with our name in front", b"GET /a HTTP/1.1\r\nHost: localhost.evil.test\r\n\r\n", 421,
     "host-not-allowed"),
    ("foreign Host with a last dot", b"GET /a HTTP/1.1\r\nHost: localhost.evil\r\n\r\n", 421, "host-not-allowed"),
    ("Origin", G + b"Origin: http://localhost\r\n\r\n", 403, "origin-not-allowed"),
    ("Origin null", G + b"Origin: null\r\n\r\n", 403, "origin-not-allowed"),
    ("unknown Expect", P + b"Expect: 200-ok\r\nContent-Length: 1\r\n\r\n", 417, "expectation-unknown"),
    ("Expect of two things", P + b"Expect: 100-continue, x\r\nContent-Length: 1\r\n\r\n", 417, "expectation-unknown"),
    ("long target", b"GET /" + b"a" * 8192 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, "target-too-long"),
    ("long header", G + b"X: " + b"a" * 33_000 + b"\r\n\r\n", 431, "headers-too-large"),
    ("a long header that never ends", G + b"X: " + b"a" * 400_000, 431, "headers-too-large"),
    ("a long name that never ends", G + b"X" * 400_000, 431, "headers-too-large"),
    ("endless empty lines", b"\r\n" * 40_000, 431, "headers-too-large"),
    ("many headers", G + b"X: a\r\n" * 100 + b"\r\n", 431, "headers-too-large"),
]  # fmt: skip

BAD_BODIES = {
    "letters after a chunk": CHUNKED + b"3\r\nabcxx0\r\n\r\n",
    "line feed after the size": CHUNKED + b"3\nabc\r\n0\r\n\r\n",
    "line feed after the data": CHUNKED + b"3\r\nabc\n0\r\n\r\n",
    "line feed at the end": CHUNKED + b"0\r\n\n",
    "space after the size": CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n",
    "a negative size": CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n",
    "a size with 0x": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "a size that overflows": CHUNKED + b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "an empty size": CHUNKED + b"\r\nabc\r\n0\r\n\r\n",
    "line feed within an extension": CHUNKED + b"3;a\nb\r\nabc\r\n0\r\n\r\n",
    "trailers": CHUNKED + b"3\r\nabc\r\n0\r\nX-Evil: 1\r\n\r\n",
    "a length as trailer": CHUNKED + b"3\r\nabc\r\n0\r\nContent-Length: 50\r\n\r\n",
}


@pytest.fixture(scope="module")
def world():
    with served(hello) as world:
        yield world


@pytest.mark.parametrize(("data", "status", "code"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_bad_head_gets_one_problem_and_the_connection_is_closed(world, data, status, code):
    before = len(world.seen)
    with world.client() as client:
        client.send(data)
        reply = client.reply()
        assert (reply.status, reply.code) == (status, code)
        assert reply.header("connection") == "close"
        assert reply.header("cache-control") == "no-store"
        assert reply.header("broker-refused-by") == "broker"
        assert reply.header("server") is None
        client.assert_closed()
    assert len(world.seen) == before
    assert world.refused[-1] == code


@pytest.mark.parametrize("data", BAD_BODIES.values(), ids=BAD_BODIES)
def test_a_bad_body_gets_one_problem_and_hides_no_second_request(world, data):
    before = len(world.seen)
    with world.client() as client:
        client.send(data + SMUGGLED)
        reply = client.reply()
        assert (reply.status, reply.code) == (400, "request-malformed")
        client.assert_closed()
    assert [scope["path"] for scope in world.seen[before:]] in ([], ["/a"])


@pytest.mark.parametrize("size", [1, 7])
def test_a_refusal_does_not_depend_on_how_the_bytes_arrive(world, size):
    with world.client() as client:
        data = P + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        for start in range(0, len(data), size):
            client.send(data[start : start + size])
        assert client.reply().code == "request-malformed"
        client.assert_closed()


def test_a_head_that_arrives_byte_by_byte_is_counted_as_it_arrives():
    with served(hello, limits=Limits(header_bytes=200)) as world, world.client() as client:
        client.send(G)
        for _ in range(20):
            client.send(b"X: 0123456789\r\n")
        assert client.reply().code == "headers-too-large"
        client.assert_closed()
        assert world.seen == []


def test_a_refused_method_is_answered_with_the_methods_that_there_are(world):
    reply = world.ask(b"TRACE /a HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert reply.header("allow") == "GET, HEAD, POST, PUT, PATCH, DELETE"


def test_a_refused_head_request_gets_no_body(world):
    with world.client() as client:
        client.send(b"HEAD /a HTTP/1.1\r\nHost: evil.test\r\n\r\n")
        reply = client.reply(head=True)
        assert reply.status == 421
        assert int(reply.header("content-length")) > 0
        client.assert_closed()


def test_a_client_that_sends_a_long_body_sees_the_refusal_of_its_head(world):
    with world.client() as client:
        client.send(P + b"Origin: http://evil.test\r\nContent-Length: 500000\r\n\r\n")
        client.send(b"x" * 500_000)
        assert client.reply().code == "origin-not-allowed"


FINE = {
    "Connection: notupgrade": G + b"Connection: notupgrade\r\n\r\n",
    "Host in capitals with a port": b"GET /a HTTP/1.1\r\nHost: LOCALHOST:9999\r\n\r\n",
    "the address itself as Host": b"GET /a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "IPv6 loopback as Host": b"GET /a HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
    "a header without a value": G + b"X:\r\n\r\n",
    "empty lines before the request": b"\r\n\r\n" + GET,
    "coding in capitals": P + b"Transfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n",
    "a chunk extension": CHUNKED + b"3;a=b\r\nabc\r\n0\r\n\r\n",
    "a length of zero": P + b"Content-Length: 0\r\n\r\n",
    "a hundred headers": G + b"X: a\r\n" * 99 + b"\r\n",
    "forwarded headers, unless refused": G + b"X-Forwarded-For: 1.2.3.4\r\n\r\n",
}


@pytest.mark.parametrize("data", FINE.values(), ids=FINE)
def test_what_is_unusual_but_plain_is_taken(world, data):
    assert world.ask(data).status == 200


def test_a_host_that_the_settings_name_is_taken_and_case_does_not_matter():
    with served(hello, hosts=frozenset({"Broker.Internal"})) as world:
        assert world.ask(b"GET /a HTTP/1.1\r\nHost: broker.internal:8090\r\n\r\n").status == 200
        assert world.ask(b"GET /a HTTP/1.1\r\nHost: minter.internal:8090\r\n\r\n").status == 421


def test_the_address_that_a_connection_came_to_is_a_host_that_is_taken_and_another_one_is_not():
    with served(hello, "0.0.0.0:0") as world:
        port = world.bound[0].listener.port
        for host, status in ((b"127.0.0.2", b"200"), (b"127.0.0.3", b"421")):
            with socket.create_connection(("127.0.0.2", port), 5) as sock:
                sock.sendall(b"GET /a HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
                assert sock.recv(1000).split(b" ")[1] == status


def test_a_second_request_on_a_connection_is_held_to_its_own_host(world):
    with world.client() as client:
        client.send(GET)
        assert client.reply().status == 200
        client.send(b"GET /a HTTP/1.1\r\nHost: evil.test\r\n\r\n")
        assert client.reply().code == "host-not-allowed"


@pytest.mark.parametrize("name", [b"Forwarded", b"Via", b"X-Forwarded-For", b"x-forwarded-host", b"X-Forwarded"])
def test_forwarded_requests_are_refused_where_the_group_says_so(name):
    with served(hello, refuse_forwarded=True) as world:
        reply = world.ask(G + name + b": a\r\n\r\n")
        assert (reply.status, reply.code) == (403, "forwarding-not-allowed")


def test_a_group_for_browsers_takes_origins():
    with served(hello, refuse_browsers=False) as world:
        assert world.ask(G + b"Origin: http://localhost\r\n\r\n").status == 200


async def stay(_scope, receive, _send):
    """Never answer: the request is active until its client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def active(world):
    """Return a connection whose request the application works on."""
    before = len(world.seen)
    client = world.connect()
    client.send(GET)
    wait_until(lambda: len(world.seen) > before)
    return client


def wait_until(true):
    for _ in range(500):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to pass")


def test_connections_beyond_the_limit_are_told_so():
    with served(stay, limits=Limits(max_connections=2)) as world:
        first, second = active(world), active(world)
        with world.client() as third:
            reply = third.reply()
            assert (reply.status, reply.code, reply.header("retry-after")) == (429, "too-many-requests", "1")
            third.assert_closed()
        assert len(world.seen) == 2
        first.sock.close()
        second.sock.close()


def test_a_flood_of_connections_holds_no_more_than_a_few_beyond_the_limit():
    """Each that is told so stays open for a moment; the many are dropped, or they take every file there is."""
    gate = threading.Event()

    async def app(scope, receive, send):
        await asyncio.get_running_loop().run_in_executor(None, gate.wait, 5)
        await hello(scope, receive, send)

    with served(app, limits=Limits(max_connections=2)) as world:
        crowd = [active(world), active(world)] + [world.connect() for _ in range(38)]
        said = [client.rest() for client in crowd[2:]]
        assert said[0].startswith(b"HTTP/1.1 429 ")
        assert 1 <= sum(b"HTTP/1.1 429 " in one for one in said) <= 8
        gate.set()
        assert [client.reply().status for client in crowd[:2]] == [200, 200]
        for client in crowd:
            client.sock.close()


def test_when_full_the_connection_that_was_idle_longest_makes_room():
    with served(hello, limits=Limits(max_connections=3)) as world, contextlib.ExitStack() as stack:
        half, older, newer = (stack.enter_context(world.client()) for _ in range(3))
        half.send(b"GET /a HTTP/1.1\r\n")
        for client in (older, newer):
            client.send(GET)
            assert client.reply().status == 200
        assert world.ask(GET).status == 200
        older.assert_closed()
        # An idle one goes before a head that is not complete.
        fourth = stack.enter_context(world.client())
        fourth.send(GET)
        assert fourth.reply().status == 200
        half.send(b"Host: localhost\r\n\r\n")
        assert half.reply().status == 200
        assert world.refused == []


def test_heads_that_are_never_finished_keep_nobody_out():
    with served(hello, limits=Limits(max_connections=5)) as world, contextlib.ExitStack() as stack:
        silent, *slow = (stack.enter_context(world.client()) for _ in range(5))
        for client in slow:
            client.send(b"GET /a HTTP/1.1\r\nX: ")
        for _ in range(20):
            # Each is full again before the next one comes.
            stack.enter_context(world.client()).send(b"GET /a HTTP/1.1\r\nX: ")
            assert world.ask(GET).status == 200
        for client in (silent, *slow):
            client.assert_closed()


def test_connections_that_linger_after_a_refusal_keep_nobody_out():
    with served(hello, limits=Limits(max_connections=3)) as world, contextlib.ExitStack() as stack:
        for _ in range(9):
            client = stack.enter_context(world.client())
            client.send(b"POST /a HTTP/1.1\r\nHost: evil.test\r\nContent-Length: 5\r\n\r\n")
            assert client.reply().code == "host-not-allowed"
        assert world.ask(GET).status == 200


def test_a_request_that_is_answered_or_sends_its_body_is_never_dropped_for_room():
    gate = threading.Event()

    async def app(scope, receive, send):
        if scope["path"] == "/slow":
            await asyncio.get_running_loop().run_in_executor(None, gate.wait, 5)
        await hello(scope, receive, send)

    with served(app, limits=Limits(max_connections=3)) as world, contextlib.ExitStack() as stack:
        slow, sending, idle = (stack.enter_context(world.client()) for _ in range(3))
        # What stands behind it is not complete, which does not make it less active.
        slow.send(GET.replace(b"/a", b"/slow") + b"GET /a HTTP/1.1\r\n")
        sending.send(b"POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhe")
        wait_until(lambda: len(world.seen) == 2)
        idle.send(GET)
        assert idle.reply().status == 200
        for _ in range(10):
            assert world.ask(GET).status == 200
        idle.assert_closed()
        sending.send(b"llo")
        assert sending.reply().body == b"5"
        gate.set()
        assert slow.reply().status == 200


def test_the_minter_signs_its_own_refusals():
    with served(hello, by="minter") as world:
        assert world.ask(b"GET /a HTTP/1.1\r\nHost: evil.test\r\n\r\n").header("broker-refused-by") == "minter"
