"""What the wildcards of a learning profile took is kept as little as can be, and where only the operator looks."""

from __future__ import annotations

import json
import stat

import pytest

from broker.learned import MAX_ROUTES, MAX_RUNS, MAX_VALUE, Learned
from config.settings import BrokerSettings
from tests.broker.asking import Desk
from tests.broker.house import profile
from tests.config import grants_of


def rule(text):
    return grants_of.profile(allow=[text]).allow[0]


def note(learned, text, target, run="run_1", name="p"):
    learned.note(run, name, rule(text), target.encode().split(b"/")[1:])


def test_the_one_value_of_a_wildcard_is_kept_until_there_is_a_second(tmp_path):
    learned = Learned()
    note(learned, "GET /a/*/b/*.json", "/a/1/b/x.json")
    note(learned, "GET /a/*/b/*.json", "/a/1/b/x.json")
    assert learned.of("run_1") == {"p": {"GET /a/*/b/*.json": ["1", "x.json"]}}
    note(learned, "GET /a/*/b/*.json", "/a/2/b/x.json")
    assert learned.of("run_1") == {"p": {"GET /a/*/b/*.json": [None, "x.json"]}}
    note(learned, "GET /a/*/b/*.json", "/a/1/b/x.json")
    assert learned.of("run_1") == {"p": {"GET /a/*/b/*.json": [None, "x.json"]}}, "many stays many"


def test_a_route_without_wildcards_teaches_nothing():
    learned = Learned()
    note(learned, "GET /a/b/", "/a/b/")
    assert learned.of("run_1") == {}


def test_runs_and_routes_are_bounded_and_the_oldest_run_goes_first():
    learned = Learned()
    for number in range(MAX_RUNS + 1):
        note(learned, "GET /*", "/x", run=f"run_{number}")
    assert learned.of("run_0") == {}
    assert list(learned) == [f"run_{number}" for number in range(1, MAX_RUNS + 1)]
    for number in range(MAX_ROUTES + 1):
        note(learned, f"GET /{number}/*", f"/{number}/x", run="run_1")
    assert len(learned.of("run_1")["p"]) == MAX_ROUTES


def test_a_value_that_is_too_long_for_a_name_is_not_kept():
    learned = Learned()
    note(learned, "GET /a/*", "/a/" + "x" * MAX_VALUE)
    note(learned, "GET /b/*", "/b/" + "x" * (MAX_VALUE + 1))
    assert learned.of("run_1") == {"p": {"GET /a/*": ["x" * MAX_VALUE], "GET /b/*": [None]}}


async def test_the_file_is_the_brokers_alone_and_comes_back_after_a_restart(tmp_path):
    path = tmp_path / "state" / "learned.json"
    path.parent.mkdir()
    learned = Learned(path)
    await learned.write()
    assert not path.exists(), "nothing was learnt: nothing is written"
    note(learned, "GET /a/*", "/a/1")
    await learned.write()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Learned(path)
    assert again.of("run_1") == {"p": {"GET /a/*": ["1"]}}
    again.forget(["run_1", "run_2"])
    await again.write()
    assert json.loads(path.read_bytes()) == {"runs": {}}


@pytest.mark.parametrize("held", [b"", b"{", b'{"runs": {"run_1": 7}}', b'{"other": {}}', b"\xff"])
def test_a_file_that_cannot_be_read_does_not_keep_the_broker_away(tmp_path, held):
    path = tmp_path / "learned.json"
    path.write_bytes(held)
    assert Learned(path).of("run_1") == {}


@pytest.mark.parametrize("kept", [[], ["1", "1"]])
def test_a_file_that_knows_other_wildcards_than_there_are_stops_no_call(tmp_path, kept):
    path = tmp_path / "learned.json"
    path.write_text(json.dumps({"runs": {"run_1": {"p": {"GET /a/*": kept}}}}))
    learned = Learned(path)
    note(learned, "GET /a/*", "/a/1")
    assert learned.of("run_1") == {"p": {"GET /a/*": [None]}}


def test_a_file_is_beside_the_state_unless_the_settings_name_one(tmp_path):
    settings = BrokerSettings(state="sqlite:own/broker.db").anchored(tmp_path)
    assert settings.learned_file() == tmp_path / "own/learned.json"
    settings = BrokerSettings(learned="kept/values.json").anchored(tmp_path)
    assert settings.learned_file() == tmp_path / "kept/values.json"


def test_a_folder_in_the_place_of_the_file_does_not_keep_the_broker_away(tmp_path):
    (tmp_path / "learned.json").mkdir()
    assert Learned(tmp_path / "learned.json").of("run_1") == {}


async def test_a_disk_that_is_full_is_tried_again(tmp_path, monkeypatch):
    from broker import learned as module

    def full(path, data):
        raise OSError(28, "No space left on device")

    learned = Learned(tmp_path / "learned.json")
    note(learned, "GET /a/*", "/a/1")
    with monkeypatch.context() as broken:
        broken.setattr(module, "write_atomic", full)
        await learned.write()
    await learned.write()
    assert Learned(tmp_path / "learned.json").of("run_1")


async def test_a_run_learns_only_where_both_grants_say_so(tmp_path):
    desk = Desk(tmp_path, {"memory": profile(learn=True), "quiet": profile()})
    await desk.start()
    run = await desk.open(profile=None, profiles=["memory", "quiet"])
    live = desk.house.registry.live(run_id=run.run_id)[0]
    for name in ("memory", "quiet"):
        live.profiles[name].match("GET", b"/v1/items/7")
    shown = await desk.operator("GET", f"/v1/admin/runs/{run.run_id}/learned")
    assert shown.json == {"learned": {"memory": {"GET /v1/items/*": ["7"]}}}
    desk.grants["memory"] = profile()
    await desk.reloader.reload()
    live.profiles["memory"].match("GET", b"/v1/items/8")
    # It could have been any value: the one that was kept is not the only one any more.
    assert desk.house.registry.learned.of(run.run_id) == {"memory": {"GET /v1/items/*": [None]}}
    assert (await desk.operator("GET", f"/v1/admin/runs/{run.run_id}/learned", uid=4712)).status == 403
    await desk.stop()


async def test_what_was_learnt_of_a_forgotten_run_is_forgotten(tmp_path):
    desk = Desk(tmp_path, {"memory": profile(learn=True)})
    await desk.start()
    run = await desk.open()
    registry = desk.house.registry
    live = registry.live(run_id=run.run_id)[0]
    live.profiles["memory"].match("GET", b"/v1/items/7")
    await registry.end(live, "caller")
    await desk.house.outbox.settle()
    registry._purged_at -= 10**6
    await registry.tick()
    assert run.run_id in list(registry.learned), "it is kept as long as its trace"
    desk.house.clock.advance(40 * 86400)
    await registry.tick()
    assert list(registry.learned) == []
    await desk.stop()
