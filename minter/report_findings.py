"""What a reviewer should look at: keys that nobody uses, and keys that can do more than they need to.

Pure: reads the rows of ``minter/report_keys.py``. Every finding says what to do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any, Final, Literal

from config.clock import parse_rfc3339
from config.settings import AUDIT_SIGNER, SEALING_KEY

Severity = Literal["alarm", "warning", "note"]
_ORDER: Final[Mapping[str, int]] = {"alarm": 0, "warning": 1, "note": 2}

#: A key that nobody used for so long is taken to be unused.
UNUSED_S: Final = 90 * 86400.0
#: More profiles than that share one key's fate.
MANY_PROFILES: Final = 5
#: A grant is wide when a route has so many wildcards, or when most of so many routes have one.
MANY_WILDCARDS: Final = 3

#: Algorithms that the settings need not name.
_BY_DEFAULT: Final = frozenset({"", "EdDSA", "A256GCM"})

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing. ``about`` is the alias of a key or the name of a profile."""

    code: str
    severity: Severity
    about: str
    what: str
    do: str


def findings(keys: Sequence[Row], keyless: Sequence[Row], *, now: float) -> list[dict[str, Any]]:
    """Return every finding, the gravest first."""
    found = [finding for key in keys for finding in _of_key(key, now=now)]
    profiles = {profile["profile"]: profile for key in keys for profile in key["who_may"]}
    profiles |= {profile["profile"]: profile for profile in keyless}
    found += [finding for name in sorted(profiles) for finding in _of_profile(profiles[name])]
    found.sort(key=lambda finding: (_ORDER[finding.severity], finding.about, finding.code))
    return [asdict(finding) for finding in found]


def _of_key(key: Row, *, now: float) -> Iterator[Finding]:
    for version in key["versions"]:
        if version["problem"]:
            yield Finding(
                *("step-failed", "alarm", key["alias"]),
                f"a step of version {version['version']} failed: {version['problem']}",
                "minter doctor says what to do",
            )
    if key["phase"] != "active":
        return
    yield from _age(key)
    if key["alias"] == SEALING_KEY and not key["second_copy"]:
        yield Finding(
            *("no-second-copy", "warning", key["alias"]),
            "nobody has said where a second copy of it is: with it lost, neither the state nor a backup opens",
            "keep a copy apart from the backups and say so " + _in_the_settings(key, 'second_copy = "..."'),
        )
    if key["alias"] in (SEALING_KEY, AUDIT_SIGNER):
        return
    if not key["loaded"]:
        yield Finding(
            *("not-loaded", "note", key["alias"]),
            "known from before, and neither the settings nor the grants name it now",
            _retire(key),
        )
    else:
        yield from _unused(key, now=now)
    yield from _wide(key)


def _age(key: Row) -> Iterator[Finding]:
    if key["due"] == "overdue":
        yield Finding(
            *("overdue", "alarm", key["alias"]),
            f"its period is over ({key['age_percent']} % of it)",
            f"minter rotate {quote(key['alias'])}",
        )
    elif key["due"] == "soon":
        yield Finding(
            *("due-soon", "warning", key["alias"]),
            f"{key['age_percent']} % of its period have passed",
            f"minter rotate {quote(key['alias'])} before {key['next_due_at'][:10]}",
        )
    elif not key["due"]:
        yield Finding(
            *("no-period", "note", key["alias"]),
            "no period is set, so nobody will notice that it is old",
            _how_to_set_a_period(key),
        )


def _how_to_set_a_period(key: Row) -> str:
    if ":" in key["alias"]:
        return f"give it a name in minter.toml; minter rotate {quote(key['alias'])} writes the lines"
    return _in_the_settings(key, 'rotate_every = "90d"')


def _in_the_settings(key: Row, line: str) -> str:
    """Name the whole table: a key that the minter made is in no settings yet, and a table without a source is wrong."""
    active = next(version["version"] for version in key["versions"] if version["phase"] == "active")
    # Strings in TOML are quoted as in JSON.
    said = [f"use = {json.dumps(key['use'])}", f"source = {json.dumps(key['source_ref'].removesuffix(f'.v{active}'))}"]
    if key["algorithm"] not in _BY_DEFAULT:
        said.append(f"algorithm = {json.dumps(key['algorithm'])}")
    table = f"[keys.{json.dumps(key['alias'])}]"
    return f"in minter.toml: {table} with {', '.join([*said, line])}; it counts from the next start"


def _retire(key: Row) -> str:
    what = f"minter keys retire {quote(key['alias'])}"
    return f"{what}, and delete it at its issuer" if key["use"] == "static" else what


def _unused(key: Row, *, now: float) -> Iterator[Finding]:
    last = key["last_used_at"]
    if not key["profiles"]:
        yield Finding(
            *("not-referred-to", "warning", key["alias"]),
            "no profile of the grants in force refers to it",
            _retire(key),
        )
    elif last is None:
        yield Finding(
            *("never-used", "note", key["alias"]),
            f"it was never used since it was loaded ({key['created_at'][:10]})",
            f"if {_names(key['profiles'])} does not need it: take it out of the grants and retire it",
        )
    elif now - parse_rfc3339(last) >= UNUSED_S:
        yield Finding(
            *("unused", "warning", key["alias"]),
            f"not used for {int((now - parse_rfc3339(last)) // 86400)} days",
            f"if {_names(key['profiles'])} does not need it: take it out of the grants and retire it",
        )


def _wide(key: Row) -> Iterator[Finding]:
    if len(key["origins"]) > 1:
        yield Finding(
            *("several-origins", "warning", key["alias"]),
            f"it may go to {len(key['origins'])} origins: {_names(key['origins'])}",
            "use a key for each; minter keys rebind narrows this one",
        )
    if len(key["profiles"]) > MANY_PROFILES:
        yield Finding(
            *("many-profiles", "warning", key["alias"]),
            f"{len(key['profiles'])} profiles use it: what one leaks, all have to change",
            "use a key for each purpose",
        )
    if any(profile["kind"] == "static" for profile in key["who_may"]):
        yield Finding(
            *("lent-as-it-is", "note", key["alias"]),
            "it is lent as it is: the broker has it during a lease, and a lease's end does not end it",
            "rotate it regularly, or use a kind whose credentials end",
        )


def _of_profile(profile: Row) -> Iterator[Finding]:
    if "*" in profile["callers"]:
        yield Finding(
            *("any-caller", "warning", profile["profile"]),
            'every caller may use it (allowed_callers "*")',
            "name the callers that need it",
        )
    routes, wild, most = profile["routes"], profile["wildcard_routes"], profile["most_wildcards"]
    if most >= MANY_WILDCARDS or (wild >= MANY_WILDCARDS and 2 * wild > routes):
        yield Finding(
            *("wide-grant", "warning", profile["profile"]),
            f"{wild} of its {routes} routes have wildcards, one of them {most}",
            "write literals or run parameters where the code need not choose; see broker check",
        )


def _names(names: Iterable[str], *, shown: int = 4) -> str:
    listed = list(names)
    more = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return ", ".join(listed[:shown]) + more
