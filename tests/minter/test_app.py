"""The brokers' API over a real socket: who is let in, what is answered, the stream of ended leases."""

from __future__ import annotations

import asyncio
import errno
import json

import msgspec
import pytest

from config.contract import EndedLease, LeaseReply
from config.tokens import BROKER, generate
from minter.watch import MAX_STREAMS
from tests.minter.lease_world import CANARY


async def test_a_broker_gets_a_lease_as_the_contract_says(served):
    status, body, headers = await served.lease(profile="static", ttl_s=600.0)
    reply = msgspec.convert(body, LeaseReply)
    assert (status, reply.credential, reply.kind, reply.expires_in_s) == (200, {"value": CANARY}, "static", 600.0)
    assert headers["Cache-Control"] == "no-store"
    assert "secret" not in headers.get("Server", "")


async def test_the_remaining_time_shrinks_while_the_lease_stays_the_same(served):
    run_id = served.world.run_id()
    _, first, _ = await served.lease(profile="jwt", run_id=run_id)
    served.world.clock.advance(100)
    _, again, _ = await served.lease(profile="jwt", run_id=run_id, ttl_s=500.0)
    assert (again["lease_id"], again["expires_in_s"]) == (first["lease_id"], 500.0)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer " + generate(BROKER).reveal()},
        {"Authorization": "Bearer mbk_" + "0" * 49},
        {"Authorization": "Basic " + generate(BROKER).reveal()},
        {"X-Broker": "b1"},
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/leases"),
        ("GET", "/v1/leases/watch"),
        ("DELETE", "/v1/leases/lse_0"),
        ("DELETE", "/v1/runs/run_0"),
        ("POST", "/v1/runs/run_0/record"),
    ],
)
async def test_without_a_brokers_token_every_call_is_401(served, method, path, headers):
    status, body, _ = await served.ask("brokers", method, path, headers=headers, json={})
    assert (status, body["code"], body["by"]) == (401, "broker-token-invalid", "minter")


async def test_every_route_but_the_probes_asks_who_it_is(served):
    probes = {"/livez", "/readyz"}
    routes = served.world.minter.broker_api._app.routes
    for route in routes:
        for method in route.methods - {"HEAD"}:
            path = route.path.replace("{lease_id}", "lse_0").replace("{run_id}", "run_0")
            status, _, _ = await served.ask("brokers", method, path)
            assert (status == 401) == (route.path not in probes), route.path


async def test_two_authorization_headers_are_none(served):
    from multidict import CIMultiDict

    headers = CIMultiDict()
    for broker in ("b1", "b2"):
        headers.add("Authorization", served.bearer(broker)["Authorization"])
    async with served.sessions["brokers"].get("/v1/leases/watch", headers=headers) as response:
        assert response.status == 401


async def test_a_token_from_another_user_than_its_brokers_is_refused(served):
    served.world.write_brokers(b1={"uid": 12345}, b2={})
    await served.world.minter.reloader.reload()
    assert (await served.lease(broker="b1"))[0] == 401
    assert (await served.lease(broker="b2"))[0] == 200


async def test_a_token_without_a_user_is_not_taken_on_a_unix_socket(served):
    served.world.write_brokers(b1={"uid": None}, b2={})
    await served.world.minter.reloader.reload()
    assert (await served.lease(broker="b1"))[0] == 401


async def test_a_token_past_its_overlap_is_refused(served):
    from config.clock import rfc3339

    file = json.loads((served.world.folder / "brokers.json").read_text())
    file["brokers"][0]["tokens"][0]["not_after"] = rfc3339(served.world.clock.now() + 10)
    (served.world.folder / "brokers.json").write_text(json.dumps(file))
    await served.world.minter.reloader.reload()
    assert (await served.lease())[0] == 200
    served.world.clock.advance(10)
    assert (await served.lease())[0] == 401


def codes(world):
    return [line["code"] for line in world.audit()]


