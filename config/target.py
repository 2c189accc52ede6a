"""The request target of a call, as bytes: what is refused whatever the grants say, and what escapes may hold.

Exact wire. A target is sent byte for byte as it was received, or not at all; nothing is decoded, normalised or
re-encoded. So everything that two HTTP programs could read differently is refused here, before any route is looked
at:

1. The path is absolute, its segments are made of :data:`config.routes.SEGMENT` and escapes, none is empty (a trailing
   slash aside) and none is dots only.
2. An escape is ``%`` and two upper-case hexadecimal digits; a segment decodes to UTF-8 without control characters;
   letters, digits, ``-``, ``_`` and ``~`` are never escaped. Decoded, as often as it decodes, a segment holds nothing
   that a server could take for a dots-only or an empty segment.
3. A query is not empty, is made of the characters of RFC 3986 without ``;``, and its escapes (either case of digits)
   decode to UTF-8 without control characters. ``[`` and ``]`` may stand raw.

What one route takes and another does not (escapes at all, which of them, the wide characters) is the route's business:
see :func:`wildcard_pattern` and ``config/match.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Literal
from urllib.parse import unquote_to_bytes

import re2

from config.params import QUIET
from config.problems import ProblemError
from config.routes import PLAIN, SEGMENT, WIDE

#: What a path holds besides letters, digits and the plain marks decides how much of it must be looked at.
Kind = Literal[0, 1, 2]
PLAIN_PATH: Final[Kind] = 0
WIDE_PATH: Final[Kind] = 1
ENCODED_PATH: Final[Kind] = 2

#: Escapes that ``encoded`` must list by name: a server that decodes them reads another path.
DANGEROUS: Final = frozenset({"%25", "%2F", "%5C", "%2E", "%3B", "%3F", "%23"})
#: Printable ASCII that cannot stand raw in a segment: what ``"encoded": true`` takes, besides all of non-ASCII.
_NEEDED: Final = frozenset(f"%{ord(mark):02X}" for mark in ' "<>[]^`{|}')
#: May stand raw but some clients escape it (``encodeURIComponent`` does): taken escaped only where listed.
_OPTIONAL: Final = frozenset(f"%{ord(mark):02X}" for mark in "@+=" + WIDE)
#: Everything that an ``encoded`` list may name.
LISTABLE: Final = DANGEROUS | _NEEDED | _OPTIONAL

_PLAIN_PATH: Final = PLAIN.encode() + b"/"
_WIDE_ONLY: Final = WIDE.encode()
_QUERY: Final = SEGMENT.encode() + b"/?%[]"
_DOTS: Final = re.compile(rb"/\.+(?:/|\Z)")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_BAD_PATH_ESCAPE: Final = re.compile(rb"%(?![0-9A-F]{2})|%(?:3[0-9]|[46][1-9A-F]|[57][0-9A]|2D|5F|7E)")
_BAD_QUERY_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ESCAPE: Final = re.compile(rb"%[0-9A-Fa-f]{2}")
_SEPARATOR: Final = re.compile(rb"[/\\]")
_AFTER_NAME: Final = re.compile(rb"[;?#]")
#: A path that decodes more often than this is nobody's file name.
_MAX_DECODINGS: Final = 8


class Target:
    """A well-formed target. ``query`` is None without ``?``; ``segments`` ends with ``b""`` after a trailing slash."""

    __slots__ = ("kind", "path", "query", "raw", "segments")

    def __init__(self, raw: bytes, path: bytes, query: bytes | None, kind: Kind) -> None:
        """Take the parts; :func:`split_target` makes them."""
        self.raw = raw
        self.path = path
        self.query = query
        self.kind = kind
        self.segments = path.split(b"/")[1:]


def split_target(raw: bytes) -> Target:
    """Split a raw target.

    Errors: ``ProblemError("target-malformed")`` for what no route can ever allow; the detail never repeats the target.
    """
    path, mark, query = raw.partition(b"?")
    if path[:1] != b"/":
        raise _malformed("the target is not an absolute path")
    kind = PLAIN_PATH
    rest = path.translate(None, _PLAIN_PATH)
    if rest:
        rest = rest.translate(None, _WIDE_ONLY)
        kind = ENCODED_PATH if rest else WIDE_PATH
        if rest.translate(None, b"%"):
            raise _malformed("the path holds a character that cannot stand in a path")
    if b"//" in path:
        raise _malformed("the path holds an empty segment")
    if b"/." in path and _DOTS.search(path):
        raise _malformed("the path holds a segment of dots only")
    if kind == ENCODED_PATH:
        _check_escapes(path)
    if not mark:
        return Target(raw, path, None, kind)
    _check_query(query)
    return Target(raw, path, query, kind)


def decode(segment: bytes) -> bytes:
    """Return a segment with its escapes decoded once."""
    return unquote_to_bytes(segment) if b"%" in segment else segment


def without_escapes(segments: list[bytes]) -> list[bytes]:
    """Return the segments with a plain character for every escape: what would match if escapes were granted."""
    return [_ESCAPE.sub(b"x", segment) for segment in segments]


def decoded_parts(decoded: bytes) -> list[bytes]:
    """Return the segments that a server which decodes before it splits would see in one decoded segment."""
    return _SEPARATOR.split(decoded)


def _check_escapes(path: bytes) -> None:
    if _BAD_PATH_ESCAPE.search(path):
        raise _malformed("the path holds an escape that is broken, in lower case, or not needed")
    for segment in path.split(b"/"):
        if b"%" in segment:
            _check_decoded(segment)


def _check_decoded(segment: bytes) -> None:
    decoded = segment
    for _ in range(_MAX_DECODINGS):
        if not _ESCAPE.search(decoded):
            return
        decoded = unquote_to_bytes(decoded)
        _check_text(decoded, "path")
        for part in decoded_parts(decoded):
            # `..;x` is `..` to servers that strip path parameters.
            if not _AFTER_NAME.split(part, maxsplit=1)[0].strip(b"."):
                raise _malformed("the path holds, decoded, an empty segment or one of dots only")
    raise _malformed("the path decodes too often")


def _check_query(query: bytes) -> None:
    if not query:
        raise _malformed("the query is empty; leave the ? out")
    if query.translate(None, _QUERY):
        raise _malformed("the query holds a character that cannot stand in a query")
    if b"%" not in query:
        return
    if _BAD_QUERY_ESCAPE.search(query):
        raise _malformed("the query holds a broken escape")
    _check_text(unquote_to_bytes(query), "query")


def _check_text(decoded: bytes, what: str) -> None:
    try:
        text = decoded.decode()
    except UnicodeDecodeError:
        raise _malformed(f"the {what} does not decode to UTF-8") from None
    if _CONTROL.search(text):
        raise _malformed(f"the {what} holds an escaped control character")


def _malformed(detail: str) -> ProblemError:
    return ProblemError("target-malformed", detail)


def listed_escapes(encoded: bool | Iterable[str]) -> frozenset[str]:  # noqa: FBT001 - the form of the grants file
    """Return the escapes of ASCII that ``encoded`` grants; non-ASCII ones come with any of them."""
    if encoded is False:
        return frozenset()
    return _NEEDED if encoded is True else _NEEDED | frozenset(encoded)


@lru_cache(maxsize=1024)
def wildcard_pattern(parts: tuple[str, ...], wide: bool, encoded: bool | frozenset[str]) -> re.Pattern[bytes]:  # noqa: FBT001
    """Return what a whole segment must match where a route has ``*`` (parts ``("", "")``) or a glob.

    Each ``*`` takes one or more units (a character of the set, or a granted escape), not dots only.
    """
    marks = PLAIN.replace(".", "") + (WIDE if wide else "")
    unit = "[" + re.escape(marks) + "]"
    escapes = listed_escapes(encoded)
    if escapes:
        codes = sorted(escape[1:] for escape in escapes)
        unit += "|%(?:[89A-F][0-9A-F]|" + "|".join(codes) + ")"
    star = rf"\.*(?:{unit})(?:\.|{unit})*"
    pattern = star.join(re.escape(part) for part in parts).encode()
    if len(parts) > 2:  # noqa: PLR2004 - two stars
        # Two stars could backtrack quadratically over a long segment; this engine cannot.
        return re2.compile(pattern, QUIET)  # type: ignore[no-any-return]
    return re.compile(pattern)
