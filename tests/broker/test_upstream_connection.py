"""One connection to an API: every byte of an answer counts, and none that nobody asked for does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from broker.wire.upstream import CHUNKED, LENGTH, NO_BODY, AnswerHead, UpstreamConnection
from config.problems import ProblemError

REQUEST = b"GET /a HTTP/1.1\r\nHost: api.test\r\n\r\n"
SMALL = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 5\r\n\r\nhello"
CHUNKS = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5;a=b\r\nhello\r\n6\r\n world\r\n0\r\nX-Trailer: secret\r\n\r\n"
)


class Pool:
    """Notes what the connection says of itself."""

    def __init__(self):
        self.released = 0
        self.forgotten = False

    def release(self, connection):
        self.released += 1
        assert not connection.closed

    def forget(self, connection):
        assert connection.closed
        self.forgotten = True


class Call:
    """A receiver that writes down what it is told; ``at`` is called on the way with what it is told."""

    def __init__(self, at: Callable[[str], None] = lambda _: None):
        self.at = at
        self.head: AnswerHead | None = None
        self.body = b""
        self.outcome = ""
        self.stale = False
        self.may: list[bool] = []

    def answer_begins(self, answer):
        assert self.head is None
        assert not self.outcome
        self.head = answer
        self.at("head")

    def answer_piece(self, piece):
        assert self.head is not None
        assert not self.outcome
        assert isinstance(piece, bytes)
        assert piece
        self.body += piece
        self.at("piece")

    def answer_pauses(self):
        assert not self.outcome
        self.at("pause")

    def answer_complete(self):
        assert self.head is not None
        assert not self.outcome
        self.outcome = "complete"
        self.at("complete")

    def answer_failed(self, problem, *, stale):
        assert isinstance(problem, ProblemError)
        assert not self.outcome
        self.outcome, self.stale = problem.code, stale
        self.at("failed")

    def upload_may_go_on(self, may):
        self.may.append(may)
        self.at("upload")


class World:
    """A connection, and the API's end of it as a socket."""

    def __init__(self, connection: UpstreamConnection, pool: Pool, api: socket.socket):
        self.connection = connection
        self.pool = pool
        self.api = api

    def call(self, call: Call | None = None, *, head_only: bool = False, body=NO_BODY) -> Call:
        call = call or Call()
        self.connection.send(call, REQUEST, head_only=head_only, body=body)
        return call

    async def say(self, *parts: bytes) -> None:
        """Send each part so that it arrives by itself."""
        for part in parts:
            with contextlib.suppress(ConnectionError):  # the connection may have had enough
                await asyncio.get_running_loop().sock_sendall(self.api, part)
            await turns()

    async def hear(self) -> bytes:
        """Return what has arrived at the API."""
        await turns()
        with contextlib.suppress(BlockingIOError):
            return self.api.recv(1 << 20)
        return b""

    async def hang_up(self) -> None:
        self.api.close()
        await turns()


async def turns() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[World]:
    ours, api = socket.socketpair()
    ours.setblocking(False)
    api.setblocking(False)
    pool = Pool()
    _, connection = await asyncio.get_running_loop().create_connection(lambda: UpstreamConnection(pool), sock=ours)
    try:
        yield World(connection, pool, api)
    finally:
        connection.abandon()
        api.close()
        await turns()


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with connected() as world:
        yield world


# --- answers, however they arrive ---

