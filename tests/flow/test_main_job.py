"""A run calls an API through the broker while the key stays in the minter."""

from __future__ import annotations

import base64
import json
import signal
import threading
import time

import pytest

from tests.worlds.api import Answer
from tests.worlds.service import CANARY

pytestmark = pytest.mark.flow


def profile(api, **changes):
    return {
        "base_url": api.origin,
        "allowed_callers": ["support-agent"],
        "token": {"type": "static", "key": "api"},
        "allow": ["GET /v1/items", "POST /v1/items", "GET /v1/items/*"],
        "catalog": ["DELETE /v1/items/*", "GET /v1/admin"],
        **changes,
    }


@pytest.fixture
def started(service, api):
    """Both programs with one profile, and the API behind it."""
    api.on("GET", "/v1/items")
    api.on("POST", "/v1/items", lambda request: Answer(body=json.dumps({"got": len(request.body)}).encode()))
    api.on("GET", "/v1/items/7")
    service.prepare({"api": profile(api)})
    service.start()
    return service


def test_an_allowed_call_carries_the_key_and_the_code_never_sees_it(started, api):
    run = started.open_run()
    reply = started.call(run, "POST", "/v1/items", body=b'{"a": 1}')
    assert (reply.status, reply.json) == (200, {"got": 8})
    (request,) = api.received
    assert request.header("authorization") == f"Bearer {CANARY}"
    assert (request.method, request.target, request.body) == ("POST", "/v1/items", b'{"a": 1}')
    assert run.token not in repr(request)


def test_a_refused_call_reaches_neither_the_api_nor_the_minter(started, api):
    run = started.open_run()
    for method, target, status in (
        ("GET", "/v1/admin", 403),
        ("DELETE", "/v1/items/7", 403),
        ("GET", "/v1/items/../admin", 400),
        ("GET", "/v1/items?x=1", 403),
        ("GET", "/v1//items", 400),
        ("OPTIONS", "/v1/items", 405),
    ):
        reply = started.call(run, method, target)
        assert reply.status == status, (method, target, reply.body)
        assert reply.json["by"] == "broker"
        assert reply.header("content-type") == "application/problem+json"
        assert reply.header("broker-refused-by") == "broker"
    assert api.received == []
    assert api.connections == 0
    assert [line for line in started.audit() if line.get("run_id") == run.run_id] == []
    state = started.trace(run)
    assert sum(row["count"] for row in state["trace"]["denied_by"]) >= 5


def test_a_refusal_names_the_nearest_routes(started):
    reply = started.call(started.open_run(), "GET", "/v1/itemz")
    assert reply.json["code"] == "route-not-granted"
    assert "GET /v1/items" in reply.json["nearest"]


def test_a_run_mints_once_and_reuses_its_lease(started, api):
    run = started.open_run()
    for _ in range(5):
        assert started.call(run, "GET", "/v1/items").status == 200
    assert len(started.audited("lease.minted")) == 1
    other = started.open_run()
    assert started.call(other, "GET", "/v1/items").status == 200
    assert len(started.audited("lease.minted")) == 2
    assert len(api.received) == 6