async def test_a_brokers_file_that_was_replaced_is_gone_by_without_a_reload(served):
    world = served.world
    _, lent, _ = await served.lease(profile="jwt")
    old = served.bearer("b1")
    del world.tokens["b1"]
    world.write_brokers(b1={}, b2={"profiles": []})
    await world.minter.expiry.tick()
    assert (await served.ask("brokers", "POST", "/v1/leases", headers=old, json={}))[0] == 401
    assert (await served.lease(profile="jwt"))[0] == 200
    assert codes(world).count("brokers.read") == 1
    world.write_brokers(b2={})
    await world.minter.expiry.tick()
    assert lent["lease_id"] in [line["lease_id"] for line in world.audit() if line["code"] == "lease.revoked"]
    assert codes(world).count("brokers.read") == 2


async def test_a_reload_that_waits_for_a_keyring_holds_up_no_sweep(served):
    world = served.world
    await served.lease(profile="jwt")
    world.write_brokers(b2={})
    async with world.minter.reloader._alone:
        await asyncio.wait_for(world.minter.expiry.tick(), 5)
    assert codes(world).count("brokers.read") == 0
    await world.minter.expiry.tick()
    assert codes(world).count("brokers.read") == 1


async def test_a_brokers_file_that_does_not_load_leaves_the_brokers_as_they_were(served):
    (served.world.folder / "brokers.json").write_text("{")
    for _ in range(2):
        await served.world.minter.expiry.tick()
    assert (await served.lease())[0] == 200
    assert codes(served.world).count("brokers.refused") == 1


async def test_whoever_ends_a_brokers_leases_goes_by_the_brokers_file_first(served):
    world = served.world
    await served.lease(profile="jwt")
    old = served.bearer("b1")
    del world.tokens["b1"]
    world.write_brokers(b1={}, b2={})
    status, body, _ = await served.ask("admin", "DELETE", "/v1/leases?broker=b1")
    assert (status, len(body["leases"])) == (200, 1)
    assert (await served.ask("brokers", "POST", "/v1/leases", headers=old, json={}))[0] == 401


async def test_a_thousand_wrong_tokens_are_slowed_down_and_the_right_one_is_not(served):
    wrong = {"Authorization": "Bearer " + generate(BROKER).reveal()}
    statuses = [(await served.ask("brokers", "GET", "/v1/leases/watch", headers=wrong))[0] for _ in range(200)]
    assert set(statuses) == {401, 429}
    assert (await served.lease())[0] == 200
    await served.world.minter.recorder.drain()
    assert 0 < len(served.world.codes(prefix="access.")) <= 10


async def test_who_is_denied_stays_denied_when_the_log_cannot_be_written_and_that_is_written_later(served, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "no space")

    world = served.world
    with monkeypatch.context() as broken:
        broken.setattr(world.minter.audit._file, "_write", full)
        wrong = {"Authorization": "Bearer " + generate(BROKER).reveal()}
        assert (await served.ask("brokers", "POST", "/v1/leases", headers=wrong, json={}))[0] == 401
        status, body, _ = await served.lease(profile="none")
        assert (status, body["code"]) == (403, "profile-unknown")
        status, body, _ = await served.lease()
        assert (status, body["code"]) == (503, "audit-unavailable")
        await world.minter.recorder.drain()
    assert world.codes(prefix="access.") == []
    assert (await served.lease())[0] == 200
    assert world.codes(prefix="access.") == ["access.denied"]
    assert "lease.refused" in world.codes()


async def test_refusals_are_audited_but_cannot_fill_the_log(served):
    for _ in range(80):
        status, body, _ = await served.lease(profile="none")
        assert (status, body["code"]) == (403, "profile-unknown")
    await served.world.minter.recorder.drain()
    assert 0 < served.world.codes().count("lease.refused") <= 51
    refused = [event for event in served.world.audit() if event["code"] == "lease.refused"]
    assert {event["problem"] for event in refused} == {"profile-unknown"}


