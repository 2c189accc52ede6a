from __future__ import annotations

import json

import pytest

from broker.app import RULES
from config import tokens
from tests.broker.asking import Desk
from tests.broker.house import profile


@pytest.fixture
async def desk(tmp_path):
    made = await Desk(tmp_path).start()
    yield made
    await made.stop()


def path(rule):
    return rule.path.replace("{run_id}", "run_0000000000000000000000").replace("{language}", "py")


# --- who may ---


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.who != "anyone"], ids=lambda r: f"{r.method} {r.path}")
async def test_every_call_needs_its_own_kind_of_token(desk, rule):
    run = await desk.open()
    theirs = {"caller": desk.token, "run": run.run_token}
    wrong = theirs["run" if rule.who == "caller" else "caller"]
    for token in (None, "", "x", wrong, tokens.generate(tokens.RUN).reveal(), tokens.generate(tokens.CALLER).reveal()):
        reply = await desk.ask(rule.method, path(rule), {}, token=token)
        assert reply.status == 401, token
        assert reply.code in ("caller-token-invalid", "run-token-invalid", "run-token-missing")
    assert len(desk.house.registry) == 1


async def test_what_needs_no_token_is_on_this_list_and_says_little(desk):
    assert {rule.path for rule in RULES if rule.who == "anyone"} == {"/livez", "/readyz", "/openapi.json"}
    assert (await desk.ask("GET", "/livez")).json == {"live": True}
    assert (await desk.ask("GET", "/readyz")).json == {"ready": True}
    assert (await desk.ask("GET", "/readyz?verbose")).code == "parameter-unknown"


async def test_ready_turns_no_while_the_broker_drains_and_when_it_cannot_write(desk):
    desk.status.serving = False
    assert (await desk.ask("GET", "/readyz")).status == 503
    desk.status.serving = True
    desk.house.store.failing = True
    assert ((await desk.ask("GET", "/readyz")).status, (await desk.ask("GET", "/livez")).status) == (503, 200)


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/", 404, "not-found"),
        ("GET", "/v1", 404, "not-found"),
        ("GET", "/v2/runs", 404, "not-found"),
        ("GET", "/v1/runs/", 404, "not-found"),
        ("GET", "/v1%2Fruns", 404, "not-found"),
        ("GET", "/v1/%72uns", 404, "not-found"),
        ("GET", "/metrics", 404, "not-found"),
        ("GET", "/v1/admin/runs", 404, "not-found"),
        ("PUT", "/v1/runs", 405, "method-not-supported"),
        ("OPTIONS", "/v1/runs", 405, "method-not-supported"),
        ("TRACE", "/v1/self", 405, "method-not-supported"),
        ("GET", "/v1/runs?stat=live", 400, "parameter-unknown"),
        ("GET", "/v1/runs?state=live&state=ended", 400, "parameter-unknown"),
        ("GET", "/v1/runs?state=lively", 400, "parameter-unknown"),
    ],
)
async def test_anything_else_is_refused_as_problem_json(desk, method, target, status, code):
    reply = await desk.caller(method, target)
    assert (reply.status, reply.code) == (status, code)
    assert reply.headers["cache-control"] == "no-store"


async def test_a_token_in_the_target_is_refused(desk):
    reply = await desk.caller("GET", f"/v1/runs?state={desk.token}")
    assert (reply.status, reply.code) == (400, "run-token-misplaced")
    assert desk.token not in reply.body.decode()


async def test_the_allowed_methods_of_a_path_are_named(desk):
    reply = await desk.caller("PUT", "/v1/runs/run_1")
    assert {method.strip() for method in reply.headers["allow"].split(",")} == {"GET", "HEAD", "PATCH", "DELETE"}


# --- opening ---


async def test_opening_a_run_says_how_to_call(desk):
    reply = await desk.caller("POST", "/v1/runs", {"profile": "memory", "ttl": "5m", "trace_id": "chat-7"})
    assert reply.status == 201
    assert reply.headers["location"] == f"/v1/runs/{reply.json['run_id']}"
    assert reply.headers["cache-control"] == "no-store"
    assert tokens.digest(reply.json["run_token"], tokens.RUN)
    assert reply.json["expires_at"] == "2030-01-01T00:05:00.000Z"
    assert reply.json["profiles"] == {
        "memory": {
            "base_url": "http://127.0.0.1:8090/p/memory",
            "allow": ["GET /v1/items", "GET /v1/items/*", "POST /v1/items"],
            "max_calls": 256,
            "max_concurrent": 16,
        }
    }


