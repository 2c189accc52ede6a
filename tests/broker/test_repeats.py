"""A request whose bytes came before over the same connection is not read again, and everything else is asked again."""

from __future__ import annotations

import pytest

from tests.broker.calling import KEY, World, profile, world


@pytest.fixture
async def w(tmp_path):
    async with world(tmp_path, max_calls=50) as made:
        yield made


async def test_the_same_bytes_again_are_the_same_call(w: World):
    code = await w.connect()
    for _ in range(5):
        await code.send(w.request("GET", "/v1/items", {"Accept": "a/b"}))
        assert (await code.reply()).status == 200
    assert len({request.raw for request in w.api.requests}) == 1
    assert len(w.api.requests) == len(w.rows) == 5
    assert w.api.requests[4].values(b"authorization") == [b"Bearer " + KEY.encode()]


async def test_a_run_that_has_ended_is_refused_to_the_same_bytes(w: World):
    code = await w.connect()
    for _ in range(2):
        await code.send(w.request())
        assert (await code.reply()).status == 200
    w.run.end("by-operator")
    w.runs.clear()
    await code.send(w.request())
    assert (await code.reply()).code == "run-token-invalid"
    assert len(w.api.requests) == 2


async def test_a_token_that_opens_another_run_by_now_opens_that_one(w: World):
    code = await w.connect()
    await code.send(w.request())
    await code.reply()
    [digest] = w.runs
    w.open_run({"api": profile(w.api.url, allow=["POST /v1/items"])})
    other = next(run for key, run in w.runs.items() if key != digest)
    w.runs[digest] = other
    await code.send(w.request())
    assert (await code.reply()).code == "route-not-granted"
    assert other.trace.kept.denied == 1


async def test_a_grant_that_narrows_refuses_the_same_bytes(w: World):
    code = await w.connect()
    await code.send(w.request("GET", "/v1/items/7"))
    assert (await code.reply()).status == 200
    w.reload(profile(w.api.url, allow=["GET /v1/items"]))
    await code.send(w.request("GET", "/v1/items/7"))
    assert (await code.reply()).code == "route-not-granted"
    w.reload(profile(w.api.url))
    await code.send(w.request("GET", "/v1/items/7"))
    assert (await code.reply()).status == 200


async def test_the_same_bytes_spend_the_budget_each_time(tmp_path):
    async with world(tmp_path, max_calls=3) as w:
        code = await w.connect()
        statuses = []
        for _ in range(5):
            await code.send(w.request())
            statuses.append((await code.reply()).status)
        assert statuses == [200, 200, 200, 403, 403]


async def test_a_letter_that_differs_makes_another_call(w: World):
    code = await w.connect()
    for target, status in [("/v1/items/7", 200), ("/v1/items/8", 200), ("/v1/itemz/8", 403), ("/v1/items/7", 200)]:
        await code.send(w.request("GET", target))
        assert (await code.reply()).status == status
    assert [request.target for request in w.api.requests] == [b"/v1/items/7", b"/v1/items/8", b"/v1/items/7"]


async def test_two_requests_in_one_piece_are_two_again(w: World):
    code = await w.connect()
    piece = w.request("GET", "/v1/items/1") + w.request("GET", "/v1/items/2")
    for _ in range(2):
        await code.send(piece)
        assert [(await code.reply()).status for _ in range(2)] == [200, 200]
    assert [request.target[-1:] for request in w.api.requests] == [b"1", b"2", b"1", b"2"]


async def test_a_request_that_closes_its_connection_and_one_with_a_body_are_read_each_time(w: World):
    code = await w.connect()
    for body in (b"one", b"two", b"two"):
        await code.send(w.request("POST", "/v1/items", body=body))
        assert (await code.reply()).status == 200
    assert [request.body for request in w.api.requests] == [b"one", b"two", b"two"]
    last = w.request("GET", "/v1/items", {"Connection": "close"})
    await code.send(last + last)
    assert (await code.reply()).header("connection") == "close"
    assert await code.rest() == b""


async def test_the_beginning_of_the_same_bytes_is_the_beginning_of_a_request(w: World):
    code = await w.connect()
    request = w.request("GET", "/v1/items")
    for _ in range(2):
        await code.send(request)
        assert (await code.reply()).status == 200
    await code.send(request[:40])
    await code.send(request[40:] + request)
    assert [(await code.reply()).status for _ in range(2)] == [200, 200]


async def test_a_head_request_stays_one(w: World):
    w.api.says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
    code = await w.connect()
    for _ in range(3):
        await code.send(w.request("HEAD", "/v1/items"))
        assert (await code.reply(head=True)).header("content-length") == "9"
