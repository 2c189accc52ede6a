"""Schemas of the document as JSON Schema for a model: few keywords, small, closed.

Only what is known is written, in a form that JSON Schema 2020-12 and the APIs that models are called by both take:
``oneOf`` as ``anyOf``, ``allOf`` merged, ``nullable`` as a type, ``pattern`` not at all. References are written out.
Where one comes back to itself, and where it gets too deep or too much, the schema is cut to what takes more, never to
what takes less (but that members mean an object, as whoever writes them means). Texts of the document are quoted; a
name or a value that would have to be changed to be shown is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.specgen import schemas
from broker.specgen.document import Document
from broker.specgen.jsonkeywords import describe, first, scalar_keywords
from broker.specgen.model import SchemaAt
from broker.specgen.references import child
from broker.specgen.texts import one_line

#: Longest name of a member that is shown.
MAX_NAME: Final = 100

_MAX_MEMBERS: Final = 64
_MAX_FORMS: Final = 8
_MAX_PARTS: Final = 64


@dataclass(slots=True, kw_only=True)
class Limits:
    """How much may be written. ``nodes`` counts down, so that several schemas can share it; no ``text`` if it is 0."""

    depth: int = 5
    nodes: int = 200
    text: int = 240


def json_schema(document: Document, at: SchemaAt, limits: Limits, *, answer: bool = False) -> dict[str, Any]:
    """Return a schema written out.

    With ``answer`` it is of what the API sends: members that are only sent to it are left out, else those that only it
    sends.
    """
    return _Writer(document, limits, "writeOnly" if answer else "readOnly").schema(at, limits.depth, frozenset())


class _Writer:
    def __init__(self, document: Document, limits: Limits, hidden: str) -> None:
        self._document = document
        self._limits = limits
        self._hidden = hidden

    def schema(self, at: SchemaAt, depth: int, above: frozenset[str]) -> dict[str, Any]:
        """Return the schema; ``above`` are the places that it is written inside of."""
        parts: list[SchemaAt] = []
        self._gather(at, frozenset(), parts)
        if not parts or self._limits.nodes <= 0:
            return {}
        self._limits.nodes -= 1
        found = [part.schema for part in parts]
        written = scalar_keywords(found, self._limits.text)
        here = parts[0].pointer
        if here in above:
            describe(written, "The same again, one level deeper.")
            return written
        if depth <= 0:
            return written
        above |= {here}
        kinds = written.get("type", ())
        if "object" in kinds and any(isinstance(schema.get("properties"), Mapping) for schema in found):
            self._members(written, parts, depth, above)
        elif "object" in kinds:
            self._inner(written, "additionalProperties", parts, depth, above)
        if "array" in kinds:
            self._inner(written, "items", parts, depth, above)
        if not ({"enum", "const"} & written.keys()):
            self._forms(written, parts, depth, above)
        return written

    def _gather(self, at: SchemaAt, inside: frozenset[str], found: list[SchemaAt]) -> None:
        """Add the schema, and then all that ``allOf`` adds to it."""
        here = schemas.resolved(self._document, at)
        if not isinstance(here.schema, Mapping) or here.pointer in inside or len(inside) > self._limits.depth:
            return
        found.append(here)
        for index, part in enumerate(schemas.listed(here.schema, "allOf")[:_MAX_PARTS]):
            if len(found) < _MAX_PARTS:
                inner = SchemaAt(part, child(here.pointer, "allOf", index))
                self._gather(inner, inside | {here.pointer}, found)

    def _members(self, written: dict[str, Any], parts: Sequence[SchemaAt], depth: int, above: frozenset[str]) -> None:
        properties: dict[str, Any] = {}
        left_out = 0
        for name, member in _properties(parts).items():
            target = schemas.resolved(self._document, member).schema
            if target is False or (isinstance(target, Mapping) and target.get(self._hidden) is True):
                continue
            if one_line(name, MAX_NAME) != name or len(properties) == _MAX_MEMBERS or self._limits.nodes <= 0:
                left_out += 1
                continue
            properties[name] = self.schema(member, depth - 1, above)
        written["properties"] = properties
        required = {name for part in parts for name in schemas.listed(part.schema, "required") if isinstance(name, str)}
        if kept := [name for name in properties if name in required]:
            written["required"] = kept
        if left_out:
            describe(written, f"{left_out} more members are not shown.")
        elif first([part.schema for part in parts], "additionalProperties", bool) is False:
            written["additionalProperties"] = False

    def _inner(
        self, written: dict[str, Any], name: str, parts: Sequence[SchemaAt], depth: int, above: frozenset[str]
    ) -> None:
        for part in parts:
            if isinstance(part.schema.get(name), Mapping):
                inner = self.schema(SchemaAt(part.schema[name], child(part.pointer, name)), depth - 1, above)
                written |= {name: inner} if inner else {}
                return

    def _forms(self, written: dict[str, Any], parts: Sequence[SchemaAt], depth: int, above: frozenset[str]) -> None:
        listed = [
            (child(part.pointer, keyword), alternatives)
            for part in parts
            for keyword in ("oneOf", "anyOf")
            if (alternatives := schemas.listed(part.schema, keyword))
        ]
        if not listed:
            return
        pointer, alternatives = listed[0]
        if len(alternatives) > _MAX_FORMS:
            describe(written, f"It has one of {len(alternatives)} forms.")
            return
        forms: list[dict[str, Any]] = []
        for index, alternative in enumerate(alternatives):
            inner = self.schema(SchemaAt(alternative, child(pointer, index)), depth - 1, above)
            if inner not in forms:
                forms.append(inner)
        if len(forms) == 1:
            written |= {name: value for name, value in forms[0].items() if name not in written}
        elif all(form.keys() - {"description"} for form in forms):
            # A form that takes anything would make the others say nothing.
            written["anyOf"] = forms


def _properties(parts: Sequence[SchemaAt]) -> dict[str, SchemaAt]:
    found: dict[str, SchemaAt] = {}
    for part in parts:
        properties = part.schema.get("properties")
        for name, member in properties.items() if isinstance(properties, Mapping) else ():
            found.setdefault(name, SchemaAt(member, child(part.pointer, "properties", name)))
    return found
