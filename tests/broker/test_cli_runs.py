"""Operator commands against a broker that runs; the minter is away, which must not stand in their way."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.worlds.console import Console
from tests.worlds.service import Service

PROFILES = {
    name: {
        "base_url": "https://api.example.com",
        "allowed_callers": ["support-agent", "other"],
        "allow": ["GET /v1/items/*"],
    }
    for name in ("api", "second")
}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    service = Service(tmp_path_factory.mktemp("broker"))
    service.prepare(PROFILES)
    service.start("broker")
    try:
        yield service
    finally:
        service.end()


@pytest.fixture
def console(service):
    """A console of the directory, with no run left over."""
    console = Console(service.root, {"BROKER_ALLOW_ROOT": "1"})
    yield console
    for run in service.caller("GET", "/v1/runs?state=live").json["runs"]:
        service.caller("DELETE", f"/v1/runs/{run['run_id']}")


def test_live_runs_are_listed_without_their_tokens(service, console):
    run = service.open_run(trace_id="conv-1")
    done = console("broker", "runs", "list")
    assert done.status == 0
    ((run_id, caller, profiles, _, calls, denied, open_, trace_id),) = done.rows
    assert (run_id, caller, profiles, trace_id) == (run.run_id, "support-agent", "api", "conv-1")
    assert (calls, denied, open_) == ("0", "0", "0")
    assert run.token not in done.out
    assert [one["run_id"] for one in console("broker", "runs", "list", "--json").json["runs"]] == [run.run_id]
    assert console("broker", "runs", "list", "--profile", "second").rows == []


def test_a_run_is_shown_with_what_was_refused(service, console):
    run = service.open_run()
    assert service.call(run, "GET", "/v1/other").status == 403
    done = console("broker", "runs", "show", run.run_id)
    assert done.status == 0
    assert f"run_id: {run.run_id}\n" in done.out
    assert "denied: 1\n" in done.out
    assert "route-not-granted\t-\t1" in done.out
    assert "/v1/other" not in done.out
    assert console("broker", "runs", "show", run.run_id, "--json").json["trace"]["denied"] == 1


def test_one_run_is_ended_and_its_token_is_good_for_nothing(service, console):
    ended, kept = service.open_run(), service.open_run()
    done = console("broker", "runs", "end", ended.run_id)
    assert done.status == 0
    assert [row[0] for row in done.rows] == [ended.run_id]
    assert service.http("GET", "/v1/self", headers={"Authorization": f"Bearer {ended.token}"}).status == 401
    assert service.http("GET", "/v1/self", headers={"Authorization": f"Bearer {kept.token}"}).status == 200


def test_the_kill_switch_takes_a_profile_a_caller_or_all(service, console):
    token = service.new_caller("other")
    console("broker", "reload")
    first, second = service.open_run("api"), service.open_run("second")
    theirs = service.caller("POST", "/v1/runs", {"profile": "api"}, token=token).json["run_id"]
    assert {row[0] for row in console("broker", "runs", "end", "--caller", "other").rows} == {theirs}
    assert {row[0] for row in console("broker", "runs", "end", "--profile", "second").rows} == {second.run_id}
    done = console("broker", "runs", "end", "--all", "--json")
    assert [run["run_id"] for run in done.json["runs"]] == [first.run_id]
    console("broker", "callers", "revoke", "other", "--file", "callers.json")


def test_a_profile_that_is_not_there_is_said_when_no_run_was_ended(service, console):
    run = service.open_run()
    done = console("broker", "runs", "end", "--profile", "apo")
    assert done.status == 0
    assert "0 runs ended" in done.err
    assert "no profile apo in the grants" in done.err
    again = console("broker", "runs", "end", "--profile", "apo", "--json")
    assert again.json == {"runs": [], "profile_granted": False}
    assert "no profile apo in the grants" in again.err
    assert service.http("GET", "/v1/self", headers={"Authorization": f"Bearer {run.token}"}).status == 200
    # One that is there is no mistake, whether a run has it or not.
    assert "in the grants" not in console("broker", "runs", "end", "--profile", "second").err
    assert "in the grants" not in console("broker", "runs", "end", "--profile", "api").err


@pytest.mark.parametrize(
    "arguments", [(), ("RUN", "--all"), ("--profile", "api", "--all"), ("RUN", "--caller", "support-agent")]
)
def test_what_is_to_be_ended_must_be_said_in_one_way(service, console, arguments):
    run = service.open_run()
    done = console("broker", "runs", "end", *(run.run_id if one == "RUN" else one for one in arguments))
    assert (done.status, done.out) == (2, "")
    assert service.http("GET", "/v1/self", headers={"Authorization": f"Bearer {run.token}"}).status == 200


@pytest.mark.parametrize(
    "name", ["run_0000000000000000000000", "../runs?all=true", "?all=true", "../../../metrics", ""]
)
def test_a_run_that_is_not_there_is_a_usage_error_whatever_was_typed(service, console, name):
    run = service.open_run()
    for command in ("show", "end"):
        done = console("broker", "runs", command, name)
        assert done.status == 2, done
        assert done.out == ""
    assert service.http("GET", "/v1/self", headers={"Authorization": f"Bearer {run.token}"}).status == 200


def test_a_reload_that_does_not_load_ends_with_three_and_names_every_fault(service, console):
    (service.root / "grants.json").write_text('{"profiles": {"x": {}}}')
    done = console("broker", "reload")
    assert (done.status, done.out) == (3, "")
    assert "profiles.x.base_url: missing" in done.err
    assert "profiles.x.allowed_callers: missing" in done.err
    assert service.open_run().run_id
    service.grant(PROFILES)


def test_a_reload_that_loads_is_in_force_when_it_returns(service, console):
    service.grant({**PROFILES, "new": PROFILES["api"]})
    assert console("broker", "reload").status == 0
    assert service.open_run("new").run_id


def test_doctor_sees_the_running_broker(service, console):
    done = console("broker", "doctor", "--json")
    parts = {one["where"]: one["level"] for one in done.json["findings"] if one["check"] == "service"}
    assert parts["state"] == "ok"
    assert parts["stream of ended leases"] == "warning"


def test_on_a_terminal_the_table_is_drawn_and_no_color_is_obeyed(service, console):
    run = service.open_run()
    status, shown = console.on_a_terminal("broker", "runs", "list")
    assert status == 0
    assert run.run_id in shown
    assert "\x1b[1m" in shown
    console.environ["NO_COLOR"] = "1"
    _, shown = console.on_a_terminal("broker", "runs", "list")
    assert run.run_id in shown
    assert "\x1b[3" not in shown


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to start as root, because it switches to a second user")
def test_another_user_may_not_end_runs(service, console, tmp_path_factory):
    run = service.open_run()
    code = (
        "import os, sys\n"
        "from broker.admin_client import AdminClient\n"
        "from config.settings import BrokerSettings\n"
        "from config.console.commands import CommandError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"settings = BrokerSettings(admin_listen=['unix:{service.root}/run/broker-admin.sock'])\n"
        "try: AdminClient(settings).delete('/v1/admin/runs', all='true')\n"
        "except CommandError as error: sys.exit(error.status)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == 5
    assert service.http("GET", "/v1/self", headers={"Authorization": f"Bearer {run.token}"}).status == 200


def test_without_a_broker_the_answer_is_to_try_again(tmp_path):
    console = Console(tmp_path)
    (tmp_path / "broker.toml").write_text("")
    for command in (("runs", "list"), ("runs", "end", "--all"), ("reload",)):
        done = console("broker", *command)
        assert (done.status, done.out) == (75, "")
        assert "broker serve" in done.err
