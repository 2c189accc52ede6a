"""Rows of the custody tables: every key, its versions and their phases. Functions here run on the store's thread.

Phases: ``prepared`` (in its source, not used yet; without a fingerprint its preparation is not finished), ``active``
(the one that is used), ``retiring`` (kept for what was made with it) and ``destroyed``. That at most one version of a
key is prepared and at most one is active is an index of the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import msgspec

from config.settings import AUDIT_SIGNER
from minter.store import Connection

Phase = Literal["prepared", "active", "retiring", "destroyed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """One version. ``source_ref`` says where it lives; ``public_jwk`` is JSON, of asymmetric signing keys only.

    ``problem`` is a short word for why its last step failed, ``made_by`` is ``issuer`` for what its issuer made.
    """

    alias: str
    version: int
    phase: Phase
    source_ref: str
    fingerprint: str = ""
    algorithm: str = ""
    public_jwk: str | None = None
    created_at: float
    published_at: float | None = None
    activated_at: float | None = None
    retire_at: float | None = None
    destroyed_at: float | None = None
    problem: str = ""
    made_by: str = ""

    @property
    def verifies_unpublished(self) -> bool:
        """Say whether it must be held while it retires.

        Nothing that is published verifies what a shared secret signed; the audit log's signer vouches for the next.
        """
        held = self.algorithm == "HS256" or self.alias == AUDIT_SIGNER
        return held and self.phase == "retiring" and not self.is_going

    @property
    def is_going(self) -> bool:
        """Say whether it retires and is no longer good for anything: it is to be destroyed, and is not yet."""
        return self.phase == "retiring" and self.problem != ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """One key. ``origins``: where it may go, empty until its first use.

    ``settings`` is JSON of what an operator said of a key that minter.toml does not name (minter/declared_keys.py).
    """

    alias: str
    purpose: str = ""
    owner: str = ""
    origins: tuple[str, ...] = ()
    created_at: float
    last_used_at: float | None = None
    last_rotated_at: float | None = None
    uses: int = 0
    settings: str = ""
    retired_at: float | None = None


_VERSION: Final = tuple(field.name for field in fields(VersionRow))
_KEY: Final = tuple(field.name for field in fields(KeyRow))
_PUT_VERSION: Final = (
    f"INSERT INTO key_versions ({', '.join(_VERSION)}) VALUES ({', '.join('?' * len(_VERSION))}) "  # noqa: S608 - our own names
    f"ON CONFLICT (alias, version) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _VERSION[2:])}"
)
_ADD_KEY: Final = (
    f"INSERT INTO custody_keys ({', '.join(_KEY)}) VALUES ({', '.join('?' * len(_KEY))}) "  # noqa: S608
    "ON CONFLICT (alias) DO UPDATE SET purpose = excluded.purpose, owner = excluded.owner"
)


def versions(connection: Connection) -> list[VersionRow]:
    """Return every version of every key, the oldest first."""
    rows = connection.exec_driver_sql(f"SELECT {', '.join(_VERSION)} FROM key_versions ORDER BY alias, version")  # noqa: S608
    return [VersionRow(**dict(zip(_VERSION, row, strict=True))) for row in rows]


def keys(connection: Connection) -> dict[str, KeyRow]:
    """Return every key by alias."""
    found = {}
    for row in connection.exec_driver_sql(f"SELECT {', '.join(_KEY)} FROM custody_keys"):  # noqa: S608
        values: dict[str, Any] = dict(zip(_KEY, row, strict=True))
        values["origins"] = tuple(msgspec.json.decode(values["origins"], type=list[str]))
        found[values["alias"]] = KeyRow(**values)
    return found


def add_key(connection: Connection, row: KeyRow) -> None:
    """Add a key; of one that is there, take over what the settings say of it."""
    values = {name: getattr(row, name) for name in _KEY}
    values["origins"] = _json(row.origins)
    connection.exec_driver_sql(_ADD_KEY, tuple(values.values()))


def forget(connection: Connection, alias: str) -> None:
    """Remove a key that never came into use, with its versions."""
    connection.exec_driver_sql("DELETE FROM key_versions WHERE alias = ?", (alias,))
    connection.exec_driver_sql("DELETE FROM custody_keys WHERE alias = ?", (alias,))


def retire(connection: Connection, alias: str, *, now: float) -> None:
    """Note that a key was taken out of use."""
    connection.exec_driver_sql("UPDATE custody_keys SET retired_at = ? WHERE alias = ?", (now, alias))


def put_version(connection: Connection, row: VersionRow) -> None:
    """Write a version as it is now, new or not."""
    connection.exec_driver_sql(_PUT_VERSION, tuple(getattr(row, name) for name in _VERSION))


def origins(connection: Connection, alias: str) -> tuple[str, ...]:
    """Return where a key may go."""
    row = connection.exec_driver_sql("SELECT origins FROM custody_keys WHERE alias = ?", (alias,)).first()
    return tuple(msgspec.json.decode(row[0], type=list[str])) if row else ()


def pin(connection: Connection, alias: str, to: Iterable[str]) -> None:
    """Say where a key may go, in place of what was said before."""
    connection.exec_driver_sql("UPDATE custody_keys SET origins = ? WHERE alias = ?", (_json(to), alias))


def count_uses(connection: Connection, alias: str, *, uses: int, last_used_at: float) -> None:
    """Add uses that were counted in memory."""
    connection.exec_driver_sql(
        "UPDATE custody_keys SET uses = uses + ?, last_used_at = max(coalesce(last_used_at, 0), ?) WHERE alias = ?",
        (uses, last_used_at, alias),
    )


def rotated(connection: Connection, alias: str, *, now: float) -> None:
    """Note that a key has another active version."""
    connection.exec_driver_sql("UPDATE custody_keys SET last_rotated_at = ? WHERE alias = ?", (now, alias))


@dataclass(frozen=True, slots=True)
class User:
    """Live leases of one run that were made with a version."""

    run_id: str
    caller: str
    broker: str
    leases: int


#: More runs than anybody reads are not listed.
_MAX_USERS: Final = 100_000
_LIVE: Final = "state IN ('intent', 'active', 'revoking') AND expires_at > ?"


def users(connection: Connection, alias: str, version: int, *, now: float) -> list[User]:
    """Return who has live credentials that were made with a version."""
    rows = connection.exec_driver_sql(
        f"SELECT run_id, caller, broker, count(*) FROM leases WHERE {_LIVE} AND instr(key_versions, ?) "  # noqa: S608
        f"GROUP BY run_id, caller, broker ORDER BY run_id LIMIT {_MAX_USERS}",
        (now, msgspec.json.encode(f"{alias}@{version}").decode()),
    )
    return [User(*row) for row in rows]


def live_callers(connection: Connection, *, now: float) -> list[tuple[list[str], str, int]]:
    """Return (alias@version list, caller, live leases) of everything that is lent: one pass for a whole report."""
    rows = connection.exec_driver_sql(
        f"SELECT key_versions, caller, count(*) FROM leases WHERE {_LIVE} GROUP BY key_versions, caller",  # noqa: S608
        (now,),
    )
    return [(msgspec.json.decode(row[0], type=list[str]), row[1], row[2]) for row in rows]


def last_end(connection: Connection, alias: str, version: int) -> float | None:
    """Return when the last credential of a version ends by itself, those of leases that were revoked included.

    Who verifies a token alone does not learn that its lease was revoked.
    """
    ends = connection.exec_driver_sql(
        "SELECT max(coalesce(credential_ends_at, expires_at)) FROM leases WHERE key_alias = ? AND key_version = ?",
        (alias, version),
    ).scalar()
    return None if ends is None else float(ends)


def _json(texts: Iterable[str]) -> str:
    return msgspec.json.encode(sorted(texts)).decode()
