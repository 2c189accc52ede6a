from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys

import pytest

from config.errors import ConfigurationError
from config.problems import ProblemError
from minter import store as store_module
from minter.audit_events import Event
from minter.state_lock import lock_state, state_path
from minter.store import SCHEMA, Store, UndoneError, engine_for, migrate
from minter.tables import metadata

PINNED = Event("key.pinned", {"alias": "a", "origins": ["https://api.example.com"]})


class Tape:
    """An audit log that keeps its lines in memory and can be told to fail."""

    def __init__(self):
        self.events: list[Event] = []
        self.appends = 0
        self.broken = False

    def append(self, events, *, now):
        self.appends += 1
        if self.broken:
            raise OSError(28, "No space left on device")
        self.events += events

    def head(self):
        return len(self.events), "0" * 64


@pytest.fixture
def tape():
    return Tape()


def opened(folder, tape, clock):
    path = state_path(f"sqlite:{folder / 'minter.db'}")
    lock = lock_state(path)
    migrate(path)
    store = Store(path, audit=tape, clock=clock)
    return store, lock


@pytest.fixture
async def store(tmp_path, tape, clock):
    store, lock = opened(tmp_path / "state", tape, clock)
    yield store
    await store.close()
    os.close(lock)


def put(name, value="1", *events):
    def work(connection):
        connection.exec_driver_sql("INSERT INTO meta (name, value) VALUES (?, ?)", (name, value))
        return name, events

    return work


def names(connection):
    return {row[0] for row in connection.exec_driver_sql("SELECT name FROM meta WHERE name LIKE 't%'")}


async def test_what_a_write_returns_is_returned_after_its_events_are_in_the_log(store, tape):
    assert await store.write(put("t1", "1", PINNED)) == "t1"
    assert tape.events == [PINNED]
    assert await store.read(names) == {"t1"}


async def test_work_that_was_asked_for_together_shares_few_syncs(store, tape):
    await asyncio.gather(*(store.write(put(f"t{n}", "1", PINNED)) for n in range(200)))
    assert len(tape.events) == 200
    assert tape.appends < 20


async def test_work_that_raises_takes_nothing_of_the_others_with_it(store, tape):
    def fails(connection):
        put("t-lost")(connection)
        raise ProblemError("lease-conflict")

    results = await asyncio.gather(
        store.write(put("t1")), store.write(fails), store.write(put("t2")), return_exceptions=True
    )
    assert [type(result) for result in results] == [str, ProblemError, str]
    assert await store.read(names) == {"t1", "t2"}
    assert tape.events == []


async def test_a_statement_that_fails_is_state_unavailable_and_says_nothing_of_the_statement(store):
    with pytest.raises(ProblemError) as refused:
        await store.write(lambda connection: (connection.exec_driver_sql("SELECT hunter2 FROM nowhere"), ()))
    assert refused.value.code == "state-unavailable"
    assert "hunter2" not in str(refused.value)


async def test_when_the_log_cannot_be_written_the_rows_stand_and_the_asker_is_refused(store, tape):
    tape.broken = True
    with pytest.raises(ProblemError) as refused:
        await store.write(put("t1", "1", PINNED))
    assert refused.value.code == "audit-unavailable"
    assert store.failing == "audit"
    assert await store.read(names) == {"t1"}


async def test_when_no_more_can_be_owed_to_the_log_work_is_undone_and_that_can_be_told(store, tape, monkeypatch):
    monkeypatch.setattr(store_module, "_OWED", 1)
    tape.broken = True
    with pytest.raises(ProblemError) as stands:
        await store.write(put("t1", "1", PINNED))
    with pytest.raises(UndoneError) as undone:
        await store.write(put("t2", "1", PINNED))
    assert not isinstance(stands.value, UndoneError)
    assert stands.value.code == undone.value.code == "audit-unavailable"
    assert await store.read(names) == {"t1"}


async def test_events_that_could_not_be_written_come_before_later_ones(store, tape):
    other = Event("key.pinned", {"alias": "b", "origins": ["https://api.example.com"]})
    tape.broken = True
    with pytest.raises(ProblemError):
        await store.write(put("t1", "1", PINNED))
    tape.broken = False
    await store.write(put("t2", "1", other))
    assert tape.events == [PINNED, other]
    assert store.failing == ""


async def test_a_second_minter_cannot_open_the_same_state_and_is_told_who_has_it(store, tmp_path):
    program = (
        "import sys; from pathlib import Path; from config.errors import ConfigurationError\n"
        "from minter.state_lock import lock_state\n"
        "try: lock_state(Path(sys.argv[1]))\n"
        "except ConfigurationError as error: print(error); sys.exit(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(store.path)], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert f"in use by process {os.getpid()}" in done.stdout


async def test_a_state_whose_directory_others_may_write_is_refused(tmp_path, tape, clock):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigurationError, match="written by others"):
        opened(folder, tape, clock)


async def test_the_state_file_is_readable_by_its_owner_only(store):
    assert store.path.stat().st_mode & 0o777 == 0o600
    assert store.path.parent.stat().st_mode & 0o777 == 0o700


async def test_the_highest_wall_time_survives_a_restart_with_the_clock_set_back(tmp_path, tape, clock):
    first, lock = opened(tmp_path / "state", tape, clock)
    high = clock.now() + 3600
    clock.advance(3600)
    await first.write(put("t1"))
    await first.close()
    os.close(lock)
    clock.wall -= 86400
    second, lock = opened(tmp_path / "state", tape, clock)
    await second.read(names)
    assert second.highest_wall == high
    await second.close()
    os.close(lock)


async def test_nothing_is_taken_on_after_closing(tmp_path, tape, clock):
    store, lock = opened(tmp_path / "state", tape, clock)
    written = asyncio.create_task(store.write(put("t1")))
    await asyncio.sleep(0)
    await store.close()
    os.close(lock)
    assert await written == "t1"
    with pytest.raises(ProblemError) as refused:
        await store.write(put("t2"))
    assert refused.value.code == "shutting-down"


def test_the_migrations_lead_to_the_tables(tmp_path):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    path = tmp_path / "minter.db"
    migrate(path)
    with engine_for(path).connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
    assert differences == []


def test_a_state_of_a_newer_program_is_refused(tmp_path):
    path = tmp_path / "minter.db"
    migrate(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(ConfigurationError, match="newer version"):
        migrate(path)


def test_alembic_is_imported_only_when_there_is_something_to_migrate(tmp_path):
    path = tmp_path / "minter.db"
    migrate(path)
    program = (
        "import sys; from pathlib import Path; from minter.store import migrate\n"
        "migrate(Path(sys.argv[1])); sys.exit('alembic' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == 0


def test_the_newest_migration_is_the_schema_of_this_program():
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "minter/migrations")
    assert ScriptDirectory.from_config(config).get_current_head() == SCHEMA
