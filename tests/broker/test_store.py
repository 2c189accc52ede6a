from __future__ import annotations

import asyncio
import os
import sqlite3
import threading

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from broker import records, store
from broker.store import Store
from broker.tables import metadata
from config.errors import ConfigurationError
from config.problems import ProblemError

NOW = 1_893_456_000.0


def row(run_id="run_1", *, token=b"t" * 32, caller="orchestrator", profiles=("memory",), created_at=NOW):
    return records.RunRow(
        run_id=run_id,
        caller=caller,
        trace_id="trace-1",
        params=b"{}",
        token_digest=token,
        created_at=created_at,
        expires_at=NOW + 900,
        boot_expires_at=1900.0,
        ceiling_at=NOW + 86400,
        boot_ceiling_at=87400.0,
        boot_id="boot-1",
        profiles=tuple(
            records.ProfileRow(profile=name, grant_digest=f"sha256:{name}", source=b"{}") for name in profiles
        ),
    )


def opened(db, new, key):
    return records.open_run(db, new, key, max_runs=1000)


@pytest.fixture
def reference(tmp_path):
    return f"sqlite:{tmp_path}/state/broker.db"


@pytest.fixture
def kept(reference):
    store_ = Store.open(reference)
    yield store_
    store_.close()


async def test_what_was_written_is_there_after_a_restart(reference):
    first = Store.open(reference)
    await first.write(lambda db: opened(db, row(), None))
    first.close()
    second = Store.open(reference)
    assert await second.read(records.live_runs) == [row()]
    second.close()


async def test_sixty_four_writes_at_once_share_a_sync(kept):
    commits = []
    sqlalchemy.event.listen(kept._engine, "commit", commits.append)
    gate = threading.Event()
    held = asyncio.ensure_future(kept.write(lambda _db: gate.wait(5)))
    await asyncio.sleep(0)
    writes = [
        asyncio.ensure_future(kept.write(lambda db, n=n: opened(db, row(f"run_{n}", token=bytes([n])), None)))
        for n in range(64)
    ]
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*writes) == [f"run_{n}" for n in range(64)]
    await held
    assert len(commits) in (1, 2)


async def test_a_piece_of_work_that_fails_undoes_only_itself(kept):
    def broken(db):
        opened(db, row("run_broken", token=b"b"), None)
        raise ProblemError("run-ended")

    def twice(db):
        opened(db, row("run_twice", token=b"e"), None)
        opened(db, row("run_twice", token=b"f"), None)

    results = await asyncio.gather(
        kept.write(lambda db: opened(db, row("run_a", token=b"a"), None)),
        kept.write(broken),
        kept.write(lambda db: opened(db, row("run_a", token=b"c"), None)),
        kept.write(twice),
        kept.write(lambda db: opened(db, row("run_c", token=b"d"), None)),
        return_exceptions=True,
    )
    assert results[0] == "run_a"
    assert isinstance(results[1], ProblemError)
    assert isinstance(results[2], sqlalchemy.exc.IntegrityError)
    assert isinstance(results[3], sqlalchemy.exc.IntegrityError)
    assert [kept_row.run_id for kept_row in await kept.read(records.live_runs)] == ["run_a", "run_c"]


async def test_a_disk_that_is_full_is_state_unavailable_and_heals(kept):
    pages = await kept.read(lambda db: db.exec_driver_sql("PRAGMA page_count").scalar_one())
    await kept.read(lambda db: db.exec_driver_sql(f"PRAGMA max_page_count={pages}").scalar_one())
    big = records.RunRow(**{**{n: getattr(row(), n) for n in records._COLUMNS}, "params": b"x" * 100_000})
    with pytest.raises(ProblemError) as refused:
        await kept.write(lambda db: opened(db, big, None))
    assert refused.value.code == "state-unavailable"
    assert refused.value.status == 503
    await kept.read(lambda db: db.exec_driver_sql("PRAGMA max_page_count=100000").scalar_one())
    assert await kept.write(lambda db: opened(db, big, None)) == "run_1"