async def test_what_an_sdk_needs_in_its_environment_is_filled_in(desk):
    desk.grants["memory"] = profile(
        run_token_prefix="sk-", env={"OPENAI_BASE_URL": "{base_url}/v1", "OPENAI_API_KEY": "{run_token}"}
    )
    await desk.reloader.reload()
    run = await desk.open()
    assert run.profiles["memory"]["api_key"] == "sk-" + run.run_token
    assert run.profiles["memory"]["env"] == {
        "OPENAI_BASE_URL": "http://127.0.0.1:8090/p/memory/v1",
        "OPENAI_API_KEY": "sk-" + run.run_token,
    }


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "body-malformed"),
        (b"{", "body-malformed"),
        (b"[]", "body-malformed"),
        ({}, "body-malformed"),
        ({"profile": "memory", "profiles": ["memory"]}, "body-malformed"),
        ({"profiles": []}, "body-malformed"),
        ({"profiles": ["memory", "memory"]}, "body-malformed"),
        ({"profile": "memory", "tll": 5}, "body-malformed"),
        ({"profile": 7}, "body-malformed"),
        ({"profile": "memory", "params": {"a": 1}}, "body-malformed"),
        ({"profile": "memory", "trace_id": "a b"}, "body-malformed"),
        ({"profile": "memory", "trace_id": "a\nb"}, "body-malformed"),
        ({"profile": "memory", "trace_id": "a\n"}, "body-malformed"),
        ({"profile": "memory", "trace_id": "x" * 129}, "body-malformed"),
        ({"profile": "memory", "ttl": True}, "body-malformed"),
        ({"profile": "memory", "ttl": "soon"}, "ttl-invalid"),
        ({"profile": "memory", "ttl": "2d"}, "ttl-invalid"),
        ({"profile": "memory", "ttl": -1}, "ttl-invalid"),
        ({"profile": "memory", "params": {"x": "1"}}, "params-invalid"),
        ({"profile": "nothing"}, "profile-unknown"),
        (b'{"profile": "memory", "ttl": 1e999}', "body-malformed"),
    ],
)
async def test_a_request_that_cannot_be_granted_opens_nothing(desk, body, code):
    assert (await desk.caller("POST", "/v1/runs", body)).code == code
    assert len(desk.house.registry) == 0


@pytest.mark.parametrize("media_type", ["application/x-www-form-urlencoded", "text/plain", "application/jsonp", ""])
async def test_a_body_that_is_not_declared_as_json_is_refused(desk, media_type):
    reply = await desk.caller("POST", "/v1/runs", {"profile": "memory"}, headers={"Content-Type": media_type})
    assert (reply.status, reply.code) == (415, "media-type-not-supported")


async def test_json_with_a_charset_is_json(desk):
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert (await desk.caller("POST", "/v1/runs", {"profile": "memory"}, headers=headers)).status == 201


async def test_a_body_that_is_too_large_is_refused(desk):
    reply = await desk.caller("POST", "/v1/runs", {"profile": "memory", "params": {"x": "y" * 70_000}})
    assert (reply.status, reply.code) == (413, "request-too-large")


async def test_a_replay_may_write_the_same_body_in_another_order(desk):
    headers = {"Idempotency-Key": "k-1"}
    first = await desk.caller("POST", "/v1/runs", b'{"profile":"memory","ttl":60}', headers=headers)
    again = await desk.caller("POST", "/v1/runs", b'{ "ttl": 60, "profile": "memory" }', headers=headers)
    other = await desk.caller("POST", "/v1/runs", {"profile": "memory"}, headers=headers)
    assert first.json["run_id"] == again.json["run_id"]
    assert first.json["run_token"] != again.json["run_token"]
    assert (other.status, other.code) == (422, "idempotency-key-reused")
    assert (await desk.ask("GET", "/v1/self", token=first.json["run_token"])).status == 401
    assert (await desk.ask("GET", "/v1/self", token=again.json["run_token"])).status == 200


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "\xe9"])
async def test_an_idempotency_key_is_printable_ascii(desk, key):
    reply = await desk.caller("POST", "/v1/runs", {"profile": "memory"}, headers={"Idempotency-Key": key})
    assert (reply.status, reply.code) == (400, "idempotency-key-invalid")


# --- a caller's runs ---


