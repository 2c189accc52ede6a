"""How a double listens: as a program of its own, or in a thread of the test that uses it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import uvicorn

Close = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Running:
    """A double that serves from a thread. Leaving the ``with`` block stops it."""

    url: str
    _server: uvicorn.Server
    _thread: threading.Thread

    def close(self) -> None:
        """Stop serving and wait until it has."""
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def start_in_thread(app: Any, *, port: int = 0, close: Close | None = None) -> Running:
    """Serve ``app`` on loopback from a thread; ``close`` runs in its event loop at the end."""
    listener = _bind("127.0.0.1", port)
    server = _server(app)
    ready = threading.Event()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(ready.set)
        try:
            await server.serve(sockets=[listener])
        finally:
            listener.close()
            if close is not None:
                await close()

    # The socket listens already: a client that comes before the server accepts is only waiting a moment.
    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="double", daemon=True)
    thread.start()
    ready.wait()
    return Running(f"http://127.0.0.1:{listener.getsockname()[1]}", server, thread)


async def run(app: Any, *, host: str, port: int, name: str, close: Close | None = None) -> None:
    """Serve ``app`` until a signal; say on stdout where, once it listens."""
    listener = _bind(host, port)
    server = _server(app)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, server.handle_exit, number, None)
    sys.stdout.write(f"{name}: ready on http://{host}:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    try:
        await server.serve(sockets=[listener])
    finally:
        listener.close()
        if close is not None:
            await close()


def _bind(host: str, port: int) -> socket.socket:
    listener = socket.create_server((host, port), backlog=256)
    listener.setblocking(False)
    return listener


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to :func:`run`: the stock server raises them once more when it has ended."""
        yield


def _server(app: Any) -> uvicorn.Server:
    # Access logs would hold targets; a double's record is its log.
    return _Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", server_header=False))