ANSWERS = {
    "length": (SMALL, 200, 5, b"hello"),
    "a line break at its end": (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{}\r\n", 200, 4, b"{}\r\n"),
    "an empty line in it": (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\na\r\n\r\nb", 200, 6, b"a\r\n\r\nb"),
    "chunks": (CHUNKS, 200, None, b"hello world"),
    "no body": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, 0, b""),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, None, b""),
    "304": (b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 9\r\n\r\n", 304, 9, b""),
    "interim ones before": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: </a>\r\nContent-Length: 3\r\n\r\n" + SMALL,
        200,
        5,
        b"hello",
    ),
    "HTTP/1.0 kept alive": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi",
        200,
        2,
        b"hi",
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_is_the_same_wherever_it_is_split_and_the_connection_carries_the_next(name):
    answer, status, length, body = ANSWERS[name]
    for at in range(len(answer)):
        async with connected() as w:
            for parts in ((answer[:at], answer[at:]) if at else (answer,), (SMALL,)):
                call = w.call()
                await w.say(*parts)
                if w.connection.closed:
                    break
            assert call.outcome == "complete", at
            if at == 0:
                # As a whole it is seen to end there; in parts that may not be, and then the connection is not kept.
                assert (w.pool.released, call.body) == (2, b"hello")
        async with connected() as w:
            call = w.call()
            await w.say(answer[:at], answer[at:])
            assert call.head is not None
            assert (call.outcome, call.head.status, call.head.length, call.body) == ("complete", status, length, body)
            assert call.head.bodiless == (status in {204, 304})


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_that_arrives_byte_by_byte_is_the_same(name):
    answer, status, length, body = ANSWERS[name]
    async with connected() as w:
        call = w.call()
        for at in range(len(answer)):
            assert call.outcome == ""
            await w.say(answer[at : at + 1])
        assert call.head is not None
        assert (call.outcome, call.head.status, call.head.length, call.body) == ("complete", status, length, body)


@pytest.mark.parametrize("name", [name for name in ANSWERS if name != "interim ones before"])
async def test_an_answer_that_is_cut_is_never_taken_for_a_whole_one(name):
    """Sudden close at every byte."""
    answer = ANSWERS[name][0]
    for at in range(len(answer)):
        async with connected() as w:
            call = w.call()
            await w.say(answer[:at])
            await w.hang_up()
            assert call.outcome == "upstream-broke-off", at
            assert not call.stale
            assert (w.pool.released, w.pool.forgotten) == (0, True)


async def test_a_body_without_length_and_chunks_ends_with_the_connection():
    answer = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nall of it"
    head = answer.index(b"all")
    for at in range(len(answer) + 1):
        async with connected() as w:
            call = w.call()
            await w.say(answer[:at])
            await w.hear()
            await w.hang_up()
            assert call.outcome == ("complete" if at >= head else "upstream-broke-off"), at
            assert call.body == answer[head:at]
            assert (w.pool.released, w.pool.forgotten) == (0, True)


async def test_a_body_that_ends_with_a_reset_connection_is_not_complete():
    async def reset(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf of")
        await writer.drain()
        await begun.wait()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    begun, over = asyncio.Event(), asyncio.Event()
    async with await asyncio.start_server(reset, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        pool = Pool()
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: UpstreamConnection(pool), "127.0.0.1", port)
        call = Call(lambda what: begun.set() if what == "piece" else over.set() if what == "failed" else None)
        connection.send(call, REQUEST, head_only=False, body=NO_BODY)
        async with asyncio.timeout(5):
            await over.wait()
        assert (call.body, call.outcome, pool.released) == (b"half of", "upstream-broke-off", 0)


async def test_header_names_are_lower_case_and_repeated_ones_stay_repeated(w):
    call = w.call()
    await w.say(
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a \r\nSET-COOKIE:\tb\t\r\nX-Latin: \xe9\xff\r\nEmpty:\r\n"
        b"Content-Length: 0\r\n\r\n"
    )
    assert call.head is not None
    assert call.head.headers == [
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
        (b"x-latin", b"\xe9\xff"),
        (b"empty", b""),
        (b"content-length", b"0"),
    ]


async def test_nothing_of_an_answer_reaches_the_next_and_trailers_reach_nobody(w):
    heads = []
    for answer in (SMALL, CHUNKS, SMALL, b"HTTP/1.1 204 No\r\n\r\n", CHUNKS):
        call = w.call()
        await w.say(answer)
        assert call.outcome == "complete"
        assert call.head is not None
        heads.append((call.head.length, [name for name, _ in call.head.headers]))
    small, chunks = (5, [b"content-type", b"content-length"]), (None, [b"transfer-encoding"])
    assert heads == [small, chunks, small, (None, []), chunks]


async def test_nothing_of_an_interim_answer_reaches_the_final_one(w):
    call = w.call()
    await w.say(
        b"HTTP/1.1 103 Early\r\nLink: </a>\r\nContent-Length: 3\r\n\r\n"
        b"HTTP/1.1 103 Early\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nall of it"
    )
    await w.hear()
    await w.hang_up()
    assert call.head is not None
    assert (call.head.length, call.head.headers) == (None, [(b"a", b"b")])
    assert (call.outcome, call.body) == ("complete", b"all of it")


async def test_a_large_body_arrives_whole_and_the_next_answer_is_its_own(w):
    body = bytes(range(256)) * 4096
    call = w.call()
    await w.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body)
    assert (call.outcome, call.body == body) == ("complete", True)
    call = w.call()
    await w.say(SMALL)
    assert (call.outcome, call.body, w.pool.released) == ("complete", b"hello", 2)


async def test_many_small_chunks_in_one_segment_are_handed_on_together(w):
    """Each alone would cost as much as a large one, and a segment of them would hold up everybody."""
    told = []
    call = w.call(Call(told.append))
    await w.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    w.connection.data_received(b"1\r\nx\r\n" * 3000)
    assert told == ["head", "pause", "piece", "piece", "pause"]
    await w.say(b"1\r\ny\r\n", b"0\r\n\r\n")
    assert call.body == b"x" * 3000 + b"y"
    assert (call.outcome, w.pool.released) == ("complete", 1)


async def test_what_came_before_a_chunk_that_is_none_is_handed_on(w):
    call = w.call()
    await w.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 3 + b"z\r\n")
    assert (call.body, call.outcome) == (b"xxx", "upstream-malformed")


