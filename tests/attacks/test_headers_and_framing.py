"""Headers and framing: facts/peers.md section 3 B, and I2."""

from __future__ import annotations

import base64
import http.client
import json
import time

import pytest

from config.errors import ConfigurationError
from config.grants import parse_grants

pytestmark = pytest.mark.flow

SMUGGLED = b"GET /p/items/v1/admin HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize("name", ["x-api-key", "Proxy-Authorization", "X-Forwarded-Authorization"])
def test_a_run_token_where_no_key_goes_is_refused(house, upstream, name):
    """BerriAI/litellm#32202, #38114; agentic-community/mcp-gateway-registry#1237."""
    run = house.open_run("items")
    value = f"Basic {run.token}" if name == "Proxy-Authorization" else run.token
    reply = house.http("GET", "/p/items/v1/items", headers={name: value})
    house.refused(run, reply, 400, "run-token-misplaced")
    both = house.open_run("items")
    reply = house.call(both, "GET", "/v1/items", profile="items", headers=[(name, both.token)])
    house.refused(both, reply, 400, "run-token-misplaced")
    assert upstream.received == b""


def test_neither_the_run_token_nor_the_callers_own_reaches_the_api(house, upstream):
    """BerriAI/litellm#32202: whatever is sent beside the run token, under whatever name."""
    run = house.open_run("items")
    beside = [(name, house.caller_token) for name in ("x-api-key", "Proxy-Authorization", "X-Custom", "Cookie")]
    assert house.call(run, "GET", "/v1/items", profile="items", headers=beside).status == 200
    [request] = upstream.requests
    assert request.values(b"authorization") == [f"Bearer {house.secret}".encode()]
    assert run.token.encode() not in upstream.received
    assert house.caller_token.encode() not in upstream.received


def test_of_the_codes_own_credentials_none_reaches_the_api(house, upstream):
    """NVIDIA-NeMo/nemo-platform#1589: an x-api-key and a cookie beside the injected Bearer."""
    run = house.open_run("items")
    own = [("x-api-key", "dummy"), ("X_Api_Key", "dummy"), ("Cookie", "a=b"), ("Api-Key", "dummy")]
    assert house.call(run, "GET", "/v1/items", profile="items", headers=own).status == 200
    [request] = upstream.requests
    names = sorted(name.lower() for name, _ in request.headers)
    assert names == [b"accept-encoding", b"authorization", b"host", b"user-agent"]
    assert request.values(b"accept-encoding") == [b"identity"]
    assert request.values(b"authorization") == [f"Bearer {house.secret}".encode()]
    assert b"dummy" not in upstream.received


def test_two_authorization_headers_become_one(house, upstream):
    """NVIDIA-NeMo/nemo-platform#1589: a second credential header is not appended to, kept or preferred."""
    run = house.open_run("items")
    assert house.call(run, "GET", "/v1/items", profile="items", headers=[("Authorization", "Basic eDp5")]).status == 200
    assert upstream.requests[0].values(b"authorization") == [f"Bearer {house.secret}".encode()]


def test_two_run_tokens_are_refused(house, upstream):
    """BerriAI/litellm#32202: which of two runs is charged is not for the code to choose."""
    run, other = house.open_run("items"), house.open_run("items")
    reply = house.call(run, "GET", "/v1/items", profile="items", headers=[("x-api-key", other.token)])
    house.refused(run, reply, 400, "run-token-conflict", counted=False)
    assert upstream.received == b""


@pytest.mark.parametrize("pair", ["x-access-token:{}", "anybody:{}", "{}:", "{}:x-oauth-basic"])
def test_a_run_token_within_a_basic_pair_is_replaced_within_it(house, upstream, pair):
    """anthropics/claude-code#95752: the pair is decoded, the key takes the token's place, the pair is written anew."""
    run = house.open_run("basic")
    sent = base64.b64encode(pair.format(run.token).encode()).decode()
    reply = house.http("GET", "/p/basic/v1/items", headers={"Authorization": f"Basic {sent}"})
    assert reply.status == 200
    [value] = upstream.requests[0].values(b"authorization")
    assert base64.b64decode(value.removeprefix(b"Basic ")) == f"x-access-token:{house.secret}".encode()
    # The search for the marked secret is for its plain text: this is the other form that it had.
    assert value.removeprefix(b"Basic ") not in (house.log("broker") + house.log("minter")).encode()


def test_a_basic_pair_without_a_run_token_is_no_way_in(house, upstream):
    """anthropics/claude-code#95752: what decodes to nothing known is refused, not passed on."""
    for pair in (b"user:password", b"\xff\xfe", b"brk_" + b"A" * 49 + b":"):
        headers = {"Authorization": b"Basic " + base64.b64encode(pair)}
        reply = house.http("GET", "/p/basic/v1/items", headers=headers)
        assert (reply.status, reply.json["by"]) == (401, "broker")
    assert upstream.received == b""


