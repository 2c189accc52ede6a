"""Types of the document's schemas, for the stubs of the clients: language-free, named where they have members.

An object with members gets a name and is described once, so that a schema which comes back to itself is cut at its
name. What is too much, too deep or unclear is any value: a stub helps an editor and judges nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from broker.specgen import schemas
from broker.specgen.document import Document
from broker.specgen.model import SchemaAt
from broker.specgen.naming import identifier

_MAX_DEPTH: Final = 6
_MAX_NAMED: Final = 4000
_MAX_MEMBERS: Final = 200
_MAX_VALUES: Final = 60
_MAX_TEXT: Final = 80


@dataclass(frozen=True, slots=True)
class Named:
    """An object that is described under its name."""

    name: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """Any one of these values: texts, whole numbers, booleans."""

    values: tuple[str | int | bool, ...]


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list."""

    items: Type


@dataclass(frozen=True, slots=True)
class Union:
    """Any one of these types; None is ``null``."""

    types: tuple[Type, ...]


#: A text is a type of JSON Schema or, empty, any value; "object" has members that nobody named.
Type: TypeAlias = "str | Named | OneOf | ListOf | Union | None"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a named object."""

    name: str
    type: Type
    required: bool


class Types:
    """Collects the named types of one stub. ``taken`` are the names that they must not have."""

    def __init__(self, document: Document, taken: set[str]) -> None:
        self._document = document
        self._taken = taken
        self._names: dict[str, str] = {}
        self._todo: deque[tuple[str, SchemaAt]] = deque()

    def of(self, at: SchemaAt, hint: str) -> Type:
        """Return the type of a schema; ``hint`` is its name if it needs one and the document has none."""
        return self._of(at, hint, 0)

    def named(self) -> Iterator[tuple[str, list[Member]]]:
        """Yield every named type that :meth:`of` has returned, and those that their members have."""
        while self._todo:
            name, at = self._todo.popleft()
            required = schemas.required_members(self._document, at)
            found = list(schemas.members(self._document, at).items())[:_MAX_MEMBERS]
            yield (
                name,
                [
                    Member(member, self.of(schema, f"{name}_{member[:40]}"), member in required)
                    for member, schema in found
                ],
            )

    def _of(self, at: SchemaAt, hint: str, depth: int) -> Type:
        if depth > _MAX_DEPTH:
            return ""
        values = schemas.enum_of(self._document, at)
        if values is not None:
            return _values(values)
        kinds = sorted(schemas.types(self._document, at))
        found: list[Type] = [self._kind(kind, at, hint, depth) for kind in kinds]
        if not found:
            return ""
        if _nullable(schemas.resolved(self._document, at).schema):
            found.append(None)
        return found[0] if len(found) == 1 else Union(tuple(found))

    def _kind(self, kind: str, at: SchemaAt, hint: str, depth: int) -> Type:
        if kind == "array":
            return ListOf(self._of(schemas.items(self._document, at), hint + "_item", depth + 1))
        return self._object(at, hint) if kind == "object" else kind

    def _object(self, at: SchemaAt, hint: str) -> Type:
        here = schemas.resolved(self._document, at)
        known = self._names.get(here.pointer)
        if known is not None:
            return Named(known)
        if len(self._names) >= _MAX_NAMED or not schemas.members(self._document, here):
            return "object"
        name = identifier(_last(here.pointer) if here.pointer != at.pointer else hint, self._taken)
        self._names[here.pointer] = name
        self._todo.append((name, here))
        return Named(name)


def _values(values: tuple[Any, ...]) -> Type:
    known = [value for value in values if value is not None]
    if not known or len(known) > _MAX_VALUES:
        return ""
    if not all(isinstance(value, (str, int)) and len(str(value)) <= _MAX_TEXT for value in known):
        return ""
    listed = OneOf(tuple(known))
    return listed if len(known) == len(values) else Union((listed, None))


def _nullable(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    branches = [part for keyword in ("anyOf", "oneOf") for part in schemas.listed(schema, keyword)]
    return (
        schema.get("nullable") is True
        or "null" in schemas.listed(schema, "type")
        or any(isinstance(part, Mapping) and part.get("type") == "null" for part in branches)
    )


def _last(pointer: str) -> str:
    """Return the last name of a pointer."""
    return unquote(pointer.rpartition("/")[2]).replace("~1", "/").replace("~0", "~")
