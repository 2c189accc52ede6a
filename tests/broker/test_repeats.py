"""A request whose bytes came before over the same connection is not read again, and everything else is asked again."""

from __future__ import annotations

import pytest

from tests.broker.calling import KEY, World, eventually, profile, world


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


async def test_a_run_whose_time_is_over_is_refused_to_the_same_bytes(w: World):
    code = await w.connect()
    for _ in range(2):
        await code.send(w.request())
        assert (await code.reply()).status == 200
    w.clock.advance(899)
    await code.send(w.request())
    assert (await code.reply()).status == 200
    w.clock.advance(1)
    await code.send(w.request())
    assert (await code.reply()).code == "run-token-invalid"
    assert len(w.api.requests) == 3


async def test_the_same_bytes_get_the_credential_of_now(w: World):
    await w.watch()
    code = await w.connect()
    for _ in range(2):
        await code.send(w.request())
        assert (await code.reply()).status == 200
    w.minter.credential = {"value": "another-credential"}
    slot = w.run.profiles["api"].lease
    lease = slot.lease
    w.minter.end(lease.lease_id)
    await eventually(lambda: slot.lease is not lease)
    await code.send(w.request())
    assert (await code.reply()).status == 200
    assert [request.values(b"authorization") for request in w.api.requests] == [
        [b"Bearer " + KEY.encode()],
        [b"Bearer " + KEY.encode()],
        [b"Bearer another-credential"],
    ]


async def test_headers_that_a_reload_takes_away_pass_no_more_with_the_same_bytes(tmp_path):
    lists = {"request_headers": ["x-there"], "response_headers": ["x-back"]}
    async with world(tmp_path, **lists) as w:
        w.api.says(b"HTTP/1.1 200 OK\r\nX-Back: b\r\nContent-Length: 0\r\n\r\n")
        code = await w.connect()
        seen = []
        for now in ({}, {}, {"request_headers": ["x-there"]}, lists):
            w.reload(profile(w.api.url, **(lists if now == {} else now)))
            for _ in range(2):
                await code.send(w.request("GET", "/v1/items", {"X-There": "t"}))
                seen.append(((await code.reply()).header("x-back"), w.api.requests[-1].values(b"x-there")))
        assert seen == [*[("b", [b"t"])] * 4, *[(None, [b"t"])] * 2, *[("b", [b"t"])] * 2]
        w.reload(profile(w.api.url, response_headers=["x-back"]))
        await code.send(w.request("GET", "/v1/items", {"X-There": "t"}))
        assert ((await code.reply()).header("x-back"), w.api.requests[-1].values(b"x-there")) == ("b", [])


async def test_answers_to_the_same_bytes_are_scrubbed_from_the_reload_on_that_says_so(tmp_path):
    async with world(tmp_path, scrub="off") as w:
        body = f"you sent {KEY}".encode()
        w.api.says(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        code = await w.connect()
        bodies = []
        for scrub in ("off", "off", "mask", "mask", "off"):
            w.reload(profile(w.api.url, scrub=scrub))
            await code.send(w.request("GET", "/v1/items", {"Range": "bytes=0-9"}))
            bodies.append((await code.reply()).body)
        masked = b"you sent " + b"*" * len(KEY)
        assert bodies == [body, body, masked, masked, body]
        assert [request.values(b"accept-encoding") for request in w.api.requests] == [
            [], [], [b"identity"], [b"identity"], []
        ]  # fmt: skip
        w.reload(profile(w.api.url, scrub="refuse"))
        await code.send(w.request("GET", "/v1/items", {"Range": "bytes=0-9"}))
        assert (await code.reply()).code == "credential-reflected"


async def test_what_was_granted_for_one_method_is_not_for_another(w: World):
    code = await w.connect()
    for method, status in (("GET", 200), ("GET", 200), ("HEAD", 403), ("DELETE", 200), ("GET", 200), ("HEAD", 403)):
        await code.send(w.request(method, "/v1/items/7"))
        assert (await code.reply(head=method == "HEAD")).status == status
    assert [request.line.split(b" ")[0] for request in w.api.requests] == [b"GET", b"GET", b"DELETE", b"GET"]


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nX-One: 1\r\nX-Two: 2\r\nContent-Length: 5\r\n\r\nhello"


async def answers(w: World, code, count=2, **sent):
    """Make calls that are answered with the same bytes, and return the last answer's own headers."""
    for _ in range(count):
        await code.send(w.request(**sent))
        reply = await code.reply()
    return {name for name, _ in reply.headers} & {"x-one", "x-two", "broker-refused-by"}


async def test_of_an_answer_that_comes_again_each_profile_passes_its_own_headers(w: World):
    w.api.says(ANSWER)
    one = profile(w.api.url, response_headers=["x-one"])
    two = profile(w.api.url, response_headers=["x-two"])
    w.token = w.open_run({"api": one, "other": two})
    code = await w.connect()
    assert await answers(w, code) == {"x-one"}
    assert await answers(w, code, profile="other") == {"x-two"}
    assert await answers(w, code) == {"x-one"}
    assert await answers(w, code, count=1, profile="other") == {"x-two"}


async def test_of_an_answer_that_comes_again_a_narrower_grant_passes_less(w: World):
    w.api.says(ANSWER)
    wide, narrow = profile(w.api.url, response_headers=["x-one", "x-two"]), profile(w.api.url)
    w.token = w.open_run({"api": wide})
    w.run = next(reversed(w.runs.values()))
    code = await w.connect()
    assert await answers(w, code) == {"x-one", "x-two"}
    w.reload(narrow)
    assert await answers(w, code) == set()
    w.reload(profile(w.api.url, response_headers=["x-one", "x-two"], max_response=4))
    await code.send(w.request())
    assert (await code.reply()).code == "response-too-large"


async def test_a_refusal_that_comes_again_is_the_apis_only_for_a_call_with_the_credential(w: World):
    w.api.says(ANSWER.replace(b"200 OK", b"401 No"))
    bare = {"route": "GET /v1/items/*", "credential": False}
    w.token = w.open_run({"api": profile(w.api.url, allow=["GET /v1/items", bare])})
    code = await w.connect()
    assert await answers(w, code, target="/v1/items/7") == set()
    assert await answers(w, code) == {"broker-refused-by"}
    assert await answers(w, code, target="/v1/items/7") == set()
