"""``minter keys`` and ``minter rotate`` against both programs as they run."""

from __future__ import annotations

import asyncio
import json
import re
import socket

import pytest
import typer

from config.settings import MinterSettings
from config.tokens import BROKER, CALLER, digest
from minter import egress
from minter.admin import AdminApi
from minter.admin_client import AdminClient
from minter.cli import keys as keys_command
from minter.cli import rotate as rotate_command
from tests.worlds.api import Api
from tests.worlds.console import Console
from tests.worlds.service import CANARY, Service

DAY = 86400


@pytest.fixture(scope="module")
def api():
    with Api() as api:
        api.on("GET", "/v1/items")
        yield api


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
def console(service):
    return Console(service.root, {"MINTER_ALLOW_ROOT": "1", "BROKER_ALLOW_ROOT": "1"})


def profiles(api, **more):
    shared = {"base_url": api.origin, "allowed_callers": ["support-agent"], "allow": ["GET /v1/items"]}
    return {
        "api": {**shared, "token": {"type": "static", "key": "api"}},
        "signed": {**shared, "token": {"type": "jwt", "key": "signer", "audience": api.origin}},
        **{name: {**shared, "token": token} for name, token in more.items()},
    }


def admin(service):
    return AdminClient(MinterSettings(admin_listen=[f"unix:{service.root}/run/minter-admin.sock"]))


def key(service, alias):
    return next(key for key in admin(service).get("/v1/custody")["keys"] if key["alias"] == alias)


# --- keys ---


def test_a_key_that_is_imported_is_lent_without_a_restart_and_ends_with_its_destruction(service, console, api):
    value = CANARY + "-imported"
    done = console("minter", "keys", "import", "mem", "--owner", "team", "--rotate-every", "90d", stdin=value + "\n")
    assert (done.status, done.out) == (0, ""), done.err
    assert 'grants name it by "key": "mem"' in done.err
    service.grant(profiles(api, mem={"type": "static", "key": "mem"}))
    assert console("minter", "reload").status == 0
    service.reload("broker")
    run = service.open_run("mem")
    assert service.call(run, "GET", "/v1/items", profile="mem").status == 200
    assert api.received[-1].header("authorization") == f"Bearer {value}"
    shown = console("minter", "keys", "show", "mem")
    assert "owner: team\n" in shown.out
    assert "source_ref: sealed:mem\n" in shown.out

    refused = console("minter", "keys", "retire", "mem")
    assert (refused.status, refused.out) == (6, "")
    assert "the grants refer to it: mem" in refused.err
    done = console("minter", "keys", "retire", "mem", "--force")
    assert done.status == 0
    assert "mem is retired; 1 live lease ended" in done.err
    assert service.call(service.open_run("mem"), "GET", "/v1/items", profile="mem").status == 503
    assert console("minter", "keys", "import", "mem", stdin=value).status == 6
    service.grant(profiles(api))
    assert console("minter", "reload").status == 0
    service.reload("broker")

    assert console("minter", "keys", "destroy", "mem").status == 2
    assert "active, retired" not in console("minter", "keys", "list").out
    status, screen = console.on_a_terminal("minter", "keys", "destroy", "mem", typed="another\n")
    assert (status, "nothing was done" in screen) == (2, True)
    status, screen = console.on_a_terminal("minter", "keys", "destroy", "mem", typed="mem\n")
    assert (status, "1 version destroyed" in screen) == (0, True), screen
    assert key(service, "mem")["versions"][0]["phase"] == "destroyed"
    done = console("minter", "keys", "destroy", "mem", "--yes", "--json")
    assert done.json["versions"][0]["phase"] == "destroyed"


def test_the_minter_makes_a_signing_key_and_shows_its_public_half_alone(service, console):
    done = console("minter", "keys", "create", "run-signer", "--algorithm", "ES256", "--purpose", "runs", "--json")
    assert done.status == 0, done.err
    assert done.json.keys() == {"alias", "version", "source_ref", "fingerprint", "algorithm"}
    assert (key(service, "run-signer")["algorithm"], key(service, "run-signer")["purpose"]) == ("ES256", "runs")
    assert console("minter", "keys", "create", "api").status == 6
    assert console("minter", "keys", "create", "a/b").status == 2