@pytest.mark.parametrize("at", [1, 2])
async def test_a_call_that_is_abandoned_at_a_piece_hears_of_no_further_one(w, at):
    told = []

    def leave(what):
        told.append(what)
        if told.count("piece") == at:
            w.connection.abandon()

    w.call(Call(leave))
    await w.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 9 + b"0\r\n\r\n")
    assert told == ["head", *["piece"] * at]
    assert w.pool.released == 0


async def test_a_pause_is_told_after_what_came_before_it_and_not_at_the_end(w):
    seen = []
    w.call(Call(seen.append))
    await w.say(SMALL[:20], SMALL[20:-3], SMALL[-3:])
    assert seen == ["pause", "head", "piece", "pause", "piece", "complete"]


# --- answers that are none ---

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED_HEAD = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense",
        b"\x16\x03\x01",
        b"HTTP/0.9 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.10 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"RTSP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"ICE/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 000 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 600 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 199 Odd\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        OK + b"A: b\nContent-Length: 0\r\n\r\n",
        OK + b"A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
        OK + b"A : b\r\nContent-Length: 0\r\n\r\n",
        OK + b": b\r\nContent-Length: 0\r\n\r\n",
        OK + b"A\r\nContent-Length: 0\r\n\r\n",
        OK + b"A: \x00\r\nContent-Length: 0\r\n\r\n",
        OK + b"A: \x07\r\nContent-Length: 0\r\n\r\n",
        OK + b"A: \x7f\r\nContent-Length: 0\r\n\r\n",
        OK + b"Content-Length: x\r\n\r\n",
        OK + b"Content-Length:\r\n\r\n",
        OK + b"Content-Length: -5\r\n\r\n",
        OK + b"Content-Length: +5\r\n\r\n",
        OK + b"Content-Length: 5, 5\r\n\r\nhello",
        OK + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Content-Length: 0000000000000000005\r\n\r\nhello",
        OK + b"Content-Length: 1000000000000000000\r\n\r\nhello",
        OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\n\r\n",
        OK + b"Transfer-Encoding: identity\r\n\r\n",
        OK + b"Transfer-Encoding: xchunked\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding:\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED_HEAD + b"2\nhi\r\n0\r\n\r\n",
        CHUNKED_HEAD + b"2\r\nhi0\r\n\r\n",
        CHUNKED_HEAD + b"2\r\nhixx0\r\n\r\n",
        CHUNKED_HEAD + b"2\r\nhi\n0\r\n\r\n",
        CHUNKED_HEAD + b"2 \r\nhi\r\n0\r\n\r\n",
        CHUNKED_HEAD + b"-2\r\nhi\r\n0\r\n\r\n",
        CHUNKED_HEAD + b"0x2\r\nhi\r\n0\r\n\r\n",
        CHUNKED_HEAD + b"\r\n2\r\nhi\r\n0\r\n\r\n",
        CHUNKED_HEAD + b"ffffffffffffffff1\r\nhi",
        CHUNKED_HEAD + b'2;a="\n"\r\nhi\r\n0\r\n\r\n',
        CHUNKED_HEAD + b"0\r\nA: b\r\n c\r\n\r\n",
        CHUNKED_HEAD + b"0\r\n\n",
        # Limits.
        OK + b"A: " + b"x" * 16_384 + b"\r\nContent-Length: 0\r\n\r\n",
        OK + b"X-A: 1\r\n" * 128 + b"Content-Length: 0\r\n\r\n",
        OK + b"X-A: %s\r\n" % (b"1" * 8000) * 9 + b"Content-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 " + b"O" * 65_536 + b"\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 17 + SMALL,
        b"\r\n" + SMALL,
    ],
)
async def test_an_answer_that_is_none_or_can_be_read_in_two_ways_is_malformed(w, answer):
    call = w.call()
    await w.say(answer)
    await turns()
    assert (call.outcome, call.stale) == ("upstream-malformed", False)
    assert (w.pool.released, w.pool.forgotten) == (0, True)


