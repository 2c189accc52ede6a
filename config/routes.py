"""Route templates: ``METHOD /path``, the grammar of ``allow`` and ``catalog``.

Rules:

1. A template is one of the methods :data:`METHODS`, one space, and an absolute path.
2. A segment is a literal, ``*`` (exactly one non-empty segment), ``{name}`` (a run parameter), or literal text mixed
   with one ``{name}`` or with at most two ``*`` (``*.json``, ``*:merge``, ``session:{id}``). Never ``**``.
3. Literal text is made of the characters a target may hold, without ``*`` and ``%``, and is not dots only.
4. A trailing slash is part of the route: ``/x`` and ``/x/`` are two routes.
5. Per position, literal > ``{name}`` > glob > ``*``; between two of one sort, the one with more literal text.

What a wildcard takes, besides "not dots only", is said by :data:`PLAIN`, :data:`WIDE` and ``config/target.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

_ALPHANUMERIC: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
#: What a ``*`` takes.
PLAIN: Final = _ALPHANUMERIC + "-._~@+="
#: What ``"wide": true`` adds.
WIDE: Final = ":!$&'()*,"
#: What a segment of a target is made of (RFC 3986 ``pchar`` without ``;`` and escapes).
SEGMENT: Final = PLAIN + WIDE

#: A route's text is bounded, so that no list of routes makes a load slow by one entry.
MAX_LENGTH: Final = 2048

#: A run parameter's name, as routes, query rules and ``params`` write it.
PARAM_NAME: Final = r"[A-Za-z_][A-Za-z0-9_.-]{0,63}"

_NAME: Final = re.compile(PARAM_NAME, re.ASCII)
_LITERAL: Final = re.compile(r"[A-Za-z0-9\-._~@+=:!$&'(),]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Literal:
    """A segment that matches itself."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Param:
    """A segment that matches the run's value of ``name``, between a literal prefix and suffix."""

    name: str
    prefix: str = ""
    suffix: str = ""

    def __str__(self) -> str:
        return f"{self.prefix}{{{self.name}}}{self.suffix}"


@dataclass(frozen=True, slots=True)
class Glob:
    """Literal text with one or two ``*`` in it: ``parts`` is the text around them (two or three texts)."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        return "*".join(self.parts)


@dataclass(frozen=True, slots=True)
class Star:
    """A segment that matches any one non-empty segment."""

    def __str__(self) -> str:
        return "*"


Segment: TypeAlias = Literal | Param | Glob | Star

STAR: Final = Star()


@dataclass(frozen=True, slots=True)
class Route:
    """A parsed template.

    >>> parse_route("GET /v1/items/*").segments
    (Literal(text='v1'), Literal(text='items'), Star())
    """

    method: str
    segments: tuple[Segment, ...]
    trailing_slash: bool
    text: str

    @property
    def positions(self) -> tuple[Segment, ...]:
        """The segments as matching sees them: a trailing slash is a last, empty literal."""
        return (*self.segments, Literal("")) if self.trailing_slash else self.segments

    @property
    def shape(self) -> str:
        """What makes two routes the same route: method and path, whatever the spacing of the text."""
        return f"{self.method} /" + "/".join(map(str, self.positions))

    @property
    def wildcards(self) -> bool:
        """Say whether the code can choose anything in the path."""
        return any(isinstance(segment, Star | Glob) for segment in self.segments)

    @property
    def params(self) -> tuple[str, ...]:
        """The run parameters that the path needs."""
        return tuple(segment.name for segment in self.segments if isinstance(segment, Param))


def rank(segment: Segment) -> int:
    """Return how specific a segment is; a larger number outranks a smaller one (rule 5)."""
    if isinstance(segment, Literal):
        return 3 << 16
    if isinstance(segment, Param):
        return (2 << 16) + len(segment.prefix) + len(segment.suffix)
    if isinstance(segment, Glob):
        return (1 << 16) + sum(map(len, segment.parts))
    return 0


def as_documented(segment: Segment) -> Segment:
    """Return a catalog's segment as matching sees it: a ``{name}`` there is no run parameter but takes what ``*`` does.

    It ranks as the wildcard that it is, too: a documented ``{id}`` must not outrank, and so forbid, a granted ``*``.
    """
    if not isinstance(segment, Param):
        return segment
    return Glob((segment.prefix, segment.suffix)) if segment.prefix or segment.suffix else STAR


def parse_route(text: str) -> Route:
    """Parse a template.

    Errors: ``ValueError`` with the reason and, for a segment, its number counted from 1.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"a route has at most {MAX_LENGTH} characters")
    method, space, path = text.partition(" ")
    if not space:
        raise ValueError("a route is METHOD, one space and a path, such as GET /v1/items")
    if method not in METHODS:
        raise ValueError("the method is one of " + ", ".join(METHODS) + ", in capitals")
    if not path.startswith("/"):
        raise ValueError("the path starts with /, right after one space")
    for mark, reason in (
        ("?", "a query is granted by `query`, not in the path"),
        ("#", "a fragment is never sent"),
        (";", "a target with ; is always refused"),
        ("%", "literal text holds no escapes; the characters a * may take escaped are said by `encoded`"),
        ("**", "** is not a wildcard here; * takes exactly one segment"),
        ("//", "an empty segment is always refused"),
    ):
        if mark in path:
            raise ValueError(reason)
    parts = path[1:].split("/")
    trailing_slash = parts[-1] == ""
    if trailing_slash:
        parts.pop()
    segments = tuple(_segment(part, number) for number, part in enumerate(parts, 1))
    return Route(method, segments, trailing_slash, text)


def _segment(text: str, number: int) -> Segment:
    where = f"segment {number}: "
    if "{" in text or "}" in text:
        return _param(text, where)
    parts = tuple(text.split("*"))
    for part in parts:
        _check_literal(part, where)
    if len(parts) == 1:
        if not text.strip("."):
            raise ValueError(where + "a segment of dots only is always refused")
        return Literal(text)
    if text == "*":
        return STAR
    if len(parts) > 3:  # noqa: PLR2004 - two stars have three texts around them
        raise ValueError(where + "at most two * in one segment")
    return Glob(parts)


def _param(text: str, where: str) -> Param:
    prefix, _, rest = text.partition("{")
    name, closed, suffix = rest.partition("}")
    if not closed or "{" in rest or "}" in prefix or "}" in suffix:
        raise ValueError(where + "a parameter is one {name}, and there is at most one in a segment")
    if "*" in text:
        raise ValueError(where + "a {name} and a * cannot share a segment")
    if not _NAME.fullmatch(name):
        raise ValueError(where + "a parameter's name is letters, digits and _ . -, at most 64, not a digit first")
    _check_literal(prefix, where)
    _check_literal(suffix, where)
    return Param(name, prefix, suffix)


def _check_literal(text: str, where: str) -> None:
    if not _LITERAL.fullmatch(text):
        raise ValueError(where + "literal text is letters, digits and -._~@+=:!$&'(),")
