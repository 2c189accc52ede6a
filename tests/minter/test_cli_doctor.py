from __future__ import annotations

import json
import os
import socket

import pytest

from tests.worlds.console import Console


@pytest.fixture
def console(tmp_path):
    console = Console(tmp_path, {"MINTER_ALLOW_ROOT": "1", "BROKER_ALLOW_ROOT": "1"})
    console("minter", "init", ".")
    console("broker", "init", ".")
    console("broker", "callers", "create", "me")
    return console


def faults(console, program="minter"):
    done = console(program, "doctor", "--json")
    found = [one for one in done.json["findings"] if one["level"] == "fault"]
    assert done.status == (8 if found else 0)
    assert done.json["ok"] is not bool(found)
    return found


def add_key(console, source, name="api"):
    with (console.root / "minter.toml").open("a") as file:
        file.write(f'[keys.{name}]\nsource = "{source}"\n')


@pytest.mark.parametrize("program", ["minter", "broker"])
def test_a_fresh_directory_has_no_fault(console, program):
    assert faults(console, program) == []


def test_the_table_has_a_line_for_each_check_and_the_sum_goes_to_stderr(console):
    done = console("minter", "doctor")
    assert done.status == 0
    assert done.out.splitlines()[0] == "RESULT\tCHECK\tWHERE\tWHAT"
    assert {row[0] for row in done.rows} <= {"ok", "note", "warning"}
    assert "0 faults" in done.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only then the files are root's")
@pytest.mark.parametrize("program", ["minter", "broker"])
def test_what_root_was_allowed_already_is_not_asked_for_again(console, program):
    told = [one for one in console(program, "doctor", "--json").json["findings"] if one["check"] == "user"]
    assert [(one["level"], "ALLOW_ROOT" in one["hint"]) for one in told] == [("warning", False)]
    (fault,) = faults(Console(console.root, {}), program)
    assert f"set {program.upper()}_ALLOW_ROOT=1" in fault["hint"]


@pytest.mark.parametrize("program", ["minter", "broker"])
def test_a_service_that_is_not_there_is_told_in_the_systems_words(console, program):
    (told,) = [one for one in console(program, "doctor", "--json").json["findings"] if one["check"] == "service"]
    socket_path = console.root / "run" / f"{program}-admin.sock"
    assert told["what"] == f"no {program} answers at {socket_path}: No such file or directory"


@pytest.mark.parametrize("program", ["minter", "broker"])
def test_without_settings_it_says_how_to_get_some(tmp_path, program):
    console = Console(tmp_path, {})
    (fault,) = faults(console, program)
    assert f"{program} init DIRECTORY" in fault["hint"]
    assert "1 fault, 0 warnings, 1 check\n" in console(program, "doctor").err


@pytest.mark.parametrize(
    ("program", "path", "mode"),
    [
        ("minter", "brokers.json", 0o640),
        ("minter", "state", 0o755),
        ("minter", "run", 0o770),
        ("minter", "grants.json", 0o666),
        ("minter", "minter.toml", 0o622),
        ("broker", "callers.json", 0o604),
        ("broker", "run/broker.credential", 0o640),
        ("broker", "state", 0o750),
        ("broker", "broker.toml", 0o620),
    ],
)
def test_a_mode_that_lets_others_in_is_a_fault_with_the_way_out(console, program, path, mode):
    (console.root / path).chmod(mode)
    (fault,) = faults(console, program)
    assert fault["where"].endswith(path)
    assert fault["hint"].startswith("chmod ")


@pytest.mark.parametrize("program", ["minter", "broker"])
def test_a_tls_key_that_others_can_read_is_a_fault(console, program):
    with (console.root / f"{program}.toml").open("a") as file:
        file.write('[tls]\ncertificate = "tls.pem"\nkey = "tls.key"\n')
    (console.root / "tls.key").touch(0o644)
    (fault,) = faults(console, program)
    assert (fault["where"], fault["hint"].split()[0]) == (str(console.root / "tls.key"), "chmod")


def test_a_directory_above_that_others_may_change_is_a_fault(console):
    console.root.chmod(0o777)
    assert {fault["where"].rpartition("/")[2] for fault in faults(console)} == {"state", "run"}


