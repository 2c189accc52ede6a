"""Staying up and staying honest: facts/peers.md section 3 E, I6 and I7."""

from __future__ import annotations

import asyncio
import json
import resource
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from config.load import load_grants
from tests.attacks.house import serving, unix

pytestmark = pytest.mark.flow


def test_each_event_of_a_stream_is_seen_when_it_is_sent(house, upstream):
    """NVIDIA/OpenShell#261; Infisical/agent-vault#229; OpenSandbox#898: with the media type in mixed case.

    The API sends an event only after the code has the one before: were one held back, none would follow.
    """
    seen = threading.Semaphore(1)

    async def events(_request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(5):
            assert await asyncio.to_thread(seen.acquire, timeout=10)
            event = b"data: %d\n\n" % number
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    upstream.answers(events)
    with house.stream(house.open_run("items"), "/v1/items", profile="items") as stream:
        assert stream.getheader("content-type") == "Text/Event-Stream"
        for number in range(5):
            assert stream.read1() == b"data: %d\n\n" % number
            seen.release()
        assert stream.read1() == b""


def test_calls_and_refusals_of_the_data_path_stand_in_the_metrics(house, upstream):
    """Those that repeat over one connection, too, and what is refused before there is a call."""

    def counted() -> dict[str, float]:
        text = unix(house.root / "run/broker-admin.sock", "GET", "/metrics").body.decode()
        lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("broker_")]
        return {name: float(value) for name, _, value in lines}

    run = house.open_run("items")
    own = f"Authorization: Bearer {run.token}"
    before = counted()
    with house.connection() as connection:
        for status, target, header in (
            *[(200, "/p/items/v1/items", own)] * 5,
            (403, "/p/items/v1/other", own),
            (401, "/p/items/v1/items", "X-Nothing: 1"),
            (400, "/p/items/v1/items", "Upgrade: websocket"),
        ):
            connection.request("GET", target, headers=dict([header.split(": ")]))
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
    after = counted()
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    for name, times in {
        'broker_calls_total{profile="items",status="200"}': 5,
        'broker_call_duration_seconds_count{profile="items"}': 5,
        'broker_refusals_total{code="route-not-granted",profile="items"}': 1,
        'broker_refusals_total{code="run-token-missing",profile=""}': 1,
        'broker_requests_refused_total{code="upgrade-refused"}': 1,
    }.items():
        assert grown[name] == times, name
    assert len(house.trace(run)["trace"]["rows"]) == 5


def test_the_length_of_a_head_is_kept_and_nothing_hangs(house, upstream):
    """onecli/onecli#102; mitmproxy/mitmproxy#659."""
    upstream.says(b"HTTP/1.1 200 OK\r\nContent-Length: 1488324\r\nETag: v1\r\n\r\n")
    run = house.open_run("heads")
    with house.connection() as connection:
        for _ in range(2):
            connection.request("HEAD", "/p/heads/v1/file", headers={"Authorization": f"Bearer {run.token}"})
            answer = connection.getresponse()
            assert (answer.status, answer.getheader("content-length"), answer.read()) == (200, "1488324", b"")
    assert [request.line for request in upstream.requests] == [b"HEAD /v1/file HTTP/1.1"] * 2


def test_head_is_refused_where_only_get_is_listed(house, upstream):
    """NVIDIA/OpenShell#1382: a HEAD is a call of its own."""
    run = house.open_run("heads")
    reply = house.call(run, "HEAD", "/v1/items", profile="heads")
    assert (reply.status, reply.body, reply.header("broker-refused-by")) == (403, b"", "broker")
    assert house.trace(run)["trace"]["denied_by"] == [{"code": "route-not-granted", "template": None, "count": 1}]
    assert upstream.received == b""


def test_three_cookies_are_dropped_and_not_folded_into_one(house, upstream):
    """lablup/backend.ai#13193: an API's cookies would be a credential that the code holds."""
    upstream.says(
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2; Secure\r\nset-cookie: c=3\r\nContent-Length: 0\r\n\r\n"
    )
    reply = house.call(house.open_run("items"), "GET", "/v1/items", profile="items")
    assert reply.status == 200
    assert [name for name, _ in reply.headers if "cookie" in name.lower()] == []
    assert "b=2" not in repr(reply)


def test_two_hundred_calls_go_over_one_connection(house, upstream):
    """NVIDIA/OpenShell#610: it hung after the first."""
    run = house.open_run("items")
    with house.connection() as connection:
        for number in range(200):
            headers = {"Authorization": f"Bearer {run.token}", "Content-Type": "application/json"}
            connection.request("POST", "/p/items/v1/items", body=b"x" * number, headers=headers)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b'{"ok":true}')
    assert [len(request.body) for request in upstream.requests] == list(range(200))