async def test_a_refusal_names_neither_what_was_sent_nor_what_is_kept(served):
    status, body, _ = await served.lease(profile="static", params={"customer": "Canary-Param"})
    assert (status, body["code"]) == (422, "params-invalid")
    assert "Canary-Param" not in json.dumps(body)
    await served.world.minter.recorder.drain()
    assert "Canary-Param" not in (served.world.folder / "state" / "audit.jsonl").read_text()


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        ({"data": b"{", "headers": {"Content-Type": "application/json"}}, 400, "body-malformed"),
        ({"data": b"{}", "headers": {"Content-Type": "application/json"}}, 400, "body-malformed"),
        ({"data": b"{}", "headers": {"Content-Type": "text/plain"}}, 415, "media-type-not-supported"),
        ({"data": b" " * 70_000, "headers": {"Content-Type": "application/json"}}, 413, "request-too-large"),
    ],
)
async def test_a_body_that_is_none_is_refused_by_http_rules(served, sent, status, code):
    found, body, _ = await served.ask("brokers", "POST", "/v1/leases", broker="b1", **sent)
    assert (found, body["code"]) == (status, code)


async def test_an_unknown_field_is_refused(served):
    request = msgspec.to_builtins(served.world.request())
    request["scope"] = "everything"
    status, body, _ = await served.ask("brokers", "POST", "/v1/leases", broker="b1", json=request)
    assert (status, body["code"]) == (400, "body-malformed")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/leases", 405),
        ("PUT", "/v1/leases/lse_0", 405),
        ("GET", "/v1/custody", 404),
        ("GET", "/v1/leases/watch/", 404),
        ("POST", "/v1/leases?x=1", 404),
        ("POST", "//v1/leases", 404),
        ("POST", "/v1/leases/", 404),
        ("GET", "/metrics", 404),
    ],
)
async def test_what_is_no_call_of_a_broker_does_not_exist(served, method, path, status):
    from yarl import URL

    url = URL("http://minter" + path, encoded=True)
    async with served.sessions["brokers"].request(method, url, headers=served.bearer()) as response:
        found = response.status
    assert found in (status, 405, 404)
    assert found != 200


async def test_an_unexpected_error_is_500_with_a_request_id_and_no_detail(served, monkeypatch):
    async def broken(*_):
        raise ValueError("canary-detail-0451")

    monkeypatch.setattr(type(served.world.minter.service), "lease", broken)
    status, body, _ = await served.lease()
    assert (status, body["code"]) == (500, "internal-error")
    assert "canary-detail" not in json.dumps(body)
    assert body["request_id"]


async def test_the_end_of_a_run_is_answered_with_each_lease(served):
    run_id = served.world.run_id()
    await served.lease(run_id=run_id)
    status, body, _ = await served.ask("brokers", "DELETE", f"/v1/runs/{run_id}", broker="b1")
    assert status == 200
    assert [(one["state"], one["how"]) for one in body["leases"]] == [("revoked", "key_still_valid")]
    assert (await served.ask("brokers", "DELETE", f"/v1/runs/{run_id}", broker="b1"))[1] == {"leases": []}


async def test_one_lease_can_be_ended_by_its_own_broker_only(served):
    _, lease, _ = await served.lease()
    path = f"/v1/leases/{lease['lease_id']}"
    assert (await served.ask("brokers", "DELETE", path, broker="b2"))[0] == 404
    assert (await served.ask("brokers", "DELETE", path, broker="b1"))[0] == 200
    assert (await served.ask("brokers", "DELETE", path, broker="b1"))[0] == 404


