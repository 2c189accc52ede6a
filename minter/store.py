"""The minter's state: SQLAlchemy Core on SQLite, one writer thread, group commit.

Rules of this module:

1. Everything runs on the one writer thread, on one connection: no two statements race, and what is read after a
   write was awaited sees it.
2. What was asked for while the disk was busy shares the next transaction. Each piece of work has a savepoint of its
   own: one that raises takes nothing of the others with it. Reads alone need no transaction that writes, and reads
   whose company could not be committed are run again by themselves: they work on a full and on a read-only disk.
3. A transaction is committed (``synchronous=FULL``), then its audit events are appended and synced, and only then
   does anybody learn of the outcome. When the log cannot be written, the rows stand and the one who asked is refused
   (``audit-unavailable``); the events are owed and written before any later ones. Beyond a cap of owed events work
   that has more of them is undone: then the refusal is an :class:`UndoneError`. What is owed stands in the state,
   too (``minter/owed.py``): a process that dies before the log has it writes it after the next start.
4. A write that hangs in the disk holds up those that were asked for already, for as long as it hangs: nobody can
   know whether they will be committed. What is asked for once it hangs is refused at once (``state-unavailable``).
5. One process per state: see ``minter/state_lock.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import secrets
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import structlog
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from config.clock import Clock
from config.errors import ConfigurationError, Fault
from config.problems import ProblemError
from config.settings import SQLITE_WAL_FROM
from minter import failpoints, owed
from minter.audit import read_after
from minter.audit_events import Event
from minter.audit_verify import Head

__all__ = ["Audit", "Connection", "Store", "UndoneError", "Work", "committed", "identity", "migrate", "stands"]

T = TypeVar("T")

#: A piece of work: what it returns, and what the audit log is told about it.
Work = Callable[[Connection], tuple[T, Sequence[Event]]]

#: The schema that this program works with; ``minter/migrations`` leads there.
SCHEMA: Final = "0002"

_BATCH: Final = 512
#: Events that could not be written yet. Beyond it the oldest stay and work with new ones is undone.
_OWED: Final = 10_000
_RETRY_S: Final = 5.0
#: A transaction that takes longer hangs.
_HANGS_S: Final = 5.0
#: So long a read that need not wait for writes does.
_BESIDE_S: Final = 1.0
_REMEMBER_S: Final = 1.0
#: Where a connection notes how its next transaction begins.
_BEGIN: Final = "begin"
_KEEP_WALL: Final = (
    "INSERT INTO meta (name, value) VALUES ('highest_wall', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
_KEEP_HEAD: Final = (
    "INSERT INTO audit_head (id, seq, hash, at) VALUES (1, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET seq = excluded.seq, hash = excluded.hash, at = excluded.at"
)

_log = structlog.get_logger()


class Audit(Protocol):
    """What the store needs of :class:`minter.audit.AuditLog`. Called on the writer thread only."""

    path: Path

    def append(self, events: Sequence[Event], *, now: float) -> None:
        """Write the events and sync them, or raise and have written none."""
        ...

    def head(self) -> tuple[int, str]:
        """Return sequence and hash of the last line."""
        ...


class UndoneError(ProblemError):
    """``audit-unavailable`` before anything was committed: the log is so far behind that no more can be owed to it."""


def stands(error: ProblemError) -> bool:
    """Say whether the rows of a write that was refused with ``error`` were committed all the same."""
    return error.code == "audit-unavailable" and not isinstance(error, UndoneError)


async def committed(writing: Awaitable[object]) -> ProblemError | None:
    """Wait for a write; return its error when its rows stand: what follows from them is done before it is raised.

    Otherwise whoever asked would be refused while memory goes by what the state has no longer. Errors: all others.
    """
    try:
        await writing
    except ProblemError as error:
        if not stands(error):
            raise
        return error
    return None


@dataclass(slots=True)
class _Job:
    work: Work[Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    asked_at: float
    reads: bool = False
    result: Any = None
    events: Sequence[Event] = ()
    error: BaseException | None = None


class Store:
    """The state, open: locked (:func:`lock_state`), migrated (:func:`migrate`) and with its writer running."""

    def __init__(self, path: Path, *, audit: Audit, clock: Clock) -> None:
        self.path = path
        self._audit = audit
        self._clock = clock
        self._engine = engine_for(path)
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._owed: list[Event] = []
        #: Whether the state holds events for the log, told or not.
        self._keeps = False
        self._head: tuple[int, str] | None = None
        self._highest_wall = 0.0
        self._remembered = float("-inf")
        self._closed = False
        #: What could not be written last, ``state`` or ``audit``; empty when it could.
        self.failing: str = ""
        #: When the transaction began that is under way, on the boot clock.
        self._begun: float | None = None
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    async def write(self, work: Work[T]) -> T:
        """Run ``work`` in the next transaction; return once it is committed and its events are synced.

        Errors: what ``work`` raises; ``state-unavailable`` when nothing was committed; ``audit-unavailable`` when
        the rows were committed and the log could not be written, or, as :class:`UndoneError`, when they were not.
        """
        return await self._ask(work)

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run ``query``, which writes nothing, after all writes that were asked for before it.

        It must be bounded: writes wait for it. Errors: ``state-unavailable``.
        """
        return await self._ask(lambda connection: (query(connection), ()), reads=True)

    async def read_beside(self, query: Callable[[Connection], T]) -> T:
        """Like :meth:`read`, but while a write hangs on another connection: what was committed, if SQLite lets it.

        Errors: ``state-unavailable``.
        """
        if not self.hangs:
            reading = asyncio.ensure_future(self.read(query))
            await asyncio.wait([reading], timeout=_BESIDE_S)
            if reading.done():
                return reading.result()
            reading.cancel()
        try:
            return await asyncio.to_thread(self._read_beside, query)
        except DBAPIError:
            raise ProblemError("state-unavailable", retry_after=_RETRY_S) from None

    async def _ask(self, work: Work[T], *, reads: bool = False) -> T:
        if self._closed:
            raise ProblemError("shutting-down", retry_after=5)
        if self.hangs:
            raise ProblemError("state-unavailable", retry_after=_RETRY_S)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(_Job(work, future, loop, self._clock.now(), reads))
        return await future

    @property
    def hangs(self) -> bool:
        """Say whether the transaction that is under way hangs in the disk."""
        begun = self._begun
        return begun is not None and self._clock.boottime() - begun > _HANGS_S

    def trouble(self) -> str:
        """Return why the state cannot be written, for readiness; empty when it can."""
        if self.hangs:
            return f"a write has not ended for more than {_HANGS_S:g} s"
        return "it cannot be written" if self.failing == "state" else ""

    @property
    def owed(self) -> int:
        """How many events the audit log has not taken yet."""
        return len(self._owed)

    @property
    def highest_wall(self) -> float:
        """The highest wall time that this state has seen, in seconds since the epoch."""
        return self._highest_wall

    async def close(self) -> None:
        """Finish what was asked for, then let go of the state."""
        self._closed = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        self._engine.dispose()

    # --- the writer thread ---

    def _run(self) -> None:
        try:
            connection = self._engine.connect()
            self._load(connection)
        except Exception as error:  # noqa: BLE001 - whoever waits is to be told, whatever it is
            _log.error("state-unavailable", exc_info=error)
            self.failing = "state"
            self._refuse_everything()
            return
        while True:
            jobs, last = self._next_batch()
            if jobs:
                self._begun = self._clock.boottime()
                self._do(connection, jobs)
                self._begun = None
                _resolve(jobs)
            if last:
                break
        with contextlib.suppress(DBAPIError), connection.begin():
            self._remember(connection, self._highest_wall, at_once=True)
            self._keep(connection, ())
        connection.close()

    def _refuse_everything(self) -> None:
        """Answer for a state that could not be read at all."""
        last = False
        while not last:
            jobs, last = self._next_batch()
            for job in jobs:
                job.error = ProblemError("state-unavailable", retry_after=_RETRY_S)
            _resolve(jobs)

    def _load(self, connection: Connection) -> None:
        with connection.begin():
            row = connection.exec_driver_sql("SELECT value FROM meta WHERE name = 'highest_wall'").first()
        with contextlib.suppress(TypeError, ValueError):
            self._highest_wall = float(row[0]) if row else 0.0
        try:
            with connection.begin():
                lost = owed.left(connection, lambda seq, limit: read_after(self._audit.path, seq, limit))
        except (DBAPIError, OSError, ValueError) as error:
            _log.error("owed-events-lost", exc_info=error)
            lost = [Event("audit.events-lost", {})]
        self._keeps, self._owed = lost is not None, lost or []

    def _keep(self, connection: Connection, jobs: Sequence[_Job]) -> None:
        """Keep the events of this transaction with it, and no longer those that the log has."""
        events = [event for job in jobs for event in job.events]
        if self._keeps and not self._owed:
            owed.settle(connection)
            if not events:
                # Else nothing here would say how far the log went: see owed.unknown_to.
                self._keep_head(connection, self._highest_wall)
        if events:
            owed.keep(connection, events, seq=self._audit.head()[0])

    def _next_batch(self) -> tuple[list[_Job], bool]:
        job = self._queue.get()
        jobs: list[_Job] = []
        while job is not None:
            jobs.append(job)
            if len(jobs) == _BATCH:
                return jobs, False
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return jobs, False
        return jobs, True

    def _do(self, connection: Connection, jobs: Sequence[_Job]) -> None:
        if all(job.reads for job in jobs):
            self._look(connection, jobs)
            return
        try:
            with connection.begin():
                failpoints.reached("store.begun")
                for job in jobs:
                    self._attempt(connection, job)
                self._remember(connection, jobs[-1].asked_at)
                self._keep(connection, jobs)
                failpoints.reached("store.work-done")
        except Exception as error:  # noqa: BLE001 - the transaction is gone, and with it every piece of work in it
            if self.failing != "state":
                # Once: a disk that stays full must not be filled with what is said about it.
                _log.error("state-unavailable", exc_info=error)
            self.failing = "state"
            # What was to be remembered with it is not: the next one does.
            self._head, self._remembered = None, float("-inf")
            for job in jobs:
                job.error = job.error or ProblemError("state-unavailable", retry_after=_RETRY_S)
            self._look(connection, [job for job in jobs if job.reads])
            return
        failpoints.reached("store.committed")
        self._tell(jobs)
        failpoints.reached("store.told")

    def _attempt(self, connection: Connection, job: _Job) -> None:
        # On the driver's own connection: these two statements are half of what a small piece of work costs.
        execute = connection.connection.driver_connection.execute  # type: ignore[union-attr]
        execute("SAVEPOINT job")
        try:
            job.result, job.events = job.work(connection)
            if job.events and len(self._owed) >= _OWED:
                raise UndoneError("audit-unavailable", retry_after=_RETRY_S)  # noqa: TRY301 - undone like any other
        except Exception as error:  # noqa: BLE001 - handed to the one who asked
            execute("ROLLBACK TO job")
            if isinstance(error, DBAPIError):
                _log.error("state-statement-failed", exc_info=error)
                error = ProblemError("state-unavailable", retry_after=_RETRY_S)
            job.error = error
            job.events = ()
        execute("RELEASE job")

    def _look(self, connection: Connection, jobs: Sequence[_Job]) -> None:
        """Run reads by themselves. What they find is of one moment; nothing is written, and nobody is told."""
        connection.info[_BEGIN] = "BEGIN"
        try:
            with connection.begin():
                for job in jobs:
                    self._read(connection, job)
        except Exception as error:  # noqa: BLE001 - handed to those who asked
            _log.error("state-unavailable", exc_info=error)
            for job in jobs:
                job.error = ProblemError("state-unavailable", retry_after=_RETRY_S)
        finally:
            del connection.info[_BEGIN]

    @staticmethod
    def _read(connection: Connection, job: _Job) -> None:
        job.error = None
        try:
            job.result, _ = job.work(connection)
        except Exception as error:  # noqa: BLE001 - handed to the one who asked
            if isinstance(error, DBAPIError):
                _log.error("state-statement-failed", exc_info=error)
                error = ProblemError("state-unavailable", retry_after=_RETRY_S)
            job.error = error

    def _read_beside(self, query: Callable[[Connection], T]) -> T:
        with self._engine.connect() as connection:
            connection.info[_BEGIN] = "BEGIN"
            with connection.begin():
                return query(connection)

    def _remember(self, connection: Connection, now: float, *, at_once: bool = False) -> None:
        """Keep the highest wall time and the last line of the log that is known to be on disk: once a second."""
        boot = self._clock.boottime()
        if not at_once and 0 <= boot - self._remembered < _REMEMBER_S:
            return
        self._remembered = boot
        if now > self._highest_wall:
            self._highest_wall = now
            connection.exec_driver_sql(_KEEP_WALL, (repr(now),))
        self._keep_head(connection, now)

    def _keep_head(self, connection: Connection, now: float) -> None:
        head = self._audit.head()
        if head != self._head:
            self._head = head
            connection.exec_driver_sql(_KEEP_HEAD, (*head, now))

    def _tell(self, jobs: Sequence[_Job]) -> None:
        new = [event for job in jobs for event in job.events]
        self._keeps = bool(self._owed or new)
        events = self._owed + new
        if not events:
            self.failing = ""
            return
        try:
            self._audit.append(events, now=jobs[-1].asked_at)
        except Exception as error:  # noqa: BLE001 - whatever it is: not written means not released
            if self.failing != "audit":
                _log.error("audit-unavailable", exc_info=error)
            self.failing = "audit"
            self._owed = events
            for job in jobs:
                if job.events and job.error is None:
                    job.error = ProblemError("audit-unavailable", retry_after=_RETRY_S)
        else:
            self.failing = ""
            self._owed = []


