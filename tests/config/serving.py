"""A real server on loopback, run in a thread, and raw sockets to talk to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from config.server import Bound, Listener, ListenerGroup, run, serve

GET = b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass
class Reply:
    """One answer as it came over the wire."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key == name]
        assert len(values) < 2, f"{name} came {len(values)} times"
        return values[0] if values else None

    @property
    def code(self) -> str:
        assert self.header("content-type") == "application/problem+json"
        return msgspec.json.decode(self.body)["code"]


@dataclass
class Client:
    """A raw connection. Everything has a timeout: a test that would hang fails."""

    sock: socket.socket
    buffer: bytes = b""

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def _more(self) -> bool:
        chunk = self.sock.recv(65536)
        self.buffer += chunk
        return bool(chunk)

    def line_block(self) -> bytes:
        while b"\r\n\r\n" not in self.buffer:
            assert self._more(), f"closed after {self.buffer!r}"
        block, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        return block

    def take(self, count: int) -> bytes:
        while len(self.buffer) < count:
            assert self._more(), f"closed after {self.buffer!r}"
        part, self.buffer = self.buffer[:count], self.buffer[count:]
        return part

    def reply(self, *, head: bool = False) -> Reply:
        lines = self.line_block().split(b"\r\n")
        version, status, _ = lines[0].decode().split(" ", 2)
        assert version == "HTTP/1.1"
        headers = []
        for line in lines[1:]:
            name, value = line.decode().split(": ", 1)
            headers.append((name, value))
        reply = Reply(int(status), headers, b"")
        if head or reply.status in {100, 204, 304}:
            return reply
        if (length := reply.header("content-length")) is not None:
            reply.body = self.take(int(length))
        elif reply.header("transfer-encoding") == "chunked":
            while size := int(self._line(), 16):
                reply.body += self.take(size)
                assert self.take(2) == b"\r\n"
            assert self.take(2) == b"\r\n"
        else:
            reply.body = self.rest()
        return reply

    def _line(self) -> bytes:
        while b"\r\n" not in self.buffer:
            assert self._more(), f"closed after {self.buffer!r}"
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def rest(self) -> bytes:
        """Return what still comes until the server closes."""
        while self._more():
            pass
        rest, self.buffer = self.buffer, b""
        return rest

    def assert_closed(self) -> None:
        assert self.rest() == b""


@dataclass
class Served:
    """The running server. ``seen`` holds the scopes that reached the application."""

    bound: list[Bound] = field(default_factory=list)
    seen: list[dict[str, Any]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop | None = None
    stop: asyncio.Event | None = None
    thread: threading.Thread | None = None
    error: BaseException | None = None

    def connect(self, index: int = 0, timeout: float = 5.0) -> Client:
        listener = self.bound[index].listener
        if listener.kind == "unix":
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(timeout)
            sock.connect(str(listener.path))
        else:
            sock = socket.create_connection((listener.host, listener.port), timeout)
        sock.settimeout(timeout)
        return Client(sock)

    @contextlib.contextmanager
    def client(self, index: int = 0, timeout: float = 5.0) -> Iterator[Client]:
        client = self.connect(index, timeout)
        try:
            yield client
        finally:
            client.sock.close()

    def ask(self, data: bytes, *, head: bool = False) -> Reply:
        with self.client() as client:
            client.send(data)
            return client.reply(head=head)

    def shut(self) -> None:
        assert self.loop is not None
        assert self.stop is not None
        assert self.thread is not None
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(10)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def served(app: Callable[..., Any], *listeners: str, drain_s: float = 1.0, **group: Any) -> Iterator[Served]:
    """Serve ``app`` until the block ends."""
    world = Served()
    ready = threading.Event()

    async def recording(scope: Any, receive: Any, send: Any) -> None:
        world.seen.append(scope)
        await app(scope, receive, send)

    async def main() -> None:
        world.loop = asyncio.get_running_loop()
        world.stop = asyncio.Event()

        def on_ready(bound: Any) -> None:
            world.bound = list(bound)
            ready.set()

        parsed = tuple(Listener.parse(text) for text in listeners or ("127.0.0.1:0",))
        fields = {"by": "broker", "on_refused": world.refused.append, **group}
        await serve(
            [ListenerGroup(app=recording, listeners=parsed, **fields)],
            on_ready=on_ready,
            drain_s=drain_s,
            stop=world.stop,
        )

    def work() -> None:
        try:
            run(main())
        except BaseException as error:  # noqa: BLE001 - handed to the test
            world.error = error
        finally:
            ready.set()

    world.thread = threading.Thread(target=work, daemon=True)
    world.thread.start()
    assert ready.wait(10)
    if world.error is not None:
        raise world.error
    try:
        yield world
    finally:
        world.shut()


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """Read the whole body, then answer with how long it was."""
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return
        size += len(message["body"])
        if not message["more_body"]:
            break
    body = b"%d" % size
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})
