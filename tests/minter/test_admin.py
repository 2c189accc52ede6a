"""The operators' and auditors' API over a real socket: who may do what, and what is told."""

from __future__ import annotations

import json
import os

import pytest

from minter.audit import AuditUnavailable
from minter.audit_checkpoint import parse
from minter.kinds import RevocationError
from tests.minter.lease_world import CANARY, Served, World


async def ask(served, method, path, **given):
    status, body, _ = await served.ask("admin", method, path, **given)
    return status, body


def places(world):
    for route in world.minter.admin_app.routes:
        for method in sorted(route.methods - {"HEAD"}):
            yield method, route.path.replace("{lease_id}", "lse_0").replace("{alias}", "api-key")


async def test_whoever_is_neither_operator_nor_auditor_gets_nothing_but_the_liveness_probe(tmp_path, clock):
    world = await World(tmp_path / "minter", clock, operator_uids=[os.geteuid() + 1]).start()
    async with Served(world) as served:
        for method, path in places(world):
            status, body = await ask(served, method, path, json={})
            assert (status == 403) == (path != "/livez"), path
            if status == 403:
                assert body["code"] in ("operator-required", "auditor-required")
        await world.minter.recorder.drain()
        denied = [event for event in world.audit() if event["code"] == "access.denied"]
        assert denied[0]["uid"] == os.geteuid()
        assert {event["problem"] for event in denied} <= {"operator-required", "auditor-required"}
    await world.stop()


async def test_an_auditor_reads_and_changes_nothing(tmp_path, clock):
    own = os.geteuid()
    world = await World(tmp_path / "minter", clock, operator_uids=[own + 1], auditor_uids=[own]).start()
    live = await world.lease()
    async with Served(world) as served:
        for method, path in places(world):
            status, _ = await ask(served, method, path, json={})
            # A checkpoint changes nothing that a reviewer reads: it is how one keeps a copy elsewhere.
            may = method == "GET" or path == "/v1/audit/checkpoint"
            assert (status != 403) == may, (method, path)
    assert [one.row.id for one in world.minter.book] == [live.row.id]
    await world.stop()


async def test_a_brokers_token_is_worth_nothing_on_the_operators_socket_and_the_other_way_round(tmp_path, clock):
    world = await World(tmp_path / "minter", clock, operator_uids=[os.geteuid() + 1]).start()
    async with Served(world) as served:
        assert (await ask(served, "GET", "/v1/leases", broker="b1"))[0] == 403
        assert (await ask(served, "POST", "/v1/leases", broker="b1", json={}))[0] in (403, 405)
    await world.stop()


async def test_leases_are_listed_with_metadata_only(served):
    world = served.world
    live = await world.lease(profile="static", trace_id="t-1")
    over = await world.lease(profile="jwt")
    await world.minter.service.end_run("b1", over.row.run_id)
    status, body = await ask(served, "GET", "/v1/leases")
    assert status == 200
    assert [one["lease_id"] for one in body["leases"]] == [live.row.id, over.row.id]
    assert (body["leases"][0]["caller"], body["leases"][0]["trace_id"]) == ("agent", "t-1")
    assert (body["leases"][1]["state"], body["leases"][1]["how"]) == ("revoked", "expired_only")
    text = json.dumps(body)
    assert CANARY not in text
    assert "acme" not in text
    assert over.credential["value"].reveal() not in text


@pytest.mark.parametrize(
    ("query", "profiles"),
    [
        ({"profile": "jwt"}, {"jwt"}),
        ({"kind": "static"}, {"static"}),
        ({"key": "signer"}, {"jwt"}),
        ({"key": "sign"}, set()),
        ({"caller": "agent"}, {"static", "jwt", "remote"}),
        ({"broker": "b2"}, set()),
        ({"state": "active", "profile": "jwt"}, {"jwt"}),
        ({"state": "revoked"}, set()),
        ({"since": "2020-01-01T00:00:00Z"}, {"static", "jwt", "remote"}),
        ({"since": "2040-01-01T00:00:00Z"}, set()),
    ],
)
async def test_leases_can_be_looked_for(served, query, profiles):
    for profile in ("static", "jwt", "remote"):
        await served.world.lease(profile=profile)
    _, body = await ask(served, "GET", "/v1/leases", params=query)
    assert {one["profile"] for one in body["leases"]} == profiles