def test_a_hundred_first_calls_at_once_mint_once(service, api):
    api.on("GET", "/v1/items")
    service.prepare({"api": profile(api, max_concurrent=100)})
    service.start()
    run = service.open_run()
    replies = []
    threads = [
        threading.Thread(target=lambda: replies.append(service.call(run, "GET", "/v1/items").status))
        for _ in range(100)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == [200] * 100
    assert len(service.audited("lease.minted")) == 1


def test_the_trace_keeps_templates_and_numbers_only(started):
    run = started.open_run(trace_id="chat-7")
    assert started.call(run, "GET", "/v1/items/7").status == 200
    assert started.call(run, "GET", "/v1/items/secret-id?token=secret-query").status == 403
    state = started.trace(run)
    (row,) = state["trace"]["rows"]
    assert (row["method"], row["route"], row["status"]) == ("GET", "GET /v1/items/*", 200)
    text = json.dumps(state)
    assert "secret-id" not in text
    assert "secret-query" not in text
    assert state["trace_id"] == "chat-7"


def test_the_audit_verifies_and_a_changed_line_convicts(started):
    run = started.open_run()
    started.call(run, "GET", "/v1/items")
    started.caller("DELETE", f"/v1/runs/{run.run_id}")
    started.run("minter", "audit", "verify")
    path = started.root / "state/audit.jsonl"
    copy = started.root / "copy.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    copy.write_bytes(b"".join(lines).replace(b'"support-agent"', b'"another-agent"', 1))
    assert started.run("minter", "audit", "verify", str(copy), check=False).returncode == 7
    copy.write_bytes(b"".join(lines[:2] + lines[3:]))
    assert started.run("minter", "audit", "verify", str(copy), check=False).returncode == 7


def test_the_envelope_answers_200_with_the_status_inside(started):
    run = started.open_run()
    headers = {"Authorization": f"Bearer {run.token}", "Content-Type": "application/json"}

    def host_call(**body):
        return started.http("POST", "/v1/call", headers=headers, body=json.dumps(body).encode())

    reply = host_call(method="POST", path="/v1/items", body={"a": 1})
    assert (reply.status, reply.json["status"]) == (200, 200)
    assert json.loads(reply.json["body"]) == {"got": len(json.dumps({"a": 1}, separators=(",", ":")))}
    refused = host_call(method="GET", path="/v1/admin")
    assert (refused.status, refused.json["status"]) == (200, 403)
    assert json.loads(refused.json["body"])["code"] in ("route-not-granted", "route-reserved")


def test_the_code_can_ask_what_is_left_and_end_itself(started):
    run = started.open_run()
    headers = {"Authorization": f"Bearer {run.token}"}
    reply = started.http("GET", "/v1/self", headers=headers)
    assert reply.status == 200
    assert "GET /v1/items" in json.dumps(reply.json)
    assert started.http("DELETE", "/v1/self", headers=headers).status in (200, 204)
    after = started.call(run, "GET", "/v1/items")
    assert (after.status, after.json["code"]) == (401, "run-token-invalid")


def test_another_callers_run_is_the_same_404_as_none(started):
    other = started.new_caller("other-agent")
    run = started.open_run()
    started.until(lambda: started.caller("GET", "/v1/runs", token=other).status == 200, "the new caller is known")
    mine = started.caller("GET", f"/v1/runs/{run.run_id}", token=other)
    none = started.caller("GET", "/v1/runs/run_0000000000000000000000", token=other)
    assert (mine.status, none.status) == (404, 404)
    assert {k: v for k, v in mine.json.items() if k != "request_id"} == {
        k: v for k, v in none.json.items() if k != "request_id"
    }
    assert started.caller("DELETE", f"/v1/runs/{run.run_id}", token=other).status == 404
    assert started.call(run, "GET", "/v1/items").status == 200


def test_tokens_of_one_kind_do_not_pass_for_another(started):
    run = started.open_run()
    assert started.caller("GET", "/v1/runs", token=run.token).status == 401
    reply = started.http("GET", "/p/api/v1/items", headers={"Authorization": f"Bearer {started.caller_token}"})
    assert reply.status == 401


def test_ending_a_run_refuses_its_next_call_and_revokes_its_lease(started):
    run = started.open_run()
    assert started.call(run, "GET", "/v1/items").status == 200
    assert started.call(run, "GET", "/v1/secret-path-of-the-code").status == 403
    assert started.caller("DELETE", f"/v1/runs/{run.run_id}").status in (200, 204)
    assert started.call(run, "GET", "/v1/items").status == 401
    started.until(lambda: started.audited("lease.revoked"), "the lease is revoked")
    assert started.audited("lease.revoked")[0]["how"] == "key_still_valid"
    started.until(lambda: started.audited("run.recorded"), "the run's counts are recorded")
    (record,) = started.audited("run.recorded")
    assert (record["reported_by"], record["calls"], record["denied"]) == ("broker", 1, 1)
    assert record["denied_by"] == ["route-not-granted api - 1"]
    lent = started.audited("lease.minted")[0]["grant_digest"]
    assert record["grant_digests"] == [f"api {lent}"]
    assert "secret-path-of-the-code" not in str(record)


@pytest.mark.parametrize("ended_by", ["broker runs end", "minter leases revoke", "caller"])
def test_an_open_stream_is_cut_within_a_second(started, api, ended_by):
    go_on = threading.Event()

    def slowly():
        yield b"data: 1\n\n"
        go_on.wait(20)
        yield b"data: 2\n\n"

    api.on("GET", "/v1/items", lambda _request: Answer(headers=[("Content-Type", "text/event-stream")], body=slowly()))
    run = started.open_run()
    try:
        with started.stream(run, "/v1/items") as stream:
            assert stream.read1() == b"data: 1\n\n"
            if ended_by == "broker runs end":
                started.run("broker", "runs", "end", run.run_id)
            elif ended_by == "minter leases revoke":
                started.run("minter", "leases", "revoke", "--run", run.run_id)
            else:
                started.caller("DELETE", f"/v1/runs/{run.run_id}")
            asked_at = time.monotonic()
            with pytest.raises(Exception) as caught:  # noqa: PT012 - IncompleteRead or a reset, by timing
                while True:
                    if stream.read1() == b"" and stream.closed:
                        raise AssertionError("the stream ended as if it were whole")
            assert not isinstance(caught.value, AssertionError)
            assert time.monotonic() - asked_at < 2.0
    finally:
        go_on.set()


def test_minter_leases_revoke_is_obeyed_at_once_and_the_run_mints_again(started, api):
    run = started.open_run()
    assert started.call(run, "GET", "/v1/items").status == 200
    started.run("minter", "leases", "revoke", "--run", run.run_id)
    started.until(lambda: started.call(run, "GET", "/v1/items").status == 200, "the run goes on with a new lease")
    assert len(started.audited("lease.minted")) == 2


def test_the_kill_switch_ends_all_runs_of_a_profile(started):
    runs = [started.open_run() for _ in range(3)]
    started.run("broker", "runs", "end", "--profile", "api")
    assert [started.call(run, "GET", "/v1/items").status for run in runs] == [401] * 3


def test_both_programs_stop_cleanly(started):
    assert started.stop("broker") == 0
    assert started.stop("minter") == 0
    assert not (started.root / "run/minter.sock").exists()
    for program in ("broker", "minter"):
        said = [json.loads(line)["event"] for line in started.log(program).splitlines()]
        assert [event for event in said if event in {"ready", "draining", "stopped"}] == [
            "ready",
            "draining",
            "stopped",
        ]


def test_a_restart_of_the_broker_loses_no_run(started, api):
    run = started.open_run()
    assert started.call(run, "GET", "/v1/items").status == 200
    started.stop("broker", signal.SIGKILL)
    started.start("broker")
    assert started.call(run, "GET", "/v1/items").status == 200
    assert len(started.audited("lease.minted")) == 1
    assert len(started.audited("lease.reissued")) == 1
    assert len(api.received) == 2


def test_a_killed_minter_lends_the_same_lease_again_after_its_restart(started, api):
    run = started.open_run()
    assert started.call(run, "GET", "/v1/items").status == 200
    for program in ("broker", "minter"):
        started.stop(program, signal.SIGKILL)
    for program in ("minter", "broker"):
        started.start(program)
    assert started.call(run, "GET", "/v1/items").status == 200
    assert len(api.received) == 2
    assert len({request.header("authorization") for request in api.received}) == 1
    (minted,), (reissued,) = started.audited("lease.minted"), started.audited("lease.reissued")
    assert minted["lease_id"] == reissued["lease_id"]
    assert started.audited("lease.revoked") == []
    started.run("minter", "audit", "verify")


def test_without_the_minter_a_first_call_is_503_and_nothing_reaches_the_api(started, api):
    started.stop("minter", signal.SIGKILL)
    run = started.open_run()
    reply = started.call(run, "GET", "/v1/items")
    assert (reply.status, reply.json["code"]) == (503, "minter-unavailable")
    assert reply.header("retry-after")
    assert api.received == []
    started.start("minter")
    started.until(lambda: started.call(run, "GET", "/v1/items").status == 200, "the run goes on")


def test_run_parameters_are_fixed_by_the_caller(service, api):
    api.on("POST", "/v1/profiles/acme/recall")
    route = "POST /v1/profiles/{customer}/recall"
    service.prepare({"api": profile(api, allow=[route], params={"customer": "[a-z0-9-]{1,100}"})})
    service.start()
    run = service.open_run(params={"customer": "acme"})
    assert service.call(run, "POST", "/v1/profiles/acme/recall", body=b"{}").status == 200
    assert service.call(run, "POST", "/v1/profiles/other/recall", body=b"{}").status == 403
    for params in ({}, {"customer": "a/b"}, {"customer": ".."}, {"customer": "acme", "x": "1"}):
        reply = service.caller("POST", "/v1/runs", {"profile": "api", "params": params})
        assert (reply.status, reply.json["code"]) == (422, "params-invalid"), params
    assert len(api.received) == 1


def test_the_budget_counts_denied_attempts_and_survives_a_restart(service, api):
    api.on("GET", "/v1/items")
    service.prepare({"api": profile(api, max_calls=4)})
    service.start()
    run = service.open_run()
    assert service.call(run, "GET", "/v1/items").status == 200
    assert service.call(run, "GET", "/v1/nothing").status == 403
    service.stop("broker", signal.SIGKILL)
    service.start("broker")
    statuses = [service.call(run, "GET", "/v1/items").status for _ in range(4)]
    assert statuses[-1] == 403
    assert statuses.count(200) <= 2
    assert service.call(run, "GET", "/v1/items").json["code"] == "budget-exhausted"


def test_a_replayed_idempotency_key_gives_the_same_run_and_a_new_token(started):
    body, headers = {"profile": "api"}, {"Idempotency-Key": "k-1"}
    first = started.caller("POST", "/v1/runs", body, headers=headers).json
    second = started.caller("POST", "/v1/runs", body, headers=headers).json
    assert first["run_id"] == second["run_id"]
    assert first["run_token"] != second["run_token"]
    old, new = ({"Authorization": f"Bearer {run['run_token']}"} for run in (first, second))
    assert started.http("GET", "/p/api/v1/items", headers=old).status == 401
    assert started.http("GET", "/p/api/v1/items", headers=new).status == 200
    other = started.caller("POST", "/v1/runs", {"profile": "api", "ttl": "5m"}, headers=headers)
    assert (other.status, other.json["code"]) == (422, "idempotency-key-reused")


def test_an_upstream_401_about_the_key_is_marked_as_the_apis_own(started, api):
    api.on("GET", "/v1/items", Answer(401, [("WWW-Authenticate", "Bearer")], b'{"error": "bad key"}'))
    reply = started.call(started.open_run(), "GET", "/v1/items")
    assert (reply.status, reply.json) == (401, {"error": "bad key"})
    assert reply.header("broker-refused-by") == "upstream"


def test_a_redirect_is_handed_back_and_never_followed(started, api):
    api.on("GET", "/v1/items", Answer(302, [("Location", f"{api.origin}/v1/admin")], b""))
    reply = started.call(started.open_run(), "GET", "/v1/items")
    assert reply.status == 302
    assert [request.target for request in api.received] == ["/v1/items"]


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ({"scheme": "token"}, {"authorization": f"Token {CANARY}"}),
        ({"scheme": "header", "name": "X-API-Key"}, {"x-api-key": CANARY, "authorization": None}),
        ({"scheme": "header", "name": "Authorization", "prefix": "Bot "}, {"authorization": f"Bot {CANARY}"}),
        (
            {"scheme": "basic", "user": "x-access-token"},
            {"authorization": "Basic " + base64.b64encode(f"x-access-token:{CANARY}".encode()).decode()},
        ),
        ({"scheme": "cookie", "name": "session"}, {"cookie": f"session={CANARY}", "authorization": None}),
    ],
)
def test_the_key_goes_exactly_where_the_placement_says(service, api, placement, expected):
    api.on("GET", "/v1/items")
    service.prepare({"api": profile(api, placement=placement)})
    service.start()
    assert service.call(service.open_run(), "GET", "/v1/items", headers=[("Cookie", "a=b")]).status == 200
    for name, value in expected.items():
        assert api.received[0].header(name) == value
    assert repr(api.received[0]).count(CANARY) == (0 if placement["scheme"] == "basic" else 1)


