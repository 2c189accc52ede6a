"""The broker's state: SQLite, one thread that writes, many writes to a sync.

All work goes through one connection on one thread. What waits there is executed together, each piece in a savepoint
of its own, and committed together with ``synchronous=FULL``: a reply that was given survives a power loss, and
sixty-four openings at once cost one sync. SQLite below 3.51.3 can corrupt a write-ahead log, so the rollback journal
is used there (truncated, which with FULL is synced; deleting it would not be).

A lock file beside the database keeps a second broker out: two would each believe that they hold the budgets.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import sqlite3
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from config.errors import ConfigurationError, Fault
from config.problems import ProblemError
from config.settings import SQLITE_WAL_FROM

log = structlog.get_logger("broker.store")

T = TypeVar("T")
Work = Callable[[Connection], T]

#: The newest migration under ``broker/migrations/versions``.
HEAD: Final = "0001"

#: How much is committed together at most: bounds how long the first of a batch waits for the last.
_BATCH: Final = 512


@dataclass(slots=True)
class _Job:
    work: Work[Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


class Store:
    """The broker's database.

    >>> store = Store.open("sqlite:state/broker.db")                        # doctest: +SKIP
    >>> await store.write(lambda db: records.open_run(db, row))             # doctest: +SKIP
    """

    def __init__(self, engine: Engine, lock: int) -> None:
        """Take a migrated database and the descriptor of the held lock file; see :meth:`open`."""
        #: Whether the last attempt to write failed.
        self.failing = False
        self._engine = engine
        self._lock = lock
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="broker-store", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, reference: str) -> Store:
        """Open or make the database that the setting ``state`` names, and bring its schema up to date.

        Errors: ``ConfigurationError`` when it is not ``sqlite:PATH``, is open to others, is in use by another
        broker, is newer than this program, or is no database.
        """
        path = _path(reference)
        lock = _hold(path)
        try:
            engine = _engine(path)
            try:
                _migrate(engine, path)
            except BaseException:
                engine.dispose()
                raise
        except BaseException:
            os.close(lock)
            raise
        return cls(engine, lock)

    async def write(self, work: Work[T]) -> T:
        """Run ``work`` on the writer thread and return its result once it is on the disk.

        Errors: whatever ``work`` raises, then its own changes are undone; ``ProblemError("state-unavailable")`` when
        the database cannot be written.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(work, loop, future))
        return await future

    #: Reading goes the same way: it sees everything written before it.
    read = write

    def close(self) -> None:
        """Finish what waits, and let go of the database."""
        self._jobs.put(None)
        self._thread.join()
        self._engine.dispose()
        os.close(self._lock)

    def _run(self) -> None:
        with self._engine.connect() as connection:
            while (first := self._jobs.get()) is not None:
                batch, last = [first], False
                while len(batch) < _BATCH:
                    try:
                        job = self._jobs.get_nowait()
                    except queue.Empty:
                        break
                    if job is None:
                        last = True
                        break
                    batch.append(job)
                self.failing = not _commit(connection, batch)
                if last:
                    return


def _commit(connection: Connection, batch: list[_Job]) -> bool:
    """Do all of ``batch`` in one transaction and tell who waits; say whether it was committed."""
    committed = True
    try:
        with connection.begin():
            for job in batch:
                _execute(connection, job)
    except DBAPIError as error:
        # SQLite's text names a table or the disk, and never a value.
        log.error("state-unavailable", error=type(error.orig).__name__, reason=str(error.orig))  # noqa: TRY400 - no values of parameters in the log
        committed = False
        for job in batch:
            job.error = ProblemError("state-unavailable", retry_after=1)
    for loop in {job.loop for job in batch}:
        try:
            loop.call_soon_threadsafe(_settle, [job for job in batch if job.loop is loop])
        except RuntimeError:
            log.debug("loop-closed")  # whoever waited is gone with its loop; the rows are written
    return committed


def _execute(connection: Connection, job: _Job) -> None:
    connection.exec_driver_sql("SAVEPOINT job")
    try:
        job.result = job.work(connection)
    except DBAPIError as error:
        if not isinstance(error.orig, sqlite3.IntegrityError):
            raise  # the disk, not the job: nothing of this batch can be relied on
        connection.exec_driver_sql("ROLLBACK TO job")
        job.error = error
    except Exception as error:  # noqa: BLE001 - it is handed to whoever asked
        connection.exec_driver_sql("ROLLBACK TO job")
        job.error = error
    connection.exec_driver_sql("RELEASE job")


def _settle(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue  # whoever waited was cancelled
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)


def _path(reference: str) -> Path:
    scheme, _, path = reference.partition(":")
    if scheme != "sqlite" or not path:
        raise ConfigurationError([Fault("state", "expected sqlite:PATH")])
    return Path(path)


def _hold(path: Path) -> int:
    """Make the files when they are missing, check who can read them, and take the lock."""
    lock_path = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(_private(path))
        lock = _private(lock_path)
    except OSError as error:
        raise ConfigurationError([Fault("state", f"cannot be opened: {error.strerror}")]) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise ConfigurationError(
            [Fault("state", f"is in use by another broker, process {holder}", "stop that one, or name another state")]
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _private(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(descriptor)
        raise ConfigurationError(
            [Fault("state", f"{path.name} must be a regular file of this user, with mode 0600", "chmod 600")]
        )
    return descriptor


def _engine(path: Path) -> Engine:
    # One connection, made here and then used by the writer thread alone.
    engine = create_engine(
        f"sqlite:///{path}", poolclass=StaticPool, connect_args={"check_same_thread": False, "timeout": 5.0}
    )

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves: the driver's own way forgets it for savepoints
        journal = "WAL" if sqlite3.sqlite_version_info >= SQLITE_WAL_FROM else "TRUNCATE"
        connection.execute(f"PRAGMA journal_mode={journal}")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA secure_delete=ON")

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _migrate(engine: Engine, path: Path) -> None:
    try:
        with engine.begin() as connection:
            there = connection.exec_driver_sql(
                "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'"
            ).scalar_one()
            version = (
                connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one() if there else None
            )
            if version == HEAD:
                return
            # Imported only here: a start that has nothing to migrate does not pay for it.
            from broker.migrations import upgrade  # noqa: PLC0415

            upgrade(connection, version)
    except DBAPIError as error:
        raise ConfigurationError([Fault("state", f"{path.name}: {error.orig}")]) from None
