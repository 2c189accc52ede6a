"""Who used each custody key, as brokers report it: counted in memory at a mint, written at every tick.

Callers are what a broker says they are, and a broker may say what it likes: of one key so many are told apart, and
the rest are counted together. A count is of mints; what a broker does with a lease, only its run records say. Counts
since the last tick are lost with the process, as is a tick's whose transaction fails: the audit log has every mint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from minter import key_rows
from minter.store import Connection

#: So many pairs of caller and broker are told apart for one key.
MAX_USERS: Final = 200
#: The caller under which all further ones are counted. No id of a caller looks like this.
OTHERS: Final = "(others)"

#: A caller and the broker that named it.
Name = tuple[str, str]


@dataclass(slots=True)
class KeyUser:
    """Uses of a key by one caller through one broker."""

    alias: str
    caller: str
    broker: str
    uses: int
    first_used_at: float
    last_used_at: float


class Uses:
    """The uses that were counted since the last :meth:`write`."""

    def __init__(self) -> None:
        self._users: dict[str, dict[Name, KeyUser]] = {}
        #: Also of what was written: in force at once, whatever the table says.
        self._last_at: dict[str, float] = {}

    def count(self, alias: str, *, caller: str, broker: str, now: float) -> None:
        """Count one use."""
        self._last_at[alias] = now
        users = self._users.setdefault(alias, {})
        user = KeyUser(alias, caller, broker, 1, now, now)
        _add(users, user, _name(user, users))

    def of(self, alias: str) -> tuple[int, float | None]:
        """Return how many uses wait to be written, and when the last use was."""
        return sum(user.uses for user in self._users.get(alias, {}).values()), self._last_at.get(alias)

    def write(self, connection: Connection) -> None:
        """Add what was counted to the tables, and begin anew."""
        counted, self._users = self._users, {}
        for alias, users in counted.items():
            uses = sum(user.uses for user in users.values())
            key_rows.count_uses(connection, alias, uses=uses, last_used_at=self._last_at[alias])
            _write(connection, alias, users.values())

    def read(self, connection: Connection) -> dict[str, list[KeyUser]]:
        """Return who used each key, what waits to be written included: the latest user first."""
        found: dict[str, dict[Name, KeyUser]] = {}
        waiting = [user for users in self._users.values() for user in users.values()]
        for user in (*(KeyUser(*row) for row in connection.exec_driver_sql(_SELECT)), *waiting):
            users = found.setdefault(user.alias, {})
            _add(users, user, _name(user, users))
        return {
            alias: sorted(users.values(), key=lambda user: (-user.last_used_at, user.caller, user.broker))
            for alias, users in found.items()
        }


_COLUMNS: Final = "alias, caller, broker, uses, first_used_at, last_used_at"
_SELECT: Final = f"SELECT {_COLUMNS} FROM key_users"  # noqa: S608 - our own names
_NAMES: Final = "SELECT caller, broker FROM key_users WHERE alias = ?"
_ADD: Final = (
    f"INSERT INTO key_users ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) "  # noqa: S608
    "ON CONFLICT (alias, caller, broker) DO UPDATE SET uses = uses + excluded.uses, "
    "first_used_at = min(first_used_at, excluded.first_used_at), "
    "last_used_at = max(last_used_at, excluded.last_used_at)"
)


def _write(connection: Connection, alias: str, users: Iterable[KeyUser]) -> None:
    names = dict.fromkeys(map(tuple, connection.exec_driver_sql(_NAMES, (alias,))))
    merged: dict[Name, KeyUser] = {}
    for user in users:
        name = _name(user, names)
        names[name] = None
        _add(merged, user, name)
    values = [(alias, u.caller, u.broker, u.uses, u.first_used_at, u.last_used_at) for u in merged.values()]
    connection.exec_driver_sql(_ADD, values)


def _name(user: KeyUser, names: Mapping[Any, Any]) -> Name:
    """Return the name that a user is counted under: its own, or the others' where there are enough names."""
    name = (user.caller, user.broker)
    return name if name in names or len(names) < MAX_USERS else (OTHERS, "")


def _add(users: dict[Name, KeyUser], user: KeyUser, name: Name) -> None:
    known = users.get(name)
    if known is None:
        users[name] = KeyUser(user.alias, *name, user.uses, user.first_used_at, user.last_used_at)
        return
    known.uses += user.uses
    known.first_used_at = min(known.first_used_at, user.first_used_at)
    known.last_used_at = max(known.last_used_at, user.last_used_at)