async def test_sixteen_interim_answers_and_a_large_head_are_still_read(w):
    call = w.call()
    await w.say(b"HTTP/1.1 100 Continue\r\n\r\n" * 16 + SMALL)
    assert call.body == b"hello"
    call = w.call()
    lines = b"X-A: %s\r\n" % (b"1" * 16_300) * 3 + b"X-B: 1\r\n" * 124
    await w.say(OK + lines + b"Content-Length: 5\r\n\r\nhello")
    assert call.body == b"hello"


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\nA: b\r\n"),
        (b"HTTP/1.1 200 ", b"O" * 1000),
        (OK, b"X-A: 1\r\n"),
        (OK + b"A: ", b"x" * 1000),
        (OK + b"A: x", b"   \t" * 200),
        (CHUNKED_HEAD, b"0" * 1000),
        (CHUNKED_HEAD + b"5;", b"a" * 1000),
        (CHUNKED_HEAD + b'5;a="', b"a" * 1000),
        (CHUNKED_HEAD + b"5\r\nhello\r\n0\r\n", b"X-A: 1\r\n" * 100),
        (CHUNKED_HEAD + b"5\r\nhello\r\n0\r\nA: ", b"x" * 1000),
    ],
)
async def test_what_never_ends_and_brings_nothing_is_cut(w, begin, more):
    call = w.call()
    await w.say(begin)
    sent = len(begin)
    while not call.outcome:
        assert sent < 80_000
        await w.say(more)
        sent += len(more)
    assert call.outcome == "upstream-malformed"