async def test_the_counts_of_a_run_reach_the_audit_log_as_the_brokers_word(served):
    record = {"caller": "agent", "ended": "expired", "calls": 3, "denied": 1, "shed": 0, "trace_id": "t-1"}
    record["by_route"] = [{"profile": "static", "route": "GET /v1/things", "calls": 3}]
    record["denied_by"] = [
        {"code": "route-reserved", "profile": "static", "route": "DELETE /v1/things/*", "calls": 2},
        {"code": "profile-not-granted", "profile": "", "calls": 1},
    ]
    record["grant_digests"] = {"static": "sha256:" + "a" * 64}
    run_id = served.world.run_id()
    status, _, _ = await served.ask("brokers", "POST", f"/v1/runs/{run_id}/record", broker="b1", json=record)
    assert status == 204
    event = served.world.audit()[-1]
    assert (event["code"], event["reported_by"], event["broker"], event["calls"]) == ("run.recorded", "broker", "b1", 3)
    assert event["by_route"] == ["static GET /v1/things 3"]
    assert event["denied_by"] == ["route-reserved static DELETE /v1/things/* 2", "profile-not-granted - - 1"]
    assert event["grant_digests"] == ["static sha256:" + "a" * 64]
    told = {name: event[name] for name in ("run_id", "caller", "ended", "denied", "shed", "trace_id")}
    assert told == {"run_id": run_id, "caller": "agent", "ended": "expired", "denied": 1, "shed": 0, "trace_id": "t-1"}


async def test_the_record_of_a_broker_of_an_earlier_version_is_taken(served):
    record = {"caller": "agent", "ended": "expired", "calls": 0, "denied": 1, "shed": 0}
    path = f"/v1/runs/{served.world.run_id()}/record"
    assert (await served.ask("brokers", "POST", path, broker="b1", json=record))[0] == 204
    assert served.world.audit()[-1]["denied_by"] == []


@pytest.mark.parametrize(
    "change",
    [
        {"calls": -1},
        {"ended": "x" * 5000},
        {"caller": "a\nb"},
        {"calls": 2**70},
        {"denied_by": [{"code": "Not A Code", "profile": "static", "calls": 1}]},
        {"denied_by": [{"code": "route-reserved", "profile": "static", "route": "GET /a\n", "calls": 1}]},
        {"denied_by": [{"code": "route-reserved", "profile": "static", "calls": -1}]},
        {"denied_by": [{"code": "route-reserved", "profile": "static", "calls": 1, "path": "/v1/things/42"}]},
        {"grant_digests": {"static": "the body of a call"}},
        {"grant_digests": {"static\n": "sha256:" + "a" * 64}},
    ],
)
async def test_counts_of_another_form_are_refused(served, change):
    record = {"caller": "agent", "ended": "expired", "calls": 3, "denied": 1, "shed": 0, **change}
    path = f"/v1/runs/{served.world.run_id()}/record"
    status, body, _ = await served.ask("brokers", "POST", path, broker="b1", json=record)
    assert (status, body["code"]) == (400, "body-malformed")


# --- the watch ---


class Watching:
    def __init__(self, response):
        self.response = response

    async def line(self):
        async with asyncio.timeout(10):
            return msgspec.json.decode(await self.response.content.readline(), type=EndedLease)

    async def ended(self):
        while True:
            line = await self.line()
            if line.lease_id:
                return line


@pytest.fixture
async def watching(served):
    async with served.sessions["brokers"].get("/v1/leases/watch", headers=served.bearer("b1")) as response:
        assert response.headers["Content-Type"] == "application/x-ndjson"
        watching = Watching(response)
        assert await watching.line() == EndedLease()
        yield watching


async def test_the_stream_beats_at_once_and_goes_on_beating(watching):
    assert await watching.line() == EndedLease()


@pytest.mark.parametrize("how", ["operator", "run-ended", "expired", "superseded"])
async def test_the_end_of_a_lease_is_on_the_stream_of_its_broker(served, watching, how):
    world = served.world
    live = await world.lease(profile="jwt", ttl_s=60.0)
    row = live.row
    if how == "operator":
        await world.minter.service.end(lambda _live: True, how, uid=0)
    elif how == "run-ended":
        await world.minter.service.end_run("b1", row.run_id)
    elif how == "expired":
        world.clock.advance(60)
        await world.minter.expiry.tick()
    else:
        world.write_grants(jwt={"allow": ["GET /v1/things"]})
        await world.minter.reloader.reload()
        await world.lease(profile="jwt", run_id=row.run_id, ttl_s=60.0)
    assert await watching.ended() == EndedLease(lease_id=row.id, run_id=row.run_id, profile="jwt", reason=how)