def test_valid_calls_are_never_slowed_down_and_wrong_tokens_are(house, upstream):
    """Infisical/agent-vault#226, #97: 500 calls of one address beside wrong tokens of the same address."""
    wrong = [house.caller("GET", "/v1/runs", token="clr_" + "A" * 49).status for _ in range(40)]
    assert wrong[0] == 401
    assert 429 in wrong
    run = house.open_run("items")

    def calls(_worker: int) -> list[int]:
        statuses = []
        with house.connection() as connection:
            for _ in range(50):
                connection.request("GET", "/p/items/v1/items", headers={"Authorization": f"Bearer {run.token}"})
                answer = connection.getresponse()
                answer.read()
                statuses.append(answer.status)
        return statuses

    with ThreadPoolExecutor(10) as pool:
        statuses = [status for part in pool.map(calls, range(10)) for status in part]
    assert statuses == [200] * 500
    assert len(upstream.requests) == 500
    assert house.caller("GET", "/v1/runs").status == 200


def test_a_limit_holds_though_the_credential_is_at_hand(house, upstream):
    """BerriAI/litellm#39713: a warm key cache went past the limit."""
    run = house.open_run("small")
    statuses = [house.call(run, "GET", "/v1/items", profile="small").status for _ in range(4)]
    assert statuses == [200, 200, 403, 403]
    assert len(upstream.requests) == 2


def test_calls_stop_when_the_budget_cannot_be_written(tmp_path, upstream):
    """BerriAI/litellm#26672: the store of the limits is unreachable, so nothing is carried."""
    upstream.forget()
    profiles = {"api": {"base_url": upstream.origin, "allow": ["GET /v1/items"], "max_calls": 100}}
    with serving(tmp_path, profiles) as house:
        run = house.open_run()
        with sqlite3.connect(house.root / "state/broker.db", isolation_level=None) as other:
            other.execute("PRAGMA locking_mode = EXCLUSIVE")
            other.execute("BEGIN EXCLUSIVE")
            reply = house.call(run, "GET", "/v1/items")
            assert (reply.status, reply.json["code"]) == (503, "state-unavailable")
            assert upstream.received == b""
            other.execute("ROLLBACK")
        other.close()
        house.until(lambda: house.call(run, "GET", "/v1/items").status == 200, "calls go on")


@pytest.mark.parametrize("target", ["/v1/items/a b", "/v1/%00", "/V1/ITEMS", "/v1/items/", "/%E2%82", "/v1/items/*"])
def test_a_denied_call_on_an_unusual_path_is_one_refusal_and_no_crash(house, upstream, target):
    """always-further/nono#1077."""
    run = house.open_run("items")
    [reply] = house.answers(house.head(run, "items", "GET", target, "Connection: close") + b"\r\n")
    assert reply.status == (403 if target in ("/V1/ITEMS", "/v1/items/", "/v1/items/*") else 400)
    assert reply.json["by"] == "broker"
    assert upstream.received == b""
    assert target not in json.dumps(house.trace(run))


def test_an_api_that_is_not_there_is_one_502_in_fixed_words(house):
    """always-further/nono#1000: the text of the operating system's error is no part of the answer."""
    run = house.open_run("gone")
    [reply] = house.answers(house.head(run, "gone", "GET", "/v1/items", "Connection: close") + b"\r\n")
    assert (reply.status, reply.json["code"], reply.json["by"]) == (502, "upstream-unreachable", "broker")
    assert not any(word in reply.body for word in (b"refused", b"Errno", b"127.0.0.1", b":9"))
    [row] = house.trace(run)["trace"]["rows"]
    assert (row["status"], row["delivered"]) == (502, False)


@pytest.mark.parametrize(
    ("answer", "status", "etag"),
    [
        (b"200 OK\r\nETag: a\rSet-Cookie: evil=1", 502, None),
        (b"200 OK\r\nETag: a\x00\r\nSet-Cookie: evil=1", 502, None),
        (b"200 OK\r\nETag: a\x7f", 502, None),
        (b"200 OK\r\nETag: a\x0b", 502, None),
        (b"200 evil=1\rX: y", 502, None),
        (b"200 evil=1\x00", 200, None),
        (b"200 OK\r\nETag: a\nSet-Cookie: evil=1", 502, None),
        (b"200 OK\r\nETag: a\r\n\tSet-Cookie: evil=1", 502, None),
    ],
    ids=[
        "CR in a value",
        "NUL in a value",
        "DEL in a value",
        "VT in a value",
        "CR in the reason",
        "NUL in the reason",
        "LF in a value",
        "a folded line",
    ],
)
def test_an_answer_cannot_split_the_brokers_own(house, upstream, answer, status, etag):
    """always-further/nono#1000: line breaks in what the API says end no line of ours."""
    upstream.says(b"HTTP/1.1 " + answer + b"\r\nContent-Length: 0\r\n\r\n", then_close=True)
    run = house.open_run("items")
    [reply] = house.answers(house.head(run, "items", "GET", "/v1/items", "Connection: close") + b"\r\n")
    assert (reply.status, reply.header("etag"), reply.header("set-cookie")) == (status, etag, None)
    if status == 502:
        assert (reply.json["code"], reply.json["by"]) == ("upstream-malformed", "broker")
    assert house.replies[-1].partition(b"\r\n")[0] in (b"HTTP/1.1 200 OK", b"HTTP/1.1 502 Bad Gateway")


