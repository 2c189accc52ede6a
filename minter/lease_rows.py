"""Rows of the lease table: the truth about every lease. Functions here run on the store's writer thread.

States: ``intent`` (about to be made upstream), ``active``, ``revoking`` (nobody may use it; its end upstream is being
tried, or waits for its time), ``revoked`` (ended before its time), ``expired`` (reached its end), ``orphan_suspect``
(the minter stopped between mint and commit) and ``irrevocable`` (its revocation kept failing).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import msgspec

from minter.sealing import Place, Sealed, lease_place
from minter.store import Connection

State = Literal["intent", "active", "revoking", "revoked", "expired", "orphan_suspect", "irrevocable"]
STATES: Final[tuple[State, ...]] = (
    "intent",
    "active",
    "revoking",
    "revoked",
    "expired",
    "orphan_suspect",
    "irrevocable",
)


@dataclass(slots=True, kw_only=True, eq=False)
class LeaseRow:
    """One row, without its sealed value. What each column means stands in ``minter/tables.py``."""

    id: str
    broker: str
    run_id: str
    caller: str
    profile: str
    params_digest: str
    origin: str
    grant_digest: str
    kind: str
    state: State
    how: str = ""
    fingerprint: str = ""
    created_at: float
    expires_at: float
    boot_expires_at: float
    boot_id: str
    run_ends_at: float
    credential_ends_at: float | None = None
    key_alias: str | None = None
    key_version: int | None = None
    key_versions: str = "[]"
    token: str
    attempts: int = 0
    next_attempt_at: float | None = None
    ended_at: float | None = None
    end_reason: str = ""
    trace_id: str | None = None

    def made_with(self, alias: str, version: int | None = None) -> bool:
        """Say whether the credential was made with a custody key (or one version of it)."""
        names = msgspec.json.decode(self.key_versions, type=list[str])
        return any(name == f"{alias}@{version}" or (version is None and name.startswith(f"{alias}@")) for name in names)


#: Why a row that cannot be read is set aside.
DAMAGED: Final = "row-damaged"
#: Not the table's own names: those are no plain texts, and fill a row in three times the time.
_NAMES: Final = tuple(field.name for field in fields(LeaseRow))
#: Columns that a lease's value is sealed with: who it was lent to and for what, and how long, cannot be changed later.
PLACE: Final = ("id", "kind", "broker", "run_id", "caller", "profile", "params_digest", "origin", "expires_at")
_place_of: Final = operator.attrgetter(*PLACE)
#: What a row cannot be used without.
_texts: Final = operator.attrgetter(
    *("id", "broker", "run_id", "caller", "profile", "params_digest", "origin", "grant_digest"),
    *("kind", "token", "boot_id", "key_versions"),
)
_instants: Final = operator.attrgetter("created_at", "expires_at", "boot_expires_at", "run_ends_at")
_values: Final = operator.attrgetter(*_NAMES)
_COLUMNS: Final = ", ".join(_NAMES)
_INSERT: Final = f"INSERT INTO leases ({_COLUMNS}, data_key, sealed) VALUES ({', '.join('?' * len(_NAMES))}, ?, ?)"  # noqa: S608 - our names
_SELECT: Final = f"SELECT {_COLUMNS} FROM "  # noqa: S608
_UPDATE: Final = (
    "UPDATE leases SET state = ?, how = ?, fingerprint = ?, expires_at = ?, boot_expires_at = ?, "
    "boot_id = ?, credential_ends_at = ?, key_alias = ?, key_version = ?, key_versions = ?, attempts = ?, "
    "next_attempt_at = ?, ended_at = ?, end_reason = ?, data_key = {data_key}, sealed = {sealed} "
    # What is over stays over, whatever is written late: a revocation that was overtaken, a row of a disk in trouble.
    "WHERE id = ? AND state NOT IN ('revoked', 'expired')"
)
#: In the statement that ends a lease its value goes. Until then only a mint and a new data key write it.
_KEEP_OR_ERASE: Final = _UPDATE.format(
    data_key="CASE WHEN ? THEN NULL ELSE data_key END", sealed="CASE WHEN ? THEN NULL ELSE sealed END"
)
_PUT_VALUE: Final = _UPDATE.format(data_key="?", sealed="?")
_changed: Final = operator.attrgetter(
    "state",
    "how",
    "fingerprint",
    "expires_at",
    "boot_expires_at",
    "boot_id",
    "credential_ends_at",
    "key_alias",
    "key_version",
    "key_versions",
    "attempts",
    "next_attempt_at",
    "ended_at",
    "end_reason",
)


def insert(connection: Connection, row: LeaseRow, value: Sealed | None = None) -> None:
    """Add a row. A second live lease of the same broker, run and profile fails on the unique index."""
    sealed = (None, None) if value is None else (value.data_key, value.blob)
    connection.exec_driver_sql(_INSERT, (*_values(row), *sealed))


def update(connection: Connection, rows: Sequence[LeaseRow]) -> None:
    """Write what can change of rows that are there; of those that are over the value is erased."""
    if rows:
        changed = [(*_changed(row), row.state in _OVER, row.state in _OVER, row.id) for row in rows]
        connection.exec_driver_sql(_KEEP_OR_ERASE, changed)


def complete(connection: Connection, row: LeaseRow, value: Sealed) -> None:
    """Write what was made for a row that is there, with its value."""
    connection.exec_driver_sql(_PUT_VALUE, (*_changed(row), value.data_key, value.blob, row.id))


def place(row: LeaseRow) -> Place:
    """Return the place of a lease's value."""
    return lease_place(*_place_of(row))


