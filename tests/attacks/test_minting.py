"""Minting, refresh and rotation: facts/peers.md section 3 D, facts/minters.md section Q.

Both programs as real processes on a clock that the test moves, with credential helpers that count how often they run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
import pytest
from freezegun import freeze_time

from config.clock import parse_rfc3339, rfc3339
from config.load import load_grants
from tests.attacks.house import House, serving, unix
from tests.attacks.upstream import Upstream
from tests.worlds.service import CANARY

pytestmark = pytest.mark.flow

HELPER = """#!/bin/sh
echo run >> "$0.$1.runs"
exec /bin/cat "$0.$1"
"""
#: A token as GitHub has issued them since May 2026: 520 characters, with underscores and dots.
LONG = f"ghs_1_{CANARY}." + "b" * 240 + "." + "c" * (520 - 8 - len(CANARY) - 240)


class Minting(House):
    """A house whose helpers say what the test writes, whose time the test moves."""

    shift_s = 0.0

    def prepare(self, profiles):
        super().prepare(profiles)
        helper = self.root / "secrets/helper"
        helper.write_text(HELPER)
        helper.chmod(0o700)
        long = self.root / "secrets/long.key"
        long.touch(0o600)
        long.write_text(LONG + "\n")

    def advance(self, seconds: float) -> None:
        # A write that is under way while time jumps counts as one that hangs: what is read now comes after it.
        with contextlib.suppress(OSError):
            for _ in range(2):
                unix(self.root / "run/minter-admin.sock", "GET", "/v1/leases")
        self.shift_s += seconds
        fresh = self.root / "clock.new"
        fresh.write_text(json.dumps({"wall": self.shift_s, "boot": self.shift_s}))
        fresh.rename(self.root / "clock.json")

    def now(self) -> float:
        return time.time() + self.shift_s

    def helper_says(self, name: str, text: str) -> None:
        path = self._prepared(name)
        path.write_text(text)

    def helper_waits(self, name: str) -> None:
        """Let the helper wait until the test says what it prints, with :meth:`helper_goes_on`."""
        os.mkfifo(self._prepared(name), 0o600)

    def helper_goes_on(self, name: str, text: str) -> None:
        opened: list[int] = []

        def reads() -> bool:
            with contextlib.suppress(OSError):  # nobody reads yet
                opened.append(os.open(self.root / f"secrets/helper.{name}", os.O_WRONLY | os.O_NONBLOCK))
            return bool(opened)

        self.until(reads, "the helper waits")
        os.write(opened[0], text.encode())
        os.close(opened[0])

    def _prepared(self, name: str) -> Path:
        (self.root / f"secrets/helper.{name}.runs").write_text("")
        path = self.root / f"secrets/helper.{name}"
        path.unlink(missing_ok=True)
        return path

    def helper_runs(self, name: str) -> int:
        return len((self.root / f"secrets/helper.{name}.runs").read_text().splitlines())

    def kubectl(self, token: str, life_s: float) -> str:
        status = {"token": token, "expirationTimestamp": rfc3339(self.now() + life_s)}
        return json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})

    def aws(self, life_s: float) -> str:
        names = {"AccessKeyId": "AKIA1", "SecretAccessKey": f"{CANARY}-aws"}
        return json.dumps({"Version": 1, **names, "Expiration": rfc3339(self.now() + life_s)})

    def calls(self, run, count: int, *, profile: str) -> list[int]:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(lambda _: self.call(run, "GET", "/v1/items", profile=profile).status, range(count)))

    def in_flight(self, run, profile: str) -> int:
        return self.trace(run)["profiles"][profile]["in_flight"]

    def lease_request(self, run_id: str, profile: str) -> dict:
        grant = load_grants(self.root / "grants.json").profiles[profile]
        return {
            "run_id": run_id,
            "caller": "support-agent",
            "profile": profile,
            "params": {},
            "ttl_s": 600.0,
            "origin": grant.base_url,
            "grant_digest": grant.digest,
        }

    def lease_of(self, run_id: str) -> dict:
        [lease] = [lease for lease in self.leases() if lease["run_id"] == run_id]
        return lease


def bearers(upstream) -> list[str]:
    """What the API got as credential, call by call."""
    values = [request.values(b"authorization") for request in upstream.requests]
    assert all(len(value) == 1 for value in values)
    return [value[0].decode().removeprefix("Bearer ") for value in values]


@pytest.fixture(scope="module")
def _upstream():
    with Upstream() as running:
        yield running


@pytest.fixture
def upstream(_upstream):
    _upstream.forget()
    return _upstream


@pytest.fixture(scope="module")
def _minting(tmp_path_factory, _upstream):
    def at(token, **fields):
        common = {"base_url": _upstream.origin, "allow": ["GET /v1/items"], "max_concurrent": 200, "max_calls": 2000}
        return {**common, "token": token, "ttl": "1h", **fields}

    two = {"scheme": "headers", "headers": {"X-Id": "access_key_id", "X-Secret": "secret_access_key"}}
    profiles = {
        "static": at({"type": "static", "key": "api"}),
        "long": at({"type": "static", "key": "long"}),
        "kube": at({"type": "exec", "command": "kube", "format": "kubectl"}),
        "aws": at({"type": "exec", "command": "aws", "format": "aws"}, placement=two),
        "text": at({"type": "exec", "command": "text", "format": "text"}),
        "jwt": at({"type": "jwt", "key": "signer", "audience": _upstream.origin, "ttl": "9m"}),
    }
    root = tmp_path_factory.mktemp("minting")
    helpers = "".join(
        f'[commands.{name}]\nargv = ["{root}/secrets/helper", "{name}"]\ntimeout = {limit_s}\nmax_output = 4096\n'
        for name, limit_s in (("kube", 30), ("aws", 30), ("text", 5))
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (root / "clock.json").write_text('{"wall": 0, "boot": 0}')
    with serving(
        root,
        profiles,
        house=Minting,
        minter_top=f'public_listen = ["127.0.0.1:{port}"]',
        minter_extra=f'[keys.long]\nsource = "file:secrets/long.key"\n{helpers}',
        broker_extra="max_runs = 1000",
        environ={f"{program}_TEST_CLOCK": str(root / "clock.json") for program in ("MINTER", "BROKER")},
    ) as house:
        house.jwks = f"http://127.0.0.1:{port}/.well-known/jwks.json"
        yield house


@pytest.fixture
def house(_minting, upstream):
    return _minting


# --- how often a helper runs ---


def test_a_helper_runs_once_for_each_run_and_not_for_each_call(house, upstream):
    """kubernetes/kubectl#1109: each kubectl executes its plugin again although the token is good for an hour."""
    house.helper_says("kube", house.kubectl(f"{CANARY}-a", 3600))
    first, second = house.open_run("kube"), house.open_run("kube")
    for run in (first, second, first, second, first):
        assert house.call(run, "GET", "/v1/items", profile="kube").status == 200
    assert house.helper_runs("kube") == 2
    assert bearers(upstream) == [f"{CANARY}-a"] * 5


