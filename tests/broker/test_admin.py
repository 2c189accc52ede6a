from __future__ import annotations

import asyncio
import threading

import pytest

from tests.broker.asking import OPERATOR, Desk
from tests.broker.house import profile

CALLS = [
    ("GET", "/metrics"),
    ("GET", "/readyz"),
    ("GET", "/readyz?verbose"),
    ("GET", "/v1/admin/runs"),
    ("DELETE", "/v1/admin/runs?all=true"),
    ("GET", "/v1/admin/runs/run_1"),
    ("DELETE", "/v1/admin/runs/run_1"),
    ("GET", "/v1/admin/runs/run_1/learned"),
    ("POST", "/v1/admin/reload"),
]


@pytest.fixture
async def desk(tmp_path):
    made = await Desk(tmp_path, {"memory": profile(allowed_callers=["*"]), "other": profile()}).start()
    yield made
    await made.stop()


@pytest.mark.parametrize(("method", "target"), CALLS)
@pytest.mark.parametrize("uid", [0, OPERATOR + 1, None])
async def test_only_operators_may_do_anything_here(desk, method, target, uid):
    await desk.open()
    reply = await desk.operator(method, target, uid=uid)
    assert (reply.status, reply.code) == (403, "operator-required")
    assert len(desk.house.registry) == 1


async def test_no_call_of_this_api_is_missing_from_the_list_above(desk):
    listed = {(method, target.partition("?")[0].replace("run_1", "{run_id}")) for method, target in CALLS}
    assert listed == {(method, path) for path, calls in desk.admin._calls().items() for method in calls}


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ("profile=other", 2),
        ("caller=somebody", 2),
        ("caller=orchestrator&profile=memory", 2),
        ("profile=nothing", 3),
        ("all=true", 0),
    ],
)
async def test_the_kill_switch_ends_exactly_the_runs_that_fit(desk, query, left):
    somebody = desk.create("somebody")
    desk.callers.refresh()
    await desk.open()
    await desk.open(profile="other")
    await desk.ask("POST", "/v1/runs", {"profile": "memory"}, token=somebody)
    reply = await desk.operator("DELETE", f"/v1/admin/runs?{query}")
    assert len(reply.json["runs"]) == 3 - left
    assert len(desk.house.registry) == left
    assert all(run["end_reason"] == "operator" for run in reply.json["runs"])
    assert all(run["leases"][0]["how"] == "key_still_valid" for run in reply.json["runs"])


async def test_the_kill_switch_says_when_it_was_aimed_at_a_profile_that_is_not_there(desk):
    await desk.open(profile="other")
    del desk.grants["other"]
    await desk.reloader.reload()
    aim = "/v1/admin/runs?profile="
    assert (await desk.operator("DELETE", aim + "othre")).json == {"runs": [], "profile_granted": False}
    assert (await desk.operator("DELETE", aim + "memory")).json == {"runs": []}
    # Its runs live on when a profile is taken out of the grants, and can be ended by its name.
    reply = await desk.operator("DELETE", aim + "other")
    assert (len(reply.json["runs"]), reply.json.keys()) == (1, {"runs"})


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "filter-required"),
        ("?all=false", "filter-required"),
        ("?all=true&profile=memory", "filter-required"),
        ("?profil=memory", "parameter-unknown"),
        ("?profile=memory&profile=other", "parameter-unknown"),
    ],
)
async def test_a_kill_switch_without_a_clear_aim_does_nothing(desk, query, code):
    await desk.open()
    reply = await desk.operator("DELETE", f"/v1/admin/runs{query}")
    assert (reply.status, reply.code) == (400, code)
    assert len(desk.house.registry) == 1


async def test_one_run_is_shown_and_ended_whoevers_it_is(desk):
    run = await desk.open()
    target = f"/v1/admin/runs/{run.run_id}"
    assert (await desk.operator("GET", target)).json["caller"] == "orchestrator"
    assert [one["run_id"] for one in (await desk.operator("GET", "/v1/admin/runs")).json["runs"]] == [run.run_id]
    by_filter = await desk.operator("GET", f"/v1/admin/runs?run={run.run_id}")
    assert len(by_filter.json["runs"]) == 1
    ended = (await desk.operator("DELETE", target)).json
    assert (ended["run_id"], ended["end_reason"]) == (run.run_id, "operator")
    assert (await desk.operator("GET", target)).json["state"] == "ended"
    for method, missing in (("DELETE", target), ("GET", "/v1/admin/runs/run_0")):
        assert (await desk.operator(method, missing)).code == "run-not-found"


