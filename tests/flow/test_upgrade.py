"""A state of the first released schema, taken over by this program as an operator would: start it, and go on."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing

import pytest

from config.load import boot_id, system_clock
from tests.flow.test_main_job import profile
from tests.worlds import first_schema
from tests.worlds.service import CANARY

pytestmark = pytest.mark.flow

LIVE = ("intent", "active", "revoking", "orphan_suspect", "irrevocable")


@pytest.fixture
def old(service, api):
    """A stopped minter whose state a program of the first schema left."""
    api.on("GET", "/v1/items")
    service.prepare({"api": profile(api)})
    service.first = first_schema.filled(
        service.root / "state/minter.db",
        now=system_clock().now(),
        boot_id=boot_id(),
        source_ref=f"file:{service.root / 'secrets/api.key'}",
        secret=CANARY,
        token={"type": "static", "key": "api"},
    )
    return service


def plain_keys(service):
    """The files of the state that have one of the keys in the clear which are sealed since."""
    first = service.first
    needles = [form for key in (first.fingerprint_key, first.params_key) for form in (key, key.hex().encode())]
    files = [path for path in (service.root / "state").rglob("*") if path.is_file()]
    return {path.name for path in files if any(needle in path.read_bytes() for needle in needles)}


def goes_on(service, api):
    """Say that everything works after the start."""
    leases = {one["lease_id"]: one["state"] for one in service.leases()}
    first = service.first.leases
    # Values were only in memory then: what was live is ended or replaced, what was being made is a suspect.
    assert first["intent"] in leases
    assert leases[first["intent"]] == "orphan_suspect"
    assert leases[first["orphan_suspect"]] == "orphan_suspect"
    assert set(leases.values()) <= {*LIVE}
    with closing(sqlite3.connect(service.root / "state/minter.db")) as state:
        assert {row[0] for row in state.execute("SELECT id FROM leases")} >= {first["revoked"], first["expired"]}
    run = service.open_run()
    assert service.call(run, "GET", "/v1/items").status == 200
    assert api.received[-1].header("authorization") == f"Bearer {CANARY}"
    # The fingerprint key is the same one: the key's value is known to be what it was.
    assert service.audited("key.changed") == []
    service.run("minter", "audit", "verify")
    done = service.run("minter", "doctor", check=False)
    assert done.returncode == 0, done.stdout.decode()


def test_a_start_takes_the_old_state_over_and_leaves_nothing_of_it_in_the_clear(old, api):
    assert plain_keys(old) == {"minter.db"}
    old.start()
    assert plain_keys(old) == set()
    goes_on(old, api)
    assert (old.root / "state/minter.db.before-0001").exists()
    old.stop("minter")
    old.start("minter")
    assert plain_keys(old) == set()


@pytest.mark.parametrize("point", ["migrate.copied", "migrate.statement:5", "migrate.committed", "store.committed:2"])
def test_a_start_that_is_killed_on_its_way_is_simply_made_again(old, api, point):
    old.environ["MINTER_TEST_FAILPOINT"] = point
    with pytest.raises(AssertionError, match="minter ended"):
        old.start("minter")
    assert old.processes.pop("minter").wait(20) == -signal.SIGKILL
    old.environ.clear()
    old.start()
    assert plain_keys(old) == set()
    goes_on(old, api)
