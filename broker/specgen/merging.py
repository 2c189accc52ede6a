"""Routes that are the same on the wire are one route of the catalog; and which routes a wildcard covers.

A merged route takes what each of its operations sends: granting one of them grants all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from broker.specgen.model import RouteEntry
from config.explain import covers
from config.grants import Profile, RouteRule, parse_grants
from config.query import Rule, compile_query
from config.routes import parse_route


def shape_of(entry: RouteEntry) -> str:
    """Return what makes two entries the same route."""
    return parse_route(text_of(entry)).shape


def text_of(entry: RouteEntry) -> str:
    """Return the template of an entry."""
    return entry if isinstance(entry, str) else str(entry["route"])


def merged(entries: Iterable[RouteEntry]) -> tuple[RouteEntry, ...]:
    """Return the entries without doubles, in the order of the first of each.

    Of two that are one route the wider counts in everything: each query rule takes what either takes and is required
    only where both require it; escapes and wide characters are those of both; the credential is attached if either
    needs it, as it goes to the same place in any case.
    """
    found: dict[str, RouteEntry] = {}
    for entry in entries:
        shape = shape_of(entry)
        found[shape] = _both(found[shape], entry) if shape in found else entry
    return tuple(found.values())


def covered(catalog: Iterable[RouteEntry]) -> dict[str, list[str]]:
    """Return, by the text of a route, the more specific routes of the catalog that its wildcards cover."""
    rules = tuple(RouteRule(parse_route(text_of(entry))) for entry in catalog)
    found: dict[str, list[str]] = {}
    for cover in covers(replace(_empty_profile(), allow=rules, catalog=rules)):
        found.setdefault(cover.route, []).append(cover.covered)
    return found


def _empty_profile() -> Profile:
    written = b'{"profiles": {"catalog": {"base_url": "https://localhost", "allowed_callers": []}}}'
    return parse_grants(written, name="catalog").profiles["catalog"]


def _both(one: RouteEntry, other: RouteEntry) -> RouteEntry:
    first, second = _object(one), _object(other)
    both: dict[str, Any] = {"route": first["route"]}
    query = _queries(first.get("query", {}), second.get("query", {}))
    if query:
        both["query"] = query
    encoded = _encoded(first.get("encoded", False), second.get("encoded", False))
    if encoded:
        both["encoded"] = encoded
    if first.get("wide") or second.get("wide"):
        both["wide"] = True
    if first.get("credential") is False and second.get("credential") is False:
        both["credential"] = False
    return both if len(both) > 1 else str(both["route"])


def _object(entry: RouteEntry) -> dict[str, Any]:
    return {"route": entry} if isinstance(entry, str) else entry


def _encoded(one: bool | list[str], other: bool | list[str]) -> bool | list[str]:  # noqa: FBT001 - the form of the file
    listed = {escape for given in (one, other) if isinstance(given, list) for escape in given}
    # A list takes what `true` takes, and its own.
    return sorted(listed) if listed else bool(one or other)


def _queries(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    ours, theirs = compile_query(one)[0].rules, compile_query(other)[0].rules
    query: dict[str, Any] = {}
    for name in {**one, **other}:
        rules = [side[name] for side in (ours, theirs) if name in side]
        required = all(rule.required for rule in rules) and len(rules) > 1
        if len(rules) > 1 and one[name] == other[name]:
            query[name] = one[name]
        else:
            query[name] = _written(rules, required=required, repeat=any(rule.repeat for rule in rules))
    return query


_INT: Final = {"type": "int"}
_ANY: Final = {"type": "any"}


def _written(rules: Sequence[Rule], *, required: bool, repeat: bool) -> Any:
    """Write the rule that takes what any of ``rules`` takes."""
    values = [value for rule in rules for value in sorted(rule.values or ())]
    source: dict[str, Any]
    if all(rule.integer for rule in rules):
        source = dict(_INT)
    elif all(rule.values is not None for rule in rules):
        source = {"values": list(dict.fromkeys(values))}
    else:
        source = dict(_ANY)
    flags = {name: True for name, wanted in (("required", required), ("repeat", repeat)) if wanted}
    if "type" in source and not flags:
        return source["type"]
    return {**source, **flags}
