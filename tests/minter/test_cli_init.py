from __future__ import annotations

import os
import stat

import pytest

from config.load import load_settings, read_token_file
from config.settings import BrokerSettings, MinterSettings
from config.tokenfiles import find, index
from config.tokens import BROKER
from tests.worlds.console import Console


@pytest.fixture
def console(tmp_path):
    return Console(tmp_path)


@pytest.mark.parametrize("order", [("minter", "broker"), ("broker", "minter")])
def test_both_inits_make_a_pair_in_either_order(console, order):
    for program in order:
        assert console(program, "init", "demo").status == 0
    root = console.root / "demo"
    minter = load_settings(MinterSettings, root / "minter.toml", {})
    broker = load_settings(BrokerSettings, root / "broker.toml", {})
    assert broker.grants == minter.grants == str(root / "grants.json")
    assert broker.minter in minter.listen
    credential = (root / "run/broker.credential").read_text().strip()
    principal = find(index(read_token_file(root / "brokers.json")), credential, BROKER, now=0)
    assert principal is not None
    assert (principal.uid, principal.profiles) == (os.geteuid(), None)
    assert broker.minter_credential == f"file:{root / 'run/broker.credential'}"


def test_what_holds_secrets_is_for_its_owner_only(console):
    console.environ["PATH"] = os.defpath
    console("minter", "init", "demo")
    console("broker", "init", "demo")
    root = console.root / "demo"
    for name in (".", "run", "state", "secrets"):
        assert stat.S_IMODE((root / name).stat().st_mode) == 0o700, name
    for path in root.rglob("*"):
        if path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


@pytest.mark.parametrize("program", ["minter", "broker"])
def test_a_second_init_is_a_conflict_and_changes_nothing(console, program):
    console(program, "init", "demo")
    before = {path: path.read_bytes() for path in (console.root / "demo").rglob("*") if path.is_file()}
    done = console(program, "init", "demo")
    assert (done.status, done.out) == (6, "")
    assert {path: path.read_bytes() for path in (console.root / "demo").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("program", ["minter", "broker"])
def test_an_existing_grants_file_is_kept(console, program):
    (console.root / "demo").mkdir()
    (console.root / "demo/grants.json").write_text('{"profiles": {}}')
    done = console(program, "init", "demo")
    assert done.status == 0
    assert "kept" in done.err
    assert (console.root / "demo/grants.json").read_text() == '{"profiles": {}}'


def test_a_dangling_link_is_not_written_through(console):
    (console.root / "demo").mkdir()
    (console.root / "demo/grants.json").symlink_to(console.root / "elsewhere.json")
    assert console("minter", "init", "demo").status == 0
    assert not (console.root / "elsewhere.json").exists()
    assert (console.root / "demo/grants.json").is_symlink()


def test_an_existing_brokers_file_is_kept_and_gets_no_new_credential(console):
    (console.root / "demo").mkdir()
    console("minter", "brokers", "create", "mine", "--file", "demo/brokers.json")
    before = (console.root / "demo/brokers.json").read_bytes()
    assert console("minter", "init", "demo").status == 0
    assert (console.root / "demo/brokers.json").read_bytes() == before
    assert not (console.root / "demo/run/broker.credential").exists()


@pytest.mark.parametrize("program", ["minter", "broker"])
def test_init_says_what_to_do_next_and_prints_no_secret(console, program):
    done = console(program, "init", "demo")
    assert done.out == ""
    other = {"minter": "broker", "broker": "minter"}[program]
    assert f"{other} init demo" in done.err
    assert f"{program} serve --config demo/{program}.toml" in done.err
    credential = console.root / "demo/run/broker.credential"
    assert not credential.exists() or credential.read_text().strip() not in done.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_cannot_be_written_is_a_fault(console):
    done = console("minter", "init", "/proc/demo")
    assert done.status == 3
    assert "Traceback" not in done.err


def test_a_file_where_the_directory_belongs_is_a_fault(console):
    (console.root / "demo").write_text("")
    for program in ("minter", "broker"):
        done = console(program, "init", "demo")
        assert done.status == 3
        assert "Traceback" not in done.err