def value_of(connection: Connection, id_: str) -> Sealed | None:
    """Return the sealed value of a lease, or None when there is none."""
    row = connection.exec_driver_sql("SELECT data_key, sealed FROM leases WHERE id = ?", (id_,)).first()
    if row is None or type(row[0]) is not int or type(row[1]) is not bytes:
        return None
    return Sealed(row[0], row[1])


def delete(connection: Connection, id_: str) -> bool:
    """Remove a row, and say whether there was one: an intent that made nothing, and what is damaged and forgotten."""
    return connection.exec_driver_sql("DELETE FROM leases WHERE id = ?", (id_,)).rowcount > 0


def orphan_intents(connection: Connection, *, broker: str, run_id: str, profile: str) -> list[LeaseRow]:
    """Mark intents of a key that nobody is working on any more, and return them: a credential of theirs may exist."""
    where, values = "broker = ? AND run_id = ? AND profile = ? AND state = 'intent'", (broker, run_id, profile)
    found = rows_where(connection, where, values, 1)
    connection.exec_driver_sql(
        f"UPDATE leases SET state = 'orphan_suspect', end_reason = 'mint-failed' WHERE {where}",  # noqa: S608 - ours
        values,
    )
    return found


def make_room(connection: Connection, id_: str) -> None:
    """Let a lease near its end make room for its successor: it stays good until its end, and is ended then."""
    connection.exec_driver_sql(
        "UPDATE leases SET state = 'revoking', end_reason = 'replaced', next_attempt_at = expires_at "
        "WHERE id = ? AND state = 'active'",
        (id_,),
    )


def unsettled(connection: Connection) -> list[int]:
    """Return the places in the table of all rows that a start has to look at."""
    found = connection.exec_driver_sql("SELECT rowid FROM leases WHERE state IN ('intent', 'active')")
    return [place for (place,) in found]


def at(connection: Connection, places: Sequence[int]) -> list[tuple[int, bool, tuple[Any, ...]]]:
    """Return rows by their places: the place, whether there is a value, and the row, raw: it may be damaged."""
    wanted = ",".join(map(str, places))
    found = connection.exec_driver_sql(
        f"SELECT rowid, sealed IS NOT NULL, {_COLUMNS} FROM leases WHERE rowid IN ({wanted})"  # noqa: S608 - numbers
    )
    return [(row[0], bool(row[1]), tuple(row[2:])) for row in found]


def parse(raw: Sequence[Any]) -> LeaseRow:
    """Return the row. Errors: ``ValueError`` for one that is damaged (SQLite keeps any type in any column)."""
    row = LeaseRow(**dict(zip(_NAMES, raw, strict=True)))
    if set(map(type, _texts(row))) != {str}:
        raise ValueError("a text is missing")
    if row.state not in STATES or set(map(type, _instants(row))) != {float}:
        raise ValueError("a state or an instant is none")
    return row


