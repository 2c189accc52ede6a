from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import sqlalchemy

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


# --- a disk in trouble ---


class Disk:
    """Lets statements of the store's connection hang, or fail as a full or read-only disk does."""

    def __init__(self, store):
        self.gate = threading.Event()
        self.gate.set()
        self.error = ""
        self.statements = []
        sqlalchemy.event.listen(store._engine, "before_cursor_execute", self._before)
        sqlalchemy.event.listen(store._engine, "commit", self._commit)

    def _before(self, _connection, _cursor, statement, *_):
        self.statements.append(statement)
        if self.error and statement.startswith(("BEGIN IMMEDIATE", "INSERT", "UPDATE")):
            raise sqlite3.OperationalError(self.error)

    def _commit(self, _connection):
        if self.statements and "BEGIN IMMEDIATE" in self.statements:
            self.statements.clear()
            self.gate.wait(20)


@pytest.fixture
def disk(store):
    disk = Disk(store)
    yield disk
    disk.gate.set()


DISKS = ["database or disk is full", "attempt to write a readonly database", "disk I/O error"]


@pytest.mark.parametrize("error", DISKS)
async def test_reads_work_on_a_disk_that_takes_no_write_and_a_write_is_refused_clearly(store, disk, error):
    await store.write(put("t1"))
    disk.error = error
    with pytest.raises(ProblemError, match="state-unavailable"):
        await store.write(put("t2"))
    assert await store.read(names) == {"t1"}
    assert store.trouble() == "it cannot be written"
    disk.error = ""
    await store.write(put("t3"))
    assert await store.read(names) == {"t1", "t3"}
    assert store.trouble() == ""


async def test_reads_alone_ask_for_no_right_to_write(store, disk):
    await store.write(put("t1"))
    disk.statements.clear()
    await asyncio.gather(*(store.read(names) for _ in range(3)))
    assert "BEGIN" in disk.statements
    assert "BEGIN IMMEDIATE" not in disk.statements


@pytest.mark.parametrize("error", DISKS)
async def test_reads_whose_company_could_not_be_committed_are_answered_all_the_same(store, disk, error):
    await store.write(put("t1"))
    disk.error = error
    found = await asyncio.gather(
        store.write(put("t2")), store.read(names), store.write(put("t3")), store.read(names), return_exceptions=True
    )
    assert [type(one) for one in found] == [ProblemError, set, ProblemError, set]
    assert found[1] == found[3] == {"t1"}


async def test_a_read_that_raises_takes_nothing_of_the_others_with_it(store):
    def fails(_connection):
        raise ProblemError("lease-not-found")

    found = await asyncio.gather(store.read(names), store.read(fails), store.read(names), return_exceptions=True)
    assert [type(one) for one in found] == [set, ProblemError, set]


async def test_what_is_asked_for_while_a_write_hangs_is_refused_at_once_and_reads_find_a_way(store, disk, clock):
    await store.write(put("t1"))
    disk.gate.clear()
    hanging = asyncio.create_task(store.write(put("t2")))
    while store._begun is None or disk.statements:  # noqa: ASYNC110 - another thread gets there
        await asyncio.sleep(0.001)
    assert not store.hangs
    clock.advance(6)
    assert store.hangs
    assert "5 s" in store.trouble()
    for asked in (store.write(put("t3")), store.read(names)):
        with pytest.raises(ProblemError, match="state-unavailable"):
            await asked
    assert await store.read_beside(names) == {"t1"}
    assert not hanging.done()
    disk.gate.set()
    assert await hanging == "t2"
    assert not store.hangs
    assert await store.read_beside(names) == {"t1", "t2"}


def test_a_disk_that_is_really_full_refuses_writes_and_answers_reads(tmp_path):
    done = on_small_disk(
        tmp_path,
        """
        async def main(store, fill):
            for n in range(20):
                await store.write(put(f"t{n}", "x" * 1000))
            fill()
            refused = 0
            for n in range(200):
                try:
                    await store.write(put(f"u{n}", "y" * 4000))
                except ProblemError as error:
                    assert error.code == "state-unavailable", error.code
                    refused += 1
            assert refused, "the disk never was full"
            assert store.trouble() == "it cannot be written"
            assert len(await store.read(names)) == 20
            fill(free=True)
            await store.write(put("t-after"))
            assert len(await store.read(names)) == 21
            assert store.trouble() == ""
    """,
    )
    assert done.returncode == 0, done.stderr


def on_small_disk(folder, script):
    """Run a script on a store whose disk has two megabytes, in a mount namespace of its own."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("a small disk takes the right to mount one")
    program = SMALL_DISK + textwrap.dedent(script) + "\nasyncio.run(opened(main))\n"
    disk = folder / "disk"
    disk.mkdir(mode=0o700)
    (folder / "program.py").write_text(program)
    mounted = (
        f"mount -t tmpfs -o size=2m,mode=0700 tmpfs {disk} && exec {sys.executable} {folder / 'program.py'} {disk}"
    )
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounted],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])},
    )


SMALL_DISK = """
import asyncio, io, sys
from pathlib import Path
import structlog
from config.clock import FakeClock
from config.problems import ProblemError
from minter.state_lock import lock_state, state_path
from minter.store import Store, migrate
from tests.minter.test_store import Tape, names, put

structlog.configure(
    processors=[structlog.processors.KeyValueRenderer()], logger_factory=structlog.WriteLoggerFactory(io.StringIO())
)

async def opened(main):
    folder = Path(sys.argv[1])
    path = state_path(f"sqlite:{folder / 'minter.db'}")
    lock = lock_state(path)
    migrate(path)
    store = Store(path, audit=Tape(), clock=FakeClock())

    def fill(free=False):
        filler = folder / "filler"
        if free:
            filler.unlink()
            return
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 512):
                    pass
            except OSError:
                pass

    await main(store, fill)
    await store.close()
"""


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


async def test_a_state_that_cannot_be_read_at_all_is_said_to_whoever_waits(tmp_path, tape, clock, monkeypatch):
    def fail(_store, _connection):
        raise sqlite3.DatabaseError("malformed")

    monkeypatch.setattr(Store, "_load", fail)
    store, lock = opened(tmp_path, tape, clock)
    with pytest.raises(ProblemError) as refused:
        await asyncio.wait_for(store.read(lambda _connection: None), 10)
    assert refused.value.code == "state-unavailable"
    await store.close()
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
