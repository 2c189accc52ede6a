"""How a parameter's value is written (OpenAPI "Style Values"), and what of it can be carried."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from broker.specgen import schemas
from broker.specgen.declared import Declared, LostError
from broker.specgen.document import Document
from broker.specgen.model import Note, SchemaAt, Shape, Style
from broker.specgen.queries import pair_fault
from broker.specgen.references import UnresolvedError, child
from broker.specgen.texts import quoted

_JSON: Final = re.compile(r"application/(?:[^;]*\+)?json(?:\s*;.*)?", re.IGNORECASE | re.DOTALL)
_DELIMITED: Final[Mapping[str, Style]] = {"spaceDelimited": "spaceDelimited", "pipeDelimited": "pipeDelimited"}
_NESTED: Final = frozenset({"array", "object"})
_MAX_MEMBERS: Final = 256
_MAX_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Written:
    """How a value is written; the words are those of ``model.Argument``."""

    schema: SchemaAt
    style: Style
    explode: bool = False
    shape: Shape = "scalar"
    members: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


def read_style(document: Document, declared: Declared) -> Written:
    """Return how the value of a path, query or header parameter is written.

    What the specification leaves undefined but everybody reads alike is made plain: a scalar has no style of lists, and
    an exploded list is one of pairs whatever its style.

    Errors: ``LostError`` when no client of ours could write it.
    """
    written = _written(document, declared)
    if declared.place == "query" and not (written.shape == "object" and written.explode):
        fault = pair_fault(declared.name)
        if fault is not None:
            raise LostError(fault)
    return written


def is_json(media: str) -> bool:
    """Say whether a media type is one of JSON."""
    return _JSON.fullmatch(media.strip()) is not None


def shown(names: list[str]) -> str:
    """Return some names of the document for a note."""
    text = ", ".join(quoted(name, 40) for name in names[:_MAX_SHOWN])
    return text if len(names) <= _MAX_SHOWN else f"{text} and {len(names) - _MAX_SHOWN} more"


def _written(document: Document, declared: Declared) -> Written:
    node = declared.node
    if "schema" not in node and "content" in node:
        return _content(document, declared)
    notes: list[Note] = []
    if "schema" not in node:
        notes.append(declared.note("warn", "has no schema; any text is taken"))
    at = SchemaAt(node.get("schema", {}), child(declared.pointer, "schema"))
    try:
        document.resolve(at.schema, at.pointer)
    except UnresolvedError as error:
        notes.append(error.note("limit"))
    kinds = schemas.types(document, at)
    style, explode = _style(declared)
    shape = _shape(kinds, deep=style == "deepObject")
    if shape == "scalar":
        return Written(at, _plain(declared), explode, notes=tuple(notes))
    if shape == "array":
        return replace(_array(document, at, style, explode=explode), notes=tuple(notes))
    return _object(document, declared, Written(at, style, explode, "object", notes=tuple(notes)))


def _plain(declared: Declared) -> Style:
    return "form" if declared.place == "query" else "simple"


def _style(declared: Declared) -> tuple[Style, bool]:
    default = _plain(declared)
    name = declared.node.get("style", default)
    style: Style = default
    if name == "deepObject" and declared.place == "query":
        style = "deepObject"
    elif declared.place == "query" and isinstance(name, str) and name in _DELIMITED:
        style = _DELIMITED[name]
    elif name != default:
        known = name in ("label", "matrix") and declared.place == "path"
        shown_style = quoted(name, 40) if isinstance(name, str) else "(no text)"
        reason = f"is written in the style {name}" if known else f"has the unknown style {shown_style}"
        raise LostError(reason, "describe it with style: " + default)
    explode = declared.node.get("explode")
    return style, explode if isinstance(explode, bool) else style in ("form", "deepObject")


def _shape(kinds: frozenset[str], *, deep: bool) -> Shape:
    if "object" in kinds and (deep or kinds == {"object"}):
        return "object"
    if "array" in kinds:
        return "array"
    return "object" if deep and not kinds else "scalar"


def _array(document: Document, at: SchemaAt, style: Style, *, explode: bool) -> Written:
    if style == "deepObject":
        raise LostError(
            "is a list in the style deepObject, which says nothing of lists", "describe it with style: form"
        )
    if _is_nested(document, schemas.items(document, at)):
        raise LostError("is a list of lists or objects, and no style says how to write one", "describe it with content")
    if style in _DELIMITED and explode:
        style = "form"
    return Written(at, style, explode, "array")


def _object(document: Document, declared: Declared, plain: Written) -> Written:
    at, style = plain.schema, plain.style
    if style in _DELIMITED and plain.explode:
        raise LostError(f"is an exploded object in the style {style}, which is not defined", "set explode: false")
    explode = plain.explode or style == "deepObject"
    left_out: list[str] = []
    sent: list[str] = []
    for name, member in schemas.members(document, at).items():
        fits = len(sent) < _MAX_MEMBERS and not _is_nested(document, member)
        fits = fits and _member_fault(declared, style, name, explode=explode) is None
        (sent if fits else left_out).append(name)
    if not sent:
        raise LostError("is an object, and the document names no member that can be sent", "name its properties")
    missing = sorted(schemas.required_members(document, at).intersection(left_out))
    if missing:
        raise LostError(f"its required members {shown(missing)} cannot be sent", "describe it with content")
    notes = list(plain.notes)
    if left_out:
        notes.append(declared.note("limit", f"its members {shown(left_out)} cannot be sent"))
    if _open(schemas.resolved(document, at).schema):
        notes.append(declared.note("limit", "only the members that the document names can be sent"))
    return Written(at, style, explode, "object", tuple(sent), tuple(notes))


def _is_nested(document: Document, at: SchemaAt) -> bool:
    kinds = schemas.types(document, at)
    return bool(kinds) and kinds <= _NESTED


def _member_fault(declared: Declared, style: Style, name: str, *, explode: bool) -> str | None:
    if declared.place != "query" or not explode:
        return None
    return pair_fault(f"{declared.name}[{name}]" if style == "deepObject" else name)


def _open(schema: Mapping[str, Any]) -> bool:
    more = schema.get("additionalProperties", False)
    return more is True or isinstance(more, Mapping) or bool(schema.get("patternProperties"))


def _content(document: Document, declared: Declared) -> Written:
    content = declared.node["content"]
    if not isinstance(content, Mapping) or len(content) != 1:
        raise LostError("its content is not one media type")
    ((media, described),) = content.items()
    if not is_json(media):
        raise LostError(f"its content is {quoted(media, 60)}; only JSON is carried")
    pointer = child(declared.pointer, "content", media)
    try:
        described, pointer = document.resolve(described, pointer)
    except UnresolvedError as error:
        raise LostError(error.reason, error.remedy) from None
    schema = described.get("schema", {}) if isinstance(described, Mapping) else {}
    return Written(SchemaAt(schema, child(pointer, "schema")), "json")
