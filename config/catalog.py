"""The catalog as matching sees it, and which of its routes outrank a granted one.

Literals are compared without regard to case and to a trailing slash, escapes decoded, wildcards take anything, HEAD and
GET count as one method, and a ``{name}`` is a wildcard.
"""

from __future__ import annotations

import operator
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from config.profiles import Profile, RouteRule
from config.routes import METHODS, STAR, Glob, Literal, Segment, as_documented, rank
from config.target import ENCODED_PATH, Target, decode
from config.trie import Checks, glob_fits


@dataclass(frozen=True, slots=True)
class Documented:
    """A catalog route as matching sees it: in lower case, without a trailing slash, its names as wildcards."""

    text: str
    shape: str
    method: str
    segments: tuple[Segment, ...]
    ranks: tuple[int, ...]
    checks: Checks = ((), (), ())


class Outranking:
    """Which catalog routes outside ``allow`` may match together with a granted one and outrank it somewhere."""

    def __init__(self, profile: Profile, catalog: Iterable[Documented]) -> None:
        """Sort the catalog by what must be equal anyway: method, length, and the literal at each position."""
        self._allowed = {rule.route.shape for rule in profile.allow}
        #: (method, length) -> position -> literal text, None for a wildcard -> [(number in the catalog, entry)]
        self._catalog: dict[tuple[str, int], list[dict[str | None, list[tuple[int, Documented]]]]] = {}
        for number, entry in enumerate(catalog):
            for method in METHODS:
                if same_method(entry.method, method):
                    key = (method, len(entry.segments))
                    positions = self._catalog.setdefault(key, [{} for _ in entry.segments])
                    for position, segment in zip(positions, entry.segments, strict=True):
                        literal = segment.text if isinstance(segment, Literal) else None
                        position.setdefault(literal, []).append((number, entry))

    def of(self, rule: RouteRule) -> list[Documented]:
        """Return those that outrank ``rule`` and are not granted themselves."""
        method = rule.route.method
        return [
            entry for entry in self._outranking(rule) if not self.is_granted(entry, method) and _overlap(rule, entry)
        ]

    def covered(self, rule: RouteRule) -> list[Documented]:
        """Return every catalog route more specific than ``rule`` at some position that a call on ``rule`` may be on."""
        return [entry for entry in self._outranking(rule) if _overlap(rule, entry)]

    def is_granted(self, entry: Documented, method: str) -> bool:
        """Say whether ``allow`` lists the documented route itself, with ``method``."""
        return f"{method} {entry.shape}" in self._allowed

    def _outranking(self, rule: RouteRule) -> Iterator[Documented]:
        segments = rule.route.segments
        if not all(isinstance(segment, Literal) for segment in segments):
            ranks = tuple(map(rank, segments))
            for entry in self._near(rule):
                if any(map(operator.gt, entry.ranks, ranks)):
                    yield entry

    def _near(self, rule: RouteRule) -> list[Documented]:
        """Return, in their order, a few catalog routes that hold all those that overlap with ``rule``."""
        positions = self._catalog.get((rule.route.method, len(rule.route.segments)), [])
        fewest: list[tuple[int, Documented]] | None = None
        for position, segment in zip(positions, rule.route.segments, strict=False):
            if isinstance(segment, Literal):
                found = position.get(segment.text.lower(), []) + position.get(None, [])
            elif fewest is None:
                found = [numbered for entries in position.values() for numbered in entries]
            else:
                continue
            if fewest is None or len(found) < len(fewest):
                fewest = found
        return [entry for _, entry in sorted(fewest or [], key=lambda numbered: numbered[0])]


def same_method(documented: str, called: str) -> bool:
    """Say whether a documented method is the called one; HEAD and GET are one."""
    return documented == called or {documented, called} == {"HEAD", "GET"}


def document(rule: RouteRule) -> Documented:
    """Return a catalog entry as matching sees it."""
    segments = []
    for written in rule.route.segments:
        segment = as_documented(written)
        if isinstance(segment, Literal):
            segment = Literal(segment.text.lower())
        elif isinstance(segment, Glob):
            segment = Glob(tuple(part.lower() for part in segment.parts))
        segments.append(segment)
    shape = "/" + "/".join(str(as_documented(segment)) for segment in rule.route.positions)
    return Documented(rule.text, shape, rule.route.method, tuple(segments), tuple(map(rank, segments)))


def folded(target: Target) -> list[bytes]:
    """Return the segments as the catalog is compared with: lower case, decoded, without a trailing slash."""
    path = target.path.lower() if target.kind != ENCODED_PATH else None
    segments = path.split(b"/")[1:] if path is not None else [_folded(segment) for segment in target.segments]
    if not segments[-1]:
        segments.pop()
    return segments


def _folded(segment: bytes) -> bytes:
    if b"%" not in segment:
        return segment.lower()
    # A server may compare as Unicode does: the Kelvin sign is a k, a full-width letter a letter.
    return unicodedata.normalize("NFKC", decode(segment).decode()).casefold().encode()


def documents(segment: Segment, part: bytes) -> bool:
    """Say whether one segment of a catalog route takes one folded segment of a target."""
    if isinstance(segment, Literal):
        return segment.text.encode() == part
    if isinstance(segment, Glob):
        return glob_fits([text.encode() for text in segment.parts], part)
    return bool(part) and segment == STAR


def _overlap(rule: RouteRule, entry: Documented) -> bool:
    """Say whether one target may be on both routes (in doubt, it may)."""
    return all(map(_segments_overlap, rule.route.segments, entry.segments))


def _segments_overlap(ours: Segment, theirs: Segment) -> bool:
    if isinstance(ours, Literal):
        return documents(theirs, ours.text.lower().encode())
    if isinstance(ours, Glob) and isinstance(theirs, Literal):
        return glob_fits([text.lower().encode() for text in ours.parts], theirs.text.encode())
    return True
