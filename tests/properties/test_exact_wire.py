"""For any bytes: either the call is refused, or the API received exactly those bytes on a granted route.

The judge is written apart from the product: plain regular expressions over what the recording API saw on its socket.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.calling import KEY, World, world

ALLOW = [
    {"route": "GET /v1/items", "query": {"page": "int", "q": "any"}},
    "GET /v1/items/*",
    "GET /v1/{customer}/notes/",
    {"route": "GET /v1/files/*.json", "encoded": ["%2F"], "wide": True},
    "POST /v1/items",
]
_STAR = rb"(?!\.+\Z)[A-Za-z0-9\-._~@+=]+"
GRANTED = [
    re.compile(pattern, re.DOTALL)
    for pattern in (
        rb"/v1/items",
        rb"/v1/items\?(?:(?:page=-?(?:0|[1-9][0-9]{0,18})|q(?:=[!$'()*+,\-./0-9:=?@A-Za-z_~%\[\]]*)?)(?:&|\Z)){1,2}",
        rb"/v1/items/" + _STAR,
        rb"/v1/acme/notes/",
        rb"/v1/files/(?!\.+\Z)(?:[A-Za-z0-9\-._~@+=:!$&'()*,]|%[0-9A-F]{2})+\.json",
    )
]

_PIECES = st.sampled_from(
    [
        b"/", b"//", b"v1", b"items", b"files", b"acme", b"notes", b".json", b".", b"..", b"a", b"7", b"%2F", b"%2f",
        b"%2e", b"%2E", b"%5C", b"%00", b"%C3%A9", b"%C3", b"%25", b"%", b"?", b"?page=1", b"?q=x", b"&page=1",
        b"&q=%20", b"page=01", b"#", b";", b":", b"*", b"@", b"+", b"=", b"&", b"\\", b" ", b"\t", b"\x00", b"\x7f",
        b"\xc3\xa9", b"\xff", b"http://x/", b"{customer}", b"~", b"|", b'"', b"<", b"^", b"`",
    ]
)  # fmt: skip
#: A route as it is granted, with at most a few bytes changed, is what finds holes; anything at all finds crashes.
_NEAR = st.builds(
    lambda base, at, piece: base[: at % (len(base) + 1)] + piece + base[at % (len(base) + 1) :],
    st.sampled_from(
        [
            b"/v1/items",
            b"/v1/items?page=1",
            b"/v1/items?q=a&page=-3",
            b"/v1/items/7",
            b"/v1/acme/notes/",
            b"/v1/files/a.json",
        ]
    ),
    st.integers(0, 40),
    st.one_of(_PIECES, st.binary(max_size=3), st.just(b"")),
)
TARGETS = st.one_of(
    _NEAR,
    st.lists(_PIECES, max_size=10).map(lambda pieces: b"/v1" + b"".join(pieces)),
    st.lists(_PIECES, max_size=10).map(b"".join),
    st.binary(max_size=40),
)


class Bench:
    """The world in a loop of its own thread, for tests that are not asynchronous."""

    def __init__(self, tmp_path: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.world: World = None  # type: ignore[assignment]
        self.stop = asyncio.Event()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.loop.run_until_complete, args=(self._serve(tmp_path),))
        self.thread.start()
        assert self.ready.wait(10)

    async def _serve(self, tmp_path: Any) -> None:
        async with world(tmp_path, allow=ALLOW, params={"customer": "[a-z]+"}, max_calls=100_000) as made:
            made.token = made.open_run({"api": _with(made.api.url)}, params={"customer": "acme"})
            self.world = made
            self.ready.set()
            await self.stop.wait()

    def do(self, work: Callable[[World], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run_coroutine_threadsafe(work(self.world), self.loop).result(10)

    def shut(self) -> None:
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(10)
        self.loop.close()


def _with(url: str) -> dict[str, Any]:
    return {
        "base_url": url,
        "allowed_callers": ["tester"],
        "token": {"type": "static", "key": "k"},
        "allow": ALLOW,
        "params": {"customer": "[a-z]+"},
        "max_calls": 100_000,
    }


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    made = Bench(tmp_path_factory.mktemp("wire"))
    yield made
    made.shut()


async def _exchange(w: World, request: bytes) -> bytes:
    """Send bytes and return everything that comes back: one answer, then the end."""
    code = await w.connect()
    w.connected.clear()
    try:
        await code.send(request)
        return await code.rest()
    finally:
        code.writer.close()


@settings(max_examples=400, deadline=None)
@given(
    target=TARGETS.filter(lambda target: not re.search(rb"[\r\n]|\A | \Z", target))
)  # those end a request line's parts
def test_a_target_is_refused_or_received_exactly_on_a_granted_route(bench, target):
    async def call(w: World) -> tuple[bytes, list[Any], int, int]:
        seen, raw = len(w.api.requests), len(w.api.everything())
        answer = await _exchange(
            w,
            b"GET /p/api" + target + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            b"Authorization: Bearer " + w.token.encode() + b"\r\n\r\n",
        )
        return answer, w.api.requests[seen:], raw, len(w.api.everything())

    answer, received, before, after = bench.do(call)
    if b"broker-refused-by: broker" in answer:
        assert received == []
        assert before == after
        return
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    [request] = received
    assert request.line == b"GET " + target + b" HTTP/1.1"
    assert any(pattern.fullmatch(target) for pattern in GRANTED), target
    assert request.values(b"authorization") == [b"Bearer " + KEY.encode()]


@settings(max_examples=150, deadline=None)
@given(body=st.lists(st.binary(max_size=3000), max_size=6), chunked=st.booleans())
def test_a_body_is_received_exactly_however_it_was_cut_into_pieces(bench, body, chunked):
    async def call(w: World) -> tuple[bytes, list[Any]]:
        seen = len(w.api.requests)
        head = b"POST /p/api/v1/items HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: Bearer "
        head += w.token.encode() + b"\r\n"
        whole = b"".join(body)
        code = await w.connect()
        w.connected.clear()
        if chunked:
            await code.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
            for piece in filter(None, body):
                await code.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await code.send(b"0\r\n\r\n")
        else:
            await code.send(head + b"Content-Length: %d\r\n\r\n" % len(whole))
            for piece in body:
                await code.send(piece)
        answer = await code.rest()
        code.writer.close()
        return answer, w.api.requests[seen:]

    answer, received = bench.do(call)
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    [request] = received
    assert request.body == b"".join(body)


@settings(max_examples=200, deadline=None)
@given(value=st.binary(min_size=1, max_size=40).filter(lambda value: not re.search(rb"[\r\n]|^[ \t]|[ \t]$", value)))
def test_a_header_value_is_refused_or_received_exactly(bench, value):
    async def call(w: World) -> tuple[bytes, list[Any]]:
        seen = len(w.api.requests)
        answer = await _exchange(
            w,
            b"GET /p/api/v1/items HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAccept: " + value + b"\r\n"
            b"Authorization: Bearer " + w.token.encode() + b"\r\n\r\n",
        )
        return answer, w.api.requests[seen:]

    answer, received = bench.do(call)
    if b"broker-refused-by: broker" in answer:
        assert received == []
    else:
        assert [request.values(b"accept") for request in received] == [[value]]