def test_credentials_of_a_quarter_of_an_hour_are_not_fetched_for_each_call(house, upstream):
    """boto/botocore#2189: 15-minute credentials were taken for nearly expired, again and again."""
    house.helper_says("aws", house.aws(900))
    run = house.open_run("aws")
    for _ in range(10):
        assert house.call(run, "GET", "/v1/items", profile="aws").status == 200
    assert house.helper_runs("aws") == 1
    for request in upstream.requests:
        assert (request.values(b"x-id"), request.values(b"authorization")) == ([b"AKIA1"], [])
        assert request.values(b"x-secret") == [f"{CANARY}-aws".encode()]


def test_a_helper_runs_again_when_its_token_has_ended_and_the_old_one_is_not_sent(house, upstream):
    """tomplus/kubernetes_asyncio#257: a client that outlived its token never asked again."""
    house.helper_says("kube", house.kubectl(f"{CANARY}-old", 60))
    run = house.open_run("kube")
    assert house.call(run, "GET", "/v1/items", profile="kube").status == 200
    house.helper_says("kube", house.kubectl(f"{CANARY}-new", 3600))
    house.advance(60)
    assert house.call(run, "GET", "/v1/items", profile="kube").status == 200
    assert house.helper_runs("kube") == 1
    assert bearers(upstream) == [f"{CANARY}-old", f"{CANARY}-new"]


