"""Routes that are the same on the wire are one route of the catalog; and which routes a wildcard covers.

A merged route takes what each of its operations sends: granting one of them grants all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from broker.specgen.model import RouteEntry, route_text
from config.catalog import Outranking, document
from config.grants import Profile, RouteRule, parse_grants
from config.query import Rule, compile_query
from config.routes import parse_route

#: More routes, and more covers, than a person would look at.
_MOST_ROUTES: Final = 4_000
_MOST_COVERS: Final = 100_000


def shape_of(entry: RouteEntry) -> str:
    """Return what makes two entries the same route."""
    return parse_route(route_text(entry)).shape


def merged(entries: Iterable[RouteEntry]) -> tuple[RouteEntry, ...]:
    """Return the entries without doubles, in the order of the first of each.

    Of several that are one route the widest counts in everything: each query rule takes what any of them takes and is
    required only where all require it; escapes and wide characters are those of all; the credential is attached if any
    needs it, as it goes to the same place in any case.
    """
    sharing: dict[str, list[RouteEntry]] = {}
    for entry in entries:
        sharing.setdefault(shape_of(entry), []).append(entry)
    return tuple(
        shared[0] if len(shared) == 1 else _united([_object(entry) for entry in shared]) for shared in sharing.values()
    )


def covered(catalog: Sequence[RouteEntry], *, shown: int) -> dict[str, tuple[list[str], int]] | None:
    """Return which more specific routes of the catalog a route's wildcards cover: the first few and how many there are.

    They are by the text of the route. None for so many routes, or covers, that it is not worked out.
    """
    if len(catalog) > _MOST_ROUTES:
        return None
    rules = [RouteRule(parse_route(route_text(entry))) for entry in catalog]
    outranking = Outranking(_nothing_granted(), map(document, rules))
    found: dict[str, tuple[list[str], int]] = {}
    total = 0
    for rule in rules:
        others = outranking.covered(rule)
        total += len(others)
        if total > _MOST_COVERS:
            return None
        if others:
            found[rule.text] = [other.text for other in others[:shown]], len(others)
    return found


def _nothing_granted() -> Profile:
    written = b'{"profiles": {"catalog": {"base_url": "https://localhost", "allowed_callers": []}}}'
    return parse_grants(written, name="catalog").profiles["catalog"]


def _united(entries: Sequence[dict[str, Any]]) -> RouteEntry:
    united: dict[str, Any] = {"route": entries[0]["route"]}
    query = _queries([entry.get("query", {}) for entry in entries])
    if query:
        united["query"] = query
    encoded = _encoded([entry.get("encoded", False) for entry in entries])
    if encoded:
        united["encoded"] = encoded
    if any(entry.get("wide") for entry in entries):
        united["wide"] = True
    if all(entry.get("credential") is False for entry in entries):
        united["credential"] = False
    return united if len(united) > 1 else str(united["route"])


def _object(entry: RouteEntry) -> dict[str, Any]:
    return {"route": entry} if isinstance(entry, str) else entry


def _encoded(given: Sequence[bool | list[str]]) -> bool | list[str]:
    listed = {escape for one in given if isinstance(one, list) for escape in one}
    # A list takes what `true` takes, and its own.
    return sorted(listed) if listed else any(given)


def _queries(given: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    written: dict[str, list[Any]] = {}
    for query in given:
        for name, rule in query.items():
            written.setdefault(name, []).append(rule)
    united: dict[str, Any] = {}
    for name, rules in written.items():
        everywhere = len(rules) == len(given)
        if everywhere and all(rule == rules[0] for rule in rules):
            united[name] = rules[0]
        else:
            compiled = [compile_query({name: rule})[0].rules[name] for rule in rules]
            required = everywhere and all(rule.required for rule in compiled)
            united[name] = _written(compiled, required=required, repeat=any(rule.repeat for rule in compiled))
    return united


def _written(rules: Sequence[Rule], *, required: bool, repeat: bool) -> Any:
    """Write the rule that takes what any of ``rules`` takes."""
    values = [value for rule in rules for value in sorted(rule.values or ())]
    source: dict[str, Any]
    if all(rule.integer for rule in rules):
        source = {"type": "int"}
    elif all(rule.values is not None for rule in rules):
        source = {"values": list(dict.fromkeys(values))}
    else:
        source = {"type": "any"}
    flags = {name: True for name, wanted in (("required", required), ("repeat", repeat)) if wanted}
    if "type" in source and not flags:
        return source["type"]
    return {**source, **flags}
