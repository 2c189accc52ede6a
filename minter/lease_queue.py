"""Which leases are to be ended, and when: what the sweep and the revocations upstream ask the lease table.

Everything here is bounded and goes by an index, so that what is not due costs nothing however many leases there are.
Functions run on the store's writer thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from minter.lease_rows import LeaseRow, rows_where
from minter.store import Connection
from minter.tables import REPLACED

#: What takes turns at being revoked: (kind, profile).
Group = tuple[str, str]

#: No look goes through more groups; the next one goes on after them.
MAX_GROUPS: Final = 256
#: Why a suspect is one: nobody here ever saw its credential.
NEVER_SEEN: Final = ("restart", "mint-failed")
#: What stands in the way of a revocation whose kind, or a key that it needs, is not there any more.
KIND_MISSING: Final = "kind-missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """An instant on both clocks. ``highest_wall`` counts for leases of an earlier boot (see config/clock.py)."""

    now: float
    boot_id: str
    boot: float
    highest_wall: float


def due(connection: Connection, moment: Moment, *, limit: int) -> list[LeaseRow]:
    """Return leases that ended by either clock: active ones, replaced ones, and suspects by their worst case."""
    now, boot_id, boot = moment.now, moment.boot_id, moment.boot
    asked: list[tuple[str, tuple[Any, ...]]] = [
        ("state = 'active' AND expires_at <= ? ORDER BY expires_at", (now,)),
        ("state = 'active' AND boot_id = ? AND boot_expires_at <= ? ORDER BY boot_expires_at", (boot_id, boot)),
        (f"{REPLACED} AND expires_at <= ? ORDER BY expires_at", (now,)),
        (f"{REPLACED} AND boot_id = ? AND boot_expires_at <= ?", (boot_id, boot)),
    ]
    if moment.highest_wall > now:
        earlier_boot = "state = 'active' AND expires_at <= ? AND boot_id <> ? ORDER BY expires_at"
        asked.append((earlier_boot, (moment.highest_wall, boot_id)))
    # Last, as some stay: their kind is asked first.
    asked.append(("state = 'orphan_suspect' AND expires_at <= ? ORDER BY expires_at", (now,)))
    found: dict[str, LeaseRow] = {}
    for where, values in asked:
        if len(found) < limit:
            found |= {row.id: row for row in rows_where(connection, where, values, limit)}
    return list(found.values())


def turns(
    connection: Connection, *, now: float, after: Group, limits: Callable[[Group], int]
) -> tuple[Mapping[Group, list[LeaseRow]], Group]:
    """Return, by group, the leases whose revocation is due longest, at most ``limits(group)`` of each.

    Looks at :data:`MAX_GROUPS` groups after ``after``; returns the last of them too, or the start when it was the end.
    """
    found: dict[Group, list[LeaseRow]] = {}
    group: Group | None = after
    for _ in range(MAX_GROUPS):
        group = _next_group(connection, group or ("", ""))
        if group is None:
            return found, ("", "")
        limit = limits(group)
        where = f"kind = ? AND profile = ? AND next_attempt_at <= ? AND NOT ({REPLACED}) ORDER BY next_attempt_at"
        rows = rows_where(connection, where, (*group, now), limit) if limit else []
        if rows:
            found[group] = rows
    return found, group or ("", "")


def _next_group(connection: Connection, after: Group) -> Group | None:
    row = connection.exec_driver_sql(
        "SELECT kind, profile FROM leases WHERE next_attempt_at IS NOT NULL AND (kind, profile) > (?, ?) "
        "ORDER BY kind, profile LIMIT 1",
        after,
    ).first()
    return None if row is None else (row[0], row[1])


def bring_forward(connection: Connection, *, now: float) -> int:
    """Have every revocation that waits for its time tried now: the clock that it was set by was wrong."""
    return connection.exec_driver_sql(
        f"UPDATE leases SET next_attempt_at = ? WHERE next_attempt_at > ? AND NOT ({REPLACED})",  # noqa: S608 - ours
        (now, now),
    ).rowcount


def next_ends(connection: Connection, *, now: float, boot: float, boot_id: str) -> tuple[float | None, float | None]:
    """Return the earliest coming end or attempt by the wall clock, and the earliest coming end by this boot's clock.

    What is due already is not among them: somebody is working on it.
    """
    wall = [
        connection.exec_driver_sql(f"SELECT min({column}) FROM leases WHERE {where} {column} > ?", (now,)).scalar()  # noqa: S608
        for column, where in (
            ("expires_at", "state = 'active' AND"),
            ("expires_at", "state = 'orphan_suspect' AND"),
            ("expires_at", f"{REPLACED} AND"),
            ("next_attempt_at", ""),
        )
    ]
    boot_at = connection.exec_driver_sql(
        "SELECT min(boot_expires_at) FROM leases WHERE state = 'active' AND boot_id = ? AND boot_expires_at > ?",
        (boot_id, boot),
    ).scalar()
    return min((value for value in wall if value is not None), default=None), boot_at


# --- leases that wait for their kind ---

_WAITING: Final[Mapping[str, str]] = {
    # A suspect that nobody has looked for: its kind may be able to.
    "unsought": "state = 'orphan_suspect' AND next_attempt_at IS NULL",
    "missing": f"state = 'irrevocable' AND how = '{KIND_MISSING}'",
}


def waiting(connection: Connection) -> list[tuple[str, LeaseRow]]:
    """Return one lease of each token object whose leases wait for their kind, with what they wait for."""
    found = []
    for name, where in _WAITING.items():
        one_of_each = f"id IN (SELECT min(id) FROM leases WHERE {where} GROUP BY token)"  # noqa: S608 - ours
        found += [(name, row) for row in rows_where(connection, one_of_each, (), MAX_GROUPS)]
    return found


def wait_no_longer(connection: Connection, given: Iterable[tuple[str, str]], *, now: float) -> int:
    """Have leases tried now whose kind is there: of token objects, each with what it waited for. Return how many."""
    count = 0
    for name, token in given:
        count += connection.exec_driver_sql(
            f"UPDATE leases SET next_attempt_at = ? WHERE token = ? AND {_WAITING[name]}",  # noqa: S608 - ours
            (now, token),
        ).rowcount
    return count