def test_a_lease_ends_with_the_credential_that_is_lent_and_not_with_the_run(house):
    """hashicorp/vault#9728: a login of 60 s behind a lease of an hour died silently."""
    house.helper_says("kube", house.kubectl(f"{CANARY}-a", 60))
    before = house.now()
    run = house.open_run("kube")
    assert house.call(run, "GET", "/v1/items", profile="kube").status == 200
    ends_at = parse_rfc3339(house.lease_of(run.run_id)["expires_at"])
    assert house.now() < ends_at <= before + 61


def test_a_credential_that_outlives_what_was_asked_for_is_lent_for_no_longer_than_the_run(house):
    """kubernetes/kubernetes#105801: 3607 s were asked for, the reply was good for a year. Both ends are kept."""
    house.helper_says("kube", house.kubectl(f"{CANARY}-year", 365 * 86_400))
    run = house.open_run("kube", ttl=600)
    assert house.call(run, "GET", "/v1/items", profile="kube").status == 200
    lease = house.lease_of(run.run_id)
    assert parse_rfc3339(lease["expires_at"]) == pytest.approx(house.now() + 600, abs=10)
    ended = house.caller("DELETE", f"/v1/runs/{run.run_id}").json
    assert [(one["state"], one["how"]) for one in ended["leases"]] == [("revoked", "expired_only")]


# --- many at once ---


def test_a_hundred_calls_at_the_moment_of_expiry_are_one_refresh_and_all_succeed(house, upstream):
    """PrefectHQ/fastmcp#4901; cloudflare/mcp#136; eca#462: the helper answers only when all hundred wait."""
    house.helper_says("kube", house.kubectl(f"{CANARY}-old", 600))
    run = house.open_run("kube")
    assert house.call(run, "GET", "/v1/items", profile="kube").status == 200
    house.helper_waits("kube")
    house.advance(600)
    statuses: list[int] = []
    calling = threading.Thread(target=lambda: statuses.extend(house.calls(run, 100, profile="kube")))
    calling.start()
    house.until(lambda: house.in_flight(run, "kube") == 100, "a hundred calls wait")
    house.helper_goes_on("kube", house.kubectl(f"{CANARY}-new", 3600))
    calling.join()
    assert statuses == [200] * 100
    assert house.helper_runs("kube") == 1
    assert bearers(upstream) == [f"{CANARY}-old"] + [f"{CANARY}-new"] * 100


FOUR = """
import http.client, sys, threading
port, token = int(sys.argv[1]), sys.stdin.readline().strip()
statuses = []
def call():
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/p/kube/v1/items", headers={"Authorization": f"Bearer {token}"})
    statuses.append(connection.getresponse().status)
threads = [threading.Thread(target=call) for _ in range(25)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(*statuses)
"""


def test_four_processes_with_one_run_are_one_refresh(house, upstream):
    """PrefectHQ/fastmcp#4901: single flight within a process does not help four of them."""
    house.helper_says("kube", house.kubectl(f"{CANARY}-old", 600))
    run = house.open_run("kube")
    assert house.call(run, "GET", "/v1/items", profile="kube").status == 200
    house.helper_waits("kube")
    house.advance(600)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", FOUR, str(house.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in processes:
        process.stdin.write(run.token + "\n")
        process.stdin.flush()
    house.until(lambda: house.in_flight(run, "kube") == 100, "a hundred calls wait")
    house.helper_goes_on("kube", house.kubectl(f"{CANARY}-new", 3600))
    statuses = [line for process in processes for line in process.communicate(timeout=30)[0].split()]
    assert statuses == ["200"] * 100
    assert house.helper_runs("kube") == 1
    assert bearers(upstream)[1:] == [f"{CANARY}-new"] * 100


