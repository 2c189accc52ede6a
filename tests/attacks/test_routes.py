"""Which route, which host: facts/peers.md section 3 A."""

from __future__ import annotations

import json

import pytest

from config.errors import ConfigurationError
from config.grants import parse_grants
from tests.attacks.house import serving, unix
from tests.minter.vault import Vault, grants_of, quick_directory
from tests.worlds.console import Console

pytestmark = pytest.mark.flow


@pytest.mark.parametrize(
    "target",
    [
        "/v1/../admin",
        "/v1/%2e%2e/admin",
        "/v1/%2E%2E/admin",
        "//v1/items",
        "/v1/./items",
        "/v1/..%2Fadmin",
        "/v1/%252e%252e",
    ],
)
def test_a_path_that_could_be_read_as_another_is_refused_and_not_mended(house, upstream, target):
    """NVIDIA/OpenShell#878, with a route that covers /v1/* and would match what the path decodes to."""
    run = house.open_run("wide")
    reply = house.call(run, "GET", target, profile="wide")
    house.refused(run, reply, 400, "target-malformed")
    assert upstream.received == b""


@pytest.mark.parametrize("target", ["/v1/..;/admin", "/v1/items;x=1", "/v1/items;"])
def test_path_parameters_are_refused(house, upstream, target):
    """NVIDIA/OpenShell#2699; plimsoll's grant documents."""
    run = house.open_run("wide")
    house.refused(run, house.call(run, "GET", target, profile="wide"), 400, "target-malformed")
    assert upstream.received == b""


def test_an_encoded_slash_is_refused_where_the_route_takes_one_segment(house, upstream):
    """ironsh/iron-proxy#156."""
    run = house.open_run("wide")
    house.refused(run, house.call(run, "GET", "/o/a%2Fb", profile="wide"), 403, "encoding-not-granted")
    assert upstream.received == b""


def test_an_encoded_slash_that_the_route_lists_arrives_as_it_was_sent(house, upstream):
    """ironsh/iron-proxy#156: never /o/a/b."""
    run = house.open_run("encoded")
    assert house.call(run, "GET", "/o/a%2Fb", profile="encoded").status == 200
    assert [request.line for request in upstream.requests] == [b"GET /o/a%2Fb HTTP/1.1"]
    other = house.open_run("encoded")
    house.refused(other, house.call(other, "GET", "/o/a/b", profile="encoded"), 403, "route-not-granted")


def test_a_connection_to_the_broker_with_the_apis_host_name_is_refused(house, upstream):
    """opensandbox-group/OpenSandbox#1758: Host decides nothing, the dialled peer is the grant's origin."""
    run = house.open_run("items")
    call = house.head(run, "items").replace(f"127.0.0.1:{house.port}".encode(), b"u.test") + b"\r\n"
    [reply] = house.answers(call)
    house.refused(run, reply, 421, "host-not-allowed", counted=False)
    assert upstream.received == b""


def test_the_host_that_the_api_sees_is_the_grants_origin_whatever_the_code_sends(house, upstream):
    """opensandbox-group/OpenSandbox#1758; superfly/tokenizer#42: nothing forwarded has a say."""
    run = house.open_run("items")
    forged = [("X-Forwarded-Host", "evil.test"), ("Forwarded", "host=evil.test"), ("X-Host", "evil.test")]
    assert house.call(run, "GET", "/v1/items", profile="items", headers=forged).status == 200
    [request] = upstream.requests
    assert request.values(b"host") == [upstream.origin.removeprefix("http://").encode()]
    assert b"evil" not in upstream.received
    with pytest.raises(ConfigurationError, match=r"request_headers\[0\]"):
        parse_grants(grants(request_headers=["Host"]), name="grants.json")


def grants(**fields):
    profile = {"base_url": "https://u.test", "allowed_callers": ["a"], "allow": ["GET /v1/items"], **fields}
    return json.dumps({"profiles": {"p": profile}}).encode()


@pytest.mark.parametrize("spelling", ["https://u.test.", "https://U.TEST", "https://u.test:443", "https://u.test/"])
def test_an_origin_has_one_spelling_and_every_other_is_refused_at_load(tmp_path, spelling):
    """Decepticon#374; factorio-blueprint-editor#450; hexgate#141: a dot, upper case, the default port."""
    console = Console(tmp_path)
    (tmp_path / "grants.json").write_bytes(grants(base_url=spelling))
    refused = console("broker", "check", "grants.json")
    assert refused.status == 3
    assert "profiles.p.base_url" in refused.err + refused.out


async def test_a_host_that_ends_like_the_right_one_is_another_host(clock):
    """tinyproxy#627: a key for u.test does not go to evil-u.test, nor to a host below or above it."""
    with quick_directory() as directory:
        vault = Vault(directory, clock)
        vault.put("key", "sekret-AAAA1111")
        vault.key("k", "file:key", origins=["https://u.test"])
        try:
            for origin in ("https://evil-u.test", "https://u.test.evil.test", "https://a.u.test", "https://test"):
                vault.grants = grants_of({"type": "static", "key": "k"}, origin=origin)
                with pytest.raises(ConfigurationError, match="pinned to other origins"):
                    await vault.start()
                await vault.stop()
            vault.grants = grants_of({"type": "static", "key": "k"}, origin="https://u.test")
            assert (await vault.start()).origins_of("k") == ["https://u.test"]
        finally:
            await vault.stop()


