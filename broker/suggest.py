"""Which entries of a profile's ``allow`` runs really used, and how the grant could be narrowed to that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker.specgen.model import RouteEntry, route_text
from config.routes import Glob, Literal, Star, parse_route


@dataclass(frozen=True, slots=True)
class Only:
    """A wildcard that took one value in all that was learnt. ``segment`` is counted from 1."""

    route: str
    segment: int
    value: str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What runs of a profile used.

    ``used`` are its entries with how many calls each decided, ``unused`` those without; ``allow`` is the used ones as
    written, ``narrowed`` the same with the literal in the place of each wildcard of ``only``. ``gone`` are routes that
    were used and that the grants do not list any more; ``denied`` counts refused calls by code and, where the catalog
    knows it, by route.
    """

    used: tuple[tuple[RouteEntry, int], ...]
    unused: tuple[RouteEntry, ...]
    gone: tuple[str, ...]
    only: tuple[Only, ...]
    denied: tuple[tuple[str, str, int], ...]

    @property
    def allow(self) -> list[RouteEntry]:
        """The used entries, as they are written."""
        return [entry for entry, _ in self.used]

    @property
    def narrowed(self) -> list[RouteEntry]:
        """The used entries, with literals where only one value was taken; none stands twice."""
        entries: dict[str, RouteEntry] = {}
        for entry in self.allow:
            narrowed = _narrow(entry, [one for one in self.only if one.route == route_text(entry)])
            entries.setdefault(parse_route(route_text(narrowed)).shape, narrowed)
        return list(entries.values())


def suggest(
    profile: str,
    allow: Sequence[RouteEntry],
    traces: Iterable[Mapping[str, Any]],
    learned: Iterable[Mapping[str, Mapping[str, Sequence[str | None]]]],
) -> Suggestion:
    """Compare the entries of ``allow``, as written, with the traces of runs as the operators' API shows them.

    ``learned`` is of the same runs, in their order: by profile and route, what each wildcard took (null for many).
    """
    calls: Counter[str] = Counter()
    denied: Counter[tuple[str, str]] = Counter()
    #: For each route, what the runs learnt that used it; None of one that did not learn.
    taken: dict[str, list[Sequence[str | None] | None]] = {}
    for trace, one in zip(traces, learned, strict=True):
        for row in trace["calls"]:
            if row["profile"] == profile:
                calls[row["route"]] += row["count"]
                taken.setdefault(row["route"], []).append(one.get(profile, {}).get(row["route"]))
        for row in trace["denied_by"]:
            denied[row["code"], row["template"] or ""] += row["count"]
    written = {route_text(entry): entry for entry in allow}
    return Suggestion(
        used=tuple((entry, calls[text]) for text, entry in written.items() if calls[text]),
        unused=tuple(entry for text, entry in written.items() if not calls[text]),
        gone=tuple(sorted(calls.keys() - written.keys())),
        only=tuple(one for text in written for one in _only(text, taken.get(text, ()))),
        denied=tuple((code, template, count) for (code, template), count in sorted(denied.items())),
    )


def _only(text: str, taken: Sequence[Sequence[str | None] | None]) -> Iterable[Only]:
    """Yield the wildcards of a route that took one value in every run that used it, each of which has learnt it."""
    for index, number in enumerate(
        number for number, segment in enumerate(parse_route(text).segments, 1) if isinstance(segment, Star | Glob)
    ):
        values = {one[index] if one is not None and index < len(one) else None for one in taken}
        if len(values) == 1 and (value := values.pop()) is not None and _is_literal(value):
            yield Only(text, number, value)


def _is_literal(value: str) -> bool:
    """Say whether a route can hold the value: what was sent with escapes it cannot."""
    try:
        return isinstance(parse_route(f"GET /{value}").segments[0], Literal)
    except ValueError:
        return False


def _narrow(entry: RouteEntry, only: Sequence[Only]) -> RouteEntry:
    if not only:
        return entry
    route = parse_route(route_text(entry))
    values = {one.segment: one.value for one in only}
    segments = [values.get(number, str(segment)) for number, segment in enumerate(route.segments, 1)]
    text = f"{route.method} /" + "/".join([*segments, ""] if route.trailing_slash else segments)
    if isinstance(entry, str):
        return text
    kept = {**entry, "route": text}
    if not parse_route(text).wildcards:
        # Said of wildcards, and a fault where there are none.
        kept.pop("encoded", None)
        kept.pop("wide", None)
    return text if kept.keys() == {"route"} else kept
