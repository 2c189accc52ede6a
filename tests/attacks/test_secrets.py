"""Secrets coming back or leaking sideways: facts/peers.md section 3 C. Bodies are not looked at here."""

from __future__ import annotations

import copy
import json
import pickle
import traceback

import pytest

from config.errors import ConfigurationError
from config.grants import parse_grants
from config.secret import Secret
from tests.attacks.house import serving, unix
from tests.broker.calling import KEY, world

pytestmark = pytest.mark.flow


def test_a_credential_in_the_headers_of_an_answer_does_not_come_back(house, upstream):
    """maximhq/bifrost#3954: x-goog-api-key and Location of an answer hold the key."""
    key = house.secret.encode()
    upstream.says(
        b"HTTP/1.1 200 OK\r\nx-goog-api-key: " + key + b"\r\nLocation: /next?key=" + key + b"\r\n"
        b"WWW-Authenticate: Bearer realm=" + key + b"\r\nETag: v1\r\nContent-Length: 2\r\n\r\n{}"
    )
    run = house.open_run("header")
    reply = house.call(run, "GET", "/v1/items", profile="header")
    assert upstream.requests[0].values(b"x-goog-api-key") == [key]
    assert reply.status == 200
    assert {name.lower() for name, _ in reply.headers} <= {"etag", "content-length", "date"}
    assert house.secret not in repr(reply)


async def test_what_the_minter_answers_stays_in_the_broker_whatever_its_status_and_type(tmp_path):
    """superfly/tokenizer#53: 201, then 200 without a type. The code sees the API's answer and nothing of the lease."""
    async with world(tmp_path) as w:
        first = await w.call("GET", "/v1/items")
        reply = {"lease_id": "lse_2", "credential": {"value": KEY}, "expires_at": "2031-01-01T00:00:00Z"}
        w.minter.reply = json.dumps({**reply, "expires_in_s": 600, "kind": "static", "fingerprint": "f"}).encode()
        w.token = w.open_run({"api": json.loads(w.run.profiles["api"].frozen.source)})
        second = await w.call("GET", "/v1/items")
        assert [(answer.status, answer.body) for answer in (first, second)] == [(200, b'{"ok":true}')] * 2
        assert [r.values(b"authorization") for r in w.api.requests] == [[f"Bearer {KEY}".encode()]] * 2
        assert len(w.minter.asked) == 2
        assert KEY not in repr((first, second))
        assert "lse_" not in repr((first, second))


@pytest.mark.parametrize("name", ["User-Agent", "X-Custom", "Referer", "Accept"])
def test_a_run_token_beside_its_place_is_refused_though_it_also_stands_in_its_place(house, upstream, name):
    """varlock#934: twice in one request."""
    run = house.open_run("items")
    reply = house.call(run, "GET", "/v1/items", profile="items", headers=[(name, f"sdk/1.0 ({run.token})")])
    house.refused(run, reply, 400, "run-token-misplaced")
    assert upstream.received == b""


@pytest.mark.parametrize("target", ["/v1/items/{token}", "/v1/items?key={token}"])
def test_a_run_token_in_the_target_is_refused(house, upstream, target):
    """varlock#934: it would stand in the logs of the API and of everything before it."""
    run = house.open_run("items")
    reply = house.call(run, "GET", target.format(token=run.token), profile="items")
    house.refused(run, reply, 400, "run-token-misplaced")
    assert upstream.received == b""


def test_one_line_break_behind_a_secret_is_no_part_of_it(house, upstream):
    """paperclipai/paperclip#11649; logicalclocks/feature-store-api#1145: the file ends in a line break."""
    assert (house.root / "secrets/api.key").read_text() == f"{house.secret}\n"
    run = house.open_run("items")
    assert house.call(run, "GET", "/v1/items", profile="items").status == 200
    assert upstream.requests[0].values(b"authorization") == [f"Bearer {house.secret}".encode()]


def test_a_secret_that_no_header_can_carry_is_never_sent_and_never_shown(tmp_path, upstream):
    """withceleste/celeste-python#116: nor does the text of an error hold it."""
    upstream.forget()
    with serving(tmp_path, {"api": {"base_url": upstream.origin, "allow": ["GET /v1/items"]}}) as house:
        for end in ("\n\n", "\r\nX-Evil: 1\n", "ä\n"):
            (house.root / "secrets/api.key").write_text(house.secret + end)
            house.reload("minter")
            assert '"reload-refused"' in house.log("minter").splitlines()[-1], end
            assert house.call(house.open_run(), "GET", "/v1/items").status == 200, end
        # The reload is refused as a whole: what was there before goes on.
        sent = [request.values(b"authorization") for request in upstream.requests]
        assert sent == [[f"Bearer {house.secret}".encode()]] * 3
        (house.root / "secrets/api.key").write_text(house.secret + "\x00")
        house.stop("minter")
        assert "keys.api (file:" in house.fails("minter")


