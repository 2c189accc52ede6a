"""uvicorn's server for one listener group: it accepts, ticks, drains. :mod:`config.server` owns sockets and signals."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final

import uvicorn

from config.http_protocol import GroupState, Protocol
from config.listeners import Listener, ListenerGroup

BACKLOG: Final = 1024
#: How many turns of the loop an answer that ends at once takes until it is written.
_TURNS: Final = 3
#: How long cancelled applications have to end.
_CANCEL_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Bound:
    """A socket that listens.

    ``listener`` has the real port when 0 was asked for; ``inode`` tells a Unix socket's own file from a later one.
    """

    listener: Listener
    sock: socket.socket
    inode: tuple[int, int] | None = None


class GroupServer(uvicorn.Server):
    """uvicorn's server, less what a process may have only once."""

    def __init__(
        self, group: ListenerGroup, bound: Sequence[Bound], tls: ssl.SSLContext | None, drain_s: float
    ) -> None:
        super().__init__(
            uvicorn.Config(
                group.app,
                http=Protocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
            )
        )
        self.group = group
        self.bound = bound
        self.drain_s = drain_s
        self.ready = asyncio.Event()
        self.stop = asyncio.Event()
        self.cut = asyncio.Event()
        self.state = GroupState(group, self.server_state, asyncio.get_running_loop().time())
        self.tls = tls

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals alone: several servers run in one process, which has one set of them."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept on the sockets that were bound before."""
        del sockets
        loop = asyncio.get_running_loop()
        self.servers = []
        await self.on_tick(0)
        for bound in self.bound:
            tls = self.tls if bound.listener.kind == "tls" else None
            server = await loop.create_server(
                self._factory(bound.listener, loop),
                sock=bound.sock,
                ssl=tls,
                backlog=BACKLOG,
                ssl_handshake_timeout=self.group.limits.header_s if tls else None,
            )
            self.servers.append(server)
        self.started = True
        self.ready.set()

    def _factory(self, listener: Listener, loop: asyncio.AbstractEventLoop) -> Callable[[], asyncio.Protocol]:
        return lambda: Protocol(self.config, self.state, listener, loop)

    async def on_tick(self, counter: int) -> bool:
        """Every tenth of a second: the date header (uvicorn's part) and the deadlines."""
        await super().on_tick(counter)
        self.state.sweep(asyncio.get_running_loop().time())
        return self.stop.is_set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let answers finish, cut what is left."""
        del sockets
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        end = loop.time() + self.drain_s
        while self.server_state.connections or self.server_state.tasks:
            left = end - loop.time()
            if left <= 0 or self.cut.is_set():
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.cut.wait(), min(0.05, left))
            self.state.sweep(loop.time())
        await self._cut_off()

    async def _cut_off(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, Protocol):
                connection.stop_answering()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        tasks = set(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        # One turn of the loop lets the transports say so to their protocols.
        await asyncio.sleep(0)
