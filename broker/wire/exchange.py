"""A call as it stands on the code's connection: its request, and the answer as it is written there.

What comes together from an API is written together: a write is what a call costs most. The transport says when the
code does not keep up, and the call stops reading its API then.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from broker.call import GONE, PREFIX
from broker.identify import Seen
from config.asgi import describe
from config.http_exchange import Exchange, reset
from config.routes import METHODS

if TYPE_CHECKING:
    from broker.call import Call, Calls
    from broker.heads import Headers
    from config.http_protocol import Protocol
    from config.problems import ProblemError

log = structlog.get_logger("broker.wire")

_ALLOW: Final = (b"allow", ", ".join(METHODS).encode())
#: A larger piece is not copied to be written together with what stands around it.
_COPIED: Final = 16_384
#: So many pieces, with what stands around them, do not wait for more.
_WAITING: Final = 96


class CallExchange(Exchange):
    """One call."""

    # Written only where it becomes otherwise.
    response_started = False
    response_complete = False
    waiting_for_100_continue = False
    call: Call | None = None
    gone = False
    wanted = False
    held = False
    ended = False
    chunked = False
    until_close = False
    bodiless = False
    written = False
    out: list[bytes] = []  # noqa: RUF012 - replaced, never changed
    early: list[bytes] | None = None
    begun: asyncio.Future[None] | None = None

    def __init__(self, calls: Calls, connection: Protocol, method: str, *, new: bool, keep_alive: bool) -> None:
        """Take the request whose head the connection has just read; ``new`` says HTTP/1.1."""
        self.calls = calls
        self.connection = connection
        self.transport = connection.transport
        self.method = method
        self.target = connection.url
        self.headers: Headers = connection.headers
        self.length = connection.body_length
        self.new = new
        self.keep_alive = keep_alive
        if connection.expect_100_continue:
            self.waiting_for_100_continue = connection.expects_continue(new=new)

    # --- what the connection says ---

    def start(self) -> None:
        """Make the call."""
        seen = self.connection.memory
        if seen is None:
            seen = self.connection.memory = Seen()
        try:
            self.calls.ask(self, seen)
        except Exception as error:  # noqa: BLE001 - the parser would hold it, and the code would wait for ever
            self._broken(describe(error, log))

    def _broken(self, problem: ProblemError) -> None:
        if self.response_started:
            self.break_off(problem)
        else:
            self.refuse(problem)

    def feed(self, body: bytes) -> None:
        """Hand a piece of the body on, or keep it until it is wanted."""
        if self.wanted and not self.held:
            if self.call is not None:
                self.call.body_piece(body)
            return
        if self.early is None:
            self.early = []
        self.early.append(body)
        self.connection.flow.pause_reading()
        self._tell_begun()

    def end_of_request(self) -> None:
        """Take the end of the body."""
        self.ended = True
        self._tell_begun()
        if self.wanted and not self.early and self.call is not None:
            self.call.body_end()

    def _tell_begun(self) -> None:
        if self.begun is not None and not self.begun.done():
            self.begun.set_result(None)

    def client_reads(self, *, reads: bool) -> None:
        """Let the call know whether the code keeps up."""
        if self.call is not None:
            self.call.client_reads(reads=reads)

    def disconnect(self) -> None:
        """End the call: nobody is left to answer."""
        self.gone = True
        call, self.call = self.call, None
        if call is not None:
            call.cut(GONE)

    def cut(self) -> None:
        """End the connection in the middle of the answer."""
        if self.response_complete:
            return
        if self.until_close:
            # The answer ends with the connection: an orderly end would look complete.
            reset(self.transport)
        else:
            self.transport.close()

    def shut_down(self) -> None:
        """End the call because the broker ends."""
        self.keep_alive = False
        if self.call is not None:
            self.call.cut("shutting-down")

    # --- what the call says ---

    async def body_begun(self) -> int:
        """Wait until some of the body is here, or its end, and return how many bytes."""
        self._say_continue()
        if not self.early and not self.ended:
            self.begun = asyncio.get_running_loop().create_future()
            await self.begun
        return sum(map(len, self.early or ()))

    def want_body(self) -> None:
        """Hand the body on from now on, first what has come already."""
        self.wanted = True
        self._say_continue()
        self._hand_on()

    def _say_continue(self) -> None:
        if self.waiting_for_100_continue:
            self.waiting_for_100_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def hold_body(self, *, hold: bool) -> None:
        """Stop reading the body from the code, or go on."""
        self.held = hold
        if hold:
            self.connection.flow.pause_reading()
        else:
            self._hand_on()

    def _hand_on(self) -> None:
        if self.early:
            early, self.early = self.early, None
            while early and not self.held and self.call is not None:
                self.call.body_piece(early.pop(0))
            if early and self.call is not None:
                self.early = early
                return
        if self.call is None:
            return
        if self.ended:
            self.call.body_end()
        elif self.held:
            return
        self.connection.flow.resume_reading()

    def begin(self, status: int, headers: Headers, length: int | None, *, bodiless: bool) -> None:
        """Write the head of the answer."""
        if self.waiting_for_100_continue:
            # The client may now send its body or not (RFC 9110 section 10.1.1): only closing is unambiguous.
            self.waiting_for_100_continue = False
            self.keep_alive = False
        out = [STATUS_LINE[status]]
        for name, value in self.connection.server_state.default_headers:
            out += (name, b": ", value, b"\r\n")
        seen = self.connection.memory
        if headers is not seen.answered:
            seen.answered, seen.lines = headers, b"".join([b"%b: %b\r\n" % header for header in headers])
        out.append(seen.lines)
        self.bodiless = bodiless
        if length is not None:
            out.append(b"content-length: %d\r\n" % length)
        elif not bodiless:
            if self.new:
                self.chunked = True
                out.append(b"transfer-encoding: chunked\r\n")
            else:
                self.until_close = True
        out.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        self.response_started = True
        self.out = out
        if self.connection.flow.write_paused:
            self.client_reads(reads=False)

    def piece(self, piece: bytes) -> None:
        """Take a piece of the body."""
        if self.bodiless:
            return
        if self.chunked:
            self.out += (b"%x\r\n" % len(piece), piece, b"\r\n")
        else:
            self.out.append(piece)
        if len(piece) > _COPIED or len(self.out) > _WAITING:
            # What waits is bounded: this is about what one read of the API's connection brings.
            self._write(copy=len(piece) <= _COPIED)

    def flush(self) -> None:
        """Write what waits, if anything does."""
        if self.out:
            self._write(copy=True)

    def take_back(self) -> bool:
        """Forget the head, and what follows it, while all of it still waits to be written."""
        if self.written:
            return False
        self.out = []
        self.response_started = self.chunked = self.until_close = self.bodiless = False
        return True

    def _write(self, *, copy: bool) -> None:
        self.written = True
        out, self.out = self.out, []
        if self.gone:
            return
        if copy:
            self.transport.write(b"".join(out))
        else:
            self.transport.writelines(out)

    def end(self) -> None:
        """End the answer."""
        self.call = None
        if self.chunked:
            self.out.append(b"0\r\n\r\n")
        self.flush()
        if not self.gone:
            self.response_complete = True
            self.connection.on_response_complete()

    def refuse(self, problem: ProblemError) -> None:
        """Answer with a problem; the connection stays."""
        if self.gone:
            return
        body = problem.body("broker")
        headers: Headers = list(problem.headers("broker"))
        if problem.code == "method-not-supported":
            headers.append(_ALLOW)
        self.begin(problem.status, headers, len(body), bodiless=self.method == "HEAD")
        self.piece(body)
        self.end()

    def break_off(self, problem: ProblemError) -> None:  # noqa: ARG002 - there is no way to say why
        """Cut the answer, so that the code notices."""
        self.call = None
        self.flush()
        if not self.gone:
            self.cut()


class CallsOnTheWire:
    """Answers the calls of one listener group within its connections."""

    prefix = PREFIX

    def __init__(self, calls: Calls) -> None:
        """Take the data path."""
        self._calls = calls

    def exchange(self, connection: Protocol, method: str, *, new: bool, keep_alive: bool) -> CallExchange:
        """Return the exchange of the request whose head was just read."""
        return CallExchange(self._calls, connection, method, new=new, keep_alive=keep_alive)
