from __future__ import annotations

import json
import os
import re
import stat

import pytest

from tests.worlds.console import Console

TOKEN = re.compile(r"mbk_[0-9A-Za-z]{49}\n")


@pytest.fixture
def console(tmp_path):
    return Console(tmp_path)


def brokers(console):
    return json.loads((console.root / "brokers.json").read_text())["brokers"]


def test_create_binds_the_broker_to_the_user_who_makes_it_and_to_no_profile_in_particular(console):
    done = console("minter", "brokers", "create", "b1", "--file", "brokers.json")
    assert done.status == 0
    assert TOKEN.fullmatch(done.out)
    assert stat.S_IMODE((console.root / "brokers.json").stat().st_mode) == 0o600
    (broker,) = brokers(console)
    assert broker["uid"] == os.geteuid()
    assert "profiles" not in broker
    assert done.out.strip() not in json.dumps(broker)


def test_a_broker_can_be_bound_to_another_user_and_to_profiles(console):
    console("minter", "brokers", "create", "b", "--uid", "4711", "--profile=x", "--profile=y", "--file=brokers.json")
    assert [(b["uid"], b["profiles"]) for b in brokers(console)] == [(4711, ["x", "y"])]
    assert console("minter", "brokers", "list", "--file", "brokers.json").rows == [["b", "4711", "x, y", "1", "-"]]


def test_an_introspection_credential_may_ask_for_no_profile(console):
    console("minter", "brokers", "create", "api", "--introspect-only", "--file", "brokers.json")
    (broker,) = brokers(console)
    assert (broker["profiles"], broker["introspect"], broker.get("uid")) == ([], True, None)
    assert console("minter", "brokers", "list", "--file", "brokers.json").rows[0][2] == "introspection"


@pytest.mark.parametrize("other", ["--profile=x", "--uid=1"])
def test_introspection_only_goes_with_nothing_else(console, other):
    done = console("minter", "brokers", "create", "api", "--introspect-only", other, "--file", "brokers.json")
    assert (done.status, done.out) == (2, "")
    assert not (console.root / "brokers.json").exists()


def test_a_broker_that_exists_is_a_conflict(console):
    console("minter", "brokers", "create", "b1", "--file", "brokers.json")
    done = console("minter", "brokers", "create", "b1", "--file", "brokers.json")
    assert (done.status, done.out) == (6, "")


def test_rotate_keeps_user_and_profiles(console):
    console("minter", "brokers", "create", "b", "--uid", "7", "--profile", "x", "--file", "brokers.json")
    done = console("minter", "brokers", "rotate", "b", "--overlap", "1h", "--file", "brokers.json")
    assert TOKEN.fullmatch(done.out)
    (broker,) = brokers(console)
    assert (broker["uid"], broker["profiles"], len(broker["tokens"])) == (7, ["x"], 2)


def test_revoke_removes_the_broker(console):
    console("minter", "brokers", "create", "b", "--file", "brokers.json")
    assert console("minter", "brokers", "revoke", "b", "--file", "brokers.json").status == 0
    assert console("minter", "brokers", "list", "--file", "brokers.json", "--json").json == {"brokers": []}
    assert console("minter", "brokers", "revoke", "b", "--file", "brokers.json").status == 2
