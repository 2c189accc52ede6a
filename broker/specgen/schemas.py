"""Looking at schemas of a document, which is untrusted: any of them may be of any type, refer to itself or be huge.

A schema is looked through: references are followed, what ``allOf`` lists applies at once, and what ``anyOf`` and
``oneOf`` list are alternatives (one that is only ``null`` is none). How much is looked at is bounded, and a cycle is
cut where it comes back: what is not seen says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from broker.specgen.document import Document
from broker.specgen.limits import MAX_LOOKED_AT
from broker.specgen.model import DocumentError, SchemaAt
from broker.specgen.references import UnresolvedError, child

#: Schemas looked at to answer one question.
_MAX_SCHEMAS: Final = 256
_MAX_DEPTH: Final = 32
#: Members of an object, and values of an enum, that are known.
_MAX_MEMBERS: Final = 2000
_MAX_VALUES: Final = 1000
#: So many of them cost as much as a schema.
_CHEAP: Final = 4

_TYPES: Final = frozenset({"string", "integer", "number", "boolean", "array", "object"})
_NOTHING: Final[Mapping[str, Any]] = {}

#: How many schemas of a document were looked at, to answer all questions together.
_SPENT: Final[WeakKeyDictionary[Document, int]] = WeakKeyDictionary()

_Answer = TypeVar("_Answer")
_Part: TypeAlias = tuple[Mapping[str, Any], str]


def resolved(document: Document, at: SchemaAt) -> SchemaAt:
    """Return the schema with its references followed: a mapping, True or False, and ``{}`` for everything else."""
    try:
        schema, pointer = document.resolve(at.schema, at.pointer)
    except UnresolvedError:
        return SchemaAt(_NOTHING, at.pointer)
    return SchemaAt(schema if isinstance(schema, Mapping | bool) else _NOTHING, pointer)


def types(document: Document, at: SchemaAt) -> frozenset[str]:
    """Return the types that a value may have, ``null`` left out; empty when the schema does not say.

    Where ``type`` is missing, the values of ``enum`` and ``const``, ``properties`` and ``items`` tell it.
    """
    found = _types(_Look(document), at)
    return frozenset() if found is None else found


def enum_of(document: Document, at: SchemaAt) -> tuple[Any, ...] | None:
    """Return the only values that are allowed (``enum`` or ``const``), or None when others are too.

    An enum of very many values is none.
    """
    return _enum(_Look(document), at)


def members(document: Document, at: SchemaAt) -> Mapping[str, SchemaAt]:
    """Return the members of an object, those of all alternatives together.

    They are in the document's order, what ``allOf`` lists first; of two of one name, the later one counts.
    """
    look = _Look(document)
    found: dict[str, SchemaAt] = {}
    for schema, pointer in _parts(look, at, alternatives=True):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            look.spend(min(len(properties), _MAX_MEMBERS) // _CHEAP)
            for name, member in properties.items():
                if len(found) == _MAX_MEMBERS:
                    return found
                found[name] = SchemaAt(member, child(pointer, "properties", name))
    return found


def required_members(document: Document, at: SchemaAt) -> frozenset[str]:
    """Return the members that an object must have, whichever alternative it is."""
    return frozenset(
        name
        for schema, _ in _parts(_Look(document), at, alternatives=False)
        for name in listed(schema, "required")[:_MAX_MEMBERS]
        if isinstance(name, str)
    )


def items(document: Document, at: SchemaAt) -> SchemaAt:
    """Return the schema of an array's items; ``{}`` when there is none."""
    found = SchemaAt(_NOTHING, at.pointer)
    for schema, pointer in _parts(_Look(document), at, alternatives=True):
        if isinstance(schema.get("items"), Mapping | bool):
            found = SchemaAt(schema["items"], child(pointer, "items"))
    return found


def listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    """Return the list that a schema itself has under a keyword, empty when there is none."""
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


