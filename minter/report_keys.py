"""The keys in the custody report: what each is, where it lives, how old it is, who may use it and who did.

Names, references and fingerprints; no value, and nothing a value could be guessed from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from config.clock import rfc3339
from config.profiles import Profile
from config.settings import SEALING_KEY
from config.tokenfiles import Principal
from minter import key_age, key_rows
from minter.custody import Custody
from minter.key_age import KeyAge, Level
from minter.key_rows import KeyRow, VersionRow
from minter.key_users import KeyUser
from minter.report_leases import Held
from minter.sources import kind_of
from minter.store import Connection

#: What an age calls for, in the words of a rotation.
_DUE: Final[Mapping[Level, str]] = {"": "", "ok": "no", "warning": "soon", "alarm": "overdue"}
#: Callers that hold leases of one key and are named: those with the most.
MAX_CALLERS: Final = 100
#: So much of a token's digest is shown: enough to find it in the file.
_DIGEST: Final = 16


def keys(
    custody: Custody, connection: Connection, *, profiles: Mapping[str, Profile], held: Held, now: float
) -> list[dict[str, Any]]:
    """Return what is known of every key that was ever loaded. A query for the store."""
    versions: defaultdict[str, list[VersionRow]] = defaultdict(list)
    for version in key_rows.versions(connection):
        versions[version.alias].append(version)
    users = custody.uses.read(connection)
    ages = {age.alias: age for age in key_age.ages(connection, custody.settings_of, now=now)}
    found = []
    for alias, row in sorted(key_rows.keys(connection).items()):
        shown = _key(custody, row, versions[alias], held) | _age(ages.get(alias))
        shown["who_may"] = [profile(profiles[name]) for name in shown["profiles"] if name in profiles]
        shown["who_did"] = [_user(user) for user in users.get(alias, [])]
        found.append(shown)
    return found


def _key(custody: Custody, row: KeyRow, versions: list[VersionRow], held: Held) -> dict[str, Any]:
    settings = custody.settings_of(row.alias)
    active = next((version for version in versions if version.phase == "active"), None)
    # One that is retired or destroyed still was somewhere.
    shown = active or (versions[-1] if versions else None)
    uses, used_at = custody.uses.of(row.alias)
    of_key: Mapping[str, int] = held.callers.get(row.alias, {})
    return {
        "alias": row.alias,
        # Without the key behind the state there would be no minter to ask.
        "loaded": row.alias in custody.aliases() or row.alias == SEALING_KEY,
        "use": settings.use if settings else "",
        "algorithm": shown.algorithm if shown else "",
        "owner": row.owner,
        "purpose": row.purpose,
        "second_copy": settings.second_copy if settings else "",
        "phase": _phase(row, versions),
        "source": kind_of(shown.source_ref) if shown else "",
        "source_ref": shown.source_ref if shown else "",
        "protection": _protection(custody, row, versions, shown),
        "fingerprint": shown.fingerprint if shown else "",
        "origins": custody.origins_of(row.alias) or list(row.origins),
        "profiles": list(custody.profiles_of(row.alias)),
        "created_at": rfc3339(row.created_at),
        "activated_at": _instant(max((one.activated_at for one in versions if one.activated_at), default=None)),
        "last_rotated_at": _instant(row.last_rotated_at),
        "retired_at": _instant(row.retired_at),
        "last_used_at": _instant(max(filter(None, (row.last_used_at, used_at)), default=None)),
        "uses": row.uses + uses,
        "live_leases": held.leases[row.alias],
        "callers": dict(sorted(of_key.items(), key=lambda one: (-one[1], one[0]))[:MAX_CALLERS]),
        "callers_total": len(of_key),
        "versions": [_version(version) for version in versions],
    }


def _age(age: KeyAge | None) -> dict[str, Any]:
    """Return how old a key is; nothing of one that is not in use."""
    ratio = age.ratio if age is not None else None
    return {
        "rotate_every_s": age.period_s if age is not None else None,
        "next_due_at": _instant(age.due_at if age is not None else None),
        "age_percent": None if ratio is None else int(100 * ratio),
        "due": _DUE[age.level] if age is not None else "",
    }


def _phase(row: KeyRow, versions: list[VersionRow]) -> str:
    """Return where a whole key stands: its versions say ``active`` of one that was retired and not yet destroyed."""
    phases = {version.phase for version in versions}
    if phases == {"destroyed"}:
        return "destroyed"
    if row.retired_at is not None:
        return "retired"
    return "active" if "active" in phases else "none"


def _protection(custody: Custody, row: KeyRow, versions: list[VersionRow], shown: VersionRow | None) -> str:
    if _phase(row, versions) == "destroyed" and versions:
        return "Nothing is left that needs it: every version of the key was deleted."
    return custody.reader.sources.protection(shown.source_ref) if shown else ""


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
        "problem": row.problem,
    }


def profile(one: Profile) -> dict[str, Any]:
    """Return who may do what with a profile of the grants in force."""
    return {
        "profile": one.name,
        "kind": str(one.token.get("type", "")) if one.token else "",
        "origin": one.base_url,
        "callers": sorted(one.allowed_callers),
        "routes": len(one.allow),
        "wildcard_routes": sum("*" in rule.text for rule in one.allow),
        "most_wildcards": max((rule.text.count("*") for rule in one.allow), default=0),
    }


def broker_tokens(principals: Mapping[str, Principal]) -> list[dict[str, Any]]:
    """Return the brokers' own credentials, of which only digests are kept: the keys to the minter itself."""
    return [
        {
            "alias": f"broker:{broker.id}",
            "broker": broker.id,
            "uid": broker.uid,
            "profiles": broker.profiles,
            "introspect": broker.introspect,
            "tokens": [{"digest": entry.sha256[:_DIGEST], "not_after": entry.not_after} for entry in broker.tokens],
        }
        for broker in sorted(principals.values(), key=lambda broker: broker.id)
    ]


def keyless(profiles: Mapping[str, Profile], known: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the profiles that lend something no custody key is behind: helpers, or nothing at all."""
    with_key = {name for key in known for name in key["profiles"]}
    return [profile(one) for name, one in sorted(profiles.items()) if name not in with_key]


def _user(user: KeyUser) -> dict[str, Any]:
    return {
        "caller": user.caller,
        "broker": user.broker,
        "uses": user.uses,
        "first_used_at": _instant(user.first_used_at),
        "last_used_at": _instant(user.last_used_at),
    }


def _instant(at: float | None) -> str | None:
    return None if at is None else rfc3339(at)
