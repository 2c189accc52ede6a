from __future__ import annotations

import hashlib
import json
import re
import stat

import pytest

from tests.worlds.console import Console

TOKEN = re.compile(r"clr_[0-9A-Za-z]{49}\n")


@pytest.fixture
def console(tmp_path):
    return Console(tmp_path)


def test_create_makes_the_file_and_prints_the_token_alone(console):
    done = console("broker", "callers", "create", "support-agent", "--file", "callers.json")
    assert done.status == 0
    assert TOKEN.fullmatch(done.out)
    path = console.root / "callers.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    digest = hashlib.sha256(done.out.strip().encode()).hexdigest()
    assert json.loads(path.read_text()) == {"callers": [{"id": "support-agent", "tokens": [{"sha256": digest}]}]}


def test_the_token_stands_in_no_file_and_in_no_message(console):
    done = console("broker", "callers", "create", "me", "--file", "callers.json")
    token = done.out.strip()
    assert token not in done.err
    assert not any(token in path.read_text() for path in console.root.rglob("*") if path.is_file())


def test_a_caller_that_exists_is_a_conflict_and_keeps_its_token(console):
    console("broker", "callers", "create", "me", "--file", "callers.json")
    before = (console.root / "callers.json").read_bytes()
    done = console("broker", "callers", "create", "me", "--file", "callers.json")
    assert (done.status, done.out) == (6, "")
    assert "broker callers rotate me" in done.err
    assert (console.root / "callers.json").read_bytes() == before


@pytest.mark.parametrize("name", ["", "a b", "-x/", "ä", "a" * 101])
def test_what_is_no_id_is_a_usage_error(console, name):
    done = console("broker", "callers", "create", "--file", "callers.json", "--", name)
    assert (done.status, done.out) == (2, "")
    assert not (console.root / "callers.json").exists()


def test_rotate_keeps_the_old_token_for_the_overlap(console):
    console("broker", "callers", "create", "me", "--file", "callers.json")
    done = console("broker", "callers", "rotate", "me", "--overlap", "1h", "--file", "callers.json")
    assert TOKEN.fullmatch(done.out)
    listed = console("broker", "callers", "list", "--file", "callers.json", "--json").json["callers"]
    assert [(caller["id"], caller["tokens"]) for caller in listed] == [("me", 2)]
    assert listed[0]["overlap_ends_at"] is not None


def test_rotate_without_an_overlap_ends_the_old_token_at_once(console):
    console("broker", "callers", "create", "me", "--file", "callers.json")
    done = console("broker", "callers", "rotate", "me", "--overlap", "0s", "--file", "callers.json")
    tokens = json.loads((console.root / "callers.json").read_text())["callers"][0]["tokens"]
    assert tokens == [{"sha256": hashlib.sha256(done.out.strip().encode()).hexdigest()}]


@pytest.mark.parametrize("overlap", ["1 hour", "-1h", "nan"])
def test_an_overlap_that_is_no_duration_is_a_usage_error_and_changes_nothing(console, overlap):
    console("broker", "callers", "create", "me", "--file", "callers.json")
    before = (console.root / "callers.json").read_bytes()
    done = console("broker", "callers", "rotate", "me", f"--overlap={overlap}", "--file", "callers.json")
    assert (done.status, done.out) == (2, "")
    assert (console.root / "callers.json").read_bytes() == before


def test_revoke_removes_the_caller_and_says_what_goes_on(console):
    console("broker", "callers", "create", "me", "--file", "callers.json")
    done = console("broker", "callers", "revoke", "me", "--file", "callers.json")
    assert done.status == 0
    assert "broker runs end --caller me" in done.err
    assert console("broker", "callers", "list", "--file", "callers.json").rows == []


@pytest.mark.parametrize("command", ["rotate", "revoke"])
def test_a_caller_that_is_not_there_is_a_usage_error(console, command):
    console("broker", "callers", "create", "me", "--file", "callers.json")
    done = console("broker", "callers", command, "you", "--file", "callers.json")
    assert (done.status, done.out) == (2, "")


@pytest.mark.parametrize("command", [("list",), ("rotate", "me"), ("revoke", "me")])
def test_a_missing_file_is_a_configuration_fault_and_is_not_made(console, command):
    done = console("broker", "callers", *command, "--file", "callers.json")
    assert (done.status, done.out) == (3, "")
    assert "callers.json" in done.err
    assert not (console.root / "callers.json").exists()


def test_every_fault_of_a_broken_file_is_named_on_a_line_of_its_own(console):
    (console.root / "callers.json").write_text('{"callers": [{"id": "a b"}, {"idd": "x", "tokens": 3}]}')
    done = console("broker", "callers", "create", "me", "--file", "callers.json")
    assert done.status == 3
    for place in ("callers[0].id", "callers[1].id:", "callers[1].idd", "callers[1].tokens"):
        assert place in done.err
    assert "did you mean id?" in done.err
    assert len(done.err.splitlines()) == 4


def test_a_brokers_file_is_not_taken_for_a_callers_file(console):
    console("minter", "brokers", "create", "b", "--file", "brokers.json")
    done = console("broker", "callers", "create", "me", "--file", "brokers.json")
    assert (done.status, done.out) == (3, "")


def test_without_a_file_the_settings_name_it(console):
    (console.root / "broker.toml").write_text('callers = "who/may.json"\n')
    (console.root / "who").mkdir()
    assert console("broker", "callers", "create", "me").status == 0
    assert (console.root / "who/may.json").exists()


def test_the_settings_file_can_come_from_the_environment(console):
    (console.root / "elsewhere.toml").write_text('callers = "c.json"\n')
    console.environ["BROKER_CONFIG"] = "elsewhere.toml"
    assert console("broker", "callers", "create", "me").status == 0
    assert (console.root / "c.json").exists()


def test_a_directory_that_is_not_there_is_a_fault_and_no_traceback(console):
    done = console("broker", "callers", "create", "me", "--file", "no/where.json")
    assert (done.status, done.out) == (3, "")
    assert "Traceback" not in done.err


def test_the_token_can_go_into_a_file_of_its_own_instead_of_stdout(console):
    done = console("broker", "callers", "create", "me", "--file", "callers.json", "--token-file", "me.token")
    assert (done.status, done.out) == (0, "")
    path = console.root / "me.token"
    assert TOKEN.fullmatch(path.read_text())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_operators_at_once_lose_no_caller(console):
    import concurrent.futures

    names = [f"caller-{number}" for number in range(8)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda name: console("broker", "callers", "create", name, "--file", "c.json"), names))
    assert [one.status for one in done] == [0] * 8
    listed = console("broker", "callers", "list", "--file", "c.json", "--json").json["callers"]
    assert sorted(caller["id"] for caller in listed) == names
