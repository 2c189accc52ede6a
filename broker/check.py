"""``broker check``: loading a grants file as the broker would, and what an operator should know of it.

Faults are raised by loading. What is said of a file that loads are its routes, which documented routes each wildcard
covers, and warnings: things that are allowed and that were perhaps not meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from broker.placements import Registry
from config import load
from config.grants import Grants, Profile, RouteRule

#: Constants of a query rule that were probably meant as a type.
_LOOK_LIKE_TYPES: Final = frozenset(
    {"integer", "number", "float", "string", "str", "text", "bool", "boolean", "*", "Int", "Any"}
)


def load_grants(path: Path, *, placements: Sequence[str] = ()) -> Grants:
    """Load a grants file with everything that the broker checks; ``token`` is the minter's to check.

    Errors: ``ConfigurationError`` with every fault.
    """
    return load.load_grants(path, check_placement=Registry(placements).check)


def warnings(profile: Profile) -> Iterator[str]:
    """Yield what a profile allows that was perhaps not meant."""
    if not profile.allow:
        yield "allow is empty: no call passes"
    if "*" in profile.allowed_callers:
        yield "every caller may open runs with it"
    elif not profile.allowed_callers:
        yield "no caller may open runs with it"
    if profile.private_addresses:
        yield "its origin may have a private address"
    if profile.token is None and any(rule.credential for rule in profile.allow):
        yield "it has no token: calls go out without a credential"
    elif profile.token is not None and profile.scrub == "off":
        yield "scrub is off: an API that sends the credential back shows it to the code"
    for rule in profile.allow:
        yield from (f"{rule.text}: {what}" for what in _of_route(rule, profile))


def _of_route(rule: RouteRule, profile: Profile) -> Iterator[str]:
    if rule.wide:
        yield "its wildcards are wide"
    if rule.encoded:
        yield "its wildcards take percent-encoding"
    if not rule.credential and profile.token is not None:
        yield "goes out without the credential"
    for name, query in rule.query.rules.items() if rule.query is not None else ():
        for value in sorted((query.values or frozenset()) & _LOOK_LIKE_TYPES):
            yield f"its query {name} takes the text {value} and nothing else of that kind (types are int and any)"
