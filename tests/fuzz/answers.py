"""The response side: whatever an API sends and however it arrives, what is passed on is what another parser reads.

An input is a line that says the call (``GET``, ``HEAD``, or ``POST`` whose body is not complete), and all that the API
sends on the connection from then on. h11 reads the same bytes: an answer is complete only where h11 says so, too, with
the same status, header lines and body. A cut answer fails; after the end no callback comes; a connection on which
anything is odd is not used again. How the bytes are split, and whether reading pauses, changes nothing.
"""

from __future__ import annotations

import itertools
import random
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import h11

from broker.wire.upstream import CHUNKED, NO_BODY, AnswerHead, UpstreamConnection
from config.problems import ProblemError
from tests.worlds.memory_wire import Loop, Wire, play

OK = b"HTTP/1.1 200 OK\r\n"
SEEDS = [
    b"GET\n" + OK + b"Content-Length: 5\r\n\r\nhello",
    b"GET\n" + OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-Trailer: a\r\n\r\n",
    b"GET\n" + OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nTransfer-Encoding: x\r\nContent-Length: 9\r\n\r\n",
    b"GET\n" + OK + b"\r\nuntil the end",
    b"GET\n" + OK + b"Content-Length: 5\r\n\r\nhel",
    b"GET\n" + OK + b"Content-Length: 5\r\n\r\nhello" + OK + b"Content-Length: 0\r\n\r\n",
    b"GET\n" + OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    b"GET\n" + OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    b"GET\n" + OK + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    b"GET\n" + OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    b"GET\n" + OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"GET\n" + OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nok",
    b"GET\n" + OK + b"Connection: close\r\n\r\nok",
    b"GET\nHTTP/1.0 200 OK\r\n\r\nold",
    b"GET\nHTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nold",
    b"GET\nHTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    + OK
    + b"Content-Length: 1\r\n\r\na",
    b"GET\nHTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\n\r",
    b"GET\nHTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    b"GET\nHTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc",
    b"GET\nHTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET\nHTTP/1.1 199 Odd\r\nContent-Length: 2\r\n\r\nok" + OK + b"Content-Length: 0\r\n\r\n",
    b"HEAD\n" + OK + b"Content-Length: 5\r\n\r\n",
    b"HEAD\n" + OK + b"Transfer-Encoding: chunked\r\n\r\n",
    b"HEAD\n" + OK + b"\r\nhello",
    b"POST\nHTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno",
    b"GET\nHTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
    b"GET\nHTTP/2 200 OK\r\n\r\n",
    b"GET\nHTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"GET\nHTTP/1.1 101 Switching\r\n\r\n" + OK + b"Content-Length: 0\r\n\r\n",
    b"GET\nHTTP/1.1 099 Odd\r\n\r\n" + OK + b"Content-Length: 0\r\n\r\n",
    b"GET\n" + OK + b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    b"GET\n" + OK + b"Set-Cookie: a=1\r\nset-cookie: b=2\r\nContent-Length: 0\r\n\r\n",
    b"GET\n<html>not HTTP</html>",
    b"GET\n",
]
TOKENS = [
    *(
        b"GET\n",
        b"HEAD\n",
        b"POST\n",
        OK,
        b"HTTP/1.0 200 OK\r\n",
        b"HTTP/1.1 ",
        b"HTTP/1.",
        b"HTTP/0.9 ",
        b"204",
        b"304",
    ),
    *(
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"101",
        b"199",
        b"599",
        b"600",
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b"\t",
    ),
    *(b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length:", b"Transfer-Encoding: chunked\r\n"),
    *(
        b"Transfer-Encoding: identity\r\n",
        b", chunked",
        b"Connection: close\r\n",
        b"Connection: keep-alive\r\n",
        b"hello",
    ),
    *(
        b"0\r\n\r\n",
        b"3\r\nabc\r\n",
        b'5;ext="a\r\n',
        b"0x1\r\n",
        b"FFFFFFFFFFFFFFFF\r\n",
        b"+1",
        b"-1",
        b"\x80",
        b"\x0b",
    ),
    *(b"Upgrade: h2c\r\n", b"Trailer: x\r\n", b"X-Y: z\r\n"),
]
REASON = re.compile(rb"HTTP/1\.[01] [0-9]{3} [^\r\n]*")
EMPTY = re.compile(rb"\r\n\r\n[\r\n]+(?=HTTP/1)")
TRAILERS = re.compile(rb"\r\n0+(?:;[^\r\n]*)?\r\n(?:[^\r\n]+\r\n)+")
FRAMING = re.compile(rb"(?i)(?<=\n)[tc](?=ransfer-encoding:|ontent-length:)")
CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
#: What the connection has carried before, so that it is not a fresh one; its head is that of the first seed, which is
#: then not read again.
BEFORE = OK + b"Content-Length: 5\r\n\r\nworld"


@dataclass
class Answer:
    """What came of a call. ``end`` is "complete" or the problem's code."""

    status: int | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    end: str = ""
    version: bytes = field(default=b"1.1", compare=False)
    stale: bool = False
    #: Whether the connection may carry another call, when all bytes are there and the API has not closed it yet.
    #: It need not be, and is not when bytes come after llhttp saw the end, as the line feed of the last empty line may.
    kept: bool = field(default=False, compare=False)


class Receiving:
    """A receiver that knows what may come after what. ``leaves_at``: the callback in which it abandons the call."""

    def __init__(self, loop: Loop, connection: UpstreamConnection, *, pauses: bool, leaves_at: int | None) -> None:
        self.loop = loop
        self.connection = connection
        self.pauses = pauses
        self.leaves_at = leaves_at
        self.callbacks = 0
        self.left = False
        self.answer = Answer()
        #: What may not happen in a callback. The connection would keep an exception to itself.
        self.faults: list[str] = []

    def _called(self, *, begun: bool) -> None:
        if self.answer.end:
            self.faults.append("a callback after the end")
        if self.left:
            self.faults.append("a callback after the call was abandoned")
        if begun != (self.answer.status is not None):
            self.faults.append("a body before the head, or two heads")
        if self.callbacks == self.leaves_at:
            self.left = True
            self.connection.abandon()
        self.callbacks += 1

    def answer_begins(self, answer: AnswerHead) -> None:
        self._called(begun=False)
        self.answer.status = answer.status
        self.answer.headers = answer.headers

    def answer_piece(self, piece: bytes) -> None:
        self._called(begun=True)
        if not piece:
            self.faults.append("an empty piece")
        self.answer.body += piece
        if self.pauses and not self.left:
            self.connection.pause()
            self.loop.call_soon(self.connection.resume)

    def answer_pauses(self) -> None:
        self._called(begun=self.answer.status is not None)

    def answer_complete(self) -> None:
        self._called(begun=True)
        self.answer.end = "complete"

    def answer_failed(self, problem: ProblemError, *, stale: bool) -> None:
        self._called(begun=self.answer.status is not None)
        if not self.connection.closed:
            self.faults.append("failed, and not closed")
        self.answer.end = problem.code
        self.answer.stale = stale

    def upload_may_go_on(self, may: bool) -> None:
        self.faults.append("nothing holds the upload up here")


class Owning:
    """A pool that notes what is given back."""

    def __init__(self) -> None:
        self.released = 0
        self.forgotten = False

    def release(self, connection: UpstreamConnection) -> None:
        assert not connection.closed
        assert not self.forgotten, "given back after it was closed"
        self.released += 1

    def forget(self, connection: UpstreamConnection) -> None:
        self.forgotten = True


def one_input(data: bytes) -> None:
    method, _, sent = data.partition(b"\n")
    if method not in (b"GET", b"HEAD", b"POST"):
        return
    # What llhttp takes and h11 does not, without harm: a reason phrase, which is not passed on, with any byte but a
    # line's end in it; empty lines before a head; trailers, which are dropped, of any name.
    sent = REASON.sub(lambda line: CONTROL.sub(b"x", line[0]), EMPTY.sub(b"\r\n\r\n", sent))
    sent = TRAILERS.sub(lambda trailers: FRAMING.sub(b"x", trailers[0]), sent)
    whole = by_us(method, [sent])
    expected = by_h11(method, sent)
    if whole.end == "complete":
        assert whole.status == expected.status
        assert plain(whole.headers) == expected.headers
        assert whole.body == expected.body
        assert expected.version in (b"1.0", b"1.1")
        assert expected.end == "complete", "complete, but not to another parser"
        assert not whole.kept or expected.kept, "kept, but nobody knows what comes next on it"
    else:
        assert whole.end in ("upstream-broke-off", "upstream-malformed")
        assert expected.body.startswith(whole.body) or expected.end != "complete"
        assert not whole.kept
    assert whole.stale == (not sent)
    for pieces in ways_to_split(sent):
        for pauses in (False, True):
            split = by_us(method, pieces, pauses=pauses)
            assert split == whole, "it matters how the bytes come"
            # In one piece with interim answers it may not be kept: whether a last line break is the body's is not told.
            assert whole.kept or not split.kept or expected.kept
    cut = by_us(method, [sent], reset=True)
    assert cut == whole or (cut.end != "complete" and cut.body == whole.body), "a reset looks like an end"
    leave(method, sent)


def leave(method: bytes, sent: bytes) -> None:
    """Abandon the call in one of its callbacks: nothing more comes."""
    for at in range(3):
        by_us(method, [sent], leaves_at=at)
        by_us(method, [sent[:40], sent[40:]], leaves_at=at, pauses=True)


def ways_to_split(data: bytes) -> list[list[bytes]]:
    places = random.Random(zlib.crc32(data))  # noqa: S311 - it must find the same places again
    cuts = sorted({0, len(data), *(places.randrange(len(data) + 1) for _ in range(4))})
    some = [data[start:end] for start, end in itertools.pairwise(cuts)]
    return [[data[at : at + 1] for at in range(len(data))], re.findall(rb"[^\n]*\n|[^\n]+", data), some]


def by_us(
    method: bytes, pieces: list[bytes], *, pauses: bool = False, reset: bool = False, leaves_at: int | None = None
) -> Answer:
    async def main(loop: Loop) -> Answer:
        owner = Owning()
        connection = UpstreamConnection(owner)
        wire = Wire(loop, connection)
        connection.connection_made(wire)
        before = Receiving(loop, connection, pauses=False, leaves_at=None)
        connection.send(before, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", head_only=False, body=NO_BODY)
        await wire.deliver([BEFORE], turns=True)
        assert (before.answer.end, owner.released) == ("complete", 1)

        receiver = Receiving(loop, connection, pauses=pauses, leaves_at=leaves_at)
        head = method + b" / HTTP/1.1\r\nHost: a\r\n\r\n"
        body = CHUNKED if method == b"POST" else NO_BODY
        connection.send(receiver, head, head_only=method == b"HEAD", body=body)
        connection.send_piece(b"some")
        await wire.deliver([piece for piece in pieces if piece], turns=True)
        answer = receiver.answer
        answer.kept = owner.released == 2 and not connection.closed
        assert answer.kept == (not connection.closed and answer.end == "complete")
        if reset:
            wire.abort()
            await loop.settle()
        else:
            await wire.end()
        assert not receiver.faults, receiver.faults
        assert receiver.left or answer.end, "the call has no end"
        assert connection.closed
        assert wire.closing
        assert owner.forgotten
        assert owner.released < 3
        return answer

    answer: Answer = play(main)
    return answer


def by_h11(method: bytes, sent: bytes) -> Answer:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    headers = [(b"host", b"a")] + ([(b"transfer-encoding", b"chunked")] if method == b"POST" else [])
    connection.send(h11.Request(method=method, target=b"/", headers=headers))
    if method != b"POST":
        connection.send(h11.EndOfMessage())
    answer = Answer()
    connection.receive_data(sent.lstrip(b"\r\n"))
    ended = old = False
    while not answer.end:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            answer.end = "malformed"
            break
        if isinstance(event, h11.Response):
            answer.status = event.status_code
            answer.version = event.http_version
            answer.headers = plain(event.headers)
            old = event.http_version == b"1.0" and (b"connection", b"keep-alive") in answer.headers
        elif isinstance(event, h11.Data):
            answer.body += event.data
        elif isinstance(event, h11.EndOfMessage):
            answer.end = "complete"
            # h11 closes HTTP/1.0 always; whether it may be kept is said by one header.
            reusable = (connection.our_state, connection.their_state) == (h11.DONE, h11.DONE) or old
            answer.kept = reusable and not connection.trailing_data[0] and not ended
        elif event is h11.NEED_DATA and not ended:
            ended = True
            connection.receive_data(b"")
        elif not isinstance(event, h11.InformationalResponse):
            answer.end = "broke-off"
    return answer


def plain(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Leave out what parsers differ in without harm: the case of names and codings, blanks around values."""
    lines = [(name.lower(), value.strip(b" \t")) for name, value in headers]
    return [(name, value.lower() if name == b"transfer-encoding" else value) for name, value in lines]