async def test_readiness_in_parts_is_for_operators(desk):
    assert (await desk.operator("GET", "/readyz")).json == {"ready": True}
    reply = await desk.operator("GET", "/readyz?verbose")
    assert reply.json == {"ready": True, "parts": {"serving": True, "state": True}, "minter_stream": False}
    desk.house.store.failing = True
    reply = await desk.operator("GET", "/readyz?verbose")
    assert (reply.status, reply.json["parts"]["state"]) == (503, False)


async def test_metrics_name_profiles_and_codes_and_no_ids(desk):
    run = await desk.open()
    await desk.ask("GET", "/v1/runs", token="clr_wrong")
    metrics = desk.house.metrics
    metrics.gauge("broker_runs_live", "Runs that live.", lambda: len(desk.house.registry))
    metrics.call("memory", 200, 0.02)
    metrics.call("memory", 200, 99.0)
    metrics.refused("", "run-token-invalid")
    metrics.request_refused("host-not-allowed")
    reply = await desk.operator("GET", "/metrics")
    text = reply.body.decode()
    assert reply.headers["content-type"].startswith("text/plain")
    for line in (
        'broker_calls_total{profile="memory",status="200"} 2.0',
        'broker_call_duration_seconds_bucket{le="0.01",profile="memory"} 0.0',
        'broker_call_duration_seconds_bucket{le="0.025",profile="memory"} 1.0',
        'broker_call_duration_seconds_bucket{le="60.0",profile="memory"} 1.0',
        'broker_call_duration_seconds_bucket{le="+Inf",profile="memory"} 2.0',
        'broker_call_duration_seconds_count{profile="memory"} 2.0',
        'broker_refusals_total{code="run-token-invalid",profile=""} 1.0',
        'broker_requests_refused_total{code="host-not-allowed"} 1.0',
        'broker_authentication_failures_total{code="caller-token-invalid"} 1.0',
        "broker_runs_opened_total 1.0",
        "broker_runs_live 1.0",
    ):
        assert line in text.splitlines(), line
    assert run.run_id not in text
    assert "process_resident_memory_bytes" in text


async def test_calls_go_on_while_a_reload_reads_and_compiles(desk):
    read_grants, answered = desk.read_grants, threading.Event()

    def slow():
        assert answered.wait(20), "the loop stood still"
        return read_grants()

    desk.reloader._read_grants = slow
    reloading = asyncio.create_task(desk.operator("POST", "/v1/admin/reload"))
    assert (await desk.operator("GET", "/readyz")).status == 200
    assert not reloading.done()
    answered.set()
    assert (await reloading).json == {"reloaded": True}


async def test_a_reload_changes_everything_or_nothing(desk):
    await desk.open()
    desk.create("late")
    desk.grants["memory"] = {"base_url": "https://api.example.com", "alow": []}
    reply = await desk.operator("POST", "/v1/admin/reload")
    assert (reply.status, reply.code) == (422, "reload-refused")
    assert any("alow" in fault for fault in reply.json["faults"])
    assert "late" not in desk.callers.ids
    assert len(desk.house.registry.current.grants.profiles) == 2
    (desk.root / "callers.json").write_text("{")
    reply = await desk.operator("POST", "/v1/admin/reload")
    assert any("alow" in fault for fault in reply.json["faults"])
    assert any("callers.json" in fault for fault in reply.json["faults"])
    desk.grants = {"memory": profile()}
    assert (await desk.operator("POST", "/v1/admin/reload")).status == 422
    assert len(desk.house.registry.current.grants.profiles) == 2
    (desk.root / "callers.json").write_text('{"callers": []}')
    assert (await desk.operator("POST", "/v1/admin/reload")).json == {"reloaded": True}
    assert list(desk.house.registry.current.grants.profiles) == ["memory"]
    assert desk.callers.ids == frozenset()
    text = desk.house.metrics.exposition().decode()
    assert 'broker_reloads_total{result="refused"} 3.0' in text
    assert 'broker_reloads_total{result="ok"} 1.0' in text