def test_two_brokers_requests_for_the_same_lease_at_once_have_one_winner_and_one_credential(house):
    """FootprintAI/Containarium#1866: two parallel refreshes of one token gave two pairs."""
    house.helper_waits("kube")
    token = (house.root / "run/broker.credential").read_text().strip()
    request = house.lease_request("run_" + "parallel".rjust(22, "0"), "kube")

    def ask(_number):
        return unix(house.root / "run/minter.sock", "POST", "/v1/leases", token=token, body=request)

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask, number) for number in range(8)]
        house.until(lambda: house.helper_runs("kube") == 1, "the helper runs")
        house.helper_goes_on("kube", house.kubectl(f"{CANARY}-one", 3600))
        replies = [one.result() for one in asking]
    assert {reply.status for reply in replies} == {200}
    assert len({reply.json["lease_id"] for reply in replies}) == 1
    assert {reply.json["credential"]["value"] for reply in replies} == {f"{CANARY}-one"}
    assert house.helper_runs("kube") == 1
    codes = [line["code"] for line in house.audit() if line.get("run_id") == request["run_id"]]
    assert codes.count("lease.intent") == codes.count("lease.minted") == 1
    assert codes.index("lease.intent") < codes.index("lease.minted")


def test_a_reply_that_was_lost_is_given_again_and_nothing_is_minted_twice(house):
    """opendefender/OpenRisk#777: the reply to a refresh is lost, and the client comes again."""
    house.helper_says("kube", house.kubectl(f"{CANARY}-one", 3600))
    token = (house.root / "run/broker.credential").read_text().strip()
    request = house.lease_request("run_" + "lost".rjust(22, "0"), "kube")
    body = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(house.root / "run/minter.sock"))
        head = f"POST /v1/leases HTTP/1.1\r\nHost: m\r\nAuthorization: Bearer {token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        house.until(lambda: house.helper_runs("kube") == 1, "the helper runs")
    house.until(
        lambda: [e for e in house.audited("lease.minted") if e["run_id"] == request["run_id"]], "the lease is made"
    )
    replies = [unix(house.root / "run/minter.sock", "POST", "/v1/leases", token=token, body=request) for _ in range(2)]
    [minted] = [event for event in house.audited("lease.minted") if event["run_id"] == request["run_id"]]
    assert [reply.json["lease_id"] for reply in replies] == [minted["lease_id"]] * 2
    assert house.helper_runs("kube") == 1


# --- an issuer that fails ---


BAD = {
    "envoyproxy/envoy#42009, nothing at all": "",
    "envoyproxy/envoy#42009, an empty line": "\n",
    "two lines": f"{CANARY}-1\n{CANARY}-2\n",
    "a line break that would split a header": f"{CANARY}\r\nX-Evil: 1\n",
    "more than the limit": CANARY + "x" * 5000,
    "not ASCII": f"{CANARY}é\n",
}


@pytest.mark.parametrize("said", BAD.values(), ids=BAD)
def test_a_helper_that_prints_no_credential_is_503_and_never_an_empty_bearer(house, upstream, said):
    """The next call after the pause works, without a new run."""
    house.helper_says("text", said)
    run = house.open_run("text")
    reply = house.call(run, "GET", "/v1/items", profile="text")
    assert (reply.status, reply.json["code"], reply.json["by"]) == (503, "mint-failed", "broker")
    pause_s = int(reply.header("retry-after"))
    assert house.call(run, "GET", "/v1/items", profile="text").status == 503
    assert house.helper_runs("text") == 1  # the pause is kept on the helper's behalf
    assert upstream.received == b""
    house.helper_says("text", f"{CANARY}-good\n")
    house.advance(pause_s)
    assert house.call(run, "GET", "/v1/items", profile="text").status == 200
    assert bearers(upstream) == [f"{CANARY}-good"]


def kubectl_junk(house):
    good = house.kubectl(f"{CANARY}-k", 3600)
    return {
        "junk behind it": good + "\nwarning: token will expire\n",
        "a second document": good + good,
        "no JSON": "error: not logged in\n",
        "an empty token": good.replace(f"{CANARY}-k", ""),
        "ended already": house.kubectl(f"{CANARY}-k", -1),
        "no zone": re.sub(r'Z"', '"', good),
        "another version": good.replace("client.authentication.k8s.io/v1", "v1"),
    }


