"""Values that are kept in the state, sealed: rows of ``sealed_values``, and the way to them for sources.

Sources are asked off the event loop (:class:`minter.sources.Sources`), the store on it: :class:`SealedValues` is the
bridge between the two. A value that does not open is never overwritten or deleted by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final, TypeVar

from config.problems import ProblemError
from minter.audit_events import Event
from minter.sealing import Sealed, Sealer, key_place
from minter.store import Connection, Store, Work

T = TypeVar("T")

#: A store that does not answer for so long fails the source that waits for it.
_ANSWER_S: Final = 30.0


class ClosedError(Exception):
    """The state is not open in this process: only a running minter opens what is sealed in it."""


class SealedValues:
    """What is sealed in the state, by name and version. Empty-handed until :meth:`attach`."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self._sealer = Sealer()
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, store: Store, sealer: Sealer) -> None:
        """Say where the values are. Call it on the loop that the store answers on."""
        self._store, self._sealer, self._loop = store, sealer, asyncio.get_running_loop()

    def read(self, name: str, version: int) -> bytes | None:
        """Return a value, None when there is none. Blocks.

        Errors: :class:`minter.sealing.SealError`, :class:`ClosedError`, ``ProblemError`` of the store.
        """
        found = self._run(lambda connection: (get(connection, name, version), ()))
        return None if found is None else self._sealer.open(key_place(name, version), found)

    def write(self, name: str, version: int, value: bytes) -> None:
        """Keep a value durably in place of what is there. Blocks. Errors: like :meth:`read`."""
        place = key_place(name, version)
        # Sealed on the store's thread: no data key changes between this and the write.

        def work(connection: Connection) -> tuple[None, Sequence[Event]]:
            put(connection, name, version, self._sealer.seal(place, value))
            return None, ()

        self._run(work)

    def delete(self, name: str, version: int) -> None:
        """Remove a value durably; none there is no error. Blocks. Errors: like :meth:`read`."""

        def work(connection: Connection) -> tuple[None, Sequence[Event]]:
            remove(connection, name, version)
            return None, ()

        self._run(work)

    def _run(self, work: Work[T]) -> T:
        if self._store is None or self._loop is None:
            raise ClosedError
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is self._loop:
                # It would wait for itself.
                raise AssertionError("sealed values are asked for off the event loop")
        asked = asyncio.run_coroutine_threadsafe(self._store.write(work), self._loop)
        try:
            return asked.result(_ANSWER_S)
        except TimeoutError:
            asked.cancel()
            raise ProblemError("state-unavailable") from None


# --- rows; on the store's writer thread ---


def get(connection: Connection, name: str, version: int) -> Sealed | None:
    """Return a value as it stands."""
    row = connection.exec_driver_sql(
        "SELECT data_key, sealed FROM sealed_values WHERE name = ? AND version = ?", (name, version)
    ).first()
    return None if row is None else Sealed(row[0], row[1])


def put(connection: Connection, name: str, version: int, value: Sealed) -> None:
    """Write a value in place of what is there."""
    connection.exec_driver_sql(
        "INSERT INTO sealed_values (name, version, data_key, sealed) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (name, version) DO UPDATE SET data_key = excluded.data_key, sealed = excluded.sealed",
        (name, version, value.data_key, value.blob),
    )


def remove(connection: Connection, name: str, version: int) -> None:
    """Remove a value."""
    connection.exec_driver_sql("DELETE FROM sealed_values WHERE name = ? AND version = ?", (name, version))


def names(connection: Connection) -> list[tuple[str, int]]:
    """Return name and version of every value."""
    return [(row[0], row[1]) for row in connection.exec_driver_sql("SELECT name, version FROM sealed_values")]
