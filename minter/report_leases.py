"""The leases in the custody report: what is open and until when, what is not certain, what nobody can end upstream.

Every query here is bounded, because what is written waits for it: totals come from an index, lists and groups are
cut, and the report says where.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from config.clock import rfc3339
from minter.store import Connection

#: Leases that are listed one by one, of each state.
LISTED: Final = 50
#: Live leases that are looked through for who holds what.
LOOKED_THROUGH: Final = 20_000
#: Ended leases that are looked through, of each way to end, for credentials that are still good.
ENDED_LOOKED_THROUGH: Final = 10_000
#: Groups that are listed.
GROUPS: Final = 200

#: What can still be of use to somebody, the most doubtful first.
OPEN_STATES: Final = ("orphan_suspect", "irrevocable", "revoking", "intent", "active")

#: Says what a revocation of a kind can reach at best; None when nobody knows.
HowEnds = Callable[[str], str | None]

_COLUMNS: Final = (
    *("id", "state", "kind", "profile", "caller", "broker", "run_id", "key_versions"),
    *("created_at", "expires_at", "credential_ends_at", "end_reason", "attempts", "next_attempt_at"),
)
_LIST: Final = f"SELECT {', '.join(_COLUMNS)} FROM leases WHERE state = ? ORDER BY expires_at DESC, rowid DESC LIMIT ?"  # noqa: S608 - our own names
_GROUP: Final = (
    "SELECT kind, profile, caller, key_versions, count(*), max(coalesce(credential_ends_at, expires_at)) FROM ({}) "
    "GROUP BY kind, profile, caller, key_versions ORDER BY kind, profile, caller, key_versions"
)
_HELD: Final = "SELECT * FROM leases WHERE state IN ('intent', 'active', 'revoking')"
_LIVE: Final = _GROUP.format(f"{_HELD} LIMIT {LOOKED_THROUGH}")
#: The last to end: a credential that outlives its lease, or was revoked, and that nobody upstream was told of.
_ENDED: Final = _GROUP.format(
    f"SELECT * FROM (SELECT * FROM leases WHERE state = ? ORDER BY expires_at DESC LIMIT {ENDED_LOOKED_THROUGH}) "  # noqa: S608
    "WHERE how = 'expired_only' AND credential_ends_at > ?"
)


@dataclass(slots=True)
class Held:
    """What is lent at this moment, by key."""

    leases: Counter[str] = field(default_factory=Counter)
    callers: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, aliases: Iterable[str], caller: str, leases: int) -> None:
        """Count leases that were made with keys."""
        for alias in aliases:
            self.leases[alias] += leases
            self.callers.setdefault(alias, Counter())[caller] += leases


@dataclass(slots=True)
class _Group:
    kind: str
    profile: str
    keys: tuple[str, ...]
    leases: int = 0
    callers: set[str] = field(default_factory=set)
    until: float | None = None

    def shown(self, how_ends: HowEnds) -> dict[str, Any]:
        """Return what the report says of it."""
        return {
            "kind": self.kind,
            "profile": self.profile,
            "keys": list(self.keys),
            "leases": self.leases,
            "callers": len(self.callers),
            **_end(self.kind, how_ends, self.until),
        }


def leases(connection: Connection, *, how_ends: HowEnds, now: float) -> tuple[dict[str, Any], Held]:
    """Return the report's part about leases, and what is lent by key. A query for the store."""
    held = Held()
    groups = _fold(connection.exec_driver_sql(_LIVE), held)
    ended = [
        group
        for state in ("revoked", "expired")
        for group in _fold(connection.exec_driver_sql(_ENDED, (state, now))).values()
    ]
    listed = {
        name: _listed(connection, state, how_ends)
        for name, state in (
            ("orphans", "orphan_suspect"),
            ("irrevocable", "irrevocable"),
            ("revoking", "revoking"),
            ("being_made", "intent"),
            ("active", "active"),
        )
    }
    answer = {
        "totals": {state: _total(connection, state) for state in OPEN_STATES},
        "looked_through": sum(group.leases for group in groups.values()),
        **listed,
        "groups": [group.shown(how_ends) for group in list(groups.values())[:GROUPS]],
        "groups_total": len(groups),
        "over_but_valid": [group.shown(how_ends) for group in ended[:GROUPS]],
        "over_but_valid_total": len(ended),
    }
    return answer, held


def _fold(rows: Iterable[Any], held: Held | None = None) -> dict[tuple[Any, ...], _Group]:
    """Put callers together. What is held is counted by key, beside."""
    groups: dict[tuple[Any, ...], _Group] = {}
    for kind, profile, caller, keys, count, until in rows:
        name = (_text(kind), _text(profile), _aliases(keys))
        if held is not None:
            held.add(name[2], _text(caller), count)
        group = groups.setdefault(name, _Group(*name))
        group.leases += count
        group.callers.add(_text(caller))
        group.until = _later(group.until, until)
    return groups


def _total(connection: Connection, state: str) -> int:
    return int(connection.exec_driver_sql("SELECT count(*) FROM leases WHERE state = ?", (state,)).scalar_one())


def _listed(connection: Connection, state: str, how_ends: HowEnds) -> list[dict[str, Any]]:
    """Return the leases of a state that live longest."""
    return [
        _shown(dict(zip(_COLUMNS, row, strict=True)), how_ends)
        for row in connection.exec_driver_sql(_LIST, (state, LISTED))
    ]


def _shown(row: dict[str, Any], how_ends: HowEnds) -> dict[str, Any]:
    kind = _text(row["kind"])
    return {
        "lease_id": _text(row["id"]),
        "state": row["state"],
        **{name: _text(row[name]) for name in ("kind", "profile", "caller", "broker", "run_id")},
        "keys": list(_aliases(row["key_versions"])),
        "created_at": _instant(row["created_at"]),
        "lease_ends_at": _instant(row["expires_at"]),
        **_end(kind, how_ends, _lives_until(row)),
        "reason": _text(row["end_reason"]),
        "attempts": row["attempts"] if type(row["attempts"]) is int else 0,
        "next_attempt_at": _instant(row["next_attempt_at"]),
    }


def _lives_until(row: dict[str, Any]) -> float | None:
    """Return when a credential ends by itself; of one that nobody saw, the latest that was asked for."""
    if row["state"] in ("orphan_suspect", "intent"):
        return _number(row["expires_at"])
    return _number(row["credential_ends_at"])


def _end(kind: str, how_ends: HowEnds, until: float | None) -> dict[str, Any]:
    """Return until when a credential lives and what its revocation can reach: nobody promises more."""
    how = how_ends(kind)
    if how == "key_still_valid":
        return {"lives_until": None, "upstream": how}
    return {"lives_until": _instant(until), "upstream": how or "unknown"}


def _aliases(key_versions: Any) -> tuple[str, ...]:
    """Return the aliases of ``["alias@version", ...]``. A damaged row has none."""
    try:
        names = msgspec.json.decode(key_versions, type=list[str])
    except (msgspec.MsgspecError, TypeError):
        return ()
    return tuple(dict.fromkeys(name.rpartition("@")[0] for name in names))


def _later(one: float | None, other: Any) -> float | None:
    return max((at for at in (one, _number(other)) if at is not None), default=None)


def _text(value: Any) -> str:
    """Return a text of a row. SQLite keeps any type in any column, and a damaged row is reported like any other."""
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) else None


def _instant(value: Any) -> str | None:
    at = _number(value)
    try:
        return None if at is None else rfc3339(at)
    except (ValueError, OverflowError, OSError):
        return None