def test_a_jwt_is_signed_for_the_run_and_never_outlives_it(service, api):
    jwt = pytest.importorskip("jwt")
    api.on("GET", "/v1/items")
    token = {"type": "jwt", "key": "signer", "audience": api.origin}
    service.minter_top = 'public_listen = ["unix:run/minter-public.sock"]'
    service.prepare({"api": profile(api, token=token, ttl="2m")})
    service.start()
    run = service.open_run()
    assert service.call(run, "GET", "/v1/items").status == 200
    presented = api.received[0].header("authorization").removeprefix("Bearer ")
    header = jwt.get_unverified_header(presented)
    claims = jwt.decode(presented, options={"verify_signature": False})
    assert (header["typ"], header["alg"]) == ("at+jwt", "EdDSA")
    assert (claims["aud"], claims["sub"], claims["run_id"]) == (api.origin, "support-agent", run.run_id)
    assert claims["exp"] - time.time() <= 121
    assert claims["iat"] <= time.time() - 9
    assert "GET /v1/items" in json.dumps(claims["authorization_details"])


def test_no_header_of_a_host_call_says_more_to_the_api_than_one_of_a_call(started, service, api):
    run = service.open_run()
    hostile = [
        "Authorization",
        "AUTHORIZATION",
        "Proxy-Authorization",
        "Cookie",
        "Host",
        "Connection",
        "Keep-Alive",
        "TE",
    ]
    hostile += ["Transfer-Encoding", "Upgrade", "Trailer", "Expect", "Content-Length", "X-Forwarded-For", "Forwarded"]
    hostile += [
        "X-HTTP-Method-Override",
        "X-Original-URL",
        "X-API-Key",
        "Content-Encoding",
        "Broker-Profile",
        "__proto__",
    ]
    call = {"method": "POST", "path": "/v1/items", "body": {"a": 1}, "headers": dict.fromkeys(hostile, "planted")}
    call["headers"] |= {"Accept": "text/csv", "Content-Type": "planted"}
    headers = [("Authorization", f"Bearer {run.token}"), ("Content-Type", "application/json")]
    assert service.http("POST", "/v1/call", headers=headers, body=json.dumps(call).encode()).json["status"] == 200
    (received,) = api.received
    assert not [name for name, value in received.headers if "planted" in value]
    assert received.header("accept") == "text/csv"
    assert received.header("authorization") == f"Bearer {CANARY}"
    assert received.body == b'{"a":1}'
