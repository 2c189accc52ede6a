"""One connection: a subclass of uvicorn's httptools protocol that refuses before the application is asked.

ASGI does not carry the raw request target (``/a?``, ``/a#b`` and ``http://evil/a`` all look like ``/a``) nor who is at
the other end of a Unix socket, and stock uvicorn takes megabytes of headers and waits for ever. Here:

- ``scope["target"]`` holds the request target, byte for byte; ``scope["peer"]`` a :class:`~config.listeners.Peer` or
  None; ``scope["listener"]`` the listener as written; ``scope["tls_subject"]`` the client certificate's subject or
  None; ``scope["body_length"]`` the announced length, None for a chunked body.
- A refusal is problem+json, and the connection is closed after it. Answers keep the order of their requests: a refusal
  waits until the answers before it are complete.
- A client that ends its side of the connection is gone, and its calls end; while nothing is read from it, the kernel is
  asked (ops/adr/0014).
- When the group is full, a new connection takes the place of the one that has waited longest without an active
  request (:meth:`GroupState.make_room`).
- Deadlines are looked at by one sweep over all connections (:meth:`Protocol.sweep`), not by a timer a request.
- The same bytes again, after a request without a body, are the same request: they are not read a second time.
- An answer begins at once only when its request came first in its segment and the client takes what was answered
  before: else many small requests would hold up everybody, or their answers pile up in memory.
- Targets that begin as the group's ``direct`` says are answered here, without an ASGI application; all others by it.

Overridden internals of uvicorn are pinned by ``tests/config/test_server_pin.py``.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import socket
import struct
import sys
import urllib.parse
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from config.http_cycle import Cycle
from config.http_exchange import Exchange, reset
from config.http_head import BODY, HEAD, IDLE, HeadReader
from config.http_presence import is_here
from config.listeners import Listener, ListenerGroup, Peer
from config.problems import ProblemError

_NEVER: Final = float("inf")
#: After a refusal: for how long and how much is still read, so that a client in the middle of sending gets to see it.
_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 1024 * 1024
#: A longer request is not remembered.
_REMEMBERED_BYTES: Final = 2048
#: How much of a direct answer may wait for its client before the answer is held up.
_WRITE_BUFFER: Final = 128 * 1024
#: How many connections beyond the limit are told that there is no room; further ones are dropped without a word.
_TOLD: Final = 8
#: How many that may be dropped for room one look at all connections finds, so that a flood does not cost one each.
_SPARE: Final = 32
#: So many pieces of a body in one segment are work for a while: others have their turn before the next is read.
_MANY_PIECES: Final = 1000
#: How much of a body is thrown away to keep a connection, when the answer was complete before it.
_LEFTOVER_BYTES: Final = 256 * 1024

#: Whether it is more than idle, its deadline, its number: what is lower is dropped first.
Waiting = tuple[bool, float, int]

_ALLOW: Final = (b"allow", b"GET, HEAD, POST, PUT, PATCH, DELETE")
_ASGI: Final = {"version": "3.0", "spec_version": "2.4"}


@dataclass(slots=True, eq=False)
class GroupState:
    """What the connections of one group share. ``now`` is coarse: the sweep sets it.

    ``told`` counts those beyond the limit that are being told so.
    """

    group: ListenerGroup
    server_state: ServerState
    now: float
    hosts: frozenset[str] | None = field(init=False)
    told: int = 0
    numbers: Iterator[int] = field(default_factory=itertools.count)
    _spare: list[tuple[Waiting, Protocol]] = field(default_factory=list)
    _none_at: float = -1.0

    def __post_init__(self) -> None:
        self.hosts = self.group.allowed_hosts()

    def sweep(self, now: float) -> None:
        """Let every connection look at its deadline."""
        self.now = now
        self._spare.clear()
        for connection in list(self.server_state.connections):
            if isinstance(connection, Protocol):
                connection.sweep(now)

    def has_room(self) -> bool:
        """Say whether one more connection may come, after dropping one for it if need be."""
        return len(self.server_state.connections) - self.told < self.group.limits.max_connections or self.make_room()

    def make_room(self) -> bool:
        """Drop the connection that has waited longest without an active request; say whether there was one.

        All connections are looked at for the first of some that come, and once a sweep when none may be dropped.
        """
        if self._none_at == self.now:
            return False
        while True:
            while self._spare:
                place, connection = self._spare.pop()
                # Meanwhile it may have begun a request, or be gone.
                if connection.waiting() == place:
                    connection.make_way()
                    return True
            found = [
                (waiting, one)
                for one in self.server_state.connections
                if isinstance(one, Protocol) and (waiting := one.waiting()) is not None
            ]
            if not found:
                self._none_at = self.now
                return False
            self._spare = heapq.nsmallest(_SPARE, found)[::-1]


class Protocol(HeadReader):
    """One connection. ``active`` is the request being answered, ``cycle`` the last one read: it may still wait."""

    def __init__(self, config: Config, state: GroupState, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(config, state.server_state, loop, group=state.group, hosts=state.hosts, listener=listener)
        self.state = state
        self.number = next(state.numbers)
        self.told = False
        self.direct = state.group.direct
        #: What who answers directly remembers of this connection.
        self.memory: Any = None
        #: How many requests began since nothing was under way; the method of one that could be remembered; the bytes of
        #: the one that is, and its method.
        self.begun = 0
        self.repeatable: str | None = None
        self.repeat = b""
        self.repeated = ""
        self.cycle: Exchange | None = None  # type: ignore[assignment]
        self.active: Exchange | None = None
        #: The active request has not been started yet.
        self.delayed = False
        self.base_scope: dict[str, Any] = {}
        self.deadline = _NEVER
        self.write_deadline = _NEVER
        self.leftover = 0
        #: Whether the segment that is read has brought some of the body, and the pieces that it has brought since.
        self.brought = False
        self.more: list[bytes] = []
        self.refusal: ProblemError | None = None
        self.closing = False

    # --- the connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; what is the same for all its requests is put together here."""
        room = self.state.has_room()
        super().connection_made(transport)
        unix = self.listener.kind == "unix"
        self.own_host = self.server[0] if self.server and not unix else ""
        self.base_scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
            "listener": str(self.listener),
            "peer": peer_of(transport.get_extra_info("socket")) if unix else None,
            "tls_subject": subject_of(transport.get_extra_info("peercert")),
        }
        self.deadline = self.state.now + self.limits.header_s
        if self.direct is not None:
            # A piece as it comes from an API, and its head: stopping and going on for each would cost more.
            transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        if room:
            return
        if self.state.told >= _TOLD:
            self.closing = True
            self.connections.discard(self)
            if self.group.on_refused is not None:
                self.group.on_refused("too-many-requests")
            transport.abort()
        else:
            self.told = True
            self.state.told += 1
            self.phase = HEAD
            self.refuse(ProblemError("too-many-requests", "too many connections", retry_after=1))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application of the request being answered; forget those that wait."""
        self.closing = True
        self.delayed = False
        if self.told:
            self.told = False
            self.state.told -= 1
        self.pipeline.clear()
        if self.active is not None and not self.active.response_complete:
            self.active.disconnect()
        # What uvicorn's own does, less what only an ASGI cycle has.
        self.connections.discard(self)
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        self.parser = None  # type: ignore[assignment]

    def eof_received(self) -> None:
        """Take the client's end of sending: it is gone, and its calls end.

        One that has closed its side only, and one that has left, look the same until something is written to them. A
        call must not go on for nobody (nginx does the same), so whoever wants an answer keeps its side open.
        """
        if self.phase == BODY or (self.phase == HEAD and self.fed):
            self.refuse(ProblemError("request-malformed", "the request ended before it was complete"))

    def data_received(self, data: bytes) -> None:
        """Feed the parser, counting a head's bytes as they arrive."""
        if self.closing:
            self.leftover += len(data)
            if self.leftover > _LINGER_BYTES:
                self.transport.abort()
            return
        if self.phase == IDLE:
            if self.repeat and self.active is None and compare_digest(data, self.repeat):
                self._answer_again()
                return
            self.repeat = b""
            self.phase = HEAD
            self.fed = 0
            self.begun = 0
            self.deadline = self.state.now + self.limits.header_s
        if self.phase == HEAD:
            self.fed += len(data)
        if self._feed(data) and self.repeatable is not None:
            self._remember(data)

    def _feed(self, data: bytes) -> bool:
        self.brought = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.refuse(ProblemError("upgrade-refused"))
        except httptools.HttpParserError as error:
            cause = error.__context__
            # llhttp's reasons are fixed phrases: they hold nothing of the request.
            self.refuse(cause if isinstance(cause, ProblemError) else ProblemError("request-malformed", str(error)))
        else:
            if self.more:
                self._hand_on_more()
            if self.phase != HEAD or self.fed <= self.limits.header_bytes:
                return True
            self.refuse(self.too_large())
        return False

    def _remember(self, data: bytes) -> None:
        """Remember a request that came alone and as a whole: if the same bytes come next, they are the same request."""
        if self.phase == IDLE and self.begun == 1 and self.fed == len(data) <= _REMEMBERED_BYTES:
            self.repeat, self.repeated = data, self.repeatable or ""
        self.repeatable = None

    def _answer_again(self) -> None:
        """Answer a request whose bytes are those of the last, without reading them: what was read then still stands."""
        self.deadline = _NEVER
        if self.direct is not None:
            self.cycle = self.direct.exchange(self, self.repeated, new=True, keep_alive=True)
            self.cycle.end_of_request()
            self._answer(self.cycle)

    def sweep(self, now: float) -> None:
        """Close or refuse what is too slow, and what has nobody at the other end."""
        if self.active is not None and self.flow.read_paused and not is_here(self.transport.get_extra_info("socket")):
            self.transport.abort()
        elif now >= self.write_deadline:
            reset(self.transport)
        elif now < self.deadline:
            return
        elif self.closing:
            self.transport.abort()
        elif self.phase == BODY and self.cycle is not None and not self.cycle.response_complete:
            if self.flow.read_paused or self.cycle.waiting_for_100_continue:
                # It is the application that does not read; its time is its own matter.
                self.deadline = now + self.limits.body_idle_s
            else:
                self.refuse(ProblemError("request-timeout"))
        elif self.phase == HEAD and self.fed:
            self.refuse(ProblemError("request-timeout"))
        else:
            self.transport.close()

    def waiting(self) -> Waiting | None:
        """Return where it stands among those that may be dropped for room, the first the lowest; None: it may not be.

        Idle ones come first; then those whose head is not complete, and those that were answered for good. Among them
        it counts whose time is up first.
        """
        if self.active is not None or self.told or self not in self.connections:
            return None
        if self.transport.get_write_buffer_size():
            return None  # its answer is on the way
        idle = self.phase == IDLE and self.cycle is not None and not self.closing
        return not idle, self.deadline, self.number

    def make_way(self) -> None:
        """Be dropped for another connection."""
        if self.group.on_refused is not None and self.phase == HEAD and not self.closing:
            self.group.on_refused("too-many-requests")
        self.closing = True
        # The place is free now, not only when the transport says that it is closed.
        self.connections.discard(self)
        self.transport.abort()

    def shutdown(self) -> None:
        """Begin the end: what waits is dropped, the answer under way may finish."""
        self.pipeline.clear()
        if self.active is None:
            self.transport.close()
        else:
            self.active.keep_alive = False

    def pause_writing(self) -> None:
        """Note that the client does not keep up."""
        self.write_deadline = self.state.now + self.limits.write_idle_s
        super().pause_writing()
        if self.active is not None:
            self.active.client_reads(reads=False)

    def resume_writing(self) -> None:
        """Note that the client keeps up again."""
        self.write_deadline = _NEVER
        super().resume_writing()
        if self.delayed:
            self._start_delayed()
        elif self.active is not None:
            self.active.client_reads(reads=True)

    def stop_answering(self) -> None:
        """End the answer under way, as the last step of a drain that took too long."""
        if self.delayed:
            self.transport.abort()
        elif self.active is not None:
            self.active.shut_down()

    # --- requests ---

    def on_message_begin(self) -> None:
        """Begin a request; one that begins in the middle of a chunk has its own time."""
        if self.closing:
            # It came together with one whose answer was the last: nobody would get the answer of this one.
            raise ProblemError("request-malformed")
        if self.phase != HEAD:
            self.deadline = self.state.now + self.limits.header_s
        self.begun += 1
        super().on_message_begin()

    def begin(self, version: str, method: bytes) -> None:
        """Start the application, or queue the request behind the answer under way."""
        if len(self.pipeline) >= self.limits.max_pipelined:
            raise ProblemError("too-many-requests", "too many requests wait on this connection", retry_after=1)
        new = version == "1.1"
        keep_alive = new and self.parser.should_keep_alive()
        if self.body_length != 0:
            self.phase = BODY
            self.deadline = self.state.now + self.limits.body_idle_s
        direct = self.direct
        if direct is not None and self.url.startswith(direct.prefix):
            name = method.decode("ascii")
            exchange = direct.exchange(self, name, new=new, keep_alive=keep_alive)
            if keep_alive and self.body_length == 0:
                self.repeatable = name
        else:
            exchange = self._cycle(version, method, keep_alive=keep_alive)
        self.cycle = exchange
        if self.active is not None:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))  # type: ignore[arg-type]
        elif self.body_length != 0:
            self._answer(exchange)
        # A request without a body is answered once it is complete, which it is in the same breath.

    def _cycle(self, version: str, method: bytes, *, keep_alive: bool) -> Cycle:
        raw_path, _, query = self.url.partition(b"?")
        path = raw_path.decode("ascii")
        scope = self.base_scope.copy()
        scope["method"] = method.decode("ascii")
        scope["headers"] = self.headers
        scope["target"] = self.url
        scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        scope["raw_path"] = raw_path
        scope["query_string"] = query
        scope["body_length"] = self.body_length
        if version != "1.1":
            scope["http_version"] = version
        return Cycle(
            scope,
            self.transport,
            self.flow,
            by=self.group.by,
            default_headers=self.server_state.default_headers,
            expect_100_continue=self.expects_continue(new=version == "1.1"),
            keep_alive=keep_alive,
            on_response=self.on_response_complete,
            run=self._run_cycle,
        )

    def expects_continue(self, *, new: bool) -> bool:
        """Say whether the client waits for ``100 Continue`` with its body."""
        return new and self.expect_100_continue and self.body_length != 0

    def _run_cycle(self, cycle: Cycle) -> None:
        self._start_asgi_task(cycle, self.app)

    def _answer(self, exchange: Exchange) -> None:
        self.active = exchange
        if self.flow.write_paused:
            self.delayed = True
            self.flow.pause_reading()
        elif self.begun > 1:
            self.delayed = True
            self.loop.call_soon(self._start_delayed)
        else:
            exchange.start()

    def _start_delayed(self) -> None:
        if self.delayed and not self.flow.write_paused:
            self.delayed = False
            if self.active is not None:
                self.active.start()

    def on_body(self, body: bytes) -> None:
        """Hand a piece of body on; stop reading while the application does not keep up."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self.leftover += len(body)
            if self.leftover > _LEFTOVER_BYTES:
                raise ProblemError("request-too-large")
            return
        limits = self.limits
        self.deadline = min(self.state.now + limits.body_idle_s, self.deadline + len(body) / limits.body_rate)
        if self.brought:
            # Of many small chunks each would cost as much as a large one.
            self.more.append(body)
        else:
            self.brought = True
            cycle.feed(body)

    def _hand_on_more(self) -> None:
        more, self.more = self.more, []
        if len(more) > _MANY_PIECES:
            self.transport.pause_reading()
            self.loop.call_soon(self._read_on)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.feed(b"".join(more))

    def _read_on(self) -> None:
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def on_message_complete(self) -> None:
        """End a request's reading."""
        if self.more:
            self._hand_on_more()
        self.brought = False
        self.phase = IDLE
        self.leftover = 0
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self.deadline = self.state.now + self.limits.keep_alive_s
            return
        self.deadline = _NEVER
        # Asked before: the end of its body may be all that an answer waited for, and no request is answered twice.
        begins = self.active is None
        cycle.end_of_request()
        if begins:
            self._answer(cycle)  # it has no body, and nothing stands before it

    # --- answers ---

    def on_response_complete(self) -> None:
        """Go on after an answer: the next request that waits, a refusal that waits, or idleness."""
        self.server_state.total_requests += 1
        done = self.active
        self.active = None
        if self.transport.is_closing():
            return
        if done is not None and not done.keep_alive:
            self._close_gently()
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._answer(self.pipeline.pop()[0])  # type: ignore[arg-type]
        elif self.refusal is not None:
            self._write_refusal(self.refusal)
        elif self.phase == IDLE:
            self.deadline = self.state.now + self.limits.keep_alive_s

    def refuse(self, error: ProblemError) -> None:
        """Answer ``error`` in its turn, read no further request, and close."""
        if self.closing:
            return
        self.closing = True
        self.deadline = _NEVER
        if self.group.on_refused is not None:
            self.group.on_refused(error.code)
        cycle = self.cycle if self.phase == BODY else None
        if cycle is None or cycle is not self.active:
            # The request that is refused never began, or waits. (Or is answered: then its body is what went wrong.)
            self.pipeline = deque(entry for entry in self.pipeline if entry[0] is not cycle)  # type: ignore[comparison-overlap]
            if self.active is not None:
                self.refusal = error
            elif cycle is not None:
                self._close_gently()
            else:
                self._write_refusal(error)
            return
        # The application already works on it: it sees its client gone.
        cycle.disconnect()
        self.active = None
        if cycle.response_started:
            cycle.cut()
        else:
            self._write_refusal(error)

    def _write_refusal(self, error: ProblemError) -> None:
        body = error.body(self.group.by)
        content = [STATUS_LINE[error.status]]
        headers = [*self.server_state.default_headers, *error.headers(self.group.by)]
        if error.code == "method-not-supported":
            headers.append(_ALLOW)
        for name, value in headers:
            content += (name, b": ", value, b"\r\n")
        content.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        if self.parser.get_method() != b"HEAD":
            content.append(body)
        self.transport.write(b"".join(content))
        self._close_gently()

    def _close_gently(self) -> None:
        """Close so that what was written arrives.

        Closing at once while the client is still sending would reset the connection, and the client would lose the
        answer: the writing side is closed, and for a moment the rest is read and thrown away.
        """
        self.closing = True
        self.leftover = 0
        if self.phase == IDLE or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.deadline = self.state.now + _LINGER_S
        self.flow.resume_reading()
        self.transport.write_eof()


def peer_of(sock: Any) -> Peer | None:
    """Return who connected a Unix socket, or None where the kernel does not say."""
    if sys.platform == "linux":
        pid, uid, gid = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return Peer(uid=uid, gid=gid, pid=pid)
    if sys.platform == "darwin":  # LOCAL_PEERCRED: struct xucred of version, uid, number of groups, groups
        credentials = struct.unpack("=IIhxx16I", sock.getsockopt(0, 1, 76))
        return Peer(uid=credentials[1], gid=credentials[3], pid=0)
    return None


def subject_of(certificate: Any) -> str | None:
    """Return a verified client certificate's subject as ``CN=x,O=y``, or None without one."""
    if not certificate:
        return None
    return ",".join(f"{name}={value}" for part in certificate.get("subject", ()) for name, value in part)