def test_a_value_comes_from_a_file_or_another_place_and_never_from_an_argument(service, console):
    given = service.root / "given"
    given.write_text(CANARY + "-file\n")
    given.chmod(0o600)
    done = console("minter", "keys", "import", "from-file", "--from-file", given)
    assert done.status == 0, done.err
    done = Console(service.root, {**console.environ, "GIVEN": CANARY + "-env"})(
        "minter", "keys", "import", "from-env", "--from", "env:GIVEN"
    )
    assert done.status == 0, done.err
    given.unlink()
    for bad in (("--from-file", "nothing"), ("--from", "env:NOTHING"), ("--from", "nowhere:x")):
        done = console("minter", "keys", "import", "from-nowhere", *bad)
        assert (done.status, done.out) == (4, ""), done.err
    assert console("minter", "keys", "import", "x", "--from-file", "a", "--from", "env:B").status == 2
    assert console("minter", "keys", "import", "x", "--in-place").status == 2
    assert console("minter", "keys", "import", "x", stdin="").status == 2
    assert console("minter", "keys", "import", "x", "the-value").status == 2


def test_on_a_terminal_a_value_that_is_imported_is_not_echoed(console):
    value = CANARY + "-typed"
    status, screen = console.on_a_terminal("minter", "keys", "import", "typed", typed=value + "\n")
    assert status == 0, screen
    assert value not in screen


def test_there_is_no_way_to_export_a_key(service):
    """By the names of all commands, options and routes, and by what those answer that say anything of a key."""
    group = typer.main.get_command(keys_command.app)
    assert set(group.commands) == {"create", "import", "list", "show", "rebind", "retire", "destroy"}
    commands = [*group.commands.values(), typer.main.get_command(rotate_command.app)]
    options = {name for command in commands for parameter in command.params for name in parameter.opts}
    assert {"--from-file", "--compromised"} <= options
    words = re.compile("export|reveal|dump|private|value|secret|output")
    assert [name for name in options if words.search(name)] == []
    routes = {path for _, path in AdminApi.calls(_Anything())}
    verbs = ("create", "import", "retire", "destroy", "rotate", "rebind")
    assert {path for path in routes if "key" in path} == {f"/v1/keys/{{alias}}/{verb}" for verb in verbs}
    assert [path for path in routes if words.search(path)] == []
    client = admin(service)
    answers = json.dumps([client.get(path) for path in ("/v1/custody", "/v1/ages", "/v1/leases", "/v1/kinds")])
    answers += json.dumps(client.post("/v1/keys/signer/rotate", {"step": "status"}))
    private = (service.root / "secrets/signer").read_text().splitlines()[1]
    assert CANARY not in answers
    assert private not in answers
    assert '"d"' not in answers


class _Anything:
    def __getattr__(self, name):
        return _Anything()


def test_brokers_and_callers_are_listed_as_keys_of_which_only_digests_are_kept(console):
    listed = console("minter", "keys", "list", "--callers", "callers.json")
    assert ["broker:broker-1", "token"] in [row[:2] for row in listed.rows]
    assert ["caller:support-agent", "token"] in [row[:2] for row in listed.rows]
    tokens = console("minter", "keys", "list", "--json").json["tokens"]
    assert [token["alias"] for token in tokens] == ["broker:broker-1"]
    assert not re.search("[0-9a-f]{64}", json.dumps(tokens))


# --- rotate ---


