"""A schema told in one line, as a model reads it: ``{query: string, level?: "low" | "high", tags?: [string]}``.

It is told from what ``jsonschemas.py`` wrote, so every text in it is clean; texts of the document stand in quotation
marks, but for the names of members that are names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from broker.specgen.jsonkeywords import as_text
from broker.specgen.texts import CUT, quoted

_NAME: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]{0,63}", re.ASCII)
_FORMAT: Final = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)
_LONGEST_NAME: Final = 100
_DEPTH: Final = 4
#: A member is not told twice when it is longer.
_LONG: Final = 40


def shape(schema: Mapping[str, Any], limit: int) -> str:
    """Return the schema in at most ``limit`` characters, or in the few that say its type.

    What does not fit is cut to ``{…}`` and ``[…]``, and an object of many members to the first of them: every member of
    an object gets its share of the room. A long member that is told like one before it is told by that one's name:
    ``errors: [{…}], messages: as errors``.
    """
    text = _shape(schema, _DEPTH)
    if len(text) <= limit:
        return text
    if schema.get("type") == "object" and schema.get("properties") and "anyOf" not in schema:
        return _shared(schema, limit)
    if schema.get("type") == "array" and schema.get("items"):
        text = f"[{shape(schema['items'], limit - 2)}]"
        return text if len(text) <= limit else _shape(schema, 0)
    return next((text for depth in (2, 1) if len(text := _shape(schema, depth)) <= limit), _shape(schema, 0))


def _shared(schema: Mapping[str, Any], limit: int) -> str:
    members = schema["properties"]
    whole = {name: _shape(member, _DEPTH) for name, member in members.items()}
    again = _told_before(whole)
    shown = {name: again.get(name) or _shape(member, 0) for name, member in members.items()}
    spare = limit - len(_braced(schema, shown))
    if spare < 0:
        return _first(schema, shown, limit)
    by_need = sorted((name for name in members if name not in again), key=lambda name: len(whole[name]))
    for done, name in enumerate(by_need):
        least = len(shown[name])
        text = shape(members[name], least + spare // (len(by_need) - done))
        spare -= max(len(text) - least, 0)
        shown[name] = text
    return _braced(schema, shown)


def _first(schema: Mapping[str, Any], members: Mapping[str, str], limit: int) -> str:
    """Return the object with as many of its members as there is room for."""
    shown = dict(members)
    while shown:
        shown.popitem()
        text = _braced(schema, shown).removesuffix("}") + f", {CUT}}}"
        if shown and len(text) <= limit:
            return text
    return _shape(schema, 0)


def _told_before(members: Mapping[str, str]) -> dict[str, str]:
    """Return what stands for each long member that is told like one before it: that one's name."""
    first: dict[str, str] = {}
    again = {}
    for name, text in members.items():
        before = first.setdefault(text, name)
        if before != name and len(text) > _LONG:
            again[name] = f"as {member_name(before)}"
    return again


def member_name(name: str) -> str:
    """Return a member's name as it is, or quoted when it is no plain name."""
    return name if _NAME.fullmatch(name) else quoted(name, _LONGEST_NAME)


def _shape(schema: Mapping[str, Any], depth: int) -> str:
    if "const" in schema:
        return as_text(schema["const"])
    if "enum" in schema:
        return " | ".join(map(as_text, schema["enum"])) if depth else f"one of {len(schema['enum'])} values"
    if "anyOf" in schema:
        forms = " | ".join(dict.fromkeys(_shape(form, depth - 1) for form in schema["anyOf"])) if depth > 0 else CUT
        return f"{_object(schema, depth)} & ({forms})" if schema.get("properties") else forms
    kinds = schema.get("type", "any")
    texts = [_kind(kind, schema, depth) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    return " | ".join(texts)


def _kind(kind: str, schema: Mapping[str, Any], depth: int) -> str:
    if kind == "object":
        return _object(schema, depth)
    if kind == "array":
        items = schema.get("items")
        return f"[{_shape(items, depth - 1) if depth > 0 else CUT}]" if items else "[any]"
    form = schema.get("format")
    return f"{kind} ({form})" if form and _FORMAT.fullmatch(form) and kind == "string" and depth > 0 else kind


def _object(schema: Mapping[str, Any], depth: int) -> str:
    properties = schema.get("properties")
    if not properties:
        rest = schema.get("additionalProperties")
        return "{name: " + _shape(rest, depth - 1) + "}" if rest and depth > 0 else "object"
    if depth <= 0:
        return "{" + CUT + "}"
    members = {name: _shape(member, depth - 1) for name, member in properties.items()}
    return _braced(schema, members | _told_before(members))


def _braced(schema: Mapping[str, Any], members: Mapping[str, str]) -> str:
    required = schema.get("required", ())
    texts = [f"{member_name(name)}{'' if name in required else '?'}: {text}" for name, text in members.items()]
    return "{" + ", ".join(texts) + "}"
