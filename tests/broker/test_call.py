"""What passes on a call, and what does not. Numbers in names are those of the peers' reports (peers.md section 3)."""

from __future__ import annotations

import asyncio
import base64

import pytest
import structlog

from broker.budget import Budget
from config.problems import ProblemError
from tests.broker.calling import KEY, World, profile, world


@pytest.fixture
async def w(tmp_path):
    async with world(tmp_path) as made:
        yield made


async def test_a_granted_call_reaches_the_api_with_the_credential_and_nothing_else(w: World):
    reply = await w.call("GET", "/v1/items")
    assert (reply.status, reply.body) == (200, b'{"ok":true}')
    [request] = w.api.requests
    assert request.line == b"GET /v1/items HTTP/1.1"
    assert request.headers == [
        (b"host", f"127.0.0.1:{w.api.port}".encode()),
        (b"user-agent", b"minter-broker"),
        (b"accept-encoding", b"identity"),
        (b"authorization", b"Bearer " + KEY.encode()),
    ]
    assert w.token.encode() not in w.api.everything()
    assert w.recorder.calls == [("api", 200)]


@pytest.mark.parametrize(
    "target",
    [
        "/v1/../admin", "/v1/%2e%2e/admin", "//v1/items", "/v1/./items",  # 1
        "/v1/..;/admin", "/v1/items;x=1",  # 2
        "/v1/items/a%2Fb",  # 3
        "/v1/items?", "/v1/items?x=1", "/v1/items/", "/V1/items", "/v1/items/a/b", "/v1/other", "/",
    ],
)  # fmt: skip
async def test_a_target_that_no_route_takes_reaches_neither_api_nor_minter(w: World, target):
    reply = await w.call("GET", target)
    assert reply.status in (400, 403)
    assert reply.code in {"target-malformed", "route-not-granted", "query-not-granted", "encoding-not-granted"}
    assert (w.api.raw, w.minter.asked) == ([], [])
    assert w.run.profiles["api"].budget.spent == 1
    assert w.run.trace.kept.denied == 1
    assert w.run.trace.kept.denied_by == {reply.code: {"": 1}}
    assert w.recorder.refusals == [("api", reply.code)]
    assert "items" not in reply.problem["detail"]


async def test_a_refused_route_names_the_nearest_granted_ones(w: World):
    assert "GET /v1/items" in (await w.call("GET", "/v1/item")).problem["nearest"]


@pytest.mark.parametrize("method", ["OPTIONS", "PATCH", "PUT", "TRACE"])
async def test_a_method_that_is_not_granted_never_carries_the_credential_22(w: World, method):
    reply = await w.call(method, "/v1/items")
    assert reply.status in (403, 405)
    if reply.status == 405:
        assert reply.header("allow") == "GET, HEAD, POST, PUT, PATCH, DELETE"
    assert (w.api.raw, w.minter.asked) == ([], [])


async def test_a_head_is_not_a_get_unless_it_is_listed(w: World):
    assert (await w.call("HEAD", "/v1/items/7")).status == 403
    assert w.api.raw == []


@pytest.mark.parametrize("name", ["x-api-key", "Proxy-Authorization"])
async def test_a_run_token_in_a_place_of_its_own_never_reaches_the_api_13(w: World, name):
    reply = await w.call("GET", "/v1/items", {name: w.token}, token=False)
    assert (reply.status, reply.code) == (400, "run-token-misplaced")
    reply = await w.call("GET", "/v1/items", {name: w.token})
    assert (reply.status, reply.code) == (400, "run-token-misplaced")
    assert w.api.raw == []


async def test_only_the_injected_credential_reaches_the_api_14(w: World):
    headers = {
        "x-api-key": "dummy", "Cookie": "a=b", "X-Auth-Token": "t", "Proxy-Authorization": "Basic eDp5",
        "X-HTTP-Method-Override": "DELETE", "X-Forwarded-For": "1.2.3.4", "Referer": "http://x", "X-Anything": "1",
        "User-Agent": "sdk/1", "Accept-Encoding": "gzip",
    }  # fmt: skip
    assert (await w.call("GET", "/v1/items", headers)).status == 200
    assert [name for name, _ in w.api.requests[0].headers] == [
        b"host", b"user-agent", b"accept-encoding", b"authorization"
    ]  # fmt: skip
    assert w.api.requests[0].values(b"accept-encoding") == [b"identity"]
    assert b"dummy" not in w.api.everything()


