"""The request side: whatever the bytes and however they arrive, what is answered is what another parser sees.

An input is all that a client sends on one connection. h11 reads the same bytes: of the requests that it reads, the
first ones are answered (the rest is refused), each with the same method, target, header lines and body. How the bytes
are split changes nothing. Targets of calls (``/p/``) are answered within the connection, as the broker does, all others
by an application. Those with ``early`` in them are answered before their body is read; calls with ``late`` in them only
after a while.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from uvicorn.server import ServerState

from broker.call import GONE
from broker.wire.exchange import CallExchange, CallsOnTheWire
from config.http_protocol import GroupState, Protocol
from config.listeners import Limits, Listener, ListenerGroup
from tests.worlds.memory_wire import Loop, Wire, play

HOST = b"Host: a\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
GET = b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n"
CALL = b"GET /p/a HTTP/1.1\r\n" + HOST + b"\r\n"
SEEDS = [
    GET,
    GET + GET,
    b"POST /a?b=1 HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc" + GET,
    b"POST /a HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n" + GET,
    b"POST /early HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" + GET,
    b"POST /early HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 40\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n0123456789ab"
    + GET,
    b"PUT /a HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nab" + GET,
    b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET,
    b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: +3\r\n\r\nabc",
    b"POST /a HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"POST /a HTTP/1.1\r\n" + HOST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"POST /a HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n1\r\naXX0\r\n\r\n" + GET,
    b"POST /a HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: trailer\r\n\r\n" + GET,
    b"GET /a HTTP/1.0\r\n" + HOST + b"\r\n" + GET,
    b"GET /a HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n" + GET,
    b"POST /p/a HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc" + CALL,
    CALL * 3 + GET * 2 + CALL * 2,
    CALL * 6,
    CALL * 2 + b"GET /p/a HTTP/1.1\r\n" + HOST + b"X: y\r\n\r\n" + CALL,
    CALL + b"\r\n\r\n" + CALL,
    b"GET /p/late HTTP/1.1\r\n" + HOST + b"\r\n" + b"GET /p/late HTTP/1.1\r\n" + HOST + b"\r\n" + CALL * 2,
    CALL * 2
    + b"HEAD /p/a HTTP/1.1\r\n"
    + HOST
    + b"\r\n"
    + CALL * 2
    + b"POST /p/a HTTP/1.1\r\n"
    + HOST
    + b"\r\n"
    + CALL,
    CALL * 2 + b"POST /p/a HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(CALL) + CALL * 3,
    (b"GET /p/early HTTP/1.1\r\n" + HOST + b"X: y\r\n\r\n") * 3 + CALL,
    (b"GET /p/a HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n") * 2,
    b"POST /p/late HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n" + CALL,
    b"POST /p/late HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n" + b"1\r\na\r\n" * 40 + b"0\r\n\r\n" + CALL,
    b"PUT /p/early HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nab" + CALL,
    b"PUT /p/early HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n",
    b"PUT /p/early HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\n\r\n" + CALL,
    b"GET /p/a HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n",
    b"GET /p/a HTTP/1.0\r\n" + HOST + CHUNKED + b"\r\n0\r\n\r\n",
    b"POST /p/a HTTP/1.1\r\n" + HOST + b"Content-Length: 0000000000000000003\r\n\r\nabc",
    b"POST /p/early HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\n012345678" + CALL + GET,
    b"PUT /p/late HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nab" + GET + CALL,
    b"POST /p/late HTTP/1.0\r\n" + HOST + b"Content-Length: 2\r\n\r\nab" + CALL,
    CALL + b"GET /b HTTP/1.1\r\n" + HOST + b"\r\nHEAD /p/c HTTP/1.1\r\n" + HOST + b"\r\n" + GET + CALL,
    b"HEAD /a HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n",
    b"GET  /a  HTTP/1.1\r\n" + HOST + b"\r\n" + CALL,
    b"GET /a HTTP/1.1\nHost: a\n\n",
    b"CONNECT b:443 HTTP/1.1\r\n" + HOST + b"\r\n" + CALL,
    b"GET http://b/a HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /a HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n" + GET,
    b"GET /a\r\n\r\n",
    b"\r\n" + GET,
]
TOKENS = [
    *(
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"OPTIONS ",
        b"CONNECT ",
        b"/a",
        b"/early",
        b"/p/",
        b"/p/late",
        b"*",
        b" HTTP/1.1\r\n",
        b" HTTP/1.0\r\n",
    ),
    *(b" HTTP/2.0\r\n", b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", HOST, b"Content-Length: 3\r\n"),
    *(b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b", chunked"),
    *(
        b"Connection: close\r\n",
        b"Connection: keep-alive\r\n",
        b"Connection: x, close\r\n",
        b"Expect: 100-continue\r\n",
    ),
    *(
        b"0\r\n\r\n",
        b"1\r\na\r\n",
        b'3;ext="a\r\n',
        b"0x1\r\n",
        b"FFFFFFFFFFFFFFFFF\r\n",
        b"Host: b\r\n",
        b"\x80",
        b"\x0b",
    ),
    *(b"Upgrade: h2c\r\n", b"HTTP2-Settings: a\r\n", b"Origin: null\r\n", b"Trailer: x\r\n", b"X-Y: z\r\n", GET),
]


@dataclass(frozen=True)
class Seen:
    """A request as a parser reads it. The body is None where it is answered early: how much was read is open."""

    version: bytes
    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes | None


def one_input(data: bytes) -> None:
    expected = by_h11(data)
    whole = by_us([data], turns=False)
    assert whole == expected[: len(whole)], "the application sees what another parser does not"
    for request in whole:
        check_framing(request)
    for pieces, turns in ways_to_split(data):
        split = by_us(pieces, turns=turns)
        assert split == expected[: len(split)], "split, the application sees what another parser does not"
        assert settled(split) == settled(whole), "it matters how the bytes are split"


def check_framing(request: Seen) -> None:
    """What frames a body is said once, in the one way that nobody reads differently."""
    codings = [value for name, value in request.headers if name == b"transfer-encoding"]
    lengths = [value for name, value in request.headers if name == b"content-length"]
    assert codings in ([], [b"chunked"])
    assert not codings or request.version == b"1.1"
    assert len(codings) + len(lengths) < 2
    assert all(re.fullmatch(rb"[0-9]{1,18}", value) for value in lengths)
    assert request.version in (b"1.0", b"1.1")
    assert re.fullmatch(rb"/[!-~]*", request.target)


def is_last(request: Seen) -> bool:
    """Say whether no other request may follow on the connection."""
    headers = dict(request.headers)
    has_body = b"transfer-encoding" in headers or int(headers.get(b"content-length", b"0")) > 0
    unread = request.body is None and b"expect" in headers and has_body
    return request.version == b"1.0" or headers.get(b"connection") == b"close" or unread


def settled(seen: list[Seen]) -> list[Seen]:
    """Leave out a last request that is answered early: its answer may be faster than what is wrong in its body."""
    return seen[:-1] if seen and seen[-1].body is None else seen


def ways_to_split(data: bytes) -> list[tuple[list[bytes], bool]]:
    """Return the bytes one by one, the lines, the heads, and pieces at places that depend on all of the input.

    With each: whether the application gets its turn after every piece.
    """
    places = random.Random(zlib.crc32(data))  # noqa: S311 - it must find the same places again
    cuts = sorted({0, len(data), *(places.randrange(len(data) + 1) for _ in range(4))})
    some = [data[start:end] for start, end in itertools.pairwise(cuts)]
    each = [data[at : at + 1] for at in range(len(data))]
    lines = re.findall(rb"[^\n]*\n|[^\n]+", data)
    heads = re.findall(rb"(?s).*?\r\n\r\n|.+", data)
    pairs = [b"".join(heads[at : at + 2]) for at in range(0, len(heads), 2)]
    apart = [(each, False), (lines, True), (heads, False), (some, False)]
    return [*apart, (each, True), (heads, True), (pairs, True), (some, True)]


def by_us(pieces: list[bytes], *, turns: bool) -> list[Seen]:
    seen: list[Seen] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        early = b"early" in scope["target"]
        body: bytes | None = None
        if not early:
            body = await read_all(receive)
            if body is None:
                return
        version, method = scope["http_version"].encode(), scope["method"].encode()
        seen.append(Seen(version, method, scope["target"], plain(scope["headers"]), body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def main(loop: Loop) -> bytes:
        group = ListenerGroup(
            app=app,
            listeners=(),
            by="broker",
            limits=Limits(max_pipelined=1000),
            hosts=None,
            direct=CallsOnTheWire(Answering(loop, seen)),
        )
        config = uvicorn.Config(app, http=Protocol, ws="none", lifespan="off", interface="asgi3", log_config=None)
        config.load()
        state = GroupState(group, ServerState(), loop.time())
        protocol = Protocol(config, state, Listener("tcp", "127.0.0.1", 80), loop)
        wire = Wire(loop, protocol, peername=("127.0.0.1", 1), sockname=("127.0.0.1", 80))
        protocol.connection_made(wire)
        await wire.deliver(pieces, turns=turns)
        if seen and is_last(seen[-1]):
            assert wire.closing or wire.ended, "it is open after its last answer"
            assert b"connection: close\r\n" in wire.written
        await wire.end()
        # What lingers after a refusal ends by its deadline.
        state.sweep(loop.time() + 3600)
        await loop.settle()
        assert wire.lost
        assert not state.server_state.tasks
        assert not state.server_state.connections
        return wire.written

    written = play(main)
    statuses = [status for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", written) if status != b"100"]
    assert statuses.count(b"200") == len(seen)
    assert statuses[len(seen) :] == statuses[len(seen) :][:1], "more answers than one refusal after the last request"
    return seen


class Answering:
    """What makes calls, less everything that a call is: it reads the body and answers."""

    def __init__(self, loop: Loop, seen: list[Seen]) -> None:
        self.loop = loop
        self.seen = seen

    def ask(self, asking: CallExchange, _memory: object) -> None:
        asking.call = call = AnsweredCall(asking, self.seen)
        if b"early" in asking.target:
            call.answer(None)
        elif asking.length == 0 and b"late" not in asking.target:
            call.answer(b"")
        elif b"late" in asking.target:
            call.task = self.loop.create_task(call.wait())
        else:
            asking.want_body()


class AnsweredCall:
    """One call. A late one holds its body back after every piece."""

    task: asyncio.Task[None] | None = None

    def __init__(self, asking: CallExchange, seen: list[Seen]) -> None:
        self.asking = asking
        self.seen = seen
        self.body = b""
        self.over = False
        self.held = False

    async def wait(self) -> None:
        if self.asking.length != 0:
            await self.asking.body_begun()
        self.task = None
        if not self.over:
            self.asking.want_body()

    def body_piece(self, piece: bytes) -> None:
        assert not self.over
        assert not self.held
        self.body += piece
        if b"late" in self.asking.target:
            self.held = True
            self.asking.hold_body(hold=True)
            asyncio.get_running_loop().call_soon(self.go_on)

    def go_on(self) -> None:
        self.held = False
        if not self.over:
            self.asking.hold_body(hold=False)

    def body_end(self) -> None:
        assert not self.over
        self.answer(self.body)

    def client_reads(self, *, reads: bool) -> None:
        pass

    def cut(self, code: str) -> None:
        assert code == GONE
        self.over = True
        if self.task is not None:
            self.task.cancel()

    def answer(self, body: bytes | None) -> None:
        self.over = True
        asking = self.asking
        version = b"1.1" if asking.new else b"1.0"
        self.seen.append(Seen(version, asking.method.encode(), asking.target, plain(asking.headers), body))
        asking.begin(200, [], 2, bodiless=asking.method == "HEAD")
        asking.piece(b"ok")
        asking.end()


async def read_all(receive: Any) -> bytes | None:
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message["body"]
        if not message["more_body"]:
            return body


def by_h11(data: bytes) -> list[Seen]:
    seen: list[Seen] = []
    rest: bytes | None = data
    while rest is not None:
        request, rest = one_by_h11(rest)
        if request is not None:
            seen.append(request)
    return seen


def one_by_h11(data: bytes) -> tuple[Seen | None, bytes | None]:
    """Return the first request, and what follows it when the connection goes on after it."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    # Empty lines before a request are to be read over (RFC 9112, 2.2); llhttp takes several blanks in its first line,
    # which all who take them read in one way.
    line, end, rest = data.lstrip(b"\r\n").partition(b"\n")
    connection.receive_data(re.sub(rb"(?<! ) +(?=[/H])", b" ", line) + end + rest)
    request: Any = None
    early = False
    body = b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            break
        if isinstance(event, h11.Request):
            request = event
            early = b"early" in request.target
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            connection.send(h11.Response(status_code=400, headers=[(b"content-length", b"0")]))
            connection.send(h11.EndOfMessage())
            goes_on = (connection.our_state, connection.their_state) == (h11.DONE, h11.DONE)
            return head_of(request, None if early else body), connection.trailing_data[0] if goes_on else None
        else:
            break
    return (head_of(request, None), None) if early else (None, None)


def head_of(request: h11.Request, body: bytes | None) -> Seen:
    return Seen(request.http_version, request.method, request.target, plain(request.headers), body)


def plain(headers: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    """Leave out what parsers differ in without harm: the case of names and codings, blanks around values."""
    lines = [(name.lower(), value.strip(b" \t")) for name, value in headers]
    return tuple((name, value.lower() if name == b"transfer-encoding" else value) for name, value in lines)
