"""Changes of the schema: from the first released one on, in one transaction, whatever kills them."""

from __future__ import annotations

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from config.errors import ConfigurationError
from config.load import boot_id, system_clock
from minter import state_copies
from minter.store import SCHEMA, migrate
from tests.worlds import first_schema

VERSIONS = Path(__file__).resolve().parents[2] / "minter/migrations/versions"

#: Steps that were released, by the digest of their file. A released step is never edited: another one is added.
RELEASED = {"v0001_first.py": "d887d560d4d2ab4b9ca67eefa19f3a3005ee52d5652cb2ff967c49ad8bbda4f3"}

PROGRAM = (
    "import os, sys; from pathlib import Path; from minter import failpoints; from minter.state_lock import lock_state;"
    "from minter.store import migrate; failpoints.arm(os.environ);"
    "path = Path(sys.argv[1]); lock_state(path); migrate(path); print('migrated')"
)


def schema(path):
    with closing(sqlite3.connect(path)) as state:
        return state.execute("SELECT version_num FROM alembic_version").fetchone()[0]


def killed(path, point):
    """Migrate in a process that dies at a point; say whether it did."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        env={**os.environ, "MINTER_TEST_FAILPOINT": point},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode == -signal.SIGKILL


@pytest.fixture
def first(tmp_path):
    """A state of the first schema, and what is in it."""
    path = tmp_path / "minter.db"
    clock = system_clock()
    filled = first_schema.filled(
        path,
        now=clock.now(),
        boot_id=boot_id(),
        source_ref="file:api.key",
        secret="sekret-CANARY",
        token={"type": "static", "key": "api"},
    )
    return path, filled


def whole(path, filled):
    """Say that a state has all that was in the first one."""
    with closing(sqlite3.connect(path)) as state:
        assert dict(state.execute("SELECT state, id FROM leases")) == filled.leases
        assert state.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert state.execute("SELECT count(*) FROM meta WHERE name = 'params_key'").fetchone() == (1,)


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_step_is_not_edited(name):
    assert hashlib.sha256((VERSIONS / name).read_bytes()).hexdigest() == RELEASED[name]


def test_a_state_of_the_first_schema_is_changed_and_a_copy_of_it_stands_beside_it(first):
    path, filled = first
    migrate(path)
    assert schema(path) == SCHEMA
    whole(path, filled)
    (copy,) = state_copies.of(path)
    assert (copy.name, copy.stat().st_mode & 0o777, schema(copy)) == ("minter.db.before-0001", 0o600, "0001")
    whole(copy, filled)
    assert sorted(child.name for child in path.parent.iterdir() if "half" in child.name) == []


@pytest.mark.parametrize("point", ["migrate.copying", "migrate.copied", "migrate.begun", "migrate.done"])
def test_a_change_that_is_killed_before_it_is_committed_has_not_happened_and_is_made_by_the_next_start(first, point):
    path, filled = first
    assert killed(path, point)
    whole(path, filled)
    assert schema(path) == "0001"
    migrate(path)
    assert schema(path) == SCHEMA
    whole(path, filled)
    whole(path.with_name("minter.db.before-0001"), filled)
    assert [child.name for child in path.parent.iterdir() if child.name.endswith(".half")] == []


def test_a_change_that_is_killed_at_any_of_its_statements_has_not_happened(first):
    """Each statement in turn, until one run gets through: no statement's effect outlives the kill."""
    path, filled = first
    statement = 0
    while killed(path, f"migrate.statement:{statement + 1}"):
        statement += 1
        whole(path, filled)
        assert schema(path) == "0001", statement
    assert statement > 8
    assert schema(path) == SCHEMA
    whole(path, filled)


def test_a_first_start_that_is_killed_at_any_statement_is_made_again(tmp_path):
    path = tmp_path / "minter.db"
    for statement in (1, 3, 6, 12, 20):
        assert killed(path, f"migrate.statement:{statement}")
    migrate(path)
    assert schema(path) == SCHEMA


def test_a_change_that_is_killed_after_it_was_committed_is_not_made_again(first):
    path, filled = first
    assert killed(path, "migrate.committed")
    assert schema(path) == SCHEMA
    assert not killed(path, "migrate.begun")
    whole(path, filled)


def test_of_two_starters_at_once_one_changes_the_state_and_the_other_is_refused_or_finds_it_changed(first):
    path, filled = first
    starters = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    ended = [(starter.communicate(timeout=60), starter.returncode) for starter in starters]
    assert any(status == 0 for _, status in ended)
    for (_, error), status in ended:
        assert status == 0 or b"in use by process" in error
    assert schema(path) == SCHEMA
    whole(path, filled)


def test_a_step_that_reads_otherwise_than_when_it_made_the_state_is_refused(first, monkeypatch):
    path, _ = first
    with closing(sqlite3.connect(path)) as state, state:
        state.execute("INSERT INTO meta VALUES ('migration/0001', 'another')")
    with pytest.raises(ConfigurationError, match="schema step 0001 made this state and reads otherwise"):
        migrate(path)
    assert schema(path) == "0001"


def test_each_step_is_recorded_by_its_digest(tmp_path):
    path = tmp_path / "minter.db"
    migrate(path)
    with closing(sqlite3.connect(path)) as state:
        recorded = dict(state.execute("SELECT name, value FROM meta WHERE name LIKE 'migration/%'"))
    assert recorded["migration/0001"] == hashlib.sha256((VERSIONS / "v0001_first.py").read_bytes()).hexdigest()
    assert f"migration/{SCHEMA}" in recorded


def test_a_copy_loses_what_was_in_the_clear_once_the_changed_state_has_opened(first):
    path, filled = first
    migrate(path)
    (copy,) = state_copies.of(path)
    assert filled.fingerprint_key.hex().encode() in copy.read_bytes()
    (path.parent / "minter.db.before-0000").write_bytes(b"no database" * 1000)
    (path.parent / "minter.db.before-0001.half").write_bytes(b"left by a kill")
    state_copies.scrub(path)
    for key in (filled.fingerprint_key, filled.params_key):
        for child in path.parent.glob("*.before-*"):
            assert key not in child.read_bytes()
            assert key.hex().encode() not in child.read_bytes()
    with closing(sqlite3.connect(copy)) as state:
        assert dict(state.execute("SELECT state, id FROM leases")) == filled.leases
    assert copy.stat().st_mode & 0o777 == 0o600
    assert [child.name for child in state_copies.of(path)] == ["minter.db.before-0000", "minter.db.before-0001"]