async def test_chunk_extensions_that_bring_something_each_are_read_over(w):
    call = w.call()
    await w.say(CHUNKED_HEAD)
    for _ in range(80):
        await w.say(b"1;" + b"a" * 1000, b"\r\n", b"x\r\n")
    await w.say(b"0\r\n\r\n")
    assert (call.outcome, call.body) == ("complete", b"x" * 80)


# --- HEAD ---


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1488324\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive\r\n\r\n", True),
        (b"HTTP/1.1 304 Not\r\nContent-Length: 7\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 7\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", False),
    ],
)
async def test_an_answer_to_head_is_complete_with_its_head(w, answer, kept):
    call = w.call(head_only=True)
    await w.say(answer)
    assert call.head is not None
    assert (call.outcome, call.body, call.head.bodiless) == ("complete", b"", True)
    assert (w.pool.released, w.connection.closed) == (int(kept), not kept)
    if kept:
        call = w.call()
        await w.say(SMALL)
        assert (call.outcome, call.body, w.pool.released) == ("complete", b"hello", 2)


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (b"HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 304 Not\r\nContent-Length: 7\r\n\r\n", True),
        (b"HTTP/1.1 204 No\r\nContent-Length: 7\r\n\r\n", False),
        (b"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n", False),
        (b"HTTP/1.1 304 Not\r\nTransfer-Encoding: chunked\r\n\r\n", False),
    ],
)
async def test_an_answer_without_a_body_that_announces_one_ends_the_connection(w, answer, kept):
    """The body may be under way: it would be read as the answer to the next call. Of 304 a length says nothing."""
    call = w.call()
    await w.say(answer)
    assert (call.outcome, call.body) == ("complete", b"")
    assert (w.pool.released, w.connection.closed) == (int(kept), not kept)


# --- what nobody asked for ---


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (SMALL, b"hello"),
        (CHUNKS, b"hello world"),
        (b"HTTP/1.1 204 No\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not\r\nContent-Length: 4\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\na\r\n\r\n\n", b"a\r\n\r\n\n"),
    ],
)
@pytest.mark.parametrize("extra", [b"x", b"\n", b"\r\n", b"\r\n\r\n", b"\r\n\r\n\r\n", SMALL, b"H", b"\0"])
@pytest.mark.parametrize("together", [True, False])
async def test_bytes_after_an_answer_close_the_connection_and_reach_nobody(w, answer, body, extra, together):
    call = w.call()
    await w.say(answer + extra if together else answer)
    assert (call.outcome, call.body) == ("complete", body)
    if not together:
        assert w.pool.released == 1
        await w.say(extra)
    assert w.connection.closed
    assert (w.pool.forgotten, call.body) == (True, body)


@pytest.mark.parametrize("at", range(1, len(SMALL)))
@pytest.mark.parametrize("extra", [b"\n", b"\r\n", b"\n\n\n"])
async def test_line_breaks_after_an_answer_that_was_split_close_the_connection(w, at, extra):
    """The parser skips them: that the answer ends before must be seen from its parts."""
    answer = SMALL.replace(b"hello", b"hell\n")
    call = w.call()
    await w.say(answer[:at], answer[at:] + extra)
    assert (call.outcome, call.body) == ("complete", b"hell\n")
    assert (w.connection.closed, w.pool.forgotten) == (True, True)


async def test_an_answer_before_the_question_is_given_to_nobody(w):
    await w.say(SMALL)
    assert (w.connection.closed, w.pool.forgotten) == (True, True)


async def test_the_apis_end_of_an_idle_connection_takes_it_out_of_the_pool(w):
    w.call()
    await w.say(SMALL)
    assert w.pool.released == 1
    await w.hang_up()
    assert (w.connection.closed, w.pool.forgotten) == (True, True)


@pytest.mark.parametrize("answer", [SMALL.replace(b"a/b", b"a/b\r\nConnection: close"), SMALL.replace(b"1.1", b"1.0")])
async def test_a_connection_that_the_api_will_close_is_not_used_again(w, answer):
    call = w.call()
    await w.say(answer)
    assert (call.outcome, call.body) == ("complete", b"hello")
    assert (w.pool.released, w.connection.closed) == (0, True)


