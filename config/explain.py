"""Why a call is granted or refused, route by route, and what the wildcards of a profile cover: for operators.

The answer is the matcher's own; the reasons are worked out route by route from the templates, which is slow and plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal as Either

from config.catalog import Documented, Outranking, document, documents, folded, same_method
from config.match import DeniedError, Matcher
from config.problems import ProblemError
from config.profiles import Profile, RouteRule
from config.routes import Glob, Literal, Param, Segment, rank
from config.target import Target, split_target, wildcard_pattern
from config.trie import glob_fits


@dataclass(frozen=True, slots=True)
class Candidate:
    """One route that a call could have been on. ``verdict`` is said in a word, ``why`` in a sentence."""

    route: str
    listed: Either["allow", "catalog"]
    verdict: Either["decides", "matches", "reserves", "no"]
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What becomes of a call. ``code`` and ``detail`` are the refusal's, empty when it is granted."""

    rule: RouteRule | None
    code: str
    detail: str
    candidates: tuple[Candidate, ...]

    @property
    def granted(self) -> bool:
        """Say whether the call is granted."""
        return not self.code


@dataclass(frozen=True, slots=True)
class Cover:
    """A granted wildcard and a catalog route that it would cover. ``granted`` says that ``allow`` has that one too."""

    route: str
    covered: str
    granted: bool


def explain(matcher: Matcher, method: str, target: bytes, params: Mapping[str, str]) -> Explanation:
    """Explain a call: what decides it, and every other route of ``allow``, the nearest first, with why it does not.

    Of the catalog only routes that the call is on are named.
    """
    rule, code, detail, reserving = None, "", "", None
    try:
        rule = matcher.match(method, target, params).rule
    except DeniedError as denied:
        code, detail = denied.code, denied.detail
        reserving = denied.denied_template if code == "route-reserved" else None
    try:
        split = split_target(target)
    except ProblemError:
        return Explanation(None, code, detail, ())
    tried = [(entry, *_miss(entry, method, split, params, matcher.profile)) for entry in matcher.profile.allow]
    matching = sorted((entry for entry, _, why in tried if not why), key=_specific_first)
    deciding = matching[0] if matching else None
    candidates = [_granted(entry, why, deciding) for entry, _, why in sorted(tried, key=_nearest_first)]
    return Explanation(rule, code, detail, (*candidates, *_documented(matcher, method, split, reserving)))


def covers(profile: Profile) -> list[Cover]:
    """Return every pair of a granted route with a wildcard and a more specific catalog route that it covers.

    A call on one that is not granted itself is refused (``route-reserved``).
    """
    outranking = Outranking(profile, [document(rule) for rule in profile.catalog])
    return [
        Cover(rule.text, entry.text, outranking.is_granted(entry, rule.route.method))
        for rule in profile.allow
        for entry in outranking.covered(rule)
    ]


def _nearest_first(tried: tuple[RouteRule, int, str]) -> tuple[int, list[tuple[int, str]]]:
    rule, agreed, _ = tried
    return -agreed, _specific_first(rule)


def _specific_first(rule: RouteRule) -> list[tuple[int, str]]:
    return [(-rank(segment), str(segment)) for segment in rule.route.positions]


def _granted(entry: RouteRule, why: str, deciding: RouteRule | None) -> Candidate:
    if why:
        return Candidate(entry.text, "allow", "no", why)
    if deciding is None or entry is deciding:
        return Candidate(entry.text, "allow", "decides", "the most specific route of allow that matches")
    number = next(
        number
        for number, (ours, theirs) in enumerate(zip(entry.route.positions, deciding.route.positions, strict=True), 1)
        if ours != theirs
    )
    return Candidate(entry.text, "allow", "matches", f"less specific than the deciding route at segment {number}")


def _documented(matcher: Matcher, method: str, target: Target, reserving: str | None) -> list[Candidate]:
    segments = folded(target)
    allowed = Outranking(matcher.profile, ())
    found = []
    for entry in matcher.catalog:
        if entry.text == reserving:
            why = "outranks the deciding route, and allow does not list it"
            found.append(Candidate(entry.text, "catalog", "reserves", why))
        elif same_method(entry.method, method) and _is_on(entry, segments):
            listed = allowed.is_granted(entry, method)
            why = "documents the call; " + ("allow lists it as well" if listed else "outranks nothing")
            found.append(Candidate(entry.text, "catalog", "matches", why))
    return found


def _is_on(entry: Documented, segments: list[bytes]) -> bool:
    return len(entry.segments) == len(segments) and all(map(documents, entry.segments, segments))


def _miss(
    entry: RouteRule, method: str, target: Target, params: Mapping[str, str], profile: Profile
) -> tuple[int, str]:
    """Return how much of the call the route agrees with, and why it does not match; empty when it does."""
    positions = entry.route.positions
    for number, (segment, part) in enumerate(zip(positions, target.segments, strict=False), 1):
        why = _segment_miss(segment, part, entry, params, profile)
        if why:
            return number - 1, f"segment {number} {why}"
    agreed = min(len(positions), len(target.segments))
    if len(positions) != len(target.segments):
        slash = entry.route.trailing_slash != (target.segments[-1] == b"")
        if slash and len(entry.route.segments) == len(target.segments) - (target.segments[-1] == b""):
            return agreed, "a trailing slash is part of the route"
        return agreed, f"has {len(entry.route.segments)} segments"
    if entry.route.method != method:
        return agreed, f"takes {entry.route.method}"
    return agreed + 1, ""


def _segment_miss(segment: Segment, part: bytes, entry: RouteRule, params: Mapping[str, str], profile: Profile) -> str:
    if isinstance(segment, Literal):
        return "" if segment.text.encode() == part else f"is not {segment.text or 'the end'}"
    if isinstance(segment, Param):
        return _param_miss(segment, part, params, profile)
    parts = segment.parts if isinstance(segment, Glob) else ("", "")
    if not glob_fits([text.encode() for text in parts], part):
        return f"does not have the form {segment}" if part else "is empty"
    if wildcard_pattern(parts, entry.wide, entry.encoded).fullmatch(part) is None:
        return "holds a character that its * does not take (see wide and encoded)"
    return ""


def _param_miss(segment: Param, part: bytes, params: Mapping[str, str], profile: Profile) -> str:
    value = params.get(segment.name)
    if value is None:
        return f"needs the run parameter {segment.name}"
    if not profile.params[segment.name].fits(value):
        return f"needs a value of {segment.name} that fits its pattern"
    fits = f"{segment.prefix}{value}{segment.suffix}".encode() == part
    return "" if fits else f"is not the run's {segment.name}"
