"""One connection to an API: a call goes out on it, and its answer comes back piece by piece.

- One call at a time. The connection goes back to its pool only when the answer and the upload are complete, nothing
  follows the answer, and the API keeps it open. Bytes that nobody asked for close it: they never reach another call.
- What llhttp refuses in its strict mode is refused, and so is what could be read in two ways: a version other than
  1.0 and 1.1, a coding other than ``chunked``, chunks on HTTP/1.0, a protocol that is switched.
- A head is counted as it arrives; so are bytes that bring no body (chunk extensions, trailers, which are dropped).
- A length or chunks decide where a body ends; without them the end of the connection does, if it was a clean one.
- A head of the same bytes as the last one's, with all of its body and nothing else behind it, says the same: it is not
  read again.

Everything happens within the transport's callbacks: there is no task, no future and no timer here.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final, Protocol

import httptools
import structlog

from config.asgi import describe
from config.problems import ProblemError

log = structlog.get_logger("broker.wire")

Headers = list[tuple[bytes, bytes]]

_MAX_HEAD: Final = 65_536
_MAX_LINE: Final = 16_384
_MAX_LINES: Final = 128
#: A longer head is not remembered.
_REMEMBERED_BYTES: Final = 2048
#: How many interim answers (100, 102, 103) are read over.
_MAX_INTERIM: Final = 16
#: So many pieces in one segment are work for a while: others have their turn before the next is read.
_MANY_PIECES: Final = 1000
#: How many bytes of a body may bring nothing of it, one after the other.
_MAX_BARREN: Final = 65_536
_MAX_LENGTH_DIGITS: Final = 18

#: Where interim answers begin, and final ones. Of 101 the parser makes an error itself.
_INTERIM: Final = 100
_FINAL: Final = 200
_LAST_STATUS: Final = 599
#: No Content, Not Modified: never a body, whatever the headers say. The former has no length either.
_NO_CONTENT: Final = 204
_BODILESS: Final = frozenset({_NO_CONTENT, 304})
_VERSIONS: Final = frozenset({"1.0", "1.1"})
#: Of "HTTP/": llhttp skips line breaks before it, and takes RTSP and ICE, too.
_FIRST_BYTE: Final = ord("H")
_BREAKS: Final = b"\r\n"
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})


class Framing(Enum):
    """How a request's body is delimited."""

    NO_BODY = 0
    LENGTH = 1
    CHUNKED = 2


NO_BODY: Final = Framing.NO_BODY
LENGTH: Final = Framing.LENGTH
CHUNKED: Final = Framing.CHUNKED


class AnswerHead:
    """The head of an answer.

    Header names are in lower case, repeated ones stay repeated. ``length`` is its Content-Length. ``bodiless`` says
    that no body follows, whatever the length. An API that answers the same again gives the same object again:
    ``passed`` is kept with it by who reads it, with whom it is for.
    """

    __slots__ = ("bodiless", "headers", "length", "passed", "status")

    def __init__(self, status: int, headers: Headers, length: int | None, *, bodiless: bool) -> None:
        """Take what the head says."""
        self.status = status
        self.headers = headers
        self.length = length
        self.bodiless = bodiless
        self.passed: tuple[object, Headers, bytes | None] | None = None


class Receiver(Protocol):
    """Whose call it is. Its callbacks raise nothing; they may :meth:`~UpstreamConnection.abandon` the connection."""

    def answer_begins(self, answer: AnswerHead) -> None:
        """Take the head of the final answer."""

    def answer_piece(self, piece: bytes) -> None:
        """Take a piece of its body, never an empty one."""

    def answer_pauses(self) -> None:
        """Take that everything which has come is handed on, and that more is to come."""

    def answer_complete(self) -> None:
        """Take the end. The connection is the pool's again, or closed."""

    def answer_failed(self, problem: ProblemError, *, stale: bool) -> None:
        """Take that there is no answer, or no more of it. The connection is closed.

        ``problem`` is ``upstream-broke-off``, ``upstream-malformed`` or ``internal-error``. ``stale`` says that the
        connection had carried a call before and not one byte of this answer came: it may have been dead already.
        """

    def upload_may_go_on(self, may: bool) -> None:  # noqa: FBT001 - the one thing that it says
        """Stop sending pieces of the body, or go on. May come from within ``send_piece``."""


