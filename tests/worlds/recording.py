"""An API on loopback that keeps every byte it got, by connection, and answers with the bytes it is told.

It reads requests itself (head, then Content-Length or chunks), so that a request which is not complete is seen to be
none, and what a library would have mended is seen as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

OK = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"ok":true}'


@dataclass
class Request:
    """One complete request. Header names are as they came; ``raw`` is all of it."""

    line: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    raw: bytes

    @property
    def target(self) -> bytes:
        return self.line.split(b" ")[1]

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


Answer = Callable[[Request, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@dataclass
class Recording:
    """``raw`` holds what each connection brought, complete or not; ``requests`` the complete ones."""

    port: int = 0
    raw: list[bytearray] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    answer: Answer = field(default=None)  # type: ignore[assignment]
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    gone: int = 0
    #: When set, a head alone counts: the answer may come before the body (an early answer).
    on_head: Answer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def everything(self) -> bytes:
        return b"\n--\n".join(bytes(raw) for raw in self.raw)

    def says(self, data: bytes, *, then_close: bool = False) -> None:
        """Answer every request with these bytes, a HEAD with their head."""

        async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
            head, end, _ = data.partition(b"\r\n\r\n")
            writer.write(head + end if request.line.startswith(b"HEAD ") else data)
            await writer.drain()
            if then_close:
                writer.close()

        self.answer = answer

    async def until(self, condition: Callable[[Recording], bool]) -> None:
        async with asyncio.timeout(5), self.arrived:
            await self.arrived.wait_for(lambda: condition(self))

    async def _tell(self) -> None:
        async with self.arrived:
            self.arrived.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw = bytearray()
        self.raw.append(raw)
        try:
            while await self._request(reader, writer, raw):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            self.gone += 1
            await self._tell()
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader, raw: bytearray, count: int) -> bytes:
        got = b""
        while len(got) < count:
            piece = await reader.read(count - len(got))
            if not piece:
                raise asyncio.IncompleteReadError(got, count)
            got += piece
            raw += piece
            await self._tell()
        return got

    async def _line(self, reader: asyncio.StreamReader, raw: bytearray, end: bytes = b"\r\n") -> bytes:
        got = await reader.readuntil(end)
        raw += got
        await self._tell()
        return got[: -len(end)]

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: bytearray) -> bool:
        begin = len(raw)
        head = await self._line(reader, raw, b"\r\n\r\n")
        line, *lines = head.split(b"\r\n")
        headers = [(name, value.strip(b" ")) for name, _, value in (entry.partition(b":") for entry in lines)]
        request = Request(line, headers, b"", b"")
        if self.on_head is not None:
            await self.on_head(request, writer)
        if request.values(b"transfer-encoding") == [b"chunked"]:
            assert not request.values(b"content-length")
            while size := int(await self._line(reader, raw), 16):
                request.body += await self._read(reader, raw, size)
                assert await self._line(reader, raw) == b""
            assert await self._line(reader, raw) == b""
        elif length := request.values(b"content-length"):
            assert len(length) == 1
            request.body = await self._read(reader, raw, int(length[0]))
        request.raw = bytes(raw[begin:])
        self.requests.append(request)
        await self._tell()
        if self.on_head is None:
            # An answer that never comes ends with the connection.
            answering = asyncio.ensure_future(self.answer(request, writer))
            leaving = asyncio.ensure_future(_left(reader))
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            if answering.cancel():
                return False
            answering.result()
        return not writer.is_closing()


async def _left(reader: asyncio.StreamReader) -> None:
    while not reader.at_eof():  # noqa: ASYNC110 - a StreamReader tells of its end only to who reads
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def recording(
    tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Recording]:
    """Record until the block ends."""
    world = Recording()
    world.says(OK)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        with contextlib.suppress(asyncio.CancelledError):
            await world._serve(reader, writer)

    server = await asyncio.start_server(serve, host, port, ssl=tls)
    world.port = server.sockets[0].getsockname()[1]
    try:
        yield world
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