def test_a_brokers_token_is_rotated_by_its_alias(service, console):
    console("minter", "brokers", "create", "broker-2", "--file", "brokers.json")
    dry = console("minter", "rotate", "broker:broker-2", "--dry-run")
    assert (dry.status, [row[0] for row in dry.rows]) == (0, ["activate", "retire"])
    assert "nothing was done" in dry.err
    plan = console("minter", "rotate", "broker:broker-2", "--dry-run", "--json").json
    assert (plan["alias"], plan["dry_run"]) == ("broker:broker-2", True)
    assert [step["step"] for step in plan["steps"]] == ["activate", "retire"]
    assert plan["affected"] == {"leases": 0, "runs": []}
    done = console("minter", "rotate", "broker:broker-2", "--overlap", "1h")
    assert done.status == 0
    assert digest(done.out.strip(), BROKER)
    assert done.out.count("\n") == 1
    done = console("minter", "rotate", "broker:broker-2", "--compromised")
    assert (done.status, digest(done.out.strip(), BROKER) is not None) == (0, True)
    assert "0 live leases ended" in done.err
    assert "find out how the old one leaked" in done.err
    brokers = json.loads((service.root / "brokers.json").read_text())["brokers"]
    assert len(next(one for one in brokers if one["id"] == "broker-2")["tokens"]) == 1


def test_a_brokers_token_in_the_wrong_hands_is_worth_nothing_when_the_command_returns(service, console):
    old = console("minter", "brokers", "create", "broker-3", "--file", "brokers.json").out.strip()
    assert console("minter", "reload").status == 0
    assert answer_to(service, old) == 404
    new = console("minter", "rotate", "broker:broker-3", "--compromised").out.strip()
    assert (answer_to(service, old), answer_to(service, new)) == (401, 404)