async def test_leases_are_ended_by_filter_and_no_filter_at_all_is_refused(served):
    world = served.world
    for profile in ("static", "static", "jwt", "remote"):
        await world.lease(profile=profile)
    assert (await ask(served, "DELETE", "/v1/leases"))[1]["code"] == "filter-required"
    assert (await ask(served, "DELETE", "/v1/leases?all=true&kind=jwt"))[1]["code"] == "filter-required"
    assert (await ask(served, "DELETE", "/v1/leases?all=yes"))[1]["code"] == "filter-required"
    assert len(world.minter.book) == 4
    _, body = await ask(served, "DELETE", "/v1/leases?key=api-key&caller=agent")
    assert [(one["profile"], one["how"]) for one in body["leases"]] == [("static", "key_still_valid")] * 2
    world.remote.refuse = [RevocationError()]
    _, body = await ask(served, "DELETE", "/v1/leases?all=true")
    assert (len(body["leases"]), body["pending"]) == (2, 1)
    assert len(world.minter.book) == 0
    mass = [event for event in world.audit() if event["code"] == "leases.mass-revoked"]
    assert [(event["count"], event["uid"], event["reason"]) for event in mass] == [
        (2, os.geteuid(), "caller,key"),
        (2, os.geteuid(), "all"),
    ]


@pytest.mark.parametrize(
    "query", ["profil=jwt", "kind=jwt&kind=static", "since=yesterday", "since=2026-01-01T00:00:00", "state=nice"]
)
async def test_a_misspelt_or_doubled_filter_ends_nothing(served, query):
    await served.world.lease(profile="jwt")
    for method in ("GET", "DELETE"):
        status, body = await ask(served, method, f"/v1/leases?{query}")
        assert (status, body["code"]) == (400, "parameter-unknown")
    assert len(served.world.minter.book) == 1


async def test_one_lease_is_ended_by_its_id_in_any_state_of_its_broker(served):
    live = await served.world.lease(broker="b2")
    status, body = await ask(served, "DELETE", f"/v1/leases/{live.row.id}")
    assert (status, body["leases"][0]["state"]) == (200, "revoked")
    assert (await ask(served, "DELETE", f"/v1/leases/{live.row.id}"))[1]["code"] == "lease-not-found"
    event = [event for event in served.world.audit() if event["code"] == "lease.revoked"][-1]
    assert (event["reason"], event["uid"]) == ("operator", os.geteuid())


async def test_the_audit_log_is_read_in_pages(served):
    for _ in range(3):
        await served.world.lease(profile="jwt")
    _, body = await ask(served, "GET", "/v1/audit?after=1&limit=2")
    assert [event["seq"] for event in body["events"]] == [2, 3]
    _, body = await ask(served, "GET", "/v1/audit?limit=0")
    assert len(body["events"]) == 1
    for query in ("after=x", "limit=-1", "after=1e3", "from=2"):
        assert (await ask(served, "GET", f"/v1/audit?{query}"))[0] == 400


async def test_a_checkpoint_is_signed_for_whoever_may_read_but_not_without_end(served):
    await served.world.lease(profile="static")
    status, body = await ask(served, "POST", "/v1/audit/checkpoint", json={})
    assert status == 200
    assert parse(body["checkpoint"].encode()).seq == body["seq"] <= served.world.minter.audit.head()[0]
    statuses = [(await ask(served, "POST", "/v1/audit/checkpoint", json={}))[0] for _ in range(12)]
    assert (statuses.count(200), statuses[-1]) == (9, 429)
    served.world.clock.advance(60)
    assert (await ask(served, "POST", "/v1/audit/checkpoint", json={}))[0] == 200


async def test_a_minter_without_a_signer_says_so_and_mints(served):
    await served.world.lease(profile="static")
    served.world.minter.checkpoints._key = None
    served.world.minter.checkpoints._signer = lambda: None
    status, body = await ask(served, "POST", "/v1/audit/checkpoint", json={})
    assert (status, body["code"]) == (503, "checkpoint-unavailable")
    await served.world.lease(profile="static", broker="b2")


async def test_the_log_goes_on_in_a_new_file_and_is_read_across(served):
    await served.world.lease(profile="static")
    assert (await ask(served, "POST", "/v1/audit/rotate", json={}))[0] == 200
    _, body = await ask(served, "GET", "/v1/audit")
    assert [event["seq"] for event in body["events"]] == list(range(1, len(body["events"]) + 1))
    assert [event["code"] for event in body["events"]][-2:] == ["audit.continued", "audit.rotation-asked"]
    assert body["events"][-1]["uid"] == os.geteuid()
    _, last = await ask(served, "GET", "/v1/audit?last=2")
    assert last["events"] == body["events"][-2:]
    for query in ("code=lease.stolen", "uid=x", "since=yesterday", "until=2030-01-01", "last=-1", "code=a&code=b"):
        assert (await ask(served, "GET", f"/v1/audit?{query}"))[0] == 400


async def test_custody_is_reported_without_a_value(served):
    await served.world.lease(profile="static")
    status, body = await ask(served, "GET", "/v1/custody")
    assert status == 200
    aliases = [key["alias"] for key in body["keys"]]
    assert aliases == ["api-key", "audit-signer", "other-key", "sealing-key", "signer"]
    assert CANARY not in json.dumps(body)


