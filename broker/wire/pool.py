"""The connections to one origin under one policy on addresses.

Rules: the connection that was used last carries the next call. No more than ``max_connections`` are open; who comes
then waits in turn, and gets the next connection or the next free place. A place that was given to somebody who gave up
goes to the next. An idle connection is closed after ``keep_alive``, looked at by one timer for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from broker.wire.upstream import Owner, UpstreamConnection
from config.problems import ProblemError

Dial = Callable[[Owner], Awaitable[UpstreamConnection]]
#: Is told of an origin by its authority why no connection can be opened, once for each reason; empty: they can again.
Tell = Callable[[str, str], None]
#: Who waits (for a connection, or for a place: None), and whether only a new connection will do.
Waiter = tuple[asyncio.Future["UpstreamConnection | None"], bool]

#: The timer for idle connections rings no more often than this.
_COARSE_S: Final = 1.0


class Origin:
    """Where the calls of a profile go."""

    __slots__ = (
        "_closed",
        "_connect_timeout_s",
        "_dial",
        "_failing",
        "_idle",
        "_keep_alive_s",
        "_loop",
        "_max",
        "_open",
        "_places",
        "_tell",
        "_timer",
        "_waiters",
        "authority",
    )

    def __init__(
        self,
        authority: bytes,
        dial: Dial,
        *,
        tell: Tell,
        max_connections: int,
        keep_alive_s: float,
        connect_timeout_s: float,
    ) -> None:
        """Take who dials; ``authority`` is what the ``Host`` header says."""
        self.authority = authority
        self._dial = dial
        self._tell = tell
        self._max = max_connections
        self._keep_alive_s = keep_alive_s
        self._connect_timeout_s = connect_timeout_s
        #: Connections that are not closed, and how many places they and those being dialled take.
        self._open: set[UpstreamConnection] = set()
        self._places = 0
        #: The one that came back last is the last; so the one that is idle for longest is the first.
        self._idle: list[UpstreamConnection] = []
        self._waiters: deque[Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        #: Why no connection can be opened, as it was told; empty while they can.
        self._failing = ""
        self._loop: asyncio.AbstractEventLoop | None = None

    def idle(self) -> UpstreamConnection | None:
        """Return a connection that can be used at once, if there is one."""
        return self._idle.pop() if self._idle else None

    async def connect(self, *, fresh: bool = False) -> UpstreamConnection:
        """Return a connection, waiting in turn for one if need be; ``fresh`` asks for a new one.

        Errors: ``ProblemError``: ``upstream-unreachable``, ``upstream-address-refused``.
        """
        found = None if fresh else self.idle()
        if found is not None:
            return found
        dialling = False
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                while True:
                    given = await self._turn(fresh=fresh)
                    if given is None:
                        dialling = True
                        return await self._new()
                    if not given.closed:  # as it may be between being given and being taken
                        return given
        except TimeoutError:
            if dialling:
                self._note("no connection within connect_timeout")
            raise ProblemError("upstream-unreachable", retry_after=1) from None
        except OSError:
            raise ProblemError("upstream-unreachable", retry_after=1) from None

    async def _turn(self, *, fresh: bool) -> UpstreamConnection | None:
        """Return a connection, or None for a place to open one in."""
        if self._closed:
            raise ConnectionAbortedError
        if self._places >= self._max and self._idle:
            self._idle[0].close()
        if self._places < self._max:
            self._places += 1
            return None
        waiter: asyncio.Future[UpstreamConnection | None] = asyncio.get_running_loop().create_future()
        entry = (waiter, fresh)
        self._waiters.append(entry)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiters.remove(entry)
            elif waiter.exception() is None:
                # It was given something in the moment that it gave up.
                self._give_back(waiter.result())
            raise

    def _give_back(self, given: UpstreamConnection | None) -> None:
        if given is None:
            self._free_place()
        elif not given.closed:
            self.release(given)

    def _first_waiter(self) -> Waiter | None:
        while self._waiters and self._waiters[0][0].done():  # it gave up, and has not been here since
            self._waiters.popleft()
        return self._waiters[0] if self._waiters else None

    async def _new(self) -> UpstreamConnection:
        try:
            connection = await self._dial(self)
            if connection.closed or self._closed:
                connection.abandon()
                raise ConnectionAbortedError  # noqa: TRY301 - closed while it was dialled
        except BaseException as error:
            self._free_place()
            if isinstance(error, Exception):
                self._note(_why(error))
            raise
        self._open.add(connection)
        self._note("")
        return connection

    def _note(self, why: str) -> None:
        if why != self._failing and not self._closed:
            self._failing = why
            self._tell(self.authority.decode("ascii"), why)

    # --- what connections say ---

    def release(self, connection: UpstreamConnection) -> None:
        """Take a connection back: the first who waits gets it."""
        if connection.closed:
            return
        first = self._first_waiter() if self._waiters else None
        if (first is None and self._keep_alive_s <= 0) or (first is not None and first[1]):
            connection.close()  # its place is given on
            return
        if first is not None:
            self._waiters.popleft()
            first[0].set_result(connection)
            return
        # Asking for the running loop would ask the kernel for the process's id, on each call.
        loop = self._loop or asyncio.get_running_loop()
        self._loop = loop
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._timer is None:
            self._timer = loop.call_later(max(self._keep_alive_s, _COARSE_S), self._expire)

    def forget(self, connection: UpstreamConnection) -> None:
        """Let go of a connection that is closed."""
        if connection in self._open:
            self._open.discard(connection)
            if connection in self._idle:
                self._idle.remove(connection)
            self._free_place()

    def _free_place(self) -> None:
        first = self._first_waiter()
        if first is not None:
            self._waiters.popleft()
            first[0].set_result(None)
        else:
            self._places -= 1

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        until = loop.time() - self._keep_alive_s
        for connection in [one for one in self._idle if one.idle_since <= until]:
            connection.close()
        if self._idle:
            wait_s = self._idle[0].idle_since - until
            self._timer = loop.call_later(max(wait_s, _COARSE_S), self._expire)

    def close(self) -> None:
        """Close every connection, and turn away who waits."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (first := self._first_waiter()) is not None:
            self._waiters.popleft()
            first[0].set_exception(ConnectionAbortedError())
        for connection in list(self._open):
            connection.close()


def _why(error: Exception) -> str:
    """Say what kept a connection from being opened: the system's words, and none of the API's."""
    match error:
        case ProblemError():
            return error.problem.title
        case ssl.SSLCertVerificationError():
            return f"its certificate does not verify: {error.verify_message}"
        case ssl.SSLError():
            return f"no TLS: {error.reason}"
        case socket.gaierror():
            return f"its name does not resolve: {error.strerror}"
        case OSError(errno=int(number)):
            return os.strerror(number)
    return type(error).__name__