async def test_headers_named_by_connection_do_not_pass_and_cannot_remove_the_credential_16(w: World):
    for value in ("keep-alive, X-Foo", "authorization", "close, authorization, accept"):
        assert (await w.call("GET", "/v1/items", {"Connection": value, "X-Foo": "1", "Accept": "a/b"})).status == 200
        request = w.api.requests[-1]
        assert request.values(b"authorization") == [b"Bearer " + KEY.encode()]
        assert request.values(b"accept") == [b"a/b"]
        assert request.values(b"connection") == request.values(b"x-foo") == []


async def test_the_headers_of_the_list_pass_byte_for_byte_and_repeated_ones_stay_repeated(tmp_path):
    sent = [
        ("Accept", "text/a"), ("Accept", "text/b"), ("Accept-Language", "dé"), ("If-Match", '"x", "y"'),
        ("If-None-Match", "*"), ("Range", "bytes=0-1"), ("Content-Type", 'Text/X; a="ü"'),
    ]  # fmt: skip
    async with world(tmp_path, scrub="off") as w:
        assert (await w.call("GET", "/v1/items", sent)).status == 200
        passed = w.api.requests[0].headers[3:]
    assert passed == [(name.lower().encode(), value.encode()) for name, value in sent]


async def test_a_header_that_cannot_be_sent_as_it_is_is_refused(w: World):
    data = w.request("GET", "/v1/items").replace(b"\r\n\r\n", b"\r\nAccept: a\xff\r\n\r\n")
    assert (await w.raw(data)).code == "header-malformed"
    assert (w.api.raw, w.minter.asked) == ([], [])


async def test_whoever_asks_for_a_part_or_for_compression_gets_neither_while_answers_are_scrubbed(tmp_path):
    """The grant's own constants, too. Where no credential is attached, there is nothing to look for."""
    fields = {
        "request_headers": ["if-range"],
        "fixed_headers": {"Accept-Encoding": "gzip"},
        "allow": ["GET /v1/items", {"route": "GET /v1/public", "credential": False}],
    }
    part = {"Range": "bytes=0-9", "If-Range": '"v1"'}
    asked = [[b"bytes=0-9"], [b'"v1"'], [b"gzip"]]
    for scrub, target, expected in (
        ("mask", "/v1/items", [[], [], [b"identity"]]),
        ("refuse", "/v1/items", [[], [], [b"identity"]]),
        ("off", "/v1/items", asked),
        ("mask", "/v1/public", asked),
    ):
        async with world(tmp_path / scrub / target[-5:], scrub=scrub, **fields) as w:
            assert (await w.call("GET", target, part)).status == 200
            [request] = w.api.requests
            assert [request.values(name) for name in (b"range", b"if-range", b"accept-encoding")] == expected


async def test_lists_of_the_grant_let_more_headers_pass_and_fixed_ones_replace_the_codes(tmp_path):
    fields = {
        "request_headers": ["X-Trace", "User-Agent"],
        "response_headers": ["X-Rate", "Location"],
        "fixed_headers": {"X-Version": "2026-01-01", "Accept": "text/fixed"},
    }
    async with world(tmp_path, **fields) as w:
        w.api.says(
            b"HTTP/1.1 200 OK\r\nx-rate: 1\r\nX-RATE: 2\r\nLocation: /a\r\nServer: s\r\nContent-Length: 0\r\n\r\n"
        )
        sent = {"X-Trace": "t", "X-Version": "evil", "Accept": "a/b", "User-Agent": "sdk/1"}
        reply = await w.call("GET", "/v1/items", sent)
        assert w.api.requests[0].headers[1:] == [
            (b"x-version", b"2026-01-01"),
            (b"accept", b"text/fixed"),
            (b"accept-encoding", b"identity"),
            (b"authorization", b"Bearer " + KEY.encode()),
            (b"x-trace", b"t"),
            (b"user-agent", b"sdk/1"),
        ]
        assert [header for header in reply.headers if header[0].startswith("x-")] == [("x-rate", "1"), ("x-rate", "2")]
        assert reply.header("location") == "/a"
        assert reply.header("server") is None