async def test_a_key_is_pinned_anew_and_what_it_lent_elsewhere_ends(served):
    live = await served.world.lease(profile="static")
    kept = await served.world.lease(profile="jwt")
    status, body = await ask(served, "POST", "/v1/keys/api-key/rebind", json={"origins": ["https://other.example.com"]})
    assert status == 200
    assert [one["lease_id"] for one in body["leases"]] == [live.row.id]
    assert [one.row.id for one in served.world.minter.book] == [kept.row.id]
    assert (await ask(served, "POST", "/v1/keys/nobody/rebind", json={"origins": []}))[1]["code"] == "key-not-found"


async def test_what_a_rebound_key_lent_elsewhere_ends_though_the_log_cannot_be_told(served, monkeypatch):
    live = await served.world.lease(profile="static")

    def fails(_events, *, now):
        raise AuditUnavailable(f"the audit log cannot be written at {now}")

    with monkeypatch.context() as broken:
        broken.setattr(served.world.minter.audit, "append", fails)
        other = {"origins": ["https://other.example.com"]}
        _, body = await ask(served, "POST", "/v1/keys/api-key/rebind", json=other)
    assert body["code"] == "audit-unavailable"
    assert live.row.id not in served.world.minter.book


async def test_a_static_key_is_rotated_and_new_leases_have_the_new_value(served):
    world = served.world
    old = await world.lease(profile="static")
    value = "canary-rotated-9d4e1e23bd5b7270"
    status, body = await ask(served, "POST", "/v1/keys/api-key/rotate", json={"step": "start", "value": value})
    assert (status, value in json.dumps(body)) == (200, False)
    assert (await world.lease(profile="static")).credential["value"].reveal() == value
    status, _ = await ask(served, "POST", "/v1/keys/api-key/rotate", json={"step": "finish"})
    assert status == 200
    assert (await world.row(old.row.id)).end_reason == "key-retired"


async def test_a_reload_that_does_not_load_names_every_fault(served):
    (served.world.folder / "grants.json").write_text('{"profiles": {"a": {"base_url": 1}, "b": []}}')
    status, body = await ask(served, "POST", "/v1/reload", json={})
    assert (status, body["code"]) == (422, "reload-refused")
    assert len(body["faults"]) >= 2
    served.world.write_grants()
    assert (await ask(served, "POST", "/v1/reload", json={}))[0] == 200


async def test_the_kinds_are_described_with_an_example(served):
    _, body = await ask(served, "GET", "/v1/kinds")
    assert {kind["name"] for kind in body["kinds"]} >= {"static", "jwt", "exec"}
    assert all(kind["doc"] and kind["example"] for kind in body["kinds"])


async def test_readiness_in_parts_names_what_is_not_met(served):
    parts = dict.fromkeys(("state", "audit", "quarantine", "expiry", "audit-checkpoints", "audit-places"), True)
    assert await ask(served, "GET", "/readyz?verbose") == (200, parts)
    assert await ask(served, "GET", "/readyz") == (200, {"ready": True})
    served.world.minter.expiry.scheduler.pause()
    served.world.clock.advance(60)
    status, body = await ask(served, "GET", "/readyz?verbose")
    assert (status, body["code"]) == (503, "not-ready")
    assert "expiry" in body["detail"]
    assert (await served.ask("brokers", "GET", "/readyz"))[:2] == (503, {"ready": False})


async def test_whoever_has_no_right_to_call_is_counted(served):
    assert (await served.ask("brokers", "DELETE", "/v1/runs/run_1", headers={"Authorization": "Bearer x"}))[0] == 401
    _, text = await ask(served, "GET", "/metrics")
    assert "# TYPE minter_access_denied_total counter" in text
    assert 'minter_access_denied_total{code="broker-token-invalid"} 1.0' in text


async def test_what_is_refused_before_it_is_read_is_counted_too(served):
    status, _, _ = await served.ask("brokers", "GET", "/readyz", headers={"X-Forwarded-For": "10.0.0.1"})
    assert status == 403
    _, text = await ask(served, "GET", "/metrics")
    assert 'minter_requests_refused_total{code="forwarding-not-allowed"} 1.0' in text


async def test_metrics_count_leases_by_state_and_kind_and_carry_no_ids(served):
    world = served.world
    live = await world.lease(profile="jwt")
    over = await world.lease(profile="static")
    await world.minter.service.end_run("b1", over.row.run_id)
    status, text = await ask(served, "GET", "/metrics")
    assert status == 200
    assert 'minter_leases{kind="jwt",state="active"} 1.0' in text
    assert 'minter_mints_total{kind="jwt",result="minted"} 1.0' in text
    assert 'minter_leases_ended_total{kind="static",reason="run-ended",state="revoked"} 1.0' in text
    assert live.row.id not in text
    assert live.row.run_id not in text


async def test_no_call_takes_a_parameter_that_it_does_not_know(served):
    for method, path in places(served.world):
        for query in ("dry_run=true", "last=1&last=2"):
            _, answer = await ask(served, method, f"{path}?{query}", json={})
            assert path == "/livez" or answer["code"] == "parameter-unknown", (method, path)
