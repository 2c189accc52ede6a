"""The keywords of JSON Schema that say what one value is, taken from a schema of the document and all of its ``allOf``.

Every function gets *parts*: the schema itself and what ``allOf`` adds to it. Of two that say the same keyword the first
counts. A value that could not be shown as it is (:func:`safe_value`) is not written: the schema takes more then.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.specgen.texts import one_line, quoted

#: An enum of more values than this is told as text.
MAX_VALUES: Final = 40
#: Longest value that is shown.
MAX_VALUE: Final = 200

_EXAMPLES: Final = 3
_LARGEST: Final = 1 << 64
_TYPES: Final = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
_SIZES: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
#: A keyword, and the one that was a boolean beside it in OpenAPI 3.0.
_BOUNDS: Final = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))


def safe_value(value: Any) -> bool:
    """Say whether a value can be shown to a model as it is: a scalar of JSON, short, without anything unseen."""
    if isinstance(value, str):
        return one_line(value, MAX_VALUE) == value
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or (isinstance(value, int) and abs(value) < _LARGEST)


def scalar_keywords(parts: Sequence[Mapping[str, Any]], text: int) -> dict[str, Any]:
    """Return type, values, description (of at most ``text`` characters; 0: none), format, bounds and default."""
    written: dict[str, Any] = {}
    kinds = _kinds(parts)
    if kinds:
        written["type"] = kinds[0] if len(kinds) == 1 else kinds
    _write_values(written, parts)
    told = first(parts, "description", str) or first(parts, "title", str)
    if text and one_line(told, text):
        describe(written, quoted(told, text))
    form = first(parts, "format", str)
    if form and safe_value(form):
        written["format"] = form
    _write_bounds(written, parts)
    for part in parts:
        if part.get("default") is not None and safe_value(part["default"]):
            return {**written, "default": part["default"]}
    return written


def describe(written: dict[str, Any], more: str) -> None:
    """Add to the description."""
    known = written.get("description")
    written["description"] = f"{known} {more}" if known else more


def first(parts: Sequence[Mapping[str, Any]], name: str, kind: Any) -> Any:
    """Return the first value of that keyword and type, or None."""
    return next((part[name] for part in parts if isinstance(part.get(name), kind)), None)


def _kinds(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    for part in parts:
        named = part.get("type")
        listed = [kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str)]
        kinds = [kind for kind in dict.fromkeys(listed) if kind in _TYPES]
        if not kinds and isinstance(part.get("properties"), Mapping):
            kinds = ["object"]
        if kinds:
            nullable = any(one.get("nullable") is True for one in parts) and "null" not in kinds
            return [*kinds, "null"] if nullable else kinds
    return []


def _write_values(written: dict[str, Any], parts: Sequence[Mapping[str, Any]]) -> None:
    for part in parts:
        if "const" in part and safe_value(part["const"]):
            written["const"] = part["const"]
            return
        values = part.get("enum")
        if not isinstance(values, list) or not values:
            continue
        shown = [value for value in values[: MAX_VALUES + 1] if safe_value(value)]
        if len(shown) == len(values) <= MAX_VALUES:
            # 1 and True are equal to Python.
            written["enum"] = list({(type(value), value): value for value in shown}.values())
        elif shown:
            examples = ", ".join(map(as_text, shown[:_EXAMPLES]))
            describe(written, f"One of {len(values)} values, such as {examples}.")
        return


def as_text(value: Any) -> str:
    """Return a safe value as a text shows it: a text quoted, everything else as JSON writes it."""
    return quoted(value, MAX_VALUE) if isinstance(value, str) else json.dumps(value)


def _write_bounds(written: dict[str, Any], parts: Sequence[Mapping[str, Any]]) -> None:
    found: dict[str, Any] = {}
    for keyword, exclusive in _BOUNDS:
        bound, strict = first(parts, keyword, int | float), first(parts, exclusive, bool | int | float)
        if isinstance(strict, bool):
            found[exclusive if strict else keyword] = bound
        else:
            found |= {keyword: bound, exclusive: strict}
    sizes = {name: first(parts, name, int) for name in _SIZES}
    found |= {name: size for name, size in sizes.items() if size is not None and size >= 0}
    written |= {
        name: value
        for name, value in found.items()
        if value is not None and not isinstance(value, bool) and safe_value(value)
    }