def test_headers_that_connection_names_end_at_the_broker(house, upstream):
    """ranxianglei/billion-context#80; diegosouzapw/OmniRoute#11328: and it cannot name the credential away."""
    run = house.open_run("items")
    hop = [
        ("Connection", "keep-alive, X-Foo, Authorization, Accept"),
        ("X-Foo", "1"),
        ("Keep-Alive", "timeout=9"),
        ("Proxy-Authorization", "Basic eDp5"),
        ("TE", "trailers"),
        ("Accept", "text/plain"),
    ]
    assert house.call(run, "GET", "/v1/items", profile="items", headers=hop).status == 200
    [request] = upstream.requests
    names = {name.lower() for name, _ in request.headers}
    assert names <= {b"authorization", b"host", b"user-agent", b"accept", b"accept-encoding"}
    assert request.values(b"authorization") == [f"Bearer {house.secret}".encode()]


def test_a_connection_header_that_only_contains_upgrade_is_no_upgrade(house, upstream):
    """ironsh/iron-proxy#129."""
    run = house.open_run("items")
    reply = house.call(run, "GET", "/v1/items", profile="items", headers=[("Connection", "notupgrade")])
    assert (reply.status, reply.body) == (200, b'{"ok":true}')
    assert upstream.requests[0].values(b"connection") == []


BODIES = {
    "NVIDIA/OpenShell#663, two lengths": (["Content-Length: 5", "Content-Length: 6"], b"hello" + SMUGGLED),
    "NVIDIA/OpenShell#671, length and chunks": (
        ["Content-Length: 4", "Transfer-Encoding: chunked"],
        b"0\r\n\r\n" + SMUGGLED,
    ),
    "CVE-2022-24766, chunks and length": (
        ["Transfer-Encoding: chunked", "Content-Length: 4"],
        b"0\r\n\r\n" + SMUGGLED,
    ),
    "CVE-2025-43859, no line break after a chunk": (["Transfer-Encoding: chunked"], b"3\r\nabcxx0\r\n\r\n" + SMUGGLED),
}


@pytest.mark.parametrize(("headers", "body"), BODIES.values(), ids=BODIES)
def test_a_body_that_ends_in_two_places_is_refused_and_the_connection_closed(house, upstream, headers, body):
    """One answer, one request at most, and never the one that is hidden in the body."""
    run = house.open_run("items")
    [reply] = house.answers(house.head(run, "items", "POST", "/v1/items", *headers) + b"\r\n" + body)
    assert (reply.status, reply.json["code"]) == (400, "request-malformed")
    assert reply.header("connection") == "close"
    assert upstream.requests == []
    assert b"admin" not in upstream.received


@pytest.mark.parametrize(
    "headers",
    [
        ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"],
        ["Upgrade: h2c"],
        ["Connection: Upgrade", "Upgrade: WebSocket", "Sec-WebSocket-Version: 13"],
        ["connection: upgrade", "upgrade: wEbSoCkEt", "Sec-WebSocket-Version: 13"],
    ],
    ids=["h2c", "h2c unannounced", "WebSocket", "websocket in mixed case"],
)
def test_an_upgrade_is_refused_before_anything_is_sent(house, upstream, headers):
    """NVIDIA/OpenShell#1967, #718; agentgateway/agentgateway#2101: no raw tunnel, and none accepted and then stuck."""
    run = house.open_run("items")
    [reply] = house.answers(house.head(run, "items", "GET", "/v1/items", *headers) + b"\r\n\x81\x05hello")
    house.refused(run, reply, 400, "upgrade-refused", counted=False)
    assert upstream.received == b""