class _Look:
    """One look through a schema: how much more may be looked at, and where it is now."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.spend(1)
        self._left = _MAX_SCHEMAS
        self._inside: list[str] = []

    def listed(self, schema: Mapping[str, Any], pointer: str, keyword: str) -> list[SchemaAt]:
        """Return the schemas of ``allOf``, ``anyOf`` or ``oneOf``, and ``{}`` for those that are too many."""
        parts = listed(schema, keyword)
        found = [SchemaAt(part, child(pointer, keyword, index)) for index, part in enumerate(parts[: self._left])]
        self._left -= len(found)
        self.spend(len(found))
        if len(found) < len(parts):
            found.append(SchemaAt(_NOTHING, child(pointer, keyword, len(found))))
        return found

    def alternatives(self, schema: Mapping[str, Any], pointer: str, keyword: str) -> list[SchemaAt]:
        """Return the schemas of ``anyOf`` or ``oneOf`` but for ``null``."""
        parts = self.listed(schema, pointer, keyword)
        return [part for part in parts if not _only_null(resolved(self.document, part).schema)]

    def spend(self, schemas: int) -> None:
        """Count what was looked at. Errors: ``DocumentError`` when it is too much for a whole document."""
        spent = _SPENT[self.document] = _SPENT.get(self.document, 0) + schemas
        if spent > MAX_LOOKED_AT:
            raise DocumentError(f"its schemas are looked at more than {MAX_LOOKED_AT} times; they are too entangled")

    def into(self, at: SchemaAt, ask: Callable[[Mapping[str, Any], str], _Answer], unseen: _Answer) -> _Answer:
        """Return what ``ask`` says of a schema and its pointer; ``unseen`` for a cycle, or too much of it."""
        here = resolved(self.document, at)
        if here.pointer in self._inside or len(self._inside) >= _MAX_DEPTH:
            return unseen
        self._inside.append(here.pointer)
        try:
            return ask(here.schema if isinstance(here.schema, Mapping) else _NOTHING, here.pointer)
        finally:
            self._inside.pop()


def _types(look: _Look, at: SchemaAt) -> frozenset[str] | None:
    def ask(schema: Mapping[str, Any], pointer: str) -> frozenset[str] | None:
        known = _own_types(look, schema)
        for part in look.listed(schema, pointer, "allOf"):
            known = _both(known, _types(look, part))
        for keyword in ("anyOf", "oneOf"):
            alternatives = [_types(look, part) for part in look.alternatives(schema, pointer, keyword)]
            if alternatives:
                known = _both(known, _any_of(alternatives))
        return known

    return look.into(at, ask, None)


def _own_types(look: _Look, schema: Mapping[str, Any]) -> frozenset[str] | None:
    written = schema.get("type")
    named = [written] if isinstance(written, str) else written if isinstance(written, list) else []
    known = frozenset(name for name in named if isinstance(name, str) and name in _TYPES)
    if not known:
        values = _own_enum(schema)
        if values:
            look.spend(len(values) // _CHEAP)
            known = frozenset(_type_of(value) for value in values if value is not None)
        elif isinstance(schema.get("properties"), Mapping):
            known = frozenset({"object"})
        elif isinstance(schema.get("items"), Mapping):
            known = frozenset({"array"})
    return known or None


def _type_of(value: Any) -> str:
    # A boolean is an integer to Python, not to a schema.
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"


def _both(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return other if one is None else one
    # An integer is a number.
    narrow = {"integer"} & (one | other) if "number" in one ^ other else set()
    # Parts that exclude each other are a mistake of the document: the first one counts.
    return (one & other) | narrow or one


def _any_of(alternatives: list[frozenset[str] | None]) -> frozenset[str] | None:
    known: set[str] = set()
    for alternative in alternatives:
        if alternative is None:
            return None
        known |= alternative
    return frozenset(known)


def _enum(look: _Look, at: SchemaAt) -> tuple[Any, ...] | None:
    def ask(schema: Mapping[str, Any], pointer: str) -> tuple[Any, ...] | None:
        found = [] if (own := _own_enum(schema)) is None else [own]
        found.extend(
            values for part in look.listed(schema, pointer, "allOf") if (values := _enum(look, part)) is not None
        )
        for keyword in ("anyOf", "oneOf"):
            alternatives = [_enum(look, part) for part in look.alternatives(schema, pointer, keyword)]
            listed = [values for values in alternatives if values is not None]
            if listed and len(listed) == len(alternatives):
                found.append(tuple(value for values in listed for value in values))
        if not found:
            return None
        look.spend(sum(map(len, found)) // _CHEAP)
        common = set.intersection(*({_identity(value) for value in values} for values in found))
        return tuple({_identity(value): value for value in found[0] if _identity(value) in common}.values()) or None

    return look.into(at, ask, None)


def _own_enum(schema: Mapping[str, Any]) -> tuple[Any, ...] | None:
    if "const" in schema:
        return (schema["const"],)
    values = schema.get("enum")
    return tuple(values) if isinstance(values, list) and 0 < len(values) <= _MAX_VALUES else None


def _identity(value: Any) -> tuple[str, Any]:
    # 1, 1.0 and True are equal to Python; a list or an object is itself, however deep.
    return type(value).__name__, value if isinstance(value, str | int | float | None) else id(value)


def _parts(look: _Look, at: SchemaAt, *, alternatives: bool) -> Iterator[_Part]:
    """Yield every schema that applies at once; with ``alternatives``, those that may apply too."""

    def ask(schema: Mapping[str, Any], pointer: str) -> list[_Part]:
        inner = look.listed(schema, pointer, "allOf")
        for keyword in ("anyOf", "oneOf"):
            branches = look.alternatives(schema, pointer, keyword)
            if alternatives or len(branches) == 1:
                inner.extend(branches)
        return [found for part in inner for found in look.into(part, ask, none)] + [(schema, pointer)]

    none: list[_Part] = []
    # One that is reached in several ways says the same each time.
    yield from {pointer: (schema, pointer) for schema, pointer in look.into(at, ask, none)}.values()


def _only_null(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") in ("null", ["null"])
