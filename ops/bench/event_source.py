"""The upstream of the idle event streams: an event when a stream is opened, then one in a while.

``python -m ops.bench.event_source PORT SECONDS``. An event is the monotonic clock's nanoseconds at its sending: on one
machine all processes read the same clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def serve(port: int, every_s: float) -> None:
    """Answer every request with a stream that does not end."""

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD)
            # Streams that were opened together do not send together.
            pause = every_s * random.random()  # noqa: S311
            while True:
                event = b"data: %d\n\n" % time.monotonic_ns()
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                await writer.drain()
                await asyncio.sleep(pause)
                pause = every_s
        writer.close()

    server = await asyncio.start_server(stream, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