async def test_a_fixed_header_replaces_the_codes_where_no_credential_is_attached_too(tmp_path):
    fields = {
        "fixed_headers": {"Accept": "text/fixed", "User-Agent": "fixed/1"},
        "allow": [{"route": "GET /v1/public", "credential": False}],
    }
    async with world(tmp_path, **fields) as w:
        assert (await w.call("GET", "/v1/public", {"Accept": "a/b", "User-Agent": "sdk/1"})).status == 200
        assert w.api.requests[0].headers[1:] == [(b"accept", b"text/fixed"), (b"user-agent", b"fixed/1")]


async def test_of_an_answer_only_the_listed_headers_come_back_and_no_cookie_53(tmp_path):
    async with world(tmp_path, scrub="off") as w:
        w.api.says(
            b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nSet-Cookie: c=3\r\nContent-Type: Text/X\r\n"
            b'ETag: "e"\r\nLast-Modified: now\r\nContent-Encoding: gzip\r\nX-Secret: x\r\nVia: v\r\n'
            b"Content-Length: 2\r\n"
            b"WWW-Authenticate: Basic\r\nbroker-refused-by: broker\r\n\r\nhi"
        )
        reply = await w.call("GET", "/v1/items")
    assert [header for header in reply.headers if header[0] != "date"] == [
        ("content-type", "Text/X"),
        ("etag", '"e"'),
        ("last-modified", "now"),
        ("content-encoding", "gzip"),
        ("content-length", "2"),
    ]
    assert reply.body == b"hi"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_returned_and_never_followed_23(w: World, status):
    w.api.says(
        b"HTTP/1.1 %d Elsewhere\r\nLocation: http://127.0.0.1:%d/v1/items\r\nContent-Length: 0\r\n\r\n"
        % (status, w.api.port)
    )
    reply = await w.call("GET", "/v1/items")
    assert reply.status == status
    assert reply.header("location") is None
    assert len(w.api.requests) == 1


@pytest.mark.parametrize("status", [401, 403])
async def test_an_apis_own_refusal_is_passed_on_and_marked_as_its_own(w: World, status):
    w.api.says(b"HTTP/1.1 %d No\r\nContent-Length: 3\r\n\r\nbad" % status)
    reply = await w.call("GET", "/v1/items")
    assert (reply.status, reply.body) == (status, b"bad")
    assert reply.header("broker-refused-by") == "upstream"


