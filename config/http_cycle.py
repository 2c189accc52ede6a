"""One request and its answer: the side of the connection that the application talks to.

Beyond uvicorn's cycle: failures answer as problem+json and are logged without a value; HEAD, 204 and 304 carry no
body whatever the application sends; HTTP/1.0 gets no chunks; a client that is gone makes ``send`` raise, so that an
application which streams stops; an answer that breaks off is cut so that the client notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)
from uvicorn.protocols.utils import ClientDisconnected

from config.asgi import GONE, describe
from config.http_exchange import Exchange, reset
from config.listeners import App
from config.problems import By, ProblemError

_log = structlog.get_logger("config.server")

_BODILESS: Final = frozenset({204, 304})


class Cycle(RequestResponseCycle, Exchange):
    """The request that is being answered, or waits for its turn."""

    def __init__(
        self,
        scope: dict[str, Any],
        transport: asyncio.Transport,
        flow: FlowControl,
        *,
        by: By,
        default_headers: list[tuple[bytes, bytes]],
        expect_100_continue: bool,
        keep_alive: bool,
        on_response: Callable[[], None],
        run: Callable[[Cycle], None],
    ) -> None:
        # What uvicorn's own sets, less what is not used here (its loggers); tests pin the rest.
        self.scope = scope  # type: ignore[assignment]
        self.transport = transport
        self.flow = flow
        self.default_headers = default_headers
        self.message_event = asyncio.Event()
        self.on_response = on_response
        self.run = run
        self.disconnected = False
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = expect_100_continue
        self.new = scope["http_version"] == "1.1"
        self.body = bytearray()
        self.more_body = True
        self.response_started = False
        self.response_complete = False
        self.chunked_encoding = None
        self.expected_content_length = 0
        self.by: By = by
        self.bodiless = scope["method"] == "HEAD"
        #: The head of the answer, while it waits for the first piece of body to leave together with it.
        self.head = b""

    def start(self) -> None:
        """Start the application."""
        self.run(self)

    def feed(self, body: bytes) -> None:
        """Take a piece of the body; the connection is not read while too much of it waits."""
        self.body += body
        if len(self.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        self.message_event.set()

    def end_of_request(self) -> None:
        """Take the end of the body."""
        self.more_body = False
        self.message_event.set()

    def client_reads(self, *, reads: bool) -> None:
        """Do nothing: ``send`` waits by itself."""

    def shut_down(self) -> None:
        """Do nothing: the server cancels the tasks of applications."""

    def disconnect(self) -> None:
        """Tell the application that its client is gone."""
        self.disconnected = True
        self.message_event.set()
        self.flow.resume_writing()

    async def run_asgi(self, app: App) -> None:
        """Run the application; whatever it does, the client gets a whole answer or a cut connection."""
        if self.disconnected:
            # The client left, or its body was refused, before the task began.
            return
        try:
            await app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            # Only the end of the drain cancels; the task ends here, nobody awaits its result.
            await self._fail(ProblemError("shutting-down", retry_after=1))
        except GONE:
            self.cut()
        except ProblemError as error:
            await self._fail(error)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what escapes an application must not end the server
            await self._fail(describe(error, _log))
        else:
            if not self.response_complete and not self.disconnected:
                _log.error("application-returned-without-answer")
                await self._fail(ProblemError("internal-error"))
        finally:
            self.on_response = _nothing

    async def _fail(self, error: ProblemError) -> None:
        if self.response_complete or self.disconnected:
            return
        if self.response_started:
            self.cut()
            return
        body = error.body(self.by)
        headers = [*error.headers(self.by), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        try:
            await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
            await self.send({"type": "http.response.body", "body": body})
        except ClientDisconnected:
            return

    def cut(self) -> None:
        """End the connection in the middle of the answer, so that the client cannot take it for whole."""
        if self.response_complete:
            return
        self.flush()
        if self.response_started and self.chunked_encoding is None:
            # The answer ends with the connection (HTTP/1.0): an orderly end would look complete.
            reset(self.transport)
        else:
            # The client counts: a missing byte or a missing last chunk tells it.
            self.transport.close()

    async def send(self, message: Any) -> None:
        """Take an ASGI message of the answer. A client that is gone raises ``ClientDisconnected`` (an ``OSError``)."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            raise ClientDisconnected
        kind = message["type"]
        if not self.response_started:
            if kind != "http.response.start":
                raise RuntimeError(f"expected http.response.start, not {kind}")
            self._start(message)
        elif self.response_complete:
            raise RuntimeError(f"{kind} after the answer was complete")
        elif kind != "http.response.body":
            raise RuntimeError(f"expected http.response.body, not {kind}")
        else:
            self._body(message.get("body", b""), more=message.get("more_body", False))

    def _start(self, message: Any) -> None:
        status = message["status"]
        if status < 200:  # noqa: PLR2004 - interim answers are the server's own business
            raise RuntimeError("an interim status cannot be an answer")
        if self.waiting_for_100_continue:
            # The client may now send its body or not (RFC 9110, 10.1.1): only closing is unambiguous.
            self.waiting_for_100_continue = False
            self.keep_alive = False
        if status in _BODILESS:
            self.bodiless = True
        lines, length, close = _encode([*self.default_headers, *message.get("headers", ())])
        if close:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if length is not None:
            self.expected_content_length = length
            self.chunked_encoding = False
        elif not self.bodiless and self.new:
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked\r\n")
        self.response_started = True
        self.head = b"".join((STATUS_LINE[status], *lines, b"\r\n"))
        asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write the head alone, when no body came with it."""
        if self.head and not self.transport.is_closing():
            self.transport.write(self.head)
        self.head = b""

    def _write(self, data: bytes) -> None:
        if self.head:
            # Head and first piece leave together: one system call, one packet.
            data = self.head + data
            self.head = b""
        self.transport.write(data)

    def _body(self, body: bytes, *, more: bool) -> None:
        if self.bodiless:
            self.expected_content_length = 0
        elif self.chunked_encoding:
            self._chunk(body, more=more)
        else:
            if self.chunked_encoding is False:
                self.expected_content_length -= len(body)
                if self.expected_content_length < 0:
                    raise RuntimeError("the answer is longer than its Content-Length")
            if body:
                self._write(body)
        if more:
            return
        if self.expected_content_length:
            raise RuntimeError("the answer is shorter than its Content-Length")
        self.flush()
        self.response_complete = True
        self.message_event.set()
        self.on_response()

    def _chunk(self, body: bytes, *, more: bool) -> None:
        if body:
            self._write(b"%x\r\n%b%b" % (len(body), body, b"\r\n" if more else b"\r\n0\r\n\r\n"))
        elif not more:
            self._write(b"0\r\n\r\n")


def _encode(headers: list[tuple[bytes, bytes]]) -> tuple[list[bytes], int | None, bool]:
    """Return the header lines, the Content-Length if there is one, and whether the connection is to be closed."""
    lines: list[bytes] = []
    length: int | None = None
    close = False
    for name, value in headers:
        if HEADER_RE.search(name) or HEADER_VALUE_RE.search(value):
            raise RuntimeError("a header of the answer holds what no header may")
        lower = name.lower()
        if lower == b"transfer-encoding":
            # Framing is ours: an application's (or an upstream's) word on it is not passed on.
            continue
        if lower == b"content-length":
            if length is not None:
                raise RuntimeError("the answer has two lengths")
            length = int(value)
        elif lower == b"connection":
            close = close or b"close" in [token.strip() for token in value.lower().split(b",")]
        lines += (lower, b": ", value, b"\r\n")
    return lines, length, close


def _nothing() -> None:
    return None