def _resolve(jobs: Sequence[_Job]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, own in by_loop.items():
        # A loop that was closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_answer, own)


def _answer(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)


def engine_for(path: Path) -> Engine:
    """Return an engine whose transactions are ours: nothing begins or commits behind our back."""
    engine = create_engine(
        f"sqlite:///{path}", poolclass=NullPool, connect_args={"isolation_level": None, "check_same_thread": False}
    )

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        # PERSIST, not the default DELETE: with synchronous=FULL the end of a journal is synced, its deletion is not,
        # and a journal that comes back after a power loss would undo a commit that somebody was told about.
        # What is erased is overwritten in the database file (no cost was found in mints and ends, 2 us in forgetting
        # a lease). Copies of pages stay in the journal for a while, and wherever the file system or a backup keeps
        # them: of values they hold the sealed form alone, and the data key that opens it is destroyed after its day.
        wal = sqlite3.sqlite_version_info >= SQLITE_WAL_FROM
        for pragma in (
            f"journal_mode={'WAL' if wal else 'PERSIST'}",
            "journal_size_limit=4194304",
            "synchronous=FULL",
            "secure_delete=ON",
            "foreign_keys=ON",
            "busy_timeout=5000",
            "trusted_schema=OFF",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # At once with the right to write, so that no transaction finds half-way that it has to begin anew.
        connection.exec_driver_sql(connection.info.get(_BEGIN, "BEGIN IMMEDIATE"))

    return engine


def migrate(path: Path) -> None:
    """Bring the schema up to date. Alembic is imported only when there is something to do."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    engine = engine_for(path)
    try:
        version = _version(engine)
        if version != SCHEMA:
            from minter.migrations import upgrade  # noqa: PLC0415 - see above

            upgrade(engine, path, version)
    except DBAPIError as error:
        raise ConfigurationError([Fault("state", f"cannot be opened ({type(error.orig).__name__})")]) from None
    finally:
        engine.dispose()


def identity(path: Path) -> tuple[str, Head | None]:
    """Return the installation's random id, made at the first call, and the last line of the log that it knows.

    Errors: ``ConfigurationError`` when the state is damaged or cannot be written.
    """
    engine = engine_for(path)
    insert = "INSERT INTO meta (name, value) VALUES ('installation', ?) ON CONFLICT DO NOTHING"
    try:
        with engine.connect() as connection, connection.begin():
            connection.exec_driver_sql(insert, (secrets.token_hex(16),))
            name = connection.exec_driver_sql("SELECT value FROM meta WHERE name = 'installation'").scalar_one()
            head = connection.exec_driver_sql("SELECT seq, hash FROM audit_head WHERE id = 1").first()
    except DBAPIError as error:
        raise ConfigurationError([Fault("state", f"cannot be opened ({type(error.orig).__name__})")]) from None
    finally:
        engine.dispose()
    return name, Head(head[0], head[1]) if head else None


def _version(engine: Engine) -> str | None:
    with engine.connect() as connection:
        known = connection.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").first()
        row = connection.exec_driver_sql("SELECT version_num FROM alembic_version").first() if known else None
        return row[0] if row else None