def test_a_plugin_whose_output_is_not_exactly_a_credential_is_503(house, upstream):
    """NVIDIA/OpenShell#2162; minters section i: trailing junk is refused, and so is whatever has ended."""
    for name, said in kubectl_junk(house).items():
        house.helper_says("kube", said)
        reply = house.call(house.open_run("kube"), "GET", "/v1/items", profile="kube")
        assert (reply.status, reply.json["code"]) == (503, "mint-failed"), name
        assert reply.header("retry-after")
    assert upstream.received == b""
    failed = house.audited("lease.mint-failed")[-7:]
    assert [(event["profile"], event["problem"]) for event in failed] == [("kube", "issuer-failed")] * 7


def test_a_helper_that_hangs_is_ended_and_does_not_hold_up_other_profiles(house, upstream):
    """jaraco/keyring#477: a backend that blocks for ten minutes. Its limit is five seconds here."""
    house.helper_waits("text")
    waiting = house.open_run("text")
    replies: list = []
    began = time.monotonic()
    calling = threading.Thread(target=lambda: replies.append(house.call(waiting, "GET", "/v1/items", profile="text")))
    calling.start()
    house.until(lambda: house.helper_runs("text") == 1, "the helper hangs")
    assert house.call(house.open_run("static"), "GET", "/v1/items", profile="static").status == 200
    assert calling.is_alive()
    calling.join(20)
    assert (replies[0].status, replies[0].json["code"]) == (503, "mint-failed")
    assert 4.9 < time.monotonic() - began < 20
    assert len(upstream.requests) == 1


# --- what a token looks like ---


def test_a_token_of_five_hundred_and_twenty_characters_is_kept_sent_and_hidden_whole(house, upstream):
    """github.blog, 2026-05-15: tokens became longer than anybody had measured for."""
    assert len(LONG) == 520
    assert house.call(house.open_run("long"), "GET", "/v1/items", profile="long").status == 200
    assert bearers(upstream) == [LONG]
    said = house.log("minter") + house.log("broker") + json.dumps(house.audit())
    assert not any(part in said for part in (LONG[:40], "b" * 240, "c" * 200))


def signed(house, upstream, run=None):
    """Make a call and return the token that the API saw."""
    run = run or house.open_run("jwt")
    assert house.call(run, "GET", "/v1/items", profile="jwt").status == 200
    return bearers(upstream)[-1]


def at(instant):
    return freeze_time(datetime.fromtimestamp(instant, UTC), real_asyncio=True)


def judged(token, key, audience, *, now):
    """Judge as a verifier without any leeway whose clock says ``now``."""
    with at(now):
        return jwt.decode(token, key, algorithms=["EdDSA"], audience=audience, leeway=timedelta(0))


def test_a_verifier_whose_clock_is_behind_ours_takes_the_token(house, upstream):
    """jpadilla/pyjwt#854; octokit/auth-app.js#698: ``iat`` in the verifier's future, ``exp`` beyond its cap."""
    before = int(house.now())
    token = signed(house, upstream)
    key = jwt.PyJWKClient(house.jwks).get_signing_key_from_jwt(token)
    claims = jwt.decode(token, options={"verify_signature": False})
    issued_at = claims["iat"] + 10
    assert before <= issued_at <= house.now()
    for behind_s in (0, 1, 10):
        assert judged(token, key, upstream.origin, now=issued_at - behind_s)["jti"] == claims["jti"]
    with pytest.raises(jwt.ImmatureSignatureError):
        judged(token, key, upstream.origin, now=issued_at - 11)
    assert (type(claims["iat"]), type(claims["exp"])) == (int, int)


def test_a_token_of_nine_minutes_stays_below_a_cap_of_ten(house, upstream):
    """XAMPPRocky/octocrab#207; jikig-ai/soleur#4565: the back-dating counts towards the cap."""
    claims = jwt.decode(signed(house, upstream), options={"verify_signature": False})
    assert 549 <= claims["exp"] - claims["iat"] <= 550


# --- rotation ---