async def test_a_caller_sees_its_runs_with_their_traces_before_and_after_their_end(desk):
    opened = await desk.open(trace_id="chat-7")
    run = desk.house.registry.find(opened.run_id, "orchestrator")
    run.trace.record(
        "memory", "GET", "GET /v1/items", status=200, delivered=True, bytes_sent=1, bytes_back=2, milliseconds=3.0
    )
    run.trace.denied("route-reserved", "DELETE /v1/items/*")
    shown = (await desk.caller("GET", f"/v1/runs/{opened.run_id}")).json
    assert (shown["state"], shown["trace_id"], shown["caller"]) == ("live", "chat-7", "orchestrator")
    assert shown["trace"]["denied_by"] == [{"code": "route-reserved", "template": "DELETE /v1/items/*", "count": 1}]
    assert shown["trace"]["calls"] == [{"profile": "memory", "route": "GET /v1/items", "count": 1}]
    assert shown["trace"]["rows"][0]["route"] == "GET /v1/items"
    (listed,) = (await desk.caller("GET", "/v1/runs")).json["runs"]
    assert "rows" not in listed["trace"]
    ended = (await desk.caller("DELETE", f"/v1/runs/{opened.run_id}")).json
    assert (ended["state"], ended["end_reason"]) == ("ended", "caller")
    assert ended["leases"][0]["how"] == "key_still_valid"
    await desk.house.outbox.settle()
    again = (await desk.caller("DELETE", f"/v1/runs/{opened.run_id}")).json
    shown = (await desk.caller("GET", f"/v1/runs/{opened.run_id}")).json
    assert again["end_reason"] == shown["end_reason"] == "caller"
    assert shown["trace"]["rows"][0]["route"] == "GET /v1/items"
    assert shown["leases"] == ended["leases"]
    for state, count in (("all", 1), ("live", 0), ("ended", 1)):
        assert len((await desk.caller("GET", f"/v1/runs?state={state}")).json["runs"]) == count


async def test_no_view_of_a_run_holds_its_token(desk):
    run = await desk.open()
    for target in ("/v1/runs", f"/v1/runs/{run.run_id}"):
        assert run.run_token not in (await desk.caller("GET", target)).body.decode()
    assert run.run_token not in (await desk.ask("GET", "/v1/self", token=run.run_token)).body.decode()
    assert run.run_token not in (await desk.operator("GET", f"/v1/admin/runs/{run.run_id}")).body.decode()


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
@pytest.mark.parametrize("over", [False, True])
async def test_another_callers_run_is_the_same_404_as_none(desk, method, over):
    run = await desk.open()
    if over:
        await desk.caller("DELETE", f"/v1/runs/{run.run_id}")
    other = desk.create("another")
    assert desk.callers.refresh()
    body = {"ttl": 60} if method == "PATCH" else None
    mine = await desk.ask(method, f"/v1/runs/{run.run_id}", body, token=other)
    none = await desk.ask(method, "/v1/runs/run_0000000000000000000000", body, token=other)
    assert mine == none
    assert mine.code == "run-not-found"
    assert (await desk.ask("GET", "/v1/runs", token=other)).json == {"runs": []}


async def test_a_run_is_extended_on_request(desk):
    run = await desk.open(ttl=60)
    reply = await desk.caller("PATCH", f"/v1/runs/{run.run_id}", {"ttl": "1h"})
    assert (reply.status, reply.json["expires_in_s"]) == (200, 3600)
    assert (await desk.caller("PATCH", f"/v1/runs/{run.run_id}", {"ttl": "30m"})).code == "ttl-invalid"
    assert (await desk.caller("PATCH", f"/v1/runs/{run.run_id}", {})).code == "body-malformed"
    await desk.caller("DELETE", f"/v1/runs/{run.run_id}")
    assert (await desk.caller("PATCH", f"/v1/runs/{run.run_id}", {"ttl": "2h"})).code == "run-ended"


async def test_ending_a_run_while_the_minter_is_away_is_done_at_once_and_says_so(desk):
    desk.house.minter.down = True
    run = await desk.open()
    reply = await desk.caller("DELETE", f"/v1/runs/{run.run_id}")
    assert (reply.status, reply.json["state"], reply.json["leases"]) == (200, "ended", None)


# --- the run's code ---


async def test_the_code_is_told_what_it_may_call_and_what_is_left(desk):
    desk.grants["memory"] = profile(allow=[{"route": "GET /v1/items", "query": {"page": "int"}}, "POST /v1/items"])
    await desk.reloader.reload()
    run = await desk.open(ttl=60)
    shown = (await desk.ask("GET", "/v1/self", token=run.run_token)).json
    assert shown["expires_in_s"] == 60
    assert shown["profiles"]["memory"]["allow"] == ["GET /v1/items", "POST /v1/items"]
    assert shown["profiles"]["memory"]["queries"] == {"GET /v1/items": {"page": "int"}}
    assert shown["profiles"]["memory"]["calls_left"] == 256
    assert "orchestrator" not in str(shown)