class Owner(Protocol):
    """Whose connections these are: a pool."""

    def release(self, connection: UpstreamConnection) -> None:
        """Take a connection back: it can carry the next call."""

    def forget(self, connection: UpstreamConnection) -> None:
        """Let go of a connection that is closed; it may be told more than once."""


class _MalformedError(Exception):
    """The answer is not one. The parser carries it out of its callbacks."""


class _StopError(Exception):
    """What the parser finds from here on is of no interest."""


class UpstreamConnection(asyncio.Protocol):
    """One connection of a pool. Its ``on_...`` methods are the parser's."""

    def __init__(self, owner: Owner) -> None:
        """Take the pool; the loop connects it."""
        self._owner = owner
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # set before anything else happens
        self._parser: httptools.HttpResponseParser | None = None
        self._receiver: Receiver | None = None
        self._headers: Headers = []
        self._head_only = False
        self._in_head = False
        self._ended = False
        self._parsed = False
        self._until_close = False
        self._length: bytes | None = None
        self._coding: bytes | None = None
        self._fed = 0
        self._barren = 0
        self._brought = 0
        self._more: list[bytes] = []
        self._interim = 0
        #: The bytes of the last head that came with all of its body, and what they say; and the head that came last.
        self._known = b""
        self._known_answer: AnswerHead | None = None
        self._answer: AnswerHead | None = None
        self._keep = True
        self._uploading = False
        self._chunks = False
        self._paused = False
        #: It is closed, or about to be: nothing can be sent on it.
        self.closed = False
        #: It has carried a call to its end.
        self.used = False
        #: When its pool got it back, by the loop's clock.
        self.idle_since = 0.0

    # --- the call ---

    def send(self, receiver: Receiver, head: bytes, *, head_only: bool, body: Framing) -> None:
        """Send a request's head; the answer's callbacks may begin before its body is complete.

        ``head`` is complete, with its framing headers, and ends with an empty line; without a body, bytes that follow
        it are sent along. ``head_only`` says that the method is HEAD.
        """
        self._receiver = receiver
        self._head_only = head_only
        self._in_head = True
        self._ended = self._parsed = self._until_close = False
        self._length = self._coding = None
        self._fed = self._barren = self._interim = 0
        self._headers = []
        if self.closed:
            # It was lost while its taker waited for something else.
            asyncio.get_running_loop().call_soon(self._fail, "upstream-broke-off")
            return
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        if body is not NO_BODY:
            self._uploading = True
            self._chunks = body is CHUNKED
        self._transport.write(head)

    def send_piece(self, piece: bytes) -> None:
        """Send a piece of the body. When the call is over already, nothing happens."""
        if not self._uploading or not piece:
            return
        if self._chunks:
            self._transport.writelines((b"%x\r\n" % len(piece), piece, b"\r\n"))
        else:
            self._transport.write(piece)

    def end_upload(self) -> None:
        """Say that the body is complete."""
        if not self._uploading:
            return
        self._uploading = False
        if self._chunks:
            self._transport.write(b"0\r\n\r\n")

    def once(self) -> None:
        """Close the connection after this answer."""
        self._keep = False

    def pause(self) -> None:
        """Stop reading the answer. What has been read already still comes."""
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on reading the answer."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def abandon(self) -> None:
        """Forget the receiver and close at once: no callback comes after this."""
        self._receiver = None
        self.close()

    def close(self) -> None:
        """Close at once; a receiver that still waits is told."""
        if not self.closed:
            self.closed = True
            self._uploading = False
            self._parser = None
            self._owner.forget(self)
            self._transport.abort()
        self._fail("upstream-broke-off")

    # --- the transport's callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - whatever the reason, it is gone
        """Give up."""
        self.close()

    def eof_received(self) -> None:
        """Take the API's end: of a body that has no other end, or of everything."""
        if self._until_close and self._receiver is not None:
            self._finish()
        else:
            self.close()

    def data_received(self, data: bytes) -> None:
        """Take what came, if it was asked for and not given up."""
        if self._receiver is None or self._parser is None:
            self.close()
        elif self._known and not self._fed and self._is_known(data):
            self._take_known(data)
        else:
            self._read(self._parser, data)

    def _read(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        """Feed the parser; what it found out has happened when it returns, but for the end."""
        self._brought = 0
        began_in_head = self._in_head
        failure = None
        try:
            if began_in_head:
                self._feed_head(parser, data)
            else:
                parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, _MalformedError) as error:
            failure = error
        if self._more:
            self._hand_on_more()
        if failure is not None:
            if not self._ended:
                self._refuse(failure)
                return
            # What follows a complete answer is nobody's.
            self._keep = False
        if self._receiver is None:
            return
        if self._ended:
            self._keep &= data[-1] not in _BREAKS or self._ends_there(data, began_in_head=began_in_head)
            if began_in_head:
                self._remember(data)
            self._finish()
            return
        if not self._in_head and not self._brought:
            self._count_barren(len(data))
        self._tell_pause()

    def pause_writing(self) -> None:
        """Hand on that the API does not keep up."""
        if self._uploading:
            self._tell_upload(may=False)

    def resume_writing(self) -> None:
        """Hand on that the API keeps up again."""
        if self._uploading:
            self._tell_upload(may=True)

    # --- the parser's callbacks ---

    def on_message_begin(self) -> None:
        """Begin a head: the first, or the one after an interim answer."""
        if self._ended:
            raise _StopError

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; a trailer is dropped."""
        if self._in_head:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Check the head and hand it on."""
        parser, receiver = self._parser, self._receiver
        if parser is None or receiver is None:
            raise _StopError
        status = parser.get_status_code()
        if status < _FINAL:
            self._read_over(status)
            return
        version = parser.get_http_version()
        headers = self._finished_headers()
        if status > _LAST_STATUS or version not in _VERSIONS or len(headers) > _MAX_LINES:
            raise _MalformedError
        if self._fed > _MAX_LINE and any(len(name) + len(value) > _MAX_LINE for name, value in headers):
            raise _MalformedError
        length, coding = self._length, self._coding
        if coding is not None and (coding.lower() != b"chunked" or version != "1.1"):
            raise _MalformedError
        if length is not None and len(length) > _MAX_LENGTH_DIGITS:
            raise _MalformedError
        bodiless = self._head_only or status in _BODILESS
        unframed = length is None and coding is None
        if not parser.should_keep_alive():
            # Without framing the parser expects that the body ends with the connection; an answer to HEAD has none.
            self._keep &= unframed and version == "1.1" and not _says_close(headers)
        elif bodiless and (coding is not None or (status == _NO_CONTENT and length not in {None, b"0"})):
            # Of a body that should not be there, more may be under way; and in chunks the parser does not notice it.
            self._keep = False
        self._in_head = False
        self._until_close = unframed and not bodiless
        announced = int(length) if length and status != _NO_CONTENT else None
        answer = self._answer = AnswerHead(status, headers, announced, bodiless=bodiless)
        receiver.answer_begins(answer)
        self._ended = bodiless

    def on_body(self, piece: bytes) -> None:
        """Hand a piece of the body on."""
        receiver = self._receiver
        if self._ended or receiver is None:
            raise _StopError
        if self._in_head:
            # Of an interim answer that says it has a body; the parser knows only some that have none.
            raise _MalformedError
        first = not self._brought
        self._brought += len(piece)
        self._barren = 0
        if first:
            receiver.answer_piece(piece)
        else:
            # Of many small chunks each would cost as much as a large one.
            self._more.append(piece)

    def on_message_complete(self) -> None:
        """Note the end; it is handed on when the parser has returned, and with it what follows."""
        if not self._in_head:
            self._ended = self._parsed = True

    # --- what it comes to ---

    def _ends_there(self, data: bytes, *, began_in_head: bool) -> bool:
        """Say whether an answer that is complete ends where ``data`` does: the parser skips line breaks behind it.

        Where that cannot be told it is denied.
        """
        if self._length is not None and self._brought:
            at = data.find(b"\r\n\r\n") if began_in_head else -4
            return at != -1 and at + 4 + self._brought == len(data)
        # A head or the last chunk: no empty line stands before the one that ends it.
        return data[-4:] == b"\r\n\r\n" and len(data) > 4 and data[-5] not in _BREAKS  # noqa: PLR2004

    def _remember(self, data: bytes) -> None:
        """Remember the head of an answer of which all came in this segment; anything else behind it closes us."""
        answer, at = self._answer, len(data) - self._brought
        if answer is None or self._fed != len(data) or at > _REMEMBERED_BYTES:
            return
        if 0 < self._brought == answer.length:
            self._known, self._known_answer = data[:at], answer

    def _is_known(self, data: bytes) -> bool:
        answer = self._known_answer
        return (
            answer is not None
            and not self._head_only
            and len(data) - len(self._known) == answer.length
            and data.startswith(self._known)
        )

    def _take_known(self, data: bytes) -> None:
        """Take an answer as if the parser had read it, which has read the same head before and waits for the next."""
        receiver, answer = self._receiver, self._known_answer
        if receiver is None or answer is None:
            return
        self._fed = len(data)
        self._parsed = True
        try:
            receiver.answer_begins(answer)
            if self._receiver is receiver:
                receiver.answer_piece(data[len(self._known) :])
        except Exception as error:  # noqa: BLE001 - the transport calls this
            self._fail_with(describe(error, log))
            return
        if self._receiver is receiver:
            self._finish()

    def _feed_head(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        first = not self._fed
        self._fed += len(data)
        if first and data[0] != _FIRST_BYTE:
            raise _MalformedError
        if self._fed <= _MAX_HEAD:
            parser.feed_data(data)
            return
        # First what a head may still have, and only if that was all of it the rest.
        room = _MAX_HEAD - self._fed + len(data)
        view = memoryview(data)
        parser.feed_data(view[:room])
        if self._in_head:
            raise _MalformedError
        parser.feed_data(view[room:])

    def _finished_headers(self) -> Headers:
        headers = [(name.lower(), value.rstrip()) for name, value in self._headers]
        for name, value in headers:
            if name in _FRAMING:
                self._note_framing(name, value)
        return headers

    def _note_framing(self, name: bytes, value: bytes) -> None:
        if name == b"content-length":
            self._length = value
        elif self._coding is None:
            self._coding = value
        else:
            raise _MalformedError

    def _hand_on_more(self) -> None:
        """Hand on what a segment brought of the body beside its first piece."""
        more, self._more = self._more, []
        if self._receiver is None:
            return
        if len(more) > _MANY_PIECES and not self._ended:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)
        try:
            self._receiver.answer_piece(b"".join(more))
        except Exception as error:  # noqa: BLE001 - the transport calls this
            self._fail_with(describe(error, log))

    def _read_on(self) -> None:
        if not self._paused and not self.closed:
            self._transport.resume_reading()

    def _count_barren(self, size: int) -> None:
        self._barren += size
        if self._barren > _MAX_BARREN:
            self._fail("upstream-malformed")

    def _read_over(self, status: int) -> None:
        self._interim += 1
        if status < _INTERIM or self._interim > _MAX_INTERIM:
            raise _MalformedError
        self._headers = []
        self._length = self._coding = None

    def _refuse(self, error: Exception) -> None:
        if self._receiver is None:
            return
        cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
        if cause is None or isinstance(cause, _MalformedError):
            self._fail("upstream-malformed")
        elif isinstance(cause, Exception):
            self._fail_with(describe(cause, log))
        else:
            self.close()
            raise cause

    def _finish(self) -> None:
        receiver = self._receiver
        self._receiver = None
        if self._keep and not self._uploading and not self._until_close:
            self.resume()
            self.used = True
            if self._head_only or not self._parsed:
                self._parser = None  # it still waits for the body that its head announced
            self._owner.release(self)
        else:
            self.close()
        if receiver is None:
            return
        try:
            receiver.answer_complete()
        except Exception as error:  # noqa: BLE001 - the connection must not be kept by it
            describe(error, log)
            if self._receiver is None:
                self.close()

    def _fail(self, code: str) -> None:
        if self._receiver is not None:
            self._fail_with(ProblemError(code))

    def _fail_with(self, problem: ProblemError) -> None:
        receiver = self._receiver
        if receiver is None:
            return
        self._receiver = None
        self.close()
        try:
            receiver.answer_failed(problem, stale=self.used and not self._fed)
        except Exception as error:  # noqa: BLE001 - nobody is left to tell
            describe(error, log)

    def _tell_pause(self) -> None:
        if self._receiver is None:
            return
        try:
            self._receiver.answer_pauses()
        except Exception as error:  # noqa: BLE001 - the transport calls this
            self._fail_with(describe(error, log))

    def _tell_upload(self, *, may: bool) -> None:
        if self._receiver is None:
            return
        try:
            self._receiver.upload_may_go_on(may)
        except Exception as error:  # noqa: BLE001 - the transport calls this
            self._fail_with(describe(error, log))


def _says_close(headers: Headers) -> bool:
    return any(name == b"connection" and value.lower() != b"keep-alive" for name, value in headers)
