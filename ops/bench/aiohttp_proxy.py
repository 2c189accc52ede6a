"""The peer: a plain streaming reverse proxy with aiohttp, as its documentation would lead one to write it.

``python -m ops.bench.aiohttp_proxy PORT ORIGIN``.
"""

from __future__ import annotations

import asyncio
import os
import sys

import aiohttp
import uvloop
from aiohttp import web

FORWARDED = ("Accept", "Content-Type", "Content-Length")
RETURNED = ("Content-Type", "Content-Length")


async def serve(port: int, origin: str) -> None:
    """Forward ``/p/bench/...`` to the upstream, adding the header and none that the others do not send."""
    key = os.environ["BENCH_KEY"]
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=512, keepalive_timeout=3600),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept-Encoding", "Content-Type"),
    )

    async def forward(request: web.Request) -> web.StreamResponse:
        target = origin + request.rel_url.raw_path.removeprefix("/p/bench")
        headers = {name: request.headers[name] for name in FORWARDED if name in request.headers}
        async with session.request(
            request.method,
            target,
            headers={**headers, "Authorization": f"Bearer {key}"},
            data=request.content if request.body_exists else None,
            allow_redirects=False,
        ) as answer:
            headers = {name: answer.headers[name] for name in RETURNED if name in answer.headers}
            response = web.StreamResponse(status=answer.status, headers=headers)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    app = web.Application()
    app.router.add_route("*", "/p/bench/{tail:.*}", forward)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner_:
        runner_.run(serve(int(sys.argv[1]), sys.argv[2]))