def test_a_path_of_many_bytes_a_character_is_refused_wherever_it_is_cut(house, upstream):
    """NVIDIA/OpenShell#2448: a log that cut text at a fixed length cut a character in two."""
    run = house.open_run("encoded")
    counts = 0
    for length in (84, 85, 86, 340, 341, 342, 2000):
        for lead in ("", "a", "aa"):
            reply = house.call(run, "GET", f"/x/{lead}{'%E2%82%AC' * min(length, 880)}", profile="encoded")
            assert (reply.status, reply.json["code"]) == (403, "route-not-granted")
            counts += 1
    assert house.call(run, "GET", f"/o/{'%E2%82%AC' * 300}", profile="encoded").status == 200
    assert upstream.requests[0].line == b"GET /o/" + b"%E2%82%AC" * 300 + b" HTTP/1.1"
    assert house.trace(run)["trace"]["denied"] == counts


def test_an_audit_log_whose_last_line_is_torn_is_healed_openly_and_verifies(tmp_path, upstream):
    """I6: a full disk or a power loss cuts the last line in two."""
    upstream.forget()
    with serving(tmp_path, {"api": {"base_url": upstream.origin, "allow": ["GET /v1/items"]}}) as house:
        assert house.call(house.open_run(), "GET", "/v1/items").status == 200
        house.stop("minter")
        log = house.root / "state/audit.jsonl"
        whole = log.read_bytes()
        with log.open("ab") as file:
            file.write(whole.splitlines()[-1][:50])
        house.start("minter")
        assert house.call(house.open_run(), "GET", "/v1/items").status == 200
        house.run("minter", "audit", "verify")
        assert log.read_bytes().startswith(whole)
        assert len([line for line in house.audit() if line["code"] == "audit.healed"]) == 1


def test_when_the_disk_of_the_audit_log_is_full_nothing_is_lent(tmp_path, upstream):
    """I6: fail closed. The limit on the size of files stands for the disk, and only the log has grown to it."""
    upstream.forget()
    with serving(tmp_path, {"api": {"base_url": upstream.origin, "allow": ["GET /v1/items"]}}) as house:
        lent = house.open_run()
        assert house.call(lent, "GET", "/v1/items").status == 200
        log, state = (house.root / "state" / name for name in ("audit.jsonl", "minter.db"))
        grant = load_grants(house.root / "grants.json").profiles["api"]
        request = {"run_id": "run_" + "7" * 22, "caller": "support-agent", "profile": "api", "params": {}}
        request |= {"ttl_s": 600.0, "origin": grant.base_url, "grant_digest": grant.digest}
        token = (house.root / "run/broker.credential").read_text().strip()
        while log.stat().st_size < 2 * state.stat().st_size:
            assert unix(house.root / "run/minter.sock", "POST", "/v1/leases", token=token, body=request).status == 200
        minter = house.processes["minter"].pid
        before = resource.prlimit(minter, resource.RLIMIT_FSIZE)
        resource.prlimit(minter, resource.RLIMIT_FSIZE, (log.stat().st_size + 100, before[1]))
        reply = house.call(house.open_run(), "GET", "/v1/items")
        assert (reply.status, reply.json["code"]) == (503, "mint-failed")
        assert reply.json["minter_code"] == "audit-unavailable"
        assert unix(house.root / "run/minter.sock", "POST", "/v1/leases", token=token, body=request).status == 503
        assert len(upstream.requests) == 1
        resource.prlimit(minter, resource.RLIMIT_FSIZE, before)
        run = house.open_run()
        house.until(lambda: house.call(run, "GET", "/v1/items").status == 200, "it goes on when there is room")
        house.run("minter", "audit", "verify")


def test_a_proxy_in_the_brokers_environment_is_no_hop(house, upstream, decoy):
    """I7: HTTP_PROXY and its kin are set in this broker's environment, to a server that must not be called."""
    assert house.environ["HTTP_PROXY"] == decoy.origin
    assert house.call(house.open_run("items"), "GET", "/v1/items", profile="items").status == 200
    assert len(upstream.requests) == 1
    assert decoy.connections == 0


def test_a_full_disk_for_state_and_log_is_told_to_each_call_and_heals(tmp_path, upstream):
    """What is reserved of the budget is spent; nothing waits for ever, and nothing is made beyond it."""
    upstream.forget()
    with serving(tmp_path, {"api": {"base_url": upstream.origin, "allow": ["GET /v1/items"]}}) as house:
        run = house.open_run()
        assert house.call(run, "GET", "/v1/items").status == 200
        process = house.processes["broker"].pid
        most = resource.RLIM_INFINITY
        resource.prlimit(process, resource.RLIMIT_FSIZE, (1, most))
        replies = [house.call(run, "GET", "/v1/items") for _ in range(40)]
        made = [reply for reply in replies if reply.status == 200]
        assert len(made) == 31, "what was left of the first block"
        assert {reply.json["code"] for reply in replies[31:]} == {"state-unavailable"}
        assert len(upstream.requests) == 32
        resource.prlimit(process, resource.RLIMIT_FSIZE, (most, most))
        assert house.call(run, "GET", "/v1/items").status == 200