async def test_a_connection_for_one_call_is_not_used_again(w):
    w.connection.once()
    call = w.call()
    await w.say(SMALL)
    assert (call.outcome, w.pool.released, w.connection.closed) == ("complete", 0, True)


@pytest.mark.parametrize(("used", "first", "stale"), [(True, b"", True), (True, b"H", False), (False, b"", False)])
async def test_only_a_used_connection_that_brought_not_one_byte_is_stale(w, used, first, stale):
    if used:
        w.call()
        await w.say(SMALL)
    call = w.call()
    await w.say(first)
    await w.hang_up()
    assert (call.outcome, call.stale) == ("upstream-broke-off", stale)


@pytest.mark.parametrize("used", [True, False])
async def test_a_call_on_a_connection_that_was_lost_since_it_was_taken_fails(w, used):
    if used:
        w.call()
        await w.say(SMALL)
    await w.hang_up()
    call = w.call(body=CHUNKED)
    assert call.outcome == ""
    w.connection.send_piece(b"x")
    w.connection.end_upload()
    await turns()
    assert (call.outcome, call.stale) == ("upstream-broke-off", used)


async def test_a_used_connection_that_brought_nonsense_is_not_stale(w):
    w.call()
    await w.say(SMALL)
    call = w.call()
    await w.say(b"x")
    assert (call.outcome, call.stale) == ("upstream-malformed", False)


# --- the body of the request ---


async def test_a_body_with_a_length_is_sent_as_it_is_and_one_without_in_chunks(w):
    call = w.call(body=LENGTH)
    w.connection.send_piece(b"abc")
    w.connection.send_piece(b"")
    w.connection.send_piece(b"de")
    w.connection.end_upload()
    assert await w.hear() == REQUEST + b"abcde"
    await w.say(SMALL)
    assert (call.outcome, w.pool.released) == ("complete", 1)
    call = w.call(body=CHUNKED)
    w.connection.send_piece(b"abc")
    w.connection.send_piece(b"")
    w.connection.send_piece(b"x" * 17)
    w.connection.end_upload()
    assert await w.hear() == REQUEST + b"3\r\nabc\r\n11\r\n" + b"x" * 17 + b"\r\n0\r\n\r\n"
    await w.say(SMALL)
    assert (call.outcome, w.pool.released) == ("complete", 2)


async def test_an_answer_before_the_body_was_sent_ends_the_call_and_the_connection(w):
    call = w.call(body=CHUNKED)
    w.connection.send_piece(b"abc")
    await w.say(SMALL)
    assert (call.outcome, call.body) == ("complete", b"hello")
    assert (w.pool.released, w.connection.closed) == (0, True)
    w.connection.send_piece(b"late")
    w.connection.end_upload()
    assert await w.hear() == REQUEST + b"3\r\nabc\r\n"


async def test_pieces_and_ends_that_come_after_the_body_are_not_sent(w):
    w.call(body=CHUNKED)
    w.connection.end_upload()
    w.connection.send_piece(b"late")
    w.connection.end_upload()
    assert await w.hear() == REQUEST + b"0\r\n\r\n"


async def test_an_upload_waits_while_the_api_does_not_read(w):
    call = w.call(body=LENGTH)
    sent = 0
    while call.may != [False]:
        assert sent < 10_000_000
        w.connection.send_piece(bytes(65536))
        sent += 65536
        await asyncio.sleep(0)
    got = b""
    while call.may != [False, True]:
        got += await w.hear()
    w.connection.end_upload()
    while piece := await w.hear():
        got += piece
    assert len(got) == len(REQUEST) + sent


# --- reading no more ---


