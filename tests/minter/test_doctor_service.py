"""What ``minter doctor`` makes of the facts that a running minter tells, of a state, and of another clock."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from email.utils import formatdate

import pytest

from minter import doctor_online, quarantine
from minter.doctor_service import of_facts
from minter.process_facts import of_this_process
from minter.store import migrate
from tests.worlds import first_schema
from tests.worlds.api import Answer, Api
from tests.worlds.console import Console

GOOD = {
    "pid": 7,
    "uid": 64901,
    "dumpable": False,
    "core_limit": 0,
    "umask": "0077",
    "open_files": 4096,
    "swap": False,
    "secret_variables": [],
    "keyring": None,
    "keyring_override": False,
    "peer_uid": os.geteuid(),
    "database": {"sqlite": "3.51.3", "journal_mode": "wal", "synchronous": 2},
}


def judged(**changes):
    """What is not well about such a minter: the place and the level."""
    found = of_facts({**GOOD, **changes}, owner=64901, allow_root=False)
    return {one.where: one.level for one in found if one.level != "ok"}


def test_a_hardened_minter_has_nothing_to_be_said_against():
    assert judged() == {}
    keyring = {"backend": "keyring.backends.SecretService.Keyring", "problem": ""}
    assert judged(keyring=keyring) == {}


@pytest.mark.parametrize(
    ("changes", "where", "level"),
    [
        ({"dumpable": True}, "dumpable", "fault"),
        ({"dumpable": None}, "dumpable", "note"),
        ({"core_limit": -1}, "core dumps", "fault"),
        ({"core_limit": 4096}, "core dumps", "fault"),
        ({"umask": "0022"}, "umask", "fault"),
        ({"uid": 0}, "user", "fault"),
        ({"uid": 1000}, "user", "fault"),
        ({"peer_uid": 65534}, "peer credentials", "fault"),
        ({"secret_variables": ["API_KEY"]}, "secret variables", "fault"),
        ({"keyring_override": True}, "keyring", "fault"),
        ({"keyring": {"backend": "", "problem": "is refused"}}, "keyring", "fault"),
        ({"database": {**GOOD["database"], "synchronous": 1}}, "database", "fault"),
        ({"swap": True}, "swap", "warning"),
    ],
)
def test_each_fact_that_is_not_as_it_must_be_is_named(changes, where, level):
    assert judged(**changes) == {where: level}


async def test_a_served_minter_tells_its_facts_to_readers_without_a_value(served):
    status, facts, _ = await served.ask("admin", "GET", "/v1/process")
    assert status == 200
    assert facts.keys() == GOOD.keys()
    assert facts["peer_uid"] == os.geteuid()
    assert facts["database"]["synchronous"] == 2


@pytest.mark.parametrize(
    ("off_s", "level"),
    [(0, "ok"), (29, "ok"), (-29, "ok"), (40, "warning"), (-40, "warning"), (301, "fault"), (-400, "fault")],
)
def test_a_clock_is_judged_by_how_far_it_is_from_an_issuers(off_s, level):
    found = doctor_online.judge("https://api.example.com", before=1000.0, after=1000.2, theirs=1000.0 + off_s)
    assert found.level == level


# --- as a command ---


@pytest.fixture
def console(tmp_path):
    console = Console(tmp_path, {"MINTER_ALLOW_ROOT": "1"})
    console("minter", "init", ".")
    return console


def found(console, *arguments):
    findings = console("minter", "doctor", "--json", *arguments).json["findings"]
    return {(one["check"], one["where"].rpartition("/")[2]): one for one in findings}


def point_at(console, api):
    grants = (console.root / "grants.json").read_text()
    base = grants.partition('"base_url": "')[2].partition('"')[0]
    (console.root / "grants.json").write_text(grants.replace(base, api.origin))


@pytest.mark.parametrize(
    ("date", "level"), [("Mon, 01 Jan 2001 00:00:00 GMT", "fault"), ("nonsense", "note"), ("now", "ok"), (None, "note")]
)
def test_an_origin_is_asked_for_its_time_only_online_and_without_a_credential(console, date, level):
    with Api() as api:
        headers = [] if date is None else [("Date", formatdate(usegmt=True) if date == "now" else date)]
        api.on("HEAD", "/", lambda _request: Answer(headers=headers))
        point_at(console, api)
        found(console)
        assert api.received == []
        findings = found(console, "--online")
        assert findings["clock", api.origin.rpartition("/")[2]]["level"] == level
        (request,) = api.received
        assert (request.method, request.header("authorization"), request.header("cookie")) == ("HEAD", None, None)


def test_an_origin_that_does_not_answer_is_a_note(console):
    with Api() as api:
        point_at(console, api)
    assert found(console, "--online")["clock", api.origin.rpartition("/")[2]]["level"] == "note"


def test_a_sealing_key_without_a_second_copy_or_beside_the_state_is_worth_a_warning(console):
    before = found(console)
    assert before["sealing", "sealing-key"]["level"] == "warning"
    with (console.root / "minter.toml").open("a") as file:
        file.write('[keys.sealing-key]\nuse = "sealing"\nsource = "file:secrets/sealing"\nsecond_copy = "the safe"\n')
    after = found(console)
    assert ("sealing", "sealing-key") not in after
    assert after["sealing", "sealing"]["level"] == "note"


def test_what_stands_beside_a_state_and_in_it_is_named(console):
    path = console.root / "state/minter.db"
    first_schema.filled(
        path,
        now=1e9,
        boot_id="b",
        source_ref="file:secrets/api.key",
        secret="sekret-CANARY",
        token={"type": "static", "key": "api"},
    )
    assert found(console)["state", "schema"]["level"] == "note"
    migrate(path)
    quarantine.begin(path, now=1e9)
    (path.parent / "minter.db.restoring").touch(0o600)
    findings = found(console)
    assert findings["state", "schema"]["level"] == "ok"
    assert findings["state", "quarantine"]["level"] == "warning"
    assert findings["state", "minter.db"]["what"] == "a restore of it was cut off"
    assert findings["leases", "orphan_suspect"]["level"] == "warning"
    assert findings["leases", "irrevocable"]["level"] == "warning"
    assert findings["backup", "last"]["level"] == "note"
    copies = [one for one in console("minter", "doctor", "--json").json["findings"] if one["check"] == "copies"]
    assert [one["level"] for one in copies] == ["warning", "ok"]
    with closing(sqlite3.connect(path)) as state, state:
        state.execute("UPDATE alembic_version SET version_num = '9999'")
    assert found(console)["state", "schema"]["level"] == "fault"


@pytest.mark.parametrize("name", ["minter.db", "audit.jsonl.checkpoints"])
def test_a_state_or_checkpoints_that_others_can_open_are_a_fault(console, name):
    path = console.root / "state" / name
    path.touch(0o600)
    (console.root / "state/audit.jsonl").touch(0o600)
    own = [one for one in console("minter", "doctor", "--json").json["findings"] if one["where"] == str(path)]
    assert "mode 0600" in "".join(one["what"] for one in own)
    path.chmod(0o644)
    again = console("minter", "doctor", "--json").json["findings"]
    (fault,) = [one for one in again if one["where"] == str(path) and one["what"].startswith("mode")]
    assert (fault["level"], fault["what"]) == ("fault", "mode 0644: others may use it")


def test_a_variable_that_still_holds_a_key_is_named_and_its_value_is_not():
    facts = of_this_process(["env:API_KEY", "env:TAKEN", "file:/x"], {"API_KEY": "sekret-CANARY", "PATH": "/bin"})
    assert facts["secret_variables"] == ["API_KEY"]
    assert "sekret-CANARY" not in repr(facts)