async def test_a_refusal_of_a_call_without_credential_is_not_blamed_on_one(tmp_path):
    allow = [{"route": "GET /v1/items", "credential": False}, "POST /v1/items"]
    async with world(tmp_path, allow=allow) as w:
        w.api.says(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n")
        reply = await w.call("GET", "/v1/items")
        assert (reply.status, reply.header("broker-refused-by")) == (401, None)
        assert w.api.requests[0].values(b"authorization") == []
        assert w.minter.asked == []
        await w.call("POST", "/v1/items", body=b"x")
        assert w.api.requests[1].values(b"authorization") == [b"Bearer " + KEY.encode()]
        assert len(w.minter.asked) == 1


async def test_a_profile_without_token_needs_no_lease(tmp_path):
    async with world(tmp_path, token=None) as w:
        assert (await w.call("GET", "/v1/items")).status == 200
        assert w.api.requests[0].values(b"authorization") == []
        assert w.minter.asked == []


# --- who calls ---


async def test_a_call_without_a_run_token_is_401(w: World):
    for headers in ({}, {"Authorization": "Bearer sk-something"}, {"Authorization": ""}):
        reply = await w.call("GET", "/v1/items", headers, token=False)
        assert (reply.status, reply.code) == (401, "run-token-missing")
    assert w.recorder.refusals == [("", "run-token-missing")] * 3


async def test_a_wrong_an_unknown_an_ended_and_an_expired_token_look_the_same(w: World):
    from config import tokens

    unknown = tokens.generate(tokens.RUN).reveal()
    wrong = w.token[:-1] + ("0" if w.token[-1] != "0" else "1")
    replies = [
        await w.call("GET", "/v1/items", {"Authorization": f"Bearer {token}"}, token=False)
        for token in (unknown, wrong, w.token[:-2], w.token + "0")
    ]
    w.run.deadline = type(w.run.deadline).after(w.clock, 1)
    w.clock.advance(1)
    replies.append(await w.call("GET", "/v1/items"))
    w.run.end("by-operator")
    replies.append(await w.call("GET", "/v1/items"))
    assert {(reply.status, reply.body) for reply in replies} == {(401, replies[0].body)}
    assert replies[0].code == "run-token-invalid"
    assert w.run.profiles["api"].budget.spent == 0
    assert w.api.raw == []


async def test_a_run_is_usable_until_the_instant_of_its_end(w: World):
    w.clock.advance(899)
    assert (await w.call("GET", "/v1/items")).status == 200
    w.clock.advance(1)
    assert (await w.call("GET", "/v1/items")).code == "run-token-invalid"


async def test_another_profile_than_the_runs_own_is_403_and_counted(w: World):
    reply = await w.call("GET", "/v1/items", profile="other")
    assert (reply.status, reply.code) == (403, "profile-not-granted")
    assert w.run.trace.kept.denied_by == {"profile-not-granted": {"": 1}}
    # Not under the name that the code asked for: it may say anything.
    assert w.run.trace.kept.denied_of == {"": w.run.trace.kept.denied_by}


async def test_a_call_that_names_no_profile_is_refused(w: World):
    for path in (b"/p/api", b"/p/", b"/p//v1/items"):
        reply = await w.raw(
            b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %b\r\n\r\n" % (path, w.token.encode())
        )
        assert reply.status in (400, 403)
    assert w.api.raw == []


# --- limits ---


async def test_denied_attempts_count_against_the_budget(tmp_path):
    async with world(tmp_path, max_calls=3) as w:
        assert (await w.call("GET", "/v1/other")).status == 403
        assert (await w.call("GET", "/v1/items")).status == 200
        assert (await w.call("GET", "/v1/items?")).status == 400
        reply = await w.call("GET", "/v1/items")
        assert (reply.status, reply.code) == (403, "budget-exhausted")
        assert reply.problem["max_calls"] == 3
        assert len(w.api.requests) == 1
        assert w.reserved == [3, 0]


async def test_a_budget_is_reserved_in_blocks(w: World):
    for _ in range(33):
        await w.call("GET", "/v1/items")
    assert w.reserved == [32, 32]


async def test_more_calls_at_once_than_the_profile_allows_are_429_and_spend_nothing(tmp_path):
    async with world(tmp_path, max_concurrent=2) as w:
        release = asyncio.Event()

        async def slow(_request, writer):
            await release.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        w.api.answer = slow
        calls = [asyncio.create_task(w.call("GET", "/v1/items")) for _ in range(2)]
        await w.api.until(lambda api: len(api.requests) == 2)
        reply = await w.call("GET", "/v1/items")
        assert (reply.status, reply.code, reply.header("retry-after")) == (429, "too-many-concurrent", "1")
        release.set()
        assert [(await call).status for call in calls] == [200, 200]
        assert (await w.call("GET", "/v1/items")).status == 200
        assert w.run.profiles["api"].budget.spent == 3
        assert w.run.profiles["api"].in_flight == 0


async def test_a_run_whose_places_are_all_taken_takes_none_of_anothers(tmp_path):
    async with world(tmp_path, max_concurrent=2) as w:
        release = asyncio.Event()

        async def slow(request, writer):
            if request.target != b"/v1/items/quick":
                await release.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        w.api.answer = slow
        calls = [asyncio.create_task(w.call("GET", "/v1/items")) for _ in range(2)]
        await w.api.until(lambda api: len(api.requests) == 2)
        assert (await w.call("GET", "/v1/items/quick")).status == 429
        w.token = w.open_run({"api": profile(w.api.url, max_concurrent=2)})
        assert [(await w.call("GET", "/v1/items/quick")).status for _ in range(5)] == [200] * 5
        release.set()
        assert [(await call).status for call in calls] == [200, 200]


# --- narrowing ---


async def test_a_route_that_the_current_grants_no_longer_list_is_refused_in_the_middle_of_a_run(w: World):
    assert (await w.call("GET", "/v1/items/7")).status == 200
    w.reload(profile(w.api.url, allow=["GET /v1/items"]))
    assert (await w.call("GET", "/v1/items/7")).code == "route-not-granted"
    assert (await w.call("GET", "/v1/items")).status == 200


async def test_a_run_does_not_get_wider_when_the_grants_do(w: World):
    w.reload(profile(w.api.url, allow=["GET /v1/items", "PUT /v1/items"], max_concurrent=99, request_headers=["X-A"]))
    assert (await w.call("PUT", "/v1/items", body=b"")).status == 403
    await w.call("GET", "/v1/items", {"X-A": "1"})
    assert w.api.requests[0].values(b"x-a") == []
    assert w.run.profiles["api"].max_concurrent == 16


async def test_a_profile_that_is_gone_from_the_grants_allows_no_call(w: World):
    w.reload(None)
    assert (await w.call("GET", "/v1/items")).code == "profile-not-granted"
    assert (w.api.raw, w.minter.asked) == ([], [])


async def test_the_smaller_limits_hold_after_a_reload(w: World):
    w.reload(profile(w.api.url, max_request=3, max_response=5))
    assert (await w.call("POST", "/v1/items", body=b"four")).code == "request-too-large"
    assert (await w.call("POST", "/v1/items", body=b"ok")).code == "response-too-large"


async def test_a_grant_that_narrows_while_the_budget_is_written_holds_for_that_call(tmp_path):
    async with world(tmp_path, request_headers=["X-A"], max_calls=64) as w:
        granted = w.run.profiles["api"]
        reserve = granted.budget._reserve

        async def narrowing(wanted: int) -> int:
            w.reload(profile(w.api.url))
            return await reserve(wanted)

        granted.budget._reserve = narrowing
        assert (await w.call("GET", "/v1/items", {"X-A": "1"})).status == 200
        assert w.api.requests[0].values(b"x-a") == []


# --- the trace ---


async def test_a_row_holds_the_route_as_written_and_numbers_only(w: World):
    await w.call("POST", "/v1/items", body=b"hello")
    await w.call("GET", "/v1/items/42")
    rows = [{**row, "milliseconds": 0} for row in w.rows]
    assert rows == [
        {
            "n": 1, "profile": "api", "method": "POST", "route": "POST /v1/items", "status": 200, "delivered": True,
            "bytes_sent": 5, "bytes_back": 11, "milliseconds": 0,
        },
        {
            "n": 2, "profile": "api", "method": "GET", "route": "GET /v1/items/*", "status": 200, "delivered": True,
            "bytes_sent": 0, "bytes_back": 11, "milliseconds": 0,
        },
    ]  # fmt: skip
    assert w.run.trace.kept.calls == {"api": {"POST /v1/items": 1, "GET /v1/items/*": 1}}


async def test_a_denied_call_that_the_catalog_knows_is_counted_under_its_route_and_no_path(tmp_path):
    async with world(tmp_path, catalog=["DELETE /v1/admin/*"]) as w:
        reply = await w.call("DELETE", "/v1/admin/7")
        assert reply.status == 403
        assert w.run.trace.kept.denied_by == {reply.code: {"DELETE /v1/admin/*": 1}}
        assert w.run.trace.kept.denied_of == {"api": w.run.trace.kept.denied_by}
        assert "admin" not in reply.body.decode()


# --- the credential ---


@pytest.mark.parametrize(
    "code", ["lease-conflict", "origin-mismatch", "caller-not-allowed", "origin-not-pinned", "no-token"]
)
async def test_a_lease_that_the_minter_refuses_is_503_and_nothing_is_sent(w: World, code):
    w.minter.refuse = ProblemError(code)
    reply = await w.call("GET", "/v1/items")
    assert (reply.status, reply.code, reply.problem["minter_code"]) == (503, "lease-refused", code)
    assert reply.header("retry-after") is not None
    assert w.api.raw == []
    assert [(row["status"], row["delivered"]) for row in w.rows] == [(503, False)]


@pytest.mark.parametrize("code", ["audit-unavailable", "secret-unavailable", "issuer-failed", "mint-rate-exceeded"])
async def test_a_mint_that_fails_is_503_with_the_pause_that_the_minter_asked_for_33(w: World, code):
    w.minter.refuse = ProblemError(code, retry_after=7)
    reply = await w.call("GET", "/v1/items")
    assert (reply.status, reply.code, reply.header("retry-after")) == (503, "mint-failed", "7")
    assert len(w.minter.asked) == 1
    # Nobody is asked again before that.
    assert (await w.call("GET", "/v1/items")).code == "mint-failed"
    assert len(w.minter.asked) == 1
    w.minter.refuse = None
    w.clock.advance(7)
    assert (await w.call("GET", "/v1/items")).status == 200
    assert len(w.api.requests) == 1


@pytest.mark.parametrize(
    "reply",
    [
        b"", b"{}", b"[]", (b'{"lease_id":"l","credential":{"value":""},"expires_at":"2031-01-01T00:00:00Z",'
        b'"expires_in_s":900,"kind":"k","fingerprint":"f"}'),
        (b'{"lease_id":"l","credential":{},"expires_at":"2031-01-01T00:00:00Z","expires_in_s":9,"kind":"k",'
        b'"fingerprint":"f"}'),
        b'{"lease_id":"l","credential":{"value":"v"},"expires_at":"soon","expires_in_s":9,"kind":"k","fingerprint":"f"}',
        (b'{"lease_id":"l","credential":{"value":"v"},"expires_at":"2029-01-01T00:00:00Z","expires_in_s":9,"kind":"k",'
        b'"fingerprint":"f"}'),
    ],
)  # fmt: skip
async def test_an_empty_an_expired_or_a_nonsense_credential_is_never_sent_44(w: World, reply):
    w.minter.reply = reply
    answer = await w.call("GET", "/v1/items")
    assert (answer.status, answer.code) == (503, "mint-failed")
    assert w.api.raw == []


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\x00b", "schlüssel", " blank", "blank ", "tab\tbed"])
async def test_a_credential_that_cannot_stand_in_a_header_is_refused_before_a_byte_leaves(w: World, value):
    w.minter.credential = {"value": value}
    reply = await w.call("GET", "/v1/items")
    assert (reply.status, reply.code) == (503, "credential-unusable")
    assert value.strip() not in reply.body.decode()
    assert w.api.raw == []


async def test_the_minter_is_asked_for_exactly_this_run_and_grant(w: World):
    await w.call("GET", "/v1/items")
    [asked] = w.minter.asked
    frozen = w.run.profiles["api"].frozen
    assert (asked.run_id, asked.caller, asked.profile, asked.params) == (w.run.run_id, "tester", "api", {})
    assert (asked.origin, asked.grant_digest, asked.ttl_s) == (w.api.url, frozen.digest, 900.0)
    assert w.minter.authorization == [b"Bearer mbk_of-this-broker"]


# --- placements on the wire ---


async def test_mem0_is_called_with_its_own_scheme_by_an_sdk_that_sends_that_scheme(tmp_path):
    fields = {"placement": {"scheme": "token"}, "allow": ["POST /v3/memories/add/"]}
    async with world(tmp_path, **fields) as w:
        headers = {"Authorization": f"Token {w.token}"}
        assert (await w.call("POST", "/v3/memories/add/", headers, b"{}", token=False)).status == 200
        assert w.api.requests[0].values(b"authorization") == [b"Token " + KEY.encode()]
        assert (await w.call("POST", "/v3/memories/add", headers, b"{}", token=False)).status == 403


async def test_an_x_api_key_api_gets_no_authorization_at_all(tmp_path):
    async with world(tmp_path, placement={"scheme": "header", "name": "X-API-Key"}) as w:
        for headers in ({"X-API-Key": w.token}, {"Authorization": f"Bearer {w.token}"}, {"x-api-key": w.token}):
            assert (await w.call("GET", "/v1/items", headers, token=False)).status == 200
        for request in w.api.requests:
            assert request.values(b"x-api-key") == [KEY.encode()]
            assert request.values(b"authorization") == []


async def test_the_token_inside_a_basic_pair_is_replaced_inside_it_48(tmp_path):
    async with world(tmp_path, placement={"scheme": "basic", "user": "x-access-token"}) as w:
        for pair in (f"x-access-token:{w.token}", f"{w.token}:", f"{w.token}:{w.token}"):
            headers = {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
            assert (await w.call("GET", "/v1/items", headers, token=False)).status == 200
        for request in w.api.requests:
            [value] = request.values(b"authorization")
            assert base64.b64decode(value.removeprefix(b"Basic ")) == b"x-access-token:" + KEY.encode()


async def test_a_query_key_is_taken_out_before_matching_and_appended_last(tmp_path):
    allow = [{"route": "GET /v1/items", "query": {"page": "int", "q": "any"}}]
    async with world(tmp_path, placement={"scheme": "query", "name": "key"}, allow=allow) as w:
        w.minter.credential = {"value": "a/b+c=d"}
        for target, reached in [
            (f"/v1/items?key={w.token}", b"/v1/items?key=a%2Fb%2Bc%3Dd"),
            (f"/v1/items?page=1&key={w.token}&q=x", b"/v1/items?page=1&q=x&key=a%2Fb%2Bc%3Dd"),
            (f"/v1/items?key={w.token}&page=1", b"/v1/items?page=1&key=a%2Fb%2Bc%3Dd"),
        ]:
            assert (await w.call("GET", target, token=False)).status == 200
            assert w.api.requests[-1].target == reached
        assert (await w.call("GET", "/v1/items?page=2")).status == 200  # the token in Authorization
        assert w.api.requests[-1].target == b"/v1/items?page=2&key=a%2Fb%2Bc%3Dd"
        count = len(w.api.requests)
        for target in (f"/v1/items?key={w.token}&key={w.token}", f"/v1/items?q={w.token}", f"/v1/{w.token}"):
            assert (await w.call("GET", target, token=False)).code == "run-token-misplaced"
        for target in ("/v1/items?key=other", "/v1/items?page=1&key=other&q=x", "/v1/items?k%65y=other"):
            assert (await w.call("GET", target)).status in (400, 403)
        assert len(w.api.requests) == count


async def test_a_cookie_api_gets_exactly_one_cookie(tmp_path):
    async with world(tmp_path, placement={"scheme": "cookie", "name": "session"}) as w:
        assert (await w.call("GET", "/v1/items", {"Cookie": f"a=b; session={w.token}"}, token=False)).status == 200
        [request] = w.api.requests
        assert request.values(b"cookie") == [b"session=" + KEY.encode()]
        assert (await w.call("GET", "/v1/items", {"Cookie": f"other={w.token}"}, token=False)).status == 400


async def test_an_api_of_several_keys_gets_each_in_its_header(tmp_path):
    placement = {"scheme": "headers", "headers": {"DD-API-KEY": "api_key", "DD-APPLICATION-KEY": "app_key"}}
    async with world(tmp_path, placement=placement) as w:
        w.minter.credential = {"api_key": "AAA", "app_key": "BBB"}
        headers = {"DD-API-KEY": w.token, "DD-APPLICATION-KEY": w.token}
        assert (await w.call("GET", "/v1/items", headers, token=False)).status == 200
        [request] = w.api.requests
        assert (request.values(b"dd-api-key"), request.values(b"dd-application-key")) == ([b"AAA"], [b"BBB"])
        assert request.values(b"authorization") == []


async def test_a_prefix_that_an_sdk_wants_to_see_is_stripped(tmp_path):
    async with world(tmp_path, run_token_prefix="sk-proj-") as w:
        headers = {"Authorization": f"Bearer sk-proj-{w.token}"}
        assert (await w.call("GET", "/v1/items", headers, token=False)).status == 200
        headers = {"Authorization": f"Bearer sk-other-{w.token}"}
        assert (await w.call("GET", "/v1/items", headers, token=False)).code == "run-token-misplaced"


async def test_two_equal_run_tokens_work_and_two_different_ones_are_400(tmp_path):
    async with world(tmp_path, placement={"scheme": "header", "name": "X-API-Key"}) as w:
        assert (await w.call("GET", "/v1/items", {"X-API-Key": w.token})).status == 200
        other = w.open_run({"api": profile(w.api.url)})
        reply = await w.call("GET", "/v1/items", {"X-API-Key": other})
        assert (reply.status, reply.code) == (400, "run-token-conflict")


@pytest.mark.parametrize("name", ["User-Agent", "X-Note", "Cookie", "Accept"])
async def test_a_run_token_elsewhere_is_refused_35(w: World, name):
    reply = await w.call("GET", "/v1/items", {name: f"x {w.token} y"})
    assert (reply.status, reply.code) == (400, "run-token-misplaced")
    assert w.token not in reply.body.decode()
    assert w.api.raw == []


# --- what is never shown ---


async def test_a_state_that_cannot_be_written_stops_calls_59(w: World):
    async def reserve(_wanted: int) -> int:
        raise ProblemError("state-unavailable", retry_after=1)

    w.run.profiles["api"].budget._reserve = reserve
    reply = await w.call("GET", "/v1/items")
    assert (reply.status, reply.code) == (503, "state-unavailable")
    assert (w.api.raw, w.minter.asked) == ([], [])


async def test_a_run_that_ends_while_its_budget_is_written_makes_no_call(tmp_path):
    async with world(tmp_path, token=None) as w:

        async def reserve(wanted: int) -> int:
            w.run.end("by-operator")
            return wanted

        w.run.profiles["api"].budget._reserve = reserve
        assert (await w.call("GET", "/v1/items")).code == "run-token-invalid"
        assert w.api.raw == []


async def test_a_run_whose_time_is_over_when_its_budget_is_written_makes_no_call(tmp_path):
    async with world(tmp_path, token=None) as w:

        async def reserve(wanted: int) -> int:
            w.clock.advance(901)
            return wanted

        w.run.profiles["api"].budget._reserve = reserve
        assert (await w.call("GET", "/v1/items")).code == "run-token-invalid"
        assert w.api.raw == []


async def test_a_lease_that_comes_near_its_end_while_the_budget_is_written_is_not_used(w: World):
    await w.watch()
    await w.call("GET", "/v1/items")

    async def reserve(wanted: int) -> int:
        w.clock.advance(880)
        return wanted

    w.run.profiles["api"].budget = Budget(100, reserve)
    assert (await w.call("GET", "/v1/items")).status == 200
    assert len(w.minter.asked) == 2


async def test_a_lease_that_comes_near_its_end_while_the_api_is_asked_for_its_health_is_not_used(tmp_path):
    async with world(tmp_path, health_check="GET /healthz") as w:
        await w.watch()
        w.api.says(b"HTTP/1.1 503 Down\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n")
        await w.call("GET", "/v1/items")

        async def answer(request, writer):
            if request.target == b"/healthz":
                w.clock.advance(880)
            writer.write(b"HTTP/1.1 204 No\r\n\r\n")

        w.api.answer = answer
        w.clock.advance(1)
        assert (await w.call("GET", "/v1/items")).status == 204
        assert len(w.minter.asked) == 2


async def test_neither_the_credential_nor_the_run_token_shows_in_logs_traces_or_refusals_37(w: World, capfd, caplog):
    caplog.set_level("DEBUG")
    replies = [await w.call("GET", "/v1/items"), await w.call("GET", "/v1/other?x=1")]
    w.api.says(b"nonsense\r\n\r\n")
    replies.append(await w.call("GET", "/v1/items"))
    w.minter.credential = {"value": KEY + "\n"}
    w.minter.leases.clear()
    w.clock.advance(880)
    replies.append(await w.call("GET", "/v1/items"))
    w.minter.refuse = ProblemError("issuer-failed")
    w.clock.advance(19)
    replies.append(await w.call("GET", "/v1/items"))
    w.run.profiles["api"].wire = None
    w.endpoint.egress = None  # type: ignore[assignment]  # something unexpected
    replies.append(await w.call("GET", "/v1/items"))
    assert [reply.status for reply in replies] == [200, 403, 502, 503, 503, 500]
    out, err = capfd.readouterr()
    shown = [out, err, caplog.text, str(w.run.trace.snapshot()), w.run.trace.dump().decode(), repr(w.run)]
    shown += [str(reply) for reply in replies]
    for text in shown:
        for secret in (KEY, w.token, "mbk_of-this-broker"):
            assert secret not in text


async def test_a_mistake_of_ours_before_the_call_begins_is_500_and_the_connection_goes_on(w: World):
    class Broken:
        def by_digest(self, _digest: bytes) -> None:
            raise ZeroDivisionError

    runs, w.endpoint.runs = w.endpoint.runs, Broken()
    code = await w.connect()
    await code.send(w.request())
    assert (await code.reply()).code == "internal-error"
    w.endpoint.runs = runs
    await code.send(w.request())
    assert (await code.reply()).status == 200


@pytest.mark.parametrize(("head", "body", "begun"), [(KEY, "", False), ("", KEY, False), ("", KEY, True)])
async def test_the_log_names_the_route_whose_answer_was_refused_for_the_credential_in_it(tmp_path, head, body, begun):
    """Of an answer that has begun the code sees only that it breaks off; one of which nothing has left is refused."""
    go_on = asyncio.Event()

    async def answer(_request: object, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\nETag: {head}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        if begun:
            await go_on.wait()
        writer.write(body.encode())

    async with world(tmp_path, scrub="refuse") as w:
        w.api.answer = answer
        code = await w.connect()
        with structlog.testing.capture_logs() as logs:
            await code.send(w.request("GET", "/v1/items"))
            if begun:
                assert (await code.head()).status == 200
                go_on.set()
                seen = await code.rest()
            else:
                reply = await code.reply()
                assert (reply.status, reply.code) == (502, "credential-reflected")
                seen = reply.body
        assert KEY.encode() not in seen
        assert [row["status"] for row in w.rows] == [200 if begun else 502]
        names = {"run_id": w.run.run_id, "profile": "api", "route": "GET /v1/items"}
        assert logs == [{"event": "credential-reflected", "log_level": "warning", **names}]