def test_an_api_that_switches_protocols_uninvited_gets_no_tunnel(house, upstream):
    """NVIDIA/OpenShell#718: 101 is no answer to a call, whoever begins."""
    upstream.says(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x05hello")
    run = house.open_run("items")
    reply = house.call(run, "GET", "/v1/items", profile="items")
    assert (reply.status, reply.json["code"], reply.json["by"]) == (502, "upstream-malformed", "broker")


@pytest.mark.parametrize("method", ["TRACE", "OPTIONS", "PROPFIND", "get"])
def test_a_method_outside_the_six_never_carries_the_credential(house, upstream, method):
    """omnigent-ai/omnigent#3029."""
    run = house.open_run("items")
    [reply] = house.answers(house.head(run, "items", method, "/v1/items", "Connection: close") + b"\r\n")
    if method == "get":
        assert (reply.status, reply.json["code"]) == (400, "request-malformed")
    else:
        assert (reply.status, reply.json["code"]) == (405, "method-not-supported")
        assert set(reply.header("allow").split(", ")) == {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}
    assert house.minted_for(run) == []
    assert upstream.received == b""


@pytest.mark.parametrize("route", ["* /v1/items", "TRACE /v1/items", "OPTIONS /v1/items", "CONNECT /v1/items"])
def test_no_route_can_grant_such_a_method(route):
    """omnigent-ai/omnigent#3029: a rule for all methods cannot be written."""
    profile = {"base_url": "https://u.test", "allowed_callers": ["a"], "allow": [route]}
    with pytest.raises(ConfigurationError, match=r"profiles\.p\.allow\[0\]"):
        parse_grants(json.dumps({"profiles": {"p": profile}}).encode(), name="grants.json")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_to_another_host_is_neither_followed_nor_does_its_location_come_back(house, upstream, decoy, status):
    """onecli/onecli#108; forwardemail/superagent#1844: the decoy counts connections."""
    location = f"Location: {decoy.origin}/?k={house.secret}".encode()
    upstream.says(b"HTTP/1.1 %d Moved\r\n%s\r\nContent-Length: 0\r\n\r\n" % (status, location))
    run = house.open_run("items")
    reply = house.call(run, "POST", "/v1/items", profile="items", body=b"{}")
    assert (reply.status, reply.header("location"), reply.body) == (status, None, b"")
    assert len(upstream.requests) == 1
    assert decoy.connections == 0


def test_two_mebibytes_that_wait_for_100_continue_arrive_without_a_pause(house, upstream):
    """mitmproxy/mitmproxy#2180; abhinavsingh/proxy.py#124: a proxy that forgets the 100 costs its client a second."""
    run = house.open_run("large")
    body = b"x" * (2 << 20)
    head = house.head(run, "large", "POST", "/v1/items", "Expect: 100-continue", f"Content-Length: {len(body)}")
    with house.connection() as connection:
        began = time.monotonic()
        connection.sock.sendall(head + b"\r\n")
        line = connection.sock.recv(25, 0x100)  # MSG_WAITALL
        assert line == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sock.sendall(body)
        reply = http.client.HTTPResponse(connection.sock)
        reply.begin()
        assert reply.status == 200
        assert time.monotonic() - began < 10  # the report's proxies hang for good; an idle machine takes 0.1 s
    [request] = upstream.requests
    assert request.body == body
    assert request.values(b"expect") == []


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_a_body_one_byte_over_the_limit_is_413_and_no_call_without_a_body(house, upstream, framing):
    """always-further/nono, commit of 2026-04-20: it went on with an empty body after the 413."""
    run = house.open_run("small")
    data, how = b"x" * 11, "Content-Length: 11"
    if framing == "chunks":
        data, how = b"b\r\n" + data + b"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"
    [reply] = house.answers(house.head(run, "small", "POST", "/v1/items", how, "Connection: close") + b"\r\n" + data)
    assert (reply.status, reply.json["code"], reply.json["limit"]) == (413, "request-too-large", 10)
    assert upstream.requests == []


@pytest.mark.parametrize("name", ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "X-Original-URL"])
def test_a_header_that_overrides_method_or_url_does_not_reach_the_api(house, upstream, name):
    """I2: DELETE in the clothes of a GET."""
    run = house.open_run("items")
    value = "/v1/admin" if name == "X-Original-URL" else "DELETE"
    assert house.call(run, "GET", "/v1/items", profile="items", headers=[(name, value)]).status == 200
    assert upstream.requests[0].line == b"GET /v1/items HTTP/1.1"
    assert value.encode() not in upstream.received
    with pytest.raises(ConfigurationError, match="override"):
        parse_grants(
            json.dumps(
                {
                    "profiles": {
                        "p": {
                            "base_url": "https://u.test",
                            "allowed_callers": ["a"],
                            "allow": ["GET /v1/items"],
                            "request_headers": [name],
                        }
                    }
                }
            ).encode(),
            name="grants.json",
        )


def test_no_answer_of_ours_is_kept_guessed_at_or_tells_what_answers(house, upstream):
    """HT-15: refusals of the data path, of the connection and of the control API, and an answer that is handed on."""
    run = house.open_run("items")
    own = {"Authorization": f"Bearer {run.token}"}
    ours = [
        house.http("GET", "/p/items/v1/items"),
        house.http("GET", "/p/items/v1/other", headers=own),
        house.http("GET", "/p/another/v1/items", headers=own),
        house.http("GET", "/p/items/v1/items?", headers=own),
        house.http("GET", "/p/items/v1/items", headers={**own, "X-Key": run.token}),
        house.http("OPTIONS", "/p/items/v1/items", headers=own),
        house.http("GET", "/p/items/v1/items", headers={**own, "Upgrade": "websocket"}),
        house.http("GET", "/p/", headers=own),
        house.http("GET", "/p", headers=own),
        house.http("GET", "/nothing"),
        house.http("GET", "/v1/runs"),
        house.http("POST", "/v1/call"),
    ]
    assert upstream.received == b""
    for reply in ours:
        assert 400 <= reply.status < 500
        assert reply.header("content-type") == "application/problem+json"
        assert reply.header("cache-control") == "no-store"
        assert reply.header("x-content-type-options") == "nosniff"
    told = [house.http("GET", "/v1/self", headers=own), house.http("GET", "/livez"), house.http("GET", "/readyz")]
    for reply in told:
        assert (reply.status, reply.header("cache-control")) == (200, "no-store")
    upstream.says(b"HTTP/1.1 200 OK\r\nServer: api/1.2\r\nX-Powered-By: it\r\nVia: 1.1 it\r\nContent-Length: 0\r\n\r\n")
    passed = house.call(run, "GET", "/v1/items", profile="items")
    assert passed.status == 200
    for reply in (*ours, *told, passed):
        names = {name.lower() for name, _ in reply.headers}
        assert not names & {"server", "x-powered-by", "via"}