def test_a_second_broker_on_the_same_state_is_refused_and_told_who_holds_it(reference):
    first = Store.open(reference)
    with pytest.raises(ConfigurationError) as refused:
        Store.open(reference)
    assert f"in use by another broker, process {os.getpid()}" in str(refused.value)
    first.close()
    Store.open(reference).close()


def test_only_this_user_can_read_the_state(tmp_path, reference):
    Store.open(reference).close()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()} == {0o600}


def test_a_state_that_others_can_read_is_refused(tmp_path, reference):
    Store.open(reference).close()
    (tmp_path / "state" / "broker.db").chmod(0o644)
    with pytest.raises(ConfigurationError, match="mode 0600"):
        Store.open(reference)


def test_a_symlink_in_the_place_of_the_state_is_refused(tmp_path, reference):
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / "state" / "broker.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        Store.open(reference)


def test_a_file_that_is_no_database_is_refused_by_name(tmp_path, reference):
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "broker.db").touch(mode=0o600)
    (tmp_path / "state" / "broker.db").write_bytes(b"not a database at all, but text" * 100)
    with pytest.raises(ConfigurationError, match=r"broker\.db: file is not a database"):
        Store.open(reference)


@pytest.mark.parametrize("reference", ["postgresql://db/broker", "sqlite:", "", "state/broker.db"])
def test_a_state_that_is_not_sqlite_is_refused(reference):
    with pytest.raises(ConfigurationError, match="expected sqlite:PATH"):
        Store.open(reference)


def test_the_migrations_make_exactly_the_tables_that_the_program_uses(kept):
    with kept._engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == store.HEAD


def test_a_database_of_a_newer_program_is_refused(tmp_path, reference):
    Store.open(reference).close()
    database = sqlite3.connect(tmp_path / "state" / "broker.db")
    database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.commit()
    database.close()
    with pytest.raises(ConfigurationError, match="a newer broker wrote this database"):
        Store.open(reference)


def test_commits_are_synced_in_full_and_the_log_is_one_that_this_sqlite_writes_safely(kept):
    with kept._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
        mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
    assert mode == ("wal" if sqlite3.sqlite_version_info >= (3, 51, 3) else "truncate")


async def test_a_budget_is_reserved_in_blocks_and_never_beyond_its_limit(kept):
    await kept.write(lambda db: opened(db, row(), None))

    async def reserve(wanted):
        return await kept.write(lambda db: records.reserve(db, "run_1", "memory", wanted=wanted, limit=50))

    assert [await reserve(32), await reserve(32), await reserve(32)] == [32, 18, 0]


async def test_a_run_that_has_ended_gets_no_new_token(kept):
    key = records.Idempotency(key_digest=b"k", body_digest=b"b")
    await kept.write(lambda db: opened(db, row(), key))
    await kept.write(lambda db: records.end_run(db, "run_1", ended_at=NOW, reason="caller", trace=b"{}"))
    with pytest.raises(ProblemError) as refused:
        await kept.write(lambda db: opened(db, row("run_2", token=b"new"), key))
    assert refused.value.code == "run-ended"
    assert (await kept.read(lambda db: records.find_run(db, "run_1"))).token_digest == row().token_digest


async def test_runs_that_ended_long_ago_are_forgotten_once_the_minter_knows(kept):
    await kept.write(lambda db: opened(db, row(), records.Idempotency(key_digest=b"k", body_digest=b"b")))
    await kept.write(lambda db: records.end_run(db, "run_1", ended_at=NOW, reason="caller", trace=b"{}"))
    assert await kept.write(lambda db: records.purge(db, ended_before=NOW + 1)) == 0
    for notice in await kept.read(records.notices):
        await kept.write(lambda db, notice=notice: records.delivered(db, notice, None))
    assert await kept.write(lambda db: records.purge(db, ended_before=NOW)) == 0
    assert await kept.write(lambda db: records.purge(db, ended_before=NOW + 1)) == 1
    for table in metadata.sorted_tables:
        assert await kept.read(lambda db, table=table: db.execute(table.select()).all()) == [], table.name
