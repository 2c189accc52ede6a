"""Matching: which granted route a call is on, or why it is on none. Denies by raising.

1. The target is well-formed (``config/target.py``).
2. Of the granted routes that match, the most specific decides, position by position from the left: literal >
   ``{name}`` > glob > ``*``; between two of one sort the one with more literal text, then the text itself. Its query
   rules decide alone: no less specific route is asked when they refuse.
3. A call is refused when a catalog route outside ``allow`` matches it too and outranks the deciding route at *any*
   position. Here catalog literals are compared without regard to case and to a trailing slash, escapes are compared
   decoded, a catalog's wildcards take anything, and HEAD and GET count as one method. A ``{name}`` in a catalog is a
   wildcard and ranks as one.

Which catalog routes outrank a granted one does not depend on the call. It is worked out when grants load, and a call
is only held against those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from config.catalog import Documented, Outranking, document, documents, folded, same_method
from config.problems import ProblemError
from config.profiles import Profile, RouteRule
from config.query import check_query
from config.routes import METHODS, Glob, Literal, Star, rank
from config.target import ENCODED_PATH, Target, decoded_parts, split_target, wildcard_pattern, without_escapes
from config.trie import Check, Checks, Trie

_NO_PARAMS: Final[Mapping[str, str]] = {}
_NEAREST: Final = 3
_SEPARATORS: Final = frozenset({"%2F", "%5C"})


@dataclass(frozen=True, slots=True)
class Match:
    """A call is granted: the route that decided, and its profile."""

    rule: RouteRule
    profile: Profile


class DeniedError(ProblemError):
    """A call is not granted.

    ``denied_template`` is the catalog's template that the call is on, for counting; it is not sent: what the catalog
    documents is none of the code's business.
    """

    def __init__(self, code: str, detail: str = "", *, denied_template: str | None = None, **members: Any) -> None:
        """Take what ``ProblemError`` takes, and the template."""
        super().__init__(code, detail, **members)
        self.denied_template = denied_template


class Granted:
    """A granted route, ready to be matched. ``reserved`` are the catalog routes that outrank it."""

    __slots__ = ("checks", "match", "query", "reserved", "separators", "text")

    def __init__(self, rule: RouteRule, profile: Profile, reserved: Trie[Documented] | None) -> None:
        """Compile what the trie does not compare: the characters that wildcards take."""
        self.match = Match(rule, profile)
        self.text = rule.text
        self.query = rule.query
        self.reserved = reserved
        self.separators = isinstance(rule.encoded, frozenset) and not _SEPARATORS.isdisjoint(rule.encoded)
        globs, stars = [], []
        for position, segment in enumerate(rule.route.segments):
            if isinstance(segment, Glob):
                globs.append((position, wildcard_pattern(segment.parts, rule.wide, rule.encoded).fullmatch))
            elif isinstance(segment, Star):
                stars.append((position, wildcard_pattern(("", ""), rule.wide, rule.encoded).fullmatch))
        every: tuple[Check, ...] = (*globs, *stars)
        # A path of plain characters only needs no look at what a whole-segment * takes.
        self.checks: Checks = (tuple(globs), every, every)


class _Method:
    """The granted routes of one method. ``exact`` holds those that are literal throughout, by their whole path."""

    __slots__ = ("documented", "exact", "trie")

    def __init__(self, granted: list[Granted], documented: list[Documented], profile: Profile) -> None:
        self.exact: dict[bytes, Granted] = {}
        for entry in granted:
            route = entry.match.rule.route
            if all(isinstance(segment, Literal) for segment in route.segments):
                # Literal at every position: nothing outranks it, neither in allow nor in catalog.
                self.exact[route.text.partition(" ")[2].encode()] = entry
        self.trie: Trie[Granted] = Trie(
            [(entry.match.rule.route.positions, entry) for entry in granted], profile.params
        )
        self.documented: Trie[Documented] = Trie([(entry.segments, entry) for entry in documented], {})


class Matcher:
    """Matches calls against one profile. Built when grants load; a call's cost does not grow with the list."""

    __slots__ = ("_methods", "_ungranted", "catalog", "profile")

    def __init__(self, profile: Profile) -> None:
        """Build the tries."""
        self.profile = profile
        self.catalog = tuple(document(rule) for rule in profile.catalog)
        outranking = Outranking(profile, self.catalog)
        self._methods = {}
        #: The catalog's routes that a method could be on and that allow does not list for it.
        self._ungranted: dict[str, list[Documented]] = {}
        for method in METHODS:
            granted = [
                Granted(rule, profile, _reserve(outranking.of(rule)))
                for rule in profile.allow
                if rule.route.method == method
            ]
            documented = [entry for entry in self.catalog if same_method(entry.method, method)]
            self._ungranted[method] = [entry for entry in documented if not outranking.is_granted(entry, method)]
            self._methods[method] = _Method(granted, documented, profile)

    def match(self, method: str, target: bytes | Target, params: Mapping[str, str]) -> Match:
        """Return what grants the call. ``target`` is raw, or already split (two matchers can share the work).

        ``params`` are the run's; a value that does not fit this profile's pattern matches nothing.

        Errors: :class:`DeniedError` with ``method-not-supported``, ``target-malformed``, ``route-not-granted``,
        ``route-reserved``, ``encoding-not-granted`` or ``query-not-granted``; all but the first two name up to three
        granted routes as ``nearest``. Details never repeat anything of the target.
        """
        known = self._methods.get(method)
        if known is None:
            raise DeniedError("method-not-supported", allow=list(METHODS))
        if not isinstance(target, Target):
            try:
                target = split_target(target)
            except ProblemError as error:
                raise DeniedError(error.code, error.detail) from None
        granted = known.exact.get(target.path)
        if granted is None:
            granted = known.trie.find(target.segments, params, target.kind)
            if granted is None:
                raise self._not_granted(method, target, params)
            if granted.reserved is not None or granted.separators:
                self._check_reserved(granted, method, target, params)
        if target.query is not None or granted.query is not None:
            try:
                check_query(granted.query, target.query, params)
            except ProblemError as error:
                raise DeniedError(error.code, error.detail, nearest=[granted.text]) from None
        return granted.match

    def _check_reserved(self, granted: Granted, method: str, target: Target, params: Mapping[str, str]) -> None:
        """Refuse a call that a more specific route outside ``allow`` documents."""
        segments = folded(target)
        found = granted.reserved.find(segments, _NO_PARAMS, 0) if granted.reserved is not None else None
        if found is None and granted.separators and target.kind == ENCODED_PATH:
            found = self._behind_separators(granted, method, segments)
        if found is not None:
            nearest = self.nearest(method, target.segments, params)
            raise DeniedError("route-reserved", denied_template=found.text, nearest=nearest)

    def _behind_separators(self, granted: Granted, method: str, segments: list[bytes]) -> Documented | None:
        """Return a catalog route that outranks, for a server that decodes a granted ``%2F`` before it splits."""
        templates = granted.match.rule.route.segments
        split = [
            (part, rank(template))
            for segment, template in zip(segments, templates, strict=True)
            for part in decoded_parts(segment)
        ]
        if len(split) == len(segments):
            return None
        for entry in self._ungranted[method]:
            if len(entry.segments) != len(split):
                continue
            pairs = list(zip(entry.segments, split, strict=True))
            is_on = all(documents(segment, part) for segment, (part, _) in pairs)
            if is_on and any(rank(segment) > granting for segment, (_, granting) in pairs):
                return entry
        return None

    def _not_granted(self, method: str, target: Target, params: Mapping[str, str]) -> DeniedError:
        code = "route-not-granted"
        if target.kind == ENCODED_PATH:
            plain = without_escapes(target.segments)
            if self._methods[method].trie.find(plain, params, 0) is not None:
                code = "encoding-not-granted"
        found = self._methods[method].documented.find(folded(target), _NO_PARAMS, 0)
        return DeniedError(
            code,
            denied_template=found.text if found is not None else None,
            nearest=self.nearest(method, target.segments, params),
        )

    def nearest(self, method: str, segments: Sequence[bytes], params: Mapping[str, str]) -> list[str]:
        """Return up to three granted routes that share the longest beginning with a path, its own method first."""
        ways = [
            (depth, name == method, texts)
            for name, known in self._methods.items()
            for depth, texts in known.trie.near(segments, params)
        ]
        ways.sort(key=lambda way: way[:2], reverse=True)
        texts = dict.fromkeys(text for _, _, samples in ways for text in samples)
        return list(texts)[:_NEAREST]


def _reserve(outranking: list[Documented]) -> Trie[Documented] | None:
    return Trie([(entry.segments, entry) for entry in outranking], {}) if outranking else None