def test_after_a_rotation_new_runs_have_the_new_key_at_once_and_old_ones_when_it_is_finished(house, upstream):
    """api7/aisix#779: a cache that did not know of versions went on with the old key. gardener/gardener#4559."""
    before, old, new = house.open_run("static"), CANARY, f"{CANARY}-v2"
    assert house.call(before, "GET", "/v1/items", profile="static").status == 200
    house.run("minter", "rotate", "api", stdin=f"{new}\n".encode())
    after = house.open_run("static")
    assert house.call(after, "GET", "/v1/items", profile="static").status == 200
    assert bearers(upstream) == [old, new]
    house.run("minter", "rotate", "api", "--finish")
    house.until(lambda: house.call(before, "GET", "/v1/items", profile="static").status == 200, "the run goes on")
    assert bearers(upstream)[-1] == new
    assert house.call(after, "GET", "/v1/items", profile="static").status == 200
    assert bearers(upstream)[1:].count(old) == 0
    assert not (house.root / "secrets/api.key").exists()


def test_a_token_that_was_signed_before_a_rotation_is_good_until_its_end(house, upstream):
    """NetDevPack/Security.Jwt#39; pomerium/pomerium#1721: the old key went away and all tokens with it."""
    token = signed(house, upstream)
    house.advance(60)
    house.run("minter", "rotate", "signer", "--force")
    later = signed(house, upstream)
    kids = [jwt.get_unverified_header(one)["kid"] for one in (token, later)]
    assert kids[0] != kids[1]
    client = jwt.PyJWKClient(house.jwks)
    end = jwt.decode(token, options={"verify_signature": False})["exp"]
    for one in (token, later):
        assert judged(one, client.get_signing_key_from_jwt(one), upstream.origin, now=house.now())
    assert judged(token, client.get_signing_key_from_jwt(token), upstream.origin, now=end - 1)
    house.advance(end - house.now() + 60)

    def published():
        with urllib.request.urlopen(house.jwks) as answer:
            return [key["kid"] for key in json.load(answer)["keys"]]

    house.until(lambda: published() == kids[1:], "the old key is withdrawn when its last token has ended")


def test_known_keys_still_verify_while_the_minter_is_away(house, upstream):
    """jpadilla/pyjwt#1162: one failed fetch emptied the verifier's cache; ours needs no fetch for a known kid."""
    client = jwt.PyJWKClient(house.jwks, cooldown_duration=0)
    token = signed(house, upstream)
    assert client.get_signing_key_from_jwt(token)
    house.stop("minter")
    try:
        assert judged(token, client.get_signing_key_from_jwt(token), upstream.origin, now=house.now())
        with pytest.raises(jwt.PyJWKClientConnectionError):
            client.get_signing_key("unknown")
        assert judged(token, client.get_signing_key_from_jwt(token), upstream.origin, now=house.now())
    finally:
        house.start("minter")
    house.until(lambda: house.http("GET", "/readyz").status == 200, "the broker has the minter back")


def test_a_lease_whose_profile_is_gone_is_ended_and_says_how(house, upstream):
    """hashicorp/vault#4143: what was deleted by hand left leases that nobody could end."""
    run = house.open_run("kube")
    house.helper_says("kube", house.kubectl(f"{CANARY}-a", 3600))
    assert house.call(run, "GET", "/v1/items", profile="kube").status == 200
    lease_id = house.lease_of(run.run_id)["lease_id"]
    document = json.loads((house.root / "grants.json").read_text())
    kept = document["profiles"].pop("kube")
    house.grant(document["profiles"])
    house.reload("minter")
    house.until(
        lambda: [event for event in house.audited("lease.revoked") if event["lease_id"] == lease_id], "it is ended"
    )
    [ended] = [event for event in house.audited("lease.revoked") if event["lease_id"] == lease_id]
    assert (ended["how"], ended["reason"]) == ("expired_only", "grant-changed")
    house.until(lambda: house.call(run, "GET", "/v1/items", profile="kube").status == 503, "calls are refused", 5)
    assert house.call(run, "GET", "/v1/items", profile="kube").json["code"] == "lease-refused"
    house.grant({**document["profiles"], "kube": kept})
    house.reload("minter")
