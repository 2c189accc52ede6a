"""The custody report in people's words: what its short names mean, and how instants and lengths of time are written.

For the command line alone: what the service answers has short names and RFC 3339.
"""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any, Final

from config.console.terminal import plain

NEVER: Final = "never"

_USES: Final[Mapping[str, str]] = {
    "static": "secret that somebody else issued",
    "signing": "signing key of the minter's own",
    "sealing": "wraps the keys that seal the state",
    "checkpoints": "signs the audit log's checkpoints",
}
_STATES: Final[Mapping[str, str]] = {
    "orphan_suspect": "may exist, nobody holds it",
    "irrevocable": "revocation kept failing",
    "revoking": "being revoked",
    "intent": "being made",
    "active": "on loan",
}
_DUE: Final[Mapping[str, str]] = {"no": "not due", "soon": "due soon", "overdue": "overdue", "": "no period set"}


def chain_head(audit: Mapping[str, Any]) -> str:
    """Say which line of the audit log the report is of."""
    meanwhile = f" (up to {audit['seq_after']} while it was made)" if audit["seq_after"] != audit["seq"] else ""
    return f"line {audit['seq']}{meanwhile}, {instant(audit['at']) if audit['at'] else 'time unknown'}"


def use(key: Mapping[str, Any]) -> str:
    """Say what a key is."""
    what = _USES.get(key["use"], "known from before; the settings name it no more")
    return f"{what}, {key['algorithm']}" if key["algorithm"] else what


def short_use(key: Mapping[str, Any]) -> str:
    """Say what a key is in two words."""
    return f"{key['use'] or 'unknown'} {key['algorithm']}".rstrip()


def version(one: Mapping[str, Any]) -> str:
    """Say where a version stands, and which step of it failed."""
    return f"{one['version']} {one['phase']}" + (f" ({one['problem']})" if one["problem"] else "")


def is_own(key: Mapping[str, Any]) -> bool:
    """Say whether a key serves the minter alone: it goes nowhere, and its uses are not counted."""
    return key["use"] in ("sealing", "checkpoints")


def origins(key: Mapping[str, Any]) -> str:
    """Say where a key may go."""
    over = key["phase"] in ("retired", "destroyed")
    return names(key["origins"], none="nowhere" if over or is_own(key) else "nowhere yet: pinned at its first use")


def last_use(key: Mapping[str, Any]) -> str:
    """Say when a key was used last."""
    return "not counted" if is_own(key) else instant(key["last_used_at"])


def state(name: str) -> str:
    """Say what a lease's state means."""
    return _STATES.get(name, name)


def due(key: Mapping[str, Any]) -> str:
    """Say whether a key is due for rotation; of one that is not in force, what it is instead."""
    return _DUE.get(key["due"], "") if key["phase"] == "active" else key["phase"]


def upstream(one: Mapping[str, Any]) -> str:
    """Say whether a credential's end upstream is possible."""
    return {
        "upstream_deleted": "yes: deleted at the issuer",
        "accepted_async": "yes: the issuer deletes it some time later",
        "expired_only": "no: only its own end ends it",
        "key_still_valid": "no: only a rotation of the key ends it",
    }.get(one["upstream"], "not known: its kind does not say, or is not loaded")


def until(one: Mapping[str, Any]) -> str:
    """Say until when a credential can live."""
    if one["lives_until"] is not None:
        return instant(one["lives_until"])
    return "until the key is rotated" if one["upstream"] == "key_still_valid" else "no end of its own"


def quoted(alias: str) -> str:
    """Write an alias as a shell takes it: whoever copies the command must not run what stands in a name."""
    return quote(alias)


def instant(text: str | None) -> str:
    """Write an RFC 3339 instant for people, in whole seconds.

    >>> instant("2026-11-30T12:00:00.123Z")
    '2026-11-30 12:00:00Z'
    """
    if not text:
        return NEVER
    return text[:19].replace("T", " ") + "Z"


def duration(seconds: float | None) -> str:
    """Write a length of time in its largest whole unit.

    >>> duration(7776000.0), duration(5400.0), duration(None)
    ('90 d', '90 min', 'none')
    """
    if seconds is None:
        return "none"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def names(listed: list[str], *, none: str = "none", shown: int = 12) -> str:
    """Write names in a row; very many are cut, with how many there are more."""
    if not listed:
        return none
    more = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return ", ".join("any caller (*)" if name == "*" else plain(name) for name in listed[:shown]) + more
