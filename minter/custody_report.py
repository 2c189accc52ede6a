"""The report about custody for a security reviewer: where every key is, whose, how old, where it may go, who uses it.

Names, references and fingerprints; no value, and nothing a value could be guessed from.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Final

import msgspec

from config.clock import rfc3339
from minter import key_rows
from minter.custody import Custody
from minter.key_rows import KeyRow, VersionRow
from minter.sources import kind_of
from minter.store import Connection

#: A key is due soon when so much of its period has passed.
SOON: Final = 0.8


def report(custody: Custody, connection: Connection, *, now: float) -> list[dict[str, Any]]:
    """Return what is known of every key that was ever loaded. A query for the store."""
    versions: defaultdict[str, list[VersionRow]] = defaultdict(list)
    for row in key_rows.versions(connection):
        versions[row.alias].append(row)
    lent = key_rows.live_callers(connection, now=now)
    return [
        _key(custody, row, versions[alias], lent, now=now) for alias, row in sorted(key_rows.keys(connection).items())
    ]


def _key(
    custody: Custody, row: KeyRow, versions: list[VersionRow], lent: list[tuple[list[str], str, int]], *, now: float
) -> dict[str, Any]:
    settings = custody.settings_of(row.alias)
    active = next((version for version in versions if version.phase == "active"), None)
    callers: Counter[str] = Counter()
    names = {f"{row.alias}@{version.version}" for version in versions}
    for made_with, caller, count in lent:
        if not names.isdisjoint(made_with):
            callers[caller] += count
    since_at = active.activated_at if active and active.activated_at is not None else row.created_at
    period_s = float(settings.rotate_every) if settings and settings.rotate_every else None
    uses, used_at = custody.uses.of(row.alias)
    return {
        "alias": row.alias,
        "loaded": row.alias in custody.aliases(),
        "use": settings.use if settings else "",
        "algorithm": active.algorithm if active else "",
        "owner": row.owner,
        "purpose": row.purpose,
        "source": kind_of(active.source_ref) if active else "",
        "source_ref": active.source_ref if active else "",
        "fingerprint": active.fingerprint if active else "",
        "origins": custody.origins_of(row.alias) or list(row.origins),
        "profiles": list(custody.profiles_of(row.alias)),
        "created_at": rfc3339(row.created_at),
        "last_rotated_at": _instant(row.last_rotated_at),
        "next_due_at": _instant(since_at + period_s if period_s else None),
        "due": _due(now - since_at, period_s),
        "last_used_at": _instant(max(filter(None, (row.last_used_at, used_at)), default=None)),
        "uses": row.uses + uses,
        "live_leases": callers.total(),
        "callers": dict(sorted(callers.items())),
        "versions": [_version(version) for version in versions],
    }


def _version(row: VersionRow) -> dict[str, Any]:
    return {
        "version": row.version,
        "phase": row.phase,
        "source_ref": row.source_ref,
        "fingerprint": row.fingerprint,
        "kid": msgspec.json.decode(row.public_jwk)["kid"] if row.public_jwk is not None else None,
        "created_at": rfc3339(row.created_at),
        "published_at": _instant(row.published_at),
        "activated_at": _instant(row.activated_at),
        "retire_at": _instant(row.retire_at),
        "destroyed_at": _instant(row.destroyed_at),
    }


def _due(age_s: float, period_s: float | None) -> str:
    if period_s is None:
        return ""
    if age_s >= period_s:
        return "overdue"
    return "soon" if age_s >= SOON * period_s else "no"


def _instant(at: float | None) -> str | None:
    return None if at is None else rfc3339(at)