def test_nothing_secret_is_printed_when_calls_are_refused_and_both_programs_log_everything(house):
    """BerriAI/litellm#30670; NVIDIA/OpenShell#1322: a spent budget and a malformed call, with debug logs on."""
    run = house.open_run("small")
    replies = [house.call(run, "GET", "/v1/items", profile="small") for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 403]
    assert replies[2].json["code"] == "budget-exhausted"
    headers = {"Authorization": f"Bearer {run.token}", "Content-Type": "application/json"}
    broken = house.http("POST", "/v1/call", headers=headers, body=b'{"method": [').json
    assert (broken["status"], json.loads(broken["body"])["code"]) == (400, "body-malformed")
    for said in (house.log("broker"), house.log("minter"), *map(repr, replies), json.dumps(house.trace(run))):
        assert house.secret not in said
        assert run.token not in said
        assert house.caller_token not in said


def test_a_secret_shows_in_no_text_form_and_in_no_traceback():
    """NVIDIA/OpenShell#1322."""
    value = "sekret-AAAA1111"
    secret = Secret(value)
    for shown in (repr(secret), str(secret), f"{secret}", f"{secret!r:>40}", "%s" % secret, repr([{"k": secret}])):  # noqa: UP031
        assert value not in shown
    for leak in (pickle.dumps, copy.copy, copy.deepcopy, json.dumps):
        with pytest.raises(TypeError) as refused:
            leak(secret)
        assert value not in "".join(traceback.format_exception(refused.value))


def test_whoever_connects_to_the_minter_without_a_token_gets_nothing(house):
    """vybestack/llxprt-code#2467: list and get over the socket of the credential store."""
    socket = house.root / "run/minter.sock"
    assert unix(socket, "POST", "/v1/leases", body={}).status == 401
    assert unix(socket, "GET", "/v1/leases/watch").status == 401
    for token in (house.caller_token, house.open_run("items").token, "mbk_" + "A" * 49):
        assert unix(socket, "POST", "/v1/leases", token=token, body={}).json["code"] == "broker-token-invalid"


def test_the_minter_has_no_word_for_reading_a_secret(house):
    """vybestack/llxprt-code#2467: not even with the broker's credential, nor for an operator."""
    run = house.open_run("items")
    assert house.call(run, "GET", "/v1/items", profile="items").status == 200
    token = (house.root / "run/broker.credential").read_text().strip()
    for target in ("/v1/leases", "/v1/keys/api", "/v1/custody", "/v1/secrets/api", "/v1/audit", "/metrics"):
        assert unix(house.root / "run/minter.sock", "GET", target, token=token).status in (404, 405)
    operator = house.root / "run/minter-admin.sock"
    for target in ("/v1/leases", "/v1/custody", "/v1/audit", "/metrics", "/readyz?verbose"):
        reply = unix(operator, "GET", target)
        assert reply.status == 200
        assert house.secret not in repr(reply)
    for target in ("/v1/keys/api", "/v1/keys/api/value", "/v1/secrets/api"):
        assert unix(operator, "GET", target).status in (404, 405)


@pytest.mark.parametrize(
    "extra",
    [
        {"env": {"LD_PRELOAD": "/x/x.so"}},
        {"env": {"SSL_CERT_FILE": "/x/ca.pem"}},
        {"plugins": ["evil"]},
        {"config": "/x/broker.toml"},
        {"ca_file": "/x/ca.pem"},
        {"base_url": "http://evil.test"},
        {"allow": ["GET /v1/admin"]},
        {"placement": {"scheme": "query", "name": "key"}},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_who_opens_a_run_configures_nothing(house, extra):
    """opensandbox-group/OpenSandbox#1194: variables that name a plugin, a configuration, a trust file."""
    reply = house.caller("POST", "/v1/runs", {"profile": "items", **extra})
    assert (reply.status, reply.json["code"]) == (400, "body-malformed")
    assert all(value not in reply.body.decode() for value in ("/x/", "evil"))


def test_the_environment_of_the_broker_adds_no_plugin_and_no_trust_file(tmp_path):
    """opensandbox-group/OpenSandbox#1194: a variable that is no setting stops the start; one of a library is unread."""
    with serving(tmp_path, {"api": {"base_url": "http://127.0.0.1:9", "allow": []}}, start=False) as house:
        for name in ("BROKER_PLUGIN_PATH", "BROKER_CA_FILE"):
            assert f"{name}: unknown setting" in house.fails("broker", **{name: "/x/evil"})


def test_a_grant_cannot_set_the_programs_own_variables():
    """opensandbox-group/OpenSandbox#1194: ``env`` is for the code's SDK."""
    profile = {"base_url": "https://u.test", "allowed_callers": ["a"], "allow": [], "env": {"BROKER_URL": "http://e"}}
    with pytest.raises(ConfigurationError, match=r"profiles\.p\.env\.BROKER_URL"):
        parse_grants(json.dumps({"profiles": {"p": profile}}).encode(), name="grants.json")