def answer_to(service, token):
    """Ask as a broker for the end of a lease that is not there."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(service.root / "run/minter.sock"))
        target = "/v1/leases/lse_0000000000000000000000"
        connection.sendall(
            f"DELETE {target} HTTP/1.1\r\nHost: minter\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        )
        return int(connection.recv(4096).split()[1])


def test_a_callers_token_is_rotated_in_the_file_that_is_named(console):
    console("broker", "callers", "create", "other-agent", "--file", "callers.json")
    done = console("minter", "rotate", "caller:other-agent", "--file", "callers.json", "--compromised")
    assert (done.status, digest(done.out.strip(), CALLER) is not None) == (0, True), done.err
    assert "broker runs end --caller other-agent" in done.err
    assert console("minter", "rotate", "caller:other-agent").status == 2


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("api", "--all-due"),
        ("--all-due", "--force"),
        ("--all-due", "--compromised"),
        ("broker:nobody",),
        ("broker:nobody", "--dry-run"),
        ("broker:broker-1", "--finish"),
        ("broker:broker-1", "--compromised", "--overlap", "1h"),
        ("api", "--file", "brokers.json"),
        ("api", "--finish", "--compromised"),
        ("sealing-key", "--finish", "--abort"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(console, arguments):
    done = console("minter", "rotate", *arguments, stdin="x")
    assert (done.status, done.out) == (2, ""), done.err


def test_the_sealing_key_and_the_logs_signer_are_rotated_like_any_other(service, console):
    for alias in ("sealing-key", "audit-signer"):
        before = key(service, alias)["versions"][-1]["version"]
        dry = console("minter", "rotate", alias, "--dry-run")
        assert (dry.status, dry.rows[0][0]) == (0, "prepare"), dry.err
        done = console("minter", "rotate", alias)
        assert done.status == 0, done.err
        if alias == "sealing-key":
            assert "when no backup needs the old one" in done.err
            assert console("minter", "rotate", alias, "--finish").status == 0
        service.until(
            lambda alias=alias, before=before: (
                [one["phase"] for one in key(service, alias)["versions"][-2:]] == ["destroyed", "active"]
                and key(service, alias)["versions"][-1]["version"] == before + 1
            ),
            f"{alias} has another version, and the old one is gone",
        )
    assert console("minter", "audit", "verify").status == 0


def test_on_a_terminal_a_rotation_of_the_sealing_key_is_waited_for_until_everything_is_sealed_anew(service, console):
    for number in range(3):
        assert console("minter", "keys", "import", f"sealed-{number}", stdin=CANARY).status == 0
    status, screen = console.on_a_terminal("minter", "rotate", "sealing-key")
    assert status == 0, screen
    assert "the old one is kept for now" in screen
    plan = admin(service).post("/v1/keys/sealing-key/rotate", {"step": "status"})
    assert (plan["left"], plan["next_step"]) == (0, "retire")
    assert console("minter", "rotate", "sealing-key", "--finish").status == 0


def test_a_dry_run_names_the_runs_that_it_touches(service, console):
    run = service.open_run("api")
    assert service.call(run, "GET", "/v1/items", profile="api").status == 200
    assert f"  {run.run_id}\n" in console("minter", "rotate", "api", "--dry-run").err
    dry = console("minter", "rotate", "broker:broker-1", "--dry-run", "--json").json
    assert run.run_id in dry["affected"]["runs"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("create", "typo", "--algorithm", "FOO"), "--algorithm: expected EdDSA, ES256, RS256 or HS256"),
        (("import", "typo", "--use", "foo"), "--use: expected static or signing"),
    ],
)
def test_a_slip_in_the_command_is_said_in_its_own_words(console, arguments, told):
    done = console("minter", "keys", *arguments, stdin="x")
    assert (done.status, done.out) == (2, ""), done.err
    assert told in done.err


def test_a_value_that_no_place_keeps_is_refused_before_it_is_written(service, console):
    long = "x" * 65_537
    for arguments in (("keys", "import", "long"), ("rotate", "api")):
        done = console("minter", *arguments, stdin=long)
        assert (done.status, done.out) == (2, ""), done.err
        assert "at most 65536 bytes" in done.err
    assert "long" not in [one["alias"] for one in admin(service).get("/v1/custody")["keys"]]


def test_a_compromised_key_is_replaced_at_once_and_what_is_left_to_do_is_said(service, console, api):
    run = service.open_run("api")
    assert service.call(run, "GET", "/v1/items", profile="api").status == 200
    dry = console("minter", "rotate", "api", "--compromised", "--dry-run")
    assert dry.status == 0
    assert "then it is left to you: delete the old value of api at its issuer" in dry.err
    before = key(service, "api")["versions"]
    done = console("minter", "rotate", "api", "--compromised", stdin="")
    assert done.status == 2
    assert "new value is missing" in done.err
    assert admin(service).get("/v1/leases", state="active", run=run.run_id)["leases"] == []
    new = CANARY + "-after"
    done = console("minter", "rotate", "api", "--compromised", stdin=new)
    assert done.status == 0, done.err
    assert done.out == f"api: version {len(before) + 1} is in use, no rotation is running\n"
    assert "still to do: find out how it leaked" in done.err
    assert not (service.root / "secrets/api.key").exists()
    assert service.call(service.open_run("api"), "GET", "/v1/items", profile="api").status == 200
    assert api.received[-1].header("authorization") == f"Bearer {new}"


def test_a_dry_run_leaves_no_line_in_the_log(service, console):
    """That the state is the same byte for byte, tests of the parts say: here a sweep writes beside it."""
    before = (service.root / "state/audit.jsonl").read_bytes()
    for alias in ("api", "signer", "sealing-key", "audit-signer"):
        for more in ((), ("--compromised",), ("--json",)):
            assert console("minter", "rotate", alias, "--dry-run", *more).status == 0
    assert (service.root / "state/audit.jsonl").read_bytes() == before


# --- ages: on a clock of their own ---


@pytest.fixture
def aging(tmp_path, api):
    clock = tmp_path / "clock.json"
    service = Service(tmp_path, environ={"MINTER_TEST_CLOCK": str(clock)})
    service.prepare(profiles(api))
    settings = tmp_path / "minter.toml"
    settings.write_text(
        settings.read_text()
        .replace("[keys.api]\n", f'[keys.api]\nrotate_every = "{DAY * 10}s"\n')
        .replace("[keys.signer]\n", f'[keys.signer]\nrotate_every = "{DAY * 5}s"\n')
    )

    def at(days):
        later = tmp_path / "later.json"
        later.write_text(json.dumps({"wall": days * DAY, "boot": days * DAY}))
        later.rename(clock)

    at(0)
    try:
        service.start("minter")
        console = Console(tmp_path, {"MINTER_ALLOW_ROOT": "1", "MINTER_TEST_CLOCK": str(clock)})
        yield service, console, at
    finally:
        service.end()


def levels(console):
    found = console("minter", "doctor", "--json").json["findings"]
    return {one["where"]: one["level"] for one in found if one["check"] == "keys" and "rotate_every" in one["what"]}


def metrics(service):
    return asyncio.run(egress.ask(f"{service.root}/run/minter-admin.sock", "GET", "/metrics")).body.decode()


def metric(service, name, alias):
    found = re.search(rf'^{name}{{key="{alias}"}} (\S+)$', metrics(service), re.MULTILINE)
    return float(found[1]) if found else None


def test_a_key_warns_at_four_fifths_of_its_period_and_alarms_at_the_whole(aging):
    service, console, at = aging
    assert levels(console) == {}
    at(8.5)
    assert levels(console) == {"api": "warning", "signer": "fault"}
    assert console("minter", "doctor").status == 8
    assert metric(service, "minter_key_age_ratio", "api") == pytest.approx(0.85, abs=0.01)
    assert metric(service, "minter_key_age_seconds", "signer") == pytest.approx(8.5 * DAY, abs=60)
    assert metric(service, "minter_key_age_ratio", "audit-signer") is None
    at(11)
    assert levels(console) == {"api": "fault", "signer": "fault"}


def test_a_timer_rotates_what_is_due_and_names_what_needs_a_person(aging):
    service, console, at = aging
    done = console("minter", "rotate", "--all-due")
    assert (done.status, done.rows) == (0, [])
    at(6)
    dry = console("minter", "rotate", "--all-due", "--dry-run", "--json")
    assert dry.json["keys"] == [{"alias": "signer", "outcome": "due", "why": ""}]
    done = console("minter", "rotate", "--all-due")
    assert (done.status, done.rows[0][:2]) == (0, ["signer", "rotated"]), done.err
    assert "minter_rotation_in_progress 1.0" in metrics(service)
    # Again at once: it is under way, and is not begun a second time.
    done = console("minter", "rotate", "--all-due")
    assert (done.status, done.rows[0][:2]) == (0, ["signer", "running"])
    at(10.5)
    done = console("minter", "rotate", "--all-due")
    assert done.status == 5
    assert ["api", "needs a person"] in [row[:2] for row in done.rows]
    assert "minter rotate api" in done.out
    assert "without a person: api" in done.err


def test_an_inline_key_is_answered_with_the_lines_that_move_it(tmp_path, api):
    service = Service(tmp_path, environ={"SEED_API_KEY": CANARY})
    service.prepare({"api": {**profiles(api)["api"], "token": {"type": "static", "env": "SEED_API_KEY"}}})
    try:
        service.start("minter")
        console = Console(tmp_path, {"MINTER_ALLOW_ROOT": "1"})
        done = console("minter", "rotate", "env:SEED_API_KEY", stdin="new")
        assert (done.status, done.out) == (5, "")
        assert '  [keys.seed-api-key]\nminter:   source = "env:SEED_API_KEY"\n' in done.err
        assert 'profiles.api.token: "env": "SEED_API_KEY" becomes "key": "seed-api-key"' in done.err
        # What it says works.
        grants = {"api": {**profiles(api)["api"], "token": {"type": "static", "key": "seed-api-key"}}}
        done = console("minter", "keys", "import", "seed-api-key", stdin=CANARY)
        assert done.status == 0, done.err
        service.grant(grants)
        assert console("minter", "reload").status == 0
        assert console("minter", "rotate", "seed-api-key", stdin="another").status == 0
    finally:
        service.end()