async def test_the_code_ends_its_own_run(desk):
    run = await desk.open()
    reply = await desk.ask("DELETE", "/v1/self", token=run.run_token)
    assert (reply.status, reply.json["end_reason"]) == (200, "self")
    assert (await desk.ask("GET", "/v1/self", token=run.run_token)).code == "run-token-invalid"


async def test_an_expired_run_is_refused_before_anybody_swept_it(desk):
    run = await desk.open(ttl=60)
    desk.house.clock.advance(60)
    for method, target in (("GET", "/v1/self"), ("DELETE", "/v1/self"), ("POST", "/v1/call")):
        assert (await desk.ask(method, target, {}, token=run.run_token)).code == "run-token-invalid"


def with_clients(desk, **clients):
    """Let the profile ``memory`` have these clients, as if they stood beside the grants file."""
    parse = desk.read_grants

    def read_grants():
        from dataclasses import replace

        grants = parse()
        preambles = {f"client.{language}": text for language, text in clients.items()}
        with_client = replace(grants.profiles["memory"], preambles=preambles)
        return replace(grants, profiles={**grants.profiles, "memory": with_client})

    desk.read_grants = read_grants


async def test_a_client_is_served_as_it_is(tmp_path):
    source = b"export const memory = {};\n"
    desk = Desk(tmp_path, {"memory": profile(preamble_file="preamble.js"), "plain": profile()})
    with_clients(desk, js=source)
    await desk.start()
    one, two = await desk.open(), await desk.open(profile=None, profiles=["memory", "plain"])
    reply = await desk.ask("GET", "/v1/self/client.js", token=one.run_token)
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, source, "text/javascript; charset=utf-8")
    assert (await desk.ask("GET", "/v1/self/client.py", token=one.run_token)).code == "not-found"
    assert (await desk.ask("GET", "/v1/self/client.rb", token=one.run_token)).code == "not-found"
    assert (await desk.ask("GET", "/v1/self/client.js", token=two.run_token)).code == "profile-not-granted"
    assert (await desk.ask("GET", "/v1/self/client.js?profile=memory", token=two.run_token)).body == source
    assert (await desk.ask("GET", "/v1/self/client.js?profile=plain", token=two.run_token)).code == "not-found"
    assert (await desk.ask("GET", "/v1/self/client.js?profile=other", token=two.run_token)).status == 403
    await desk.stop()


async def test_a_client_of_specgen_is_served_knowing_its_run_in_either_language(tmp_path):
    route = {"route": "GET /v1/customers/{customer}", "query": {"page": "int"}}
    granted = profile(
        allow=["GET /v1/items", route], params={"customer": "[a-z]+"}, preamble_file=["client.py", "client.js"]
    )
    desk = Desk(tmp_path, {"memory": granted})
    with_clients(
        desk,
        py=b'"""A client."""\nRUN = None  # filled in by the broker\n',
        js=b'"use strict";\n  var RUN = null; // filled in by the broker\n',
    )
    await desk.start()
    run = await desk.open(params={"customer": "ada"})
    told = {"profile": "memory", "routes": ["GET /v1/items", route], "params": {"customer": "ada"}}
    oneself = await desk.ask("GET", "/v1/self", token=run.run_token)
    assert oneself.json["profiles"]["memory"]["routes"] == told["routes"]
    python = await desk.ask("GET", "/v1/self/client.py", token=run.run_token)
    names = {}
    exec(python.body, names)  # noqa: S102 - what the code would do with it
    assert json.loads(names["RUN"]) == told
    javascript = await desk.ask("GET", "/v1/self/client.js", token=run.run_token)
    assert javascript.body.replace(b"  var RUN = ", b"RUN = ").split(b";")[1].strip() in python.body
    assert run.run_token.encode() not in python.body + javascript.body
    await desk.stop()


async def test_a_served_client_knows_no_route_that_the_grant_lost(tmp_path):
    desk = Desk(tmp_path, {"memory": profile(preamble_file="client.py")})
    with_clients(desk, py=b"\nRUN = None  # filled in by the broker\n")
    await desk.start()
    run = await desk.open()
    desk.grants["memory"] = profile(preamble_file="client.py", allow=["GET /v1/items"])
    await desk.reloader.reload()
    served = await desk.ask("GET", "/v1/self/client.py", token=run.run_token)
    assert b"GET /v1/items" in served.body
    assert b"POST" not in served.body
    await desk.stop()
