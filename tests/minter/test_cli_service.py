"""Operator commands against both programs as they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from config.settings import MinterSettings
from minter.admin_client import AdminClient
from tests.worlds.api import Api
from tests.worlds.console import Console
from tests.worlds.service import CANARY, Service


@pytest.fixture(scope="module")
def api():
    with Api() as api:
        api.on("GET", "/v1/items")
        yield api


def profiles(api):
    shared = {"base_url": api.origin, "allowed_callers": ["support-agent"], "allow": ["GET /v1/items"]}
    return {
        "api": {**shared, "token": {"type": "static", "key": "api"}},
        "signed": {**shared, "token": {"type": "jwt", "key": "signer", "audience": api.origin}},
    }


@pytest.fixture(scope="module")
def service(tmp_path_factory, api):
    service = Service(tmp_path_factory.mktemp("minter"))
    service.prepare(profiles(api))
    service.start()
    try:
        yield service
        service.assert_canary_absent()
    finally:
        service.end()


@pytest.fixture
def console(service, api):
    console = Console(service.root, {"MINTER_ALLOW_ROOT": "1", "BROKER_ALLOW_ROOT": "1"})
    api.received.clear()
    yield console
    end_runs(service)


def end_runs(service):
    for run in service.caller("GET", "/v1/runs?state=live").json["runs"]:
        service.caller("DELETE", f"/v1/runs/{run['run_id']}")


def call(service, run, profile="api"):
    return service.call(run, "GET", "/v1/items", profile=profile).status


def lent(service, profile="api"):
    """Open a run whose lease is live, and return it."""
    run = service.open_run(profile)
    assert call(service, run, profile) == 200
    return run


def live(service, **filters):
    """Ask the minter itself which leases are live; return their runs."""
    listed = admin(service).get("/v1/leases", state="active", **filters)["leases"]
    return [lease["run_id"] for lease in listed]


def admin(service):
    return AdminClient(MinterSettings(admin_listen=[f"unix:{service.root}/run/minter-admin.sock"]))


def rotation(service, alias):
    return admin(service).post(f"/v1/keys/{alias}/rotate", {"step": "status"})


def test_leases_are_listed_with_their_state_and_without_the_credential(service, console):
    run = lent(service)
    done = console("minter", "leases", "list")
    assert done.status == 0
    ((lease, broker, caller, run_id, profile, kind, state, _, lives_until, how),) = done.rows
    assert lease.startswith("lse_")
    assert (broker, caller, run_id, profile, kind, state, lives_until, how) == (
        *("broker-1", "support-agent", run.run_id, "api", "static", "active", "its key is rotated", "-"),
    )
    (shown,) = console("minter", "leases", "list", "--json").json["leases"]
    assert (shown["lease_id"], shown["key_alias"]) == (lease, "api")
    assert CANARY not in done.out + json.dumps(shown)


def test_filters_narrow_the_list_and_ended_leases_are_asked_for(service, console):
    run, signed = lent(service), lent(service, "signed")

    def runs(*filters):
        return [row[3] for row in console("minter", "leases", "list", *filters).rows]

    assert runs("--kind", "jwt", "--key", "signer", "--caller", "support-agent") == [signed.run_id]
    service.caller("DELETE", f"/v1/runs/{run.run_id}")
    assert runs() == [signed.run_id]
    assert run.run_id in runs("--all")
    assert signed.run_id not in runs("--state", "revoked")


def test_one_lease_is_revoked_by_its_id_and_how_is_said_honestly(service, console):
    run, other = lent(service), lent(service)
    lease = admin(service).get("/v1/leases", run=run.run_id)["leases"][0]["lease_id"]
    done = console("minter", "leases", "revoke", lease)
    assert done.status == 0
    assert done.rows == [[lease, "api", "static", "revoked", "key_still_valid"]]
    assert "stays valid upstream; to end it: minter rotate ALIAS" in done.err
    assert live(service) == [other.run_id]


def test_mass_revocation_goes_by_every_filter_and_says_what_it_did(service, console):
    run, signed = lent(service), lent(service, "signed")
    dry = console("minter", "leases", "revoke", "--since", "1h", "--dry-run")
    assert dry.status == 0
    assert {row[3] for row in dry.rows} == {run.run_id, signed.run_id}
    assert len(live(service)) == 2
    done = console("minter", "leases", "revoke", "--key", "signer", "--since", "1h", "--json")
    assert [lease["how"] for lease in done.json["leases"]] == ["expired_only"]
    assert live(service) == [run.run_id]
    assert console("minter", "leases", "revoke", "--all").status == 0
    assert live(service) == []


@pytest.mark.parametrize(
    "arguments",
    [(), ("LEASE", "--all"), ("--all", "--kind", "static"), ("LEASE", "--kind", "static"), ("--since", "yesterday")],
)
def test_what_is_to_be_revoked_must_be_said_in_one_way(service, console, arguments):
    run = lent(service)
    lease = admin(service).get("/v1/leases", run=run.run_id)["leases"][0]["lease_id"]
    done = console("minter", "leases", "revoke", *(lease if one == "LEASE" else one for one in arguments))
    assert (done.status, done.out) == (2, "")
    assert len(live(service)) == 1


def test_a_live_lease_is_not_forgotten_and_no_reason_is_a_usage_error(service, console):
    run = lent(service)
    lease = admin(service).get("/v1/leases", run=run.run_id)["leases"][0]["lease_id"]
    done = console("minter", "leases", "forget", lease, "--reason", "I am in a hurry")
    assert done.status == 6
    assert "live" in done.err
    assert console("minter", "leases", "forget", lease).status == 2
    assert console("minter", "leases", "forget", lease, "--reason", "").status == 2
    assert console("minter", "leases", "forget", "lse_0000000000000000000000", "--reason", "because").status == 2
    assert run.run_id in live(service)


@pytest.mark.parametrize("name", ["lse_0000000000000000000000", "../leases?all=true", "?all=true", ""])
def test_a_lease_that_is_not_there_is_no_other_one_whatever_was_typed(service, console, name):
    lent(service)
    assert console("minter", "leases", "revoke", name).status == 2
    assert len(live(service)) == 1


def test_keys_are_listed_and_shown_by_name_and_fingerprint(service, console):
    lent(service)
    done = console("minter", "keys", "list")
    assert [(row[0], row[1], row[3]) for row in done.rows] == [
        ("api", "static", "v1"),
        ("audit-signer", "checkpoints", "v1"),
        ("sealing-key", "sealing", "v1"),
        ("signer", "signing", "v1"),
        ("broker:broker-1", "token", "1 digest"),
    ]
    shown = console("minter", "keys", "show", "api")
    assert "alias: api\n" in shown.out
    assert "\n1\tactive\t" in shown.out
    assert console("minter", "keys", "show", "api", "--json").json["alias"] == "api"
    assert CANARY not in done.out + shown.out


@pytest.mark.parametrize("command", [("show", "nope"), ("rebind", "nope", "--origin", "https://a.example")])
def test_a_key_that_is_not_there_is_a_usage_error(console, command):
    done = console("minter", "keys", *command)
    assert (done.status, done.out) == (2, "")


def test_the_custody_report_says_where_every_key_is_and_who_used_it(service, console, api):
    lent(service)
    done = console("minter", "custody", "report")
    assert done.status == 0
    assert "may use it    api (static, 1 route): support-agent" in done.out
    assert "used it       support-agent via broker-1" in done.out
    assert f"may go to     {api.origin}" in done.out
    assert done.out.index("OPEN LEASES") < done.out.index("KEYS") < done.out.index("WHAT THIS DOES NOT PROVE")
    report = console("minter", "custody", "report", "--json").json
    assert next(key for key in report["keys"] if key["alias"] == "api")["live_leases"] == 1
    assert report["audit"]["seq"] > 1
    assert CANARY not in done.out + json.dumps(report)


def test_two_custody_reports_of_one_state_are_equal_and_the_short_form_is_the_same(service, console):
    at = ("--at", "2026-11-30T12:00:00+01:00", "--json")
    first, second = console("minter", "custody", "report", *at), console("minter", "custody", "report", *at)
    assert first.out == second.out
    assert first.json["generated_at"] == "2026-11-30T11:00:00.000Z"
    short = console("minter", "custody", "--json").json
    assert short | {"generated_at": ""} == console("minter", "custody", "report", "--json").json | {"generated_at": ""}
    assert console("minter", "custody").out.startswith("Custody report")


def test_the_custody_report_is_one_html_file_that_only_its_maker_can_read(service, console, tmp_path):
    path = tmp_path / "custody.html"
    done = console("minter", "custody", "report", "--html", "-o", str(path))
    assert (done.status, done.out) == (0, "")
    assert path.stat().st_mode & 0o777 == 0o600
    document = path.read_text("utf-8")
    assert document.startswith("<!DOCTYPE html>")
    assert document.rstrip().endswith("</html>")
    assert CANARY not in document
    assert console("minter", "custody", "report", "--html").out.startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    "options",
    [
        ("report", "--json", "--html"),
        ("report", "-o", "custody.html"),
        ("report", "--html", "-o", "/dev/null"),
        ("report", "--html", "-o", "no/such/folder/custody.html"),
        ("report", "--at", "yesterday"),
        ("report", "--at", "2026-11-30"),
        ("--json", "report"),
        ("reprot",),
    ],
)
def test_what_the_custody_report_cannot_do_is_a_usage_error(service, console, options):
    done = console("minter", "custody", *options)
    assert (done.status, done.out) == (2, "")


def test_a_key_goes_elsewhere_only_after_rebind(service, console, api):
    lent(service, "signed")
    done = console("minter", "keys", "rebind", "signer", "--origin", "https://elsewhere.example")
    assert done.status == 0
    assert "https://elsewhere.example and nowhere else" in done.err
    assert live(service, key="signer") == []
    run = service.open_run("signed")
    assert call(service, run, "signed") == 503
    admin(service).post("/v1/keys/signer/rebind", {"origins": [api.origin]})
    assert call(service, lent(service, "signed"), "signed") == 200


@pytest.mark.parametrize("origin", ["https://a.example/path", "ftp://a.example", "a.example", ""])
def test_what_is_no_origin_is_refused(service, console, origin):
    before = admin(service).get("/v1/custody")["keys"]
    done = console("minter", "keys", "rebind", "signer", "--origin", origin)
    assert (done.status, done.out) == (2, "")
    assert admin(service).get("/v1/custody")["keys"] == before


def test_a_static_key_is_rotated_from_standard_input_and_the_old_one_kept_until_it_is_finished(service, console, api):
    run = lent(service)
    assert api.received[-1].header("authorization") == f"Bearer {CANARY}"
    dry = console("minter", "rotate", "api", "--dry-run")
    assert dry.status == 0
    assert [row[0] for row in dry.rows] == ["prepare", "activate", "retire"]
    assert "nothing was done; 1 live lease of 1 run" in dry.err
    new = CANARY + "-second"
    done = console("minter", "rotate", "api", stdin=new + "\n")
    assert done.status == 0, done.err
    assert "minter rotate api --finish" in done.err
    assert new not in done.out + done.err
    lent(service)
    assert api.received[-1].header("authorization") == f"Bearer {new}"
    assert console("minter", "rotate", "api", stdin="a third").status == 6
    done = console("minter", "rotate", "api", "--finish")
    assert (done.status, done.out) == (0, "api: version 2 is in use, no rotation is running\n")
    assert run.run_id not in live(service)
    assert not (service.root / "secrets/api.key").exists()


def test_no_new_value_is_a_usage_error_and_changes_nothing(service, console):
    before = rotation(service, "api")
    for nothing in ("", "\n"):
        done = console("minter", "rotate", "api", stdin=nothing)
        assert (done.status, done.out) == (2, "")
    assert rotation(service, "api")["steps"][0]["done"] is before["steps"][0]["done"] is False


def test_on_a_terminal_the_new_value_is_asked_for_and_not_echoed(service, console):
    new = CANARY + "-typed"
    status, shown = console.on_a_terminal("minter", "rotate", "api", typed=new + "\n")
    assert status == 0, shown
    assert "New value of api:" in shown
    assert new not in shown
    admin(service).post("/v1/keys/api/rotate", {"step": "finish"})


def test_a_signing_key_is_published_first_and_the_rotation_can_be_given_up(service, console):
    done = console("minter", "rotate", "signer", "--json")
    assert done.status == 0
    assert (done.json["state"], done.json["next_step"]) == ("published", "activate")
    again = console("minter", "rotate", "signer")
    assert again.status == 6
    assert "--force does not wait" in again.err
    assert console("minter", "rotate", "signer", "--abort").status == 0
    assert rotation(service, "signer")["state"] == "idle"
    done = console("minter", "rotate", "signer", "--force")
    assert done.status == 0
    assert "is in use" in done.err
    admin(service).post("/v1/keys/signer/rotate", {"step": "finish", "force": True})


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("nope",), 2),
        (("api", "--finish", "--abort"), 2),
        (("api", "--overlap", "soon"), 2),
        (("api", "--finish"), 6),
        (("api", "--abort"), 6),
        (("../leases",), 2),
    ],
)
def test_a_rotation_that_cannot_be_is_refused(service, console, arguments, status):
    done = console("minter", "rotate", *arguments, stdin="x")
    assert (done.status, done.out) == (status, ""), done.err


def test_the_audit_log_is_read_from_the_end_and_from_anywhere(service, console):
    lent(service)
    exported = [json.loads(line) for line in console("minter", "audit", "export").out.splitlines()]
    assert [event["seq"] for event in exported] == list(range(1, len(exported) + 1))
    rest = console("minter", "audit", "export", "--after", str(len(exported) - 2)).out.splitlines()
    assert len(rest) == 2
    for number in (1, 10_000):
        tail = console("minter", "audit", "tail", "-n", str(number), "--json").out.splitlines()
        assert [json.loads(line)["seq"] for line in tail] == [event["seq"] for event in exported][-number:]
    assert console("minter", "audit", "verify").status == 0


def test_a_reload_that_does_not_load_ends_with_three_and_names_every_fault(service, console, api):
    (service.root / "grants.json").write_text('{"profiles": {"x": {}}}')
    done = console("minter", "reload")
    assert (done.status, done.out) == (3, "")
    assert "profiles.x.base_url: missing" in done.err
    lent(service)
    service.grant(profiles(api))
    assert console("minter", "reload").status == 0


def test_doctor_sees_the_running_minter_and_reads_the_versions_in_use(service, console):
    done = console("minter", "doctor", "--json")
    assert done.status == 0, [one for one in done.json["findings"] if one["level"] == "fault"]
    checks = {(one["check"], one["where"]): one["level"] for one in done.json["findings"]}
    assert checks["service", "audit"] == "ok"
    assert all(level == "ok" for (check, _), level in checks.items() if check == "keys")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to start as root, because it switches to a second user")
def test_another_user_may_neither_read_nor_revoke(service, console):
    lent(service)
    code = (
        "import os, sys\n"
        "from minter.admin_client import AdminClient\n"
        "from config.settings import MinterSettings\n"
        "from config.console.commands import CommandError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"client = AdminClient(MinterSettings(admin_listen=['unix:{service.root}/run/minter-admin.sock']))\n"
        "try: client.delete('/v1/leases', all='true')\n"
        "except CommandError as error: sys.exit(error.status)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 5
    assert len(live(service)) == 1


def test_without_a_minter_the_answer_is_to_try_again(tmp_path):
    console = Console(tmp_path)
    (tmp_path / "minter.toml").write_text("")
    for command in (("leases", "list"), ("keys", "list"), ("custody",), ("rotate", "api"), ("reload",)):
        done = console("minter", *command, stdin="x")
        assert (done.status, done.out) == (75, "")
        assert "minter serve" in done.err


def test_kinds_are_explained_without_a_minter_and_without_settings(tmp_path):
    console = Console(tmp_path)
    assert {row[0] for row in console("minter", "kinds", "list").rows} >= {"exec", "jwt", "static"}
    shown = console("minter", "kinds", "show", "jwt")
    assert shown.status == 0
    assert '"token": {"type": "jwt"' in shown.out
    assert console("minter", "kinds", "show", "jwt", "--json").json["local"] is True
    assert console("minter", "kinds", "show", "telepathy").status == 2


def test_a_key_that_the_grants_name_inline_is_reached_by_its_alias(tmp_path, api):
    service = Service(tmp_path, environ={"SEED_API_KEY": CANARY})
    service.prepare({"api": {**profiles(api)["api"], "token": {"type": "static", "env": "SEED_API_KEY"}}})
    try:
        service.start("minter")
        console = Console(tmp_path, {"MINTER_ALLOW_ROOT": "1"})
        assert console("minter", "keys", "show", "env:SEED_API_KEY").status == 0
        done = console("minter", "keys", "rebind", "env:SEED_API_KEY", "--origin", "https://elsewhere.example")
        assert done.status == 0, done.err
        done = console("minter", "rotate", "env:SEED_API_KEY", stdin="new")
        assert done.status == 5
        assert "start the minter with the new value in the variable" in done.err
    finally:
        service.end()


def test_on_a_terminal_a_rotation_is_waited_for_until_the_new_key_signs(tmp_path, api):
    clock = tmp_path / "clock.json"
    clock.write_text('{"wall": 0, "boot": 0}')
    service = Service(tmp_path, environ={"MINTER_TEST_CLOCK": str(clock)})
    service.prepare(profiles(api))
    try:
        service.start("minter")
        console = Console(tmp_path, {"MINTER_ALLOW_ROOT": "1", "MINTER_TEST_CLOCK": str(clock)})
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(console.on_a_terminal, "minter", "rotate", "signer")
            service.until(lambda: rotation(service, "signer")["state"] == "published", "the new key is published")
            assert not waiting.done()
            later = tmp_path / "later.json"
            later.write_text('{"wall": 331, "boot": 331}')
            later.rename(clock)
            status, shown = waiting.result(60)
        assert status == 0
        assert "waiting until every verifier knows it" in shown
        assert "version 2 is in use" in shown
    finally:
        service.end()