def test_a_key_that_grants_send_to_a_second_host_stops_the_start(tmp_path, upstream, decoy):
    """onecli/onecli#438: where a key may go is enforced for every profile that names it, or nothing starts."""
    token = {"type": "static", "key": "pinned"}
    profiles = {
        "one": {"base_url": upstream.origin, "token": token, "allow": []},
        "two": {"base_url": decoy.origin, "token": token, "allow": []},
    }
    pinned = f'[keys.pinned]\nsource = "file:secrets/api.key"\norigins = ["{upstream.origin}"]'
    with serving(tmp_path, profiles, start=False, minter_extra=pinned) as house:
        faults = house.fails("minter")
    assert "profiles.two.base_url: custody key pinned is pinned to other origins" in faults
    assert "profiles.one" not in faults


def test_of_a_route_with_and_one_without_credential_the_more_specific_decides(house, upstream):
    """always-further/nono#1132; nolabs-ai/nono#1831: never silently without, never with a placeholder."""
    run = house.open_run("partly")
    assert house.call(run, "GET", "/v1/public", profile="partly").status == 200
    assert house.minted_for(run) == []
    assert house.call(run, "GET", "/v1/other", profile="partly").status == 200
    public, other = upstream.requests
    assert public.values(b"authorization") == []
    assert other.values(b"authorization") == [f"Bearer {house.secret}".encode()]
    assert run.token.encode() not in upstream.received


def test_the_same_route_with_and_without_credential_is_refused_at_load():
    """always-further/nono#1132: two rules of equal rank have no winner."""
    twice = ["GET /v1/items", {"route": "GET /v1/items", "credential": False}]
    with pytest.raises(ConfigurationError, match=r"profiles\.p\.allow\[1\]"):
        parse_grants(grants(allow=twice), name="grants.json")


@pytest.mark.parametrize(
    ("line", "status", "code"),
    [
        ("GET {origin}/v1/admin HTTP/1.1", 400, "target-malformed"),
        ("GET {origin}/v1/items HTTP/1.1", 400, "target-malformed"),
        ("CONNECT u.test:443 HTTP/1.1", 405, "method-not-supported"),
    ],
)
def test_the_broker_is_no_forward_proxy_for_what_it_refuses(house, upstream, line, status, code):
    """NVIDIA/OpenShell#643: a request that is refused one way is refused every other way."""
    run = house.open_run("items")
    head = house.head(run, "items").split(b"\r\n", 1)[1]
    [reply] = house.answers(line.format(origin=upstream.origin).encode() + b"\r\n" + head + b"\r\n")
    house.refused(run, reply, status, code, counted=False)
    assert upstream.received == b""


def test_the_envelope_refuses_what_the_data_path_refuses(house, upstream):
    """NVIDIA/OpenShell#643: the same refusal on every ingress."""
    for target, status, code in (("/v1/admin", 403, "route-reserved"), ("/v1/../admin", 400, "target-malformed")):
        run = house.open_run("wide")
        house.refused(run, house.call(run, "GET", target, profile="wide"), status, code)
        run = house.open_run("wide")
        headers = {"Authorization": f"Bearer {run.token}", "Content-Type": "application/json"}
        body = json.dumps({"method": "GET", "path": target}).encode()
        reply = house.http("POST", "/v1/call", headers=headers, body=body)
        assert (reply.status, reply.json["status"]) == (200, status)
        assert json.loads(reply.json["body"])["code"] == code
        assert house.minted_for(run) == []
    assert upstream.received == b""


def test_an_origin_in_the_clear_is_refused_at_load_unless_it_is_this_machine():
    """NVIDIA/OpenShell#643: no grant sends a credential over plain http."""
    with pytest.raises(ConfigurationError, match="https"):
        parse_grants(grants(base_url="http://u.test"), name="grants.json")
    assert parse_grants(grants(base_url="http://127.0.0.1:8080"), name="grants.json").profiles


def test_a_telemetry_host_of_the_same_run_gets_no_secret(house, upstream, telemetry):
    """NVIDIA/OpenShell#1891: a credential belongs to a profile, and a profile has one origin."""
    telemetry.forget()
    opened = house.caller("POST", "/v1/runs", {"profiles": ["items", "header", "open"]}).json
    headers = {"Authorization": f"Bearer {opened['run_token']}"}
    for target in ("/p/items/v1/items", "/p/header/v1/items"):
        assert house.http("GET", target, headers=headers).status == 200
    assert house.http("POST", "/p/open/v1/events", headers=headers, body=b"{}").status == 200
    [request] = telemetry.requests
    assert {name.lower() for name, _ in request.headers} == {b"host", b"content-length", b"user-agent"}
    assert house.secret.encode() not in telemetry.received
    assert opened["run_token"].encode() not in telemetry.received + upstream.received
    as_bearer, as_header = upstream.requests
    assert (as_bearer.values(b"x-goog-api-key"), as_header.values(b"authorization")) == ([], [])


def test_the_operators_socket_carries_no_calls(house, upstream):
    run = house.open_run("items")
    for target in ("/p/items/v1/items", "/v1/self"):
        reply = unix(house.root / "run/broker-admin.sock", "GET", target, token=run.token)
        assert (reply.status, reply.json["code"]) == (404, "not-found")
    assert upstream.received == b""