def quarantine(connection: Connection, place: int, *, now: float) -> None:
    """Set a damaged row aside where it is seen and counted, and nothing tries to work with it."""
    connection.exec_driver_sql(
        "UPDATE leases SET state = 'irrevocable', end_reason = ?, next_attempt_at = NULL, ended_at = ?, "
        "data_key = NULL, sealed = NULL WHERE rowid = ?",
        (DAMAGED, now, place),
    )


def mark(connection: Connection, alias: str, reason: str) -> None:
    """Note of every live lease that was made with a key why it is to end: whoever finds it live ends it."""
    connection.exec_driver_sql(
        "UPDATE leases SET end_reason = ? WHERE state = 'active' AND instr(key_versions, '\"' || ? || '@')",
        (reason, alias),
    )


def get(connection: Connection, id_: str) -> LeaseRow | None:
    """Return one row, or None."""
    rows = rows_where(connection, "id = ?", (id_,), 1)
    return rows[0] if rows else None


#: What a list of leases may be filtered by, and the condition.
FILTERS: Final[Mapping[str, str]] = {
    "state": "state = ?",
    "run": "run_id = ?",
    "profile": "profile = ?",
    "kind": "kind = ?",
    "caller": "caller = ?",
    "broker": "broker = ?",
    "key": "instr(key_versions, '\"' || ? || '@')",
    "since": "created_at >= ?",
}


#: States of a lease that is over; and how far back a search looks among those: it must not hold up what is written.
_OVER: Final = ("revoked", "expired")
_LOOKED_THROUGH: Final = 100_000
#: Nobody can use them, and whether their credentials are gone is not known: what an operator is to see first.
_STUCK: Final = "state IN ('orphan_suspect', 'irrevocable')"
_NOT_OVER: Final = "state IN ('intent', 'active', 'revoking', 'orphan_suspect', 'irrevocable')"


def search(connection: Connection, filters: Mapping[str, str | float], *, limit: int) -> list[LeaseRow]:
    """Return the leases that fit all filters (:data:`FILTERS`): those that are stuck, not over, the last to end."""
    where = " AND ".join(FILTERS[name] for name in filters) or "1"
    values = tuple(filters.values())
    found = rows_where(connection, f"{_NOT_OVER} AND {where} ORDER BY {_STUCK} DESC, created_at DESC", values, limit)
    for state in _OVER:
        if len(found) < limit:
            last = f"(SELECT * FROM leases WHERE state = '{state}' ORDER BY expires_at DESC LIMIT {_LOOKED_THROUGH})"  # noqa: S608
            found += rows_where(connection, where, values, limit - len(found), table=last)
    return found


def damaged(connection: Connection, *, limit: int) -> list[str]:
    """Return the ids of rows that are set aside because they cannot be read."""
    found = connection.exec_driver_sql(
        "SELECT id FROM leases WHERE state = 'irrevocable' AND end_reason = ? LIMIT ?", (DAMAGED, limit)
    )
    return [row[0] for row in found if isinstance(row[0], str)]


def counts(connection: Connection) -> dict[tuple[str, str], int]:
    """Return how many leases stand in each state and kind, without those that are over."""
    rows = connection.exec_driver_sql(
        "SELECT state, kind, count(*) FROM leases WHERE state IN ('revoking', 'orphan_suspect', 'irrevocable') "
        "GROUP BY state, kind"
    )
    return {(row[0], row[1]): row[2] for row in rows}


def forget(connection: Connection, *, before: float, limit: int) -> int:
    """Delete leases that were over before an instant; the audit log keeps their story."""
    return connection.exec_driver_sql(
        "DELETE FROM leases WHERE rowid IN (SELECT rowid FROM leases "
        "WHERE state IN ('revoked', 'expired') AND expires_at < ? LIMIT ?)",
        (before, limit),
    ).rowcount


def rows_where(
    connection: Connection, where: str, values: Iterable[Any], limit: int, *, table: str = "leases"
) -> list[LeaseRow]:
    """Return the rows that fit a condition of ours, without those that are damaged."""
    found = connection.exec_driver_sql(f"{_SELECT}{table} WHERE {where} LIMIT ?", (*values, limit))
    rows = []
    for raw in found:
        try:
            rows.append(parse(raw))
        except ValueError:
            continue
    return rows