async def test_an_answer_waits_while_it_is_paused(w):
    call = w.call(Call(lambda what: w.connection.pause() if what == "head" else None))
    w.api.setblocking(False)
    await w.say(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\nfirst")
    sent = 5
    with contextlib.suppress(BlockingIOError):
        while sent < 10_000_000:
            sent += w.api.send(bytes(65536))
            await turns()
    assert sent < 5_000_000
    assert call.body == b"first"
    w.connection.resume()
    await w.say(bytes(10_000_000 - sent))
    assert (call.outcome, len(call.body), w.pool.released) == ("complete", 10_000_000, 1)


async def test_a_connection_that_was_paused_at_the_end_is_read_again(w):
    call = w.call(Call(lambda what: w.connection.pause() if what == "piece" else None))
    await w.say(SMALL)
    assert (call.outcome, w.pool.released) == ("complete", 1)
    await w.hang_up()
    assert w.connection.closed


@pytest.mark.parametrize("when", ["head", "piece"])
@pytest.mark.parametrize("answer", [CHUNKS, SMALL, SMALL + SMALL, CHUNKS[:-10] + b"!"])
async def test_a_call_that_is_abandoned_on_the_way_hears_no_more(w, when, answer, capfd):
    seen = []

    def leave(what):
        seen.append(what)
        if what == when:
            w.connection.abandon()

    call = w.call(Call(leave))
    await w.say(answer)
    await turns()
    assert (seen[-1], call.outcome) == (when, "")
    assert (w.pool.released, w.pool.forgotten) == (0, True)
    assert "error" not in "".join(capfd.readouterr())


async def test_a_call_that_is_abandoned_before_its_answer_hears_nothing(w):
    call = w.call(body=LENGTH)
    w.connection.abandon()
    w.connection.pause()
    w.connection.resume()
    w.connection.send_piece(b"x")
    await w.say(SMALL)
    assert (call.head, call.outcome, w.pool.forgotten) == (None, "", True)


async def test_a_connection_that_is_closed_under_a_call_says_so(w):
    call = w.call()
    w.connection.close()
    assert (call.outcome, call.stale) == ("upstream-broke-off", False)


# --- a receiver that fails ---


@pytest.mark.parametrize("when", ["head", "piece", "pause", "upload"])
async def test_a_receiver_that_fails_loses_the_connection_and_its_words_are_not_logged(w, when, capfd):
    def fail(what):
        if what == when:
            raise RuntimeError("sekret-AAAA1111")

    call = w.call(Call(fail), body=LENGTH if when == "upload" else NO_BODY)
    if when == "upload":
        for _ in range(100):
            w.connection.send_piece(bytes(65536))
    else:
        await w.say(SMALL[:-1], SMALL[-1:])
    assert (call.outcome, call.stale) == ("internal-error", False)
    assert (w.pool.released, w.pool.forgotten) == (0, True)
    said = "".join(capfd.readouterr())
    assert "unexpected-error" in said
    assert "RuntimeError" in said
    assert "sekret" not in said


@pytest.mark.parametrize("when", ["complete", "failed"])
async def test_a_receiver_that_fails_at_the_end_loses_the_connection(w, when, capfd):
    def fail(what):
        if what == when:
            raise RuntimeError("sekret-AAAA1111")

    call = w.call(Call(fail))
    await w.say(SMALL if when == "complete" else b"nonsense")
    assert call.outcome in {"complete", "upstream-malformed"}
    assert (w.connection.closed, w.pool.forgotten) == (True, True)
    said = "".join(capfd.readouterr())
    assert "RuntimeError" in said
    assert "sekret" not in said


async def test_the_next_call_may_begin_within_the_end_of_the_last(w):
    second = Call()

    def go_on(what):
        if what == "complete":
            w.connection.send(second, REQUEST, head_only=False, body=NO_BODY)

    w.call(Call(go_on))
    await w.say(SMALL, SMALL)
    assert (second.outcome, second.body, w.pool.released) == ("complete", b"hello", 2)
