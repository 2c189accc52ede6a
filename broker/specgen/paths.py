"""Path keys: from the text of ``paths`` to the segments of a route and of a client's template.

A key is cut at ``#`` (which tells operations of one path apart and is never sent) and at ``?``, whose pairs are sent
with every call. What stands in braces is a parameter's name, whatever characters it has.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from urllib.parse import unquote

from broker.specgen.model import Note
from broker.specgen.queries import pair_fault
from broker.specgen.texts import quoted
from config.routes import MAX_LENGTH, SEGMENT, parse_route

_EXPRESS: Final = re.compile(r"/:[A-Za-z_]\w*", re.ASCII)
_MARKS: Final = re.compile(r"[{}#?]")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
#: What a literal in a template may be made of; the rest of the grammar is ``parse_route``'s.
_LITERAL: Final = frozenset(SEGMENT) - {"*"}
#: Operators of URI templates (RFC 6570) whose expansion is no part of a path's segment.
_OPERATORS: Final = "?&#;/."
_DECLARE: Final = "declare it as a parameter in the query"
_SPELL: Final = "write the path out in the document, each segment of its own"


class PathError(Exception):
    """A path that no route can say."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Name:
    """A parameter in a path."""

    text: str


Piece: TypeAlias = str | Name


@dataclass(frozen=True, slots=True)
class Path:
    """A path key, read. ``pieces`` are literal text and names in turn; no two names stand side by side."""

    pieces: tuple[Piece, ...]
    fixed_query: tuple[tuple[str, str], ...] = ()
    notes: tuple[Note, ...] = field(default=())

    @property
    def names(self) -> tuple[str, ...]:
        """The names in their order, each once."""
        return tuple(dict.fromkeys(piece.text for piece in self.pieces if isinstance(piece, Name)))

    def written(self, base: str, fillings: Mapping[str, str]) -> str:
        """Return the path with ``base`` before it and each name replaced."""
        return base + "".join(fillings[piece.text] if isinstance(piece, Name) else piece for piece in self.pieces)


def read_path(key: str, pointer: str, settled: Container[str] = ()) -> Path:
    """Read a path key; ``settled`` are names whose value the code does not choose.

    Errors: ``PathError`` for what is no path, or cannot be carried.
    """
    if len(key) > MAX_LENGTH:
        raise PathError(f"a path has at most {MAX_LENGTH} characters")
    if not key.startswith("/"):
        raise PathError("a path begins with /", "mend the document")
    text, query, fragment = _cut(key)
    pieces = tuple(_pieces(text))
    notes = list(_oddities(text, pieces, pointer, settled))
    if fragment is not None:
        notes.append(
            Note("warn", pointer, "what follows # in the path is never sent and tells only the document apart")
        )
    pairs = [_pair(pair) for pair in (query or "").split("&") if pair]
    if pairs:
        named = ", ".join(quoted(name, 40) for name, _ in pairs)
        notes.append(Note("warn", pointer, f"the query in the path is sent with every call: {named}"))
    return Path(pieces, tuple(pairs), tuple(notes))


def check_literal(text: str) -> None:
    """Pass a text that may stand in a path as it is.

    Errors: ``PathError``.
    """
    if not text or not _LITERAL.issuperset(text):
        raise PathError("a literal in a path is letters, digits and -._~@+=:!$&'(),")


def check_route(text: str) -> None:
    """Pass ``METHOD /path`` that is a route.

    Errors: ``PathError`` with the reason of ``config/routes.py``.
    """
    try:
        parse_route(text)
    except ValueError as error:
        raise PathError(str(error)) from None


def _cut(key: str) -> tuple[str, str | None, str | None]:
    """Split a key into path, query and fragment; marks inside of braces are a name's."""
    query = fragment = None
    end = len(key)
    for place, mark in _outside(key):
        if mark == "#":
            fragment = key[place + 1 :]
            end = place
            break
    for place, mark in _outside(key[:end]):
        if mark == "?":
            query = key[place + 1 : end]
            end = place
            break
    return key[:end], query, fragment


def _outside(text: str) -> Iterator[tuple[int, str]]:
    depth = 0
    for match in _MARKS.finditer(text):
        mark = match[0]
        if mark == "{":
            depth += 1
        elif mark == "}":
            depth = max(0, depth - 1)
        elif not depth:
            yield match.start(), mark


def _pieces(text: str) -> Iterator[Piece]:
    rest = text
    while rest:
        literal, opened, after = rest.partition("{")
        if "}" in literal:
            raise PathError("a } closes nothing", "mend the document")
        if "*" in literal:
            raise PathError("a literal * cannot be told from a wildcard")
        if literal:
            yield literal
        if not opened:
            return
        name, closed, rest = after.partition("}")
        _check_name(name, closed=bool(closed))
        if rest.startswith("{"):
            raise PathError("two parameters without text between them cannot be told apart", _SPELL)
        yield Name(name)


def _check_name(name: str, *, closed: bool) -> None:
    if not closed or "{" in name:
        raise PathError("a { is not closed", "mend the document")
    if not name:
        raise PathError("{} is a parameter without a name", "name it in the document")
    if name[0] in _OPERATORS:
        raise PathError(
            f"the parameter {quoted(name, 40)} is an operator of a URI template, which OpenAPI has not", _SPELL
        )
    if "/" in name or "=" in name:
        raise PathError(f"the parameter {quoted(name, 40)} stands for several segments", _SPELL)


def _oddities(text: str, pieces: tuple[Piece, ...], pointer: str, settled: Container[str]) -> Iterator[Note]:
    names = [piece.text for piece in pieces if isinstance(piece, Name)]
    if _EXPRESS.search(text):
        yield Note(
            "warn", pointer, "a segment looks like a parameter (:name) and is literal text", "write it as {name}"
        )
    for name in dict.fromkeys(names):
        if names.count(name) > 1 and name not in settled:
            reason = (
                f"{quoted(name, 40)} stands in the path more than once; the client sends one value, a route takes two"
            )
            yield Note("limit", pointer, reason, "give them two names in the document")
        if name[0] == "+" or name[-1] == "*":
            reason = f"{quoted(name, 40)} reads like a parameter of many segments; it is carried as one"
            yield Note("warn", pointer, reason, "--slashes, if the API takes %2F in it")
    if any("{" in segment.partition("}")[2] for segment in text.split("/")):
        yield Note("warn", pointer, "two parameters share a segment: where one ends is the API's to say")


def _pair(pair: str) -> tuple[str, str]:
    where = f"the query in the path, {quoted(pair, 60)}, "
    if "{" in pair or "}" in pair:
        raise PathError(where + "holds a parameter", _DECLARE)
    if "+" in pair:
        raise PathError(where + "holds a +, which is a plus or a space", "write %2B or %20")
    if _BAD_ESCAPE.search(pair):
        raise PathError(where + "holds a bad escape", "mend the document")
    written_name, _, written_value = pair.partition("=")
    try:
        name, value = unquote(written_name, errors="strict"), unquote(written_value, errors="strict")
    except UnicodeDecodeError:
        raise PathError(where + "is not UTF-8", "mend the document") from None
    fault = pair_fault(name, value)
    if fault is not None:
        raise PathError(where + f"cannot be granted: {fault}")
    return name, value