def test_a_link_in_place_of_a_private_file_is_a_fault(console):
    (console.root / "brokers.json").rename(console.root / "elsewhere.json")
    (console.root / "brokers.json").symlink_to("elsewhere.json")
    assert [fault["what"] for fault in faults(console)] == ["is a symbolic link"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_a_fault(console):
    os.chown(console.root / "brokers.json", 4711, 4711)
    (fault,) = faults(console)
    assert "belongs to user 4711" in fault["what"]


@pytest.mark.parametrize("program", ["minter", "broker"])
def test_settings_and_grants_that_do_not_load_are_faults(console, program):
    (console.root / "grants.json").write_text('{"profiles": {"x": {}}}')
    places = {fault["where"].rpartition(": ")[2] for fault in faults(console, program)}
    assert {"profiles.x.base_url", "profiles.x.allowed_callers"} <= places
    (console.root / f"{program}.toml").write_text("listn = 1")
    assert any("listn" in fault["where"] for fault in faults(console, program))


def test_a_key_that_the_settings_do_not_have_is_a_fault(console):
    text = (console.root / "minter.toml").read_text()
    (console.root / "minter.toml").write_text(text.replace("[keys.example-signer]", "[keys.other]"))
    assert any("there is no key 'example-signer'" in fault["what"] for fault in faults(console))


def test_a_key_that_can_be_read_is_named_and_not_shown(console):
    secret = console.root / "secrets/api.key"
    secret.touch(0o600)
    secret.write_text("sekret-CANARY\n")
    add_key(console, "file:secrets/api.key")
    done = console("minter", "doctor")
    assert done.status == 0
    assert any(row[1] == "keys" and row[2].startswith("api ") and row[3] == "can be read" for row in done.rows)
    assert "sekret-CANARY" not in done.out + done.err


def test_a_key_beside_the_grants_is_found_from_wherever_it_is_looked_for(console):
    secret = console.root / "secrets/inline.key"
    secret.touch(0o600)
    secret.write_text("sekret-CANARY\n")
    grants = json.loads((console.root / "grants.json").read_text())
    grants["profiles"]["example"]["token"] = {"type": "static", "file": "secrets/inline.key"}
    (console.root / "grants.json").write_text(json.dumps(grants))
    elsewhere = Console(console.root / "run", console.environ)
    done = elsewhere("minter", "doctor", "--config", console.root / "minter.toml")
    assert ["ok", "keys", "file:secrets/inline.key", "can be read"] in done.rows


def test_a_lent_key_that_answers_cannot_be_scrubbed_of_is_worth_a_warning(console):
    secret = console.root / "secrets/inline.key"
    secret.touch(0o600)
    grants = json.loads((console.root / "grants.json").read_text())
    profile = grants["profiles"]["example"]
    profile["token"] = {"type": "static", "file": "secrets/inline.key"}

    def finding(value, scrub):
        secret.write_text(value)
        profile["scrub"] = scrub
        (console.root / "grants.json").write_text(json.dumps(grants))
        done = console("minter", "doctor", "--json")
        assert done.status == 0
        (found,) = [one for one in done.json["findings"] if one["where"] == "file:secrets/inline.key"]
        return found["level"], found["what"]

    for scrub in ("mask", "refuse"):
        level, what = finding("zq7-key", scrub)
        assert (level, what) == ("warning", "has fewer than 8 bytes: answers are not scrubbed of it")
        assert finding("zq7-key8", scrub) == ("ok", "can be read")
    assert finding("zq7-key", "off") == ("ok", "can be read")


@pytest.mark.parametrize("text", [None, "", "\n"])
def test_a_key_that_is_missing_or_empty_is_a_fault_that_names_the_reference(console, text):
    if text is not None:
        (console.root / "secrets/api.key").touch(0o600)
        (console.root / "secrets/api.key").write_text(text)
    add_key(console, "file:secrets/api.key")
    (fault,) = faults(console)
    assert "api (file:" in fault["where"]


def test_a_variable_that_is_not_here_may_be_in_the_minters_environment(console):
    add_key(console, "env:SOME_API_KEY")
    done = console("minter", "doctor")
    assert done.status == 0
    assert any(row[0] == "warning" and "SOME_API_KEY" in row[2] for row in done.rows)


def test_without_a_keyring_the_backend_is_a_fault(console):
    add_key(console, "keyring:minter/api")
    found = faults(console)
    assert {fault["check"] for fault in found} == {"keyring", "keys"}
    assert "keyring.backends.fail.Keyring" in found[0]["what"] + found[1]["what"]


def test_a_keyring_chosen_by_the_environment_is_a_fault(console):
    add_key(console, "keyring:minter/api")
    console.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.null.Keyring"
    assert any("the environment names the keyring backend" in fault["what"] for fault in faults(console))


@pytest.mark.parametrize(("program", "prefix"), [("minter", "MINTER"), ("broker", "BROKER")])
def test_a_test_clock_is_a_fault(console, program, prefix):
    (console.root / "clock.json").write_text('{"wall": 0, "boot": 0}')
    console.environ[f"{prefix}_TEST_CLOCK"] = str(console.root / "clock.json")
    assert [fault["check"] for fault in faults(console, program)] == ["test clock"]


@pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root only when root made them")
@pytest.mark.parametrize("program", ["minter", "broker"])
def test_roots_files_are_a_fault_unless_root_is_allowed(console, program):
    console.environ.clear()
    (fault,) = faults(console, program)
    assert fault["check"] == "user"


def test_a_socket_that_everybody_may_open_is_a_fault(console):
    with socket.socket(socket.AF_UNIX) as listener:
        path = console.root / "run/minter.sock"
        listener.bind(str(path))
        path.chmod(0o777)
        (fault,) = faults(console)
        assert "everybody may connect" in fault["what"]


def test_a_state_that_is_no_database_is_a_fault(console):
    path = console.root / "state/minter.db"
    path.touch(0o600)
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    assert any(fault["check"] == "state" and "SQLITE_NOTADB" in fault["what"] for fault in faults(console))


def test_a_command_that_cannot_be_run_is_a_fault(console):
    with (console.root / "minter.toml").open("a") as file:
        file.write('[commands.a]\nargv = ["helper"]\n[commands.b]\nargv = ["/nowhere/helper"]\n')
    assert [fault["where"] for fault in faults(console)] == ["commands.a", "commands.b"]


def test_callers_without_a_token_are_worth_a_warning(console):
    console("broker", "callers", "revoke", "me")
    done = console("broker", "doctor")
    assert done.status == 0
    assert any(row[0] == "warning" and "me has no token" in row[3] for row in done.rows)


def test_a_listener_in_the_clear_on_a_network_is_worth_a_warning(console):
    console.environ["BROKER_LISTEN"] = '["0.0.0.0:8090"]'
    done = console("broker", "doctor")
    assert any(row[0] == "warning" and "without TLS" in row[3] for row in done.rows)