async def test_another_brokers_leases_are_not_on_the_stream(served, watching):
    other, own = await served.world.lease(broker="b2"), await served.world.lease(broker="b1")
    await served.world.minter.service.end(lambda live: live.id == other.row.id, "operator")
    await served.world.minter.service.end(lambda live: live.id == own.row.id, "operator")
    assert (await watching.ended()).lease_id == own.row.id


async def test_a_lease_is_on_the_stream_before_its_issuer_has_answered(served, watching):
    world = served.world
    hanging = asyncio.Event()

    async def hang(lease, credential):
        await hanging.wait()

    live = await world.lease(profile="remote")
    world.remote.revoke = hang
    ending = asyncio.create_task(world.minter.service.end_run("b1", live.row.run_id))
    assert (await watching.ended()).lease_id == live.row.id
    hanging.set()
    await ending


@pytest.mark.parametrize("change", ["removed", "narrowed", "token"])
async def test_the_stream_of_a_broker_that_lost_something_tells_what_ended_and_ends_at_a_reload(
    served, watching, change
):
    world = served.world
    live = await world.lease(profile="jwt")
    if change == "token":
        del world.tokens["b1"]
    changed = {"removed": {}, "narrowed": {"b1": {"profiles": ["static"]}}, "token": {"b1": {}}}[change]
    world.write_brokers(**changed, b2={})
    assert await world.minter.reloader.reload() == ()
    if change != "token":
        assert (await watching.ended()).lease_id == live.row.id
    async with asyncio.timeout(5):
        while await watching.response.content.readline():
            pass


async def test_a_reload_that_takes_nothing_from_a_broker_leaves_its_stream(served, watching):
    world = served.world
    world.write_brokers(b1={}, b3={})
    assert await world.minter.reloader.reload() == ()
    live = await world.lease(profile="jwt")
    await world.minter.service.end(lambda _live: True, "operator", uid=0)
    assert (await watching.ended()).lease_id == live.row.id


async def test_the_stream_ends_when_the_service_stops(served, watching):
    served.world.minter.hub.close()
    async with asyncio.timeout(5):
        while await watching.response.content.readline():
            pass


async def test_of_too_many_streams_of_one_broker_the_oldest_ends_and_others_keep_theirs(world):
    hub = world.minter.hub
    others = hub.lines("b2")
    await anext(others)
    streams = [hub.lines("b1") for _ in range(MAX_STREAMS + 2)]
    for stream in streams:
        await anext(stream)
    for stream in streams[:2]:
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    first, second = await world.lease(), await world.lease(broker="b2")
    hub.publish([first.row, second.row], "operator")
    told = [json.loads(await anext(stream))["lease_id"] for stream in streams[2:]]
    assert told == [first.row.id] * MAX_STREAMS
    assert json.loads(await anext(others))["lease_id"] == second.row.id
    for stream in (*streams, others):
        await stream.aclose()
    assert not hub._watchers


async def test_a_reader_that_never_reads_is_cut_off_and_costs_no_memory(world, monkeypatch):
    monkeypatch.setattr("minter.watch.MAX_BEHIND", 10)
    hub = world.minter.hub
    silent = hub.lines("b1")
    await anext(silent)
    (watcher,) = hub._watchers["b1"]
    row = (await world.lease()).row
    hub.publish([row] * 11, "operator")
    assert (watcher.cut, len(watcher.ended)) == (True, 0)
    assert not hub._watchers
    with pytest.raises(StopAsyncIteration):
        await anext(silent)
