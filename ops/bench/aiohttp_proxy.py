"""The peer: a plain streaming reverse proxy with aiohttp, as its documentation would lead one to write it."""

from __future__ import annotations

import asyncio
import os
import sys

import aiohttp
import uvloop
from aiohttp import web


async def serve(port: int, upstream_port: int) -> None:
    """Forward ``/p/bench/...`` to the upstream, adding the header."""
    key = os.environ["BENCH_KEY"]
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=512), auto_decompress=False)

    async def forward(request: web.Request) -> web.StreamResponse:
        target = f"http://127.0.0.1:{upstream_port}{request.rel_url.raw_path.removeprefix('/p/bench')}"
        async with session.request(
            request.method,
            target,
            headers={"Authorization": f"Bearer {key}", "Accept": request.headers.get("Accept", "*/*")},
            data=request.content if request.body_exists else None,
            allow_redirects=False,
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            response.content_length = answer.content_length
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
        runner_.run(serve(int(sys.argv[1]), int(sys.argv[2])))
