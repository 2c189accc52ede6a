"""Every fault of a parsed document at once, from the JSON Schema of its type.

msgspec stops at the first fault; people mend a file faster when they see all of them, each with its full path, what
was expected and, for a misspelt name, what was probably meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from config.errors import Fault

if TYPE_CHECKING:
    from jsonschema import ValidationError


def struct_faults(type_: type[msgspec.Struct], value: Any, *, where: str) -> list[Fault]:
    """Return what is wrong with ``value`` as a document of ``type_``; ``where`` names the file."""
    return schema_faults(msgspec.json.schema(type_), value, where=where)


def schema_faults(schema: Mapping[str, Any], value: Any, *, where: str) -> list[Fault]:
    """Return what is wrong with ``value`` by ``schema`` (JSON Schema 2020-12), in the order of the document."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - a fifth of a second that most commands do not need

    validator = Draft202012Validator(schema)
    faults = [fault for error in validator.iter_errors(value) for fault in _faults(error, where)]
    return sorted(set(faults), key=lambda fault: fault.where)


def _faults(error: ValidationError, where: str) -> Iterator[Fault]:
    if error.context and error.validator in ("anyOf", "oneOf"):
        # The branch for a value of this kind is the one the author meant; all that is wrong in it is said.
        depth = len(error.absolute_path)
        other_kinds = {
            inner.relative_schema_path[0]
            for inner in error.context
            if inner.validator == "type" and len(inner.absolute_path) == depth
        }
        meant = [inner for inner in error.context if inner.relative_schema_path[0] not in other_kinds]
        for inner in meant:
            yield from _faults(inner, where)
        if meant:
            return
    names: Any = error.validator_value
    instance: Any = error.instance
    schema: Any = error.schema
    place = where + ": " + (_path(error.absolute_path) or "the document")
    if error.validator == "additionalProperties":
        known = sorted(schema.get("properties", {}))
        for name in sorted(set(instance) - set(known)):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(known)
            yield Fault(where + ": " + _path([*error.absolute_path, name]), "unknown name", hint)
    elif error.validator == "required":
        for name in names:
            if name not in instance:
                yield Fault(where + ": " + _path([*error.absolute_path, name]), "missing")
    else:
        found = "" if error.validator in _LIMITS else f", found {_kind(error)}"
        yield Fault(place, f"expected {_expected(error)}{found}")


def _path(parts: Any) -> str:
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _expected(error: ValidationError) -> str:
    value: Any = error.validator_value
    if error.validator in ("anyOf", "oneOf"):
        return " or ".join(sorted({_named(branch) for branch in value}))
    if error.validator == "type":
        return _named({"type": value})
    if error.validator == "enum":
        return "one of " + ", ".join(map(str, value))
    words = _LIMITS | {"pattern": "a text of the form"}
    return f"{words.get(str(error.validator), str(error.validator))} {value}"


#: Of these the kind is right, and the value is not repeated: there is nothing to say of what was found.
_LIMITS = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
    "minLength": "a text of at least the length",
    "maxLength": "a text of at most the length",
    "minItems": "a list of at least the length",
}

_NAMES = {
    "object": "an object",
    "array": "a list",
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "nothing",
}


def _named(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return "an object"
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    kind = schema.get("type", "something else")
    return " or ".join(_NAMES.get(name, name) for name in ([kind] if isinstance(kind, str) else kind))


def _kind(error: ValidationError) -> str:
    """Name the kind of a value, never the value: it may be a secret that was written in the wrong place."""
    value: Any = error.instance
    if isinstance(value, bool):
        return "true or false"
    for type_, name in ((dict, "an object"), (list, "a list"), (str, "a text"), (int, "a whole number")):
        if isinstance(value, type_):
            formed = type_ is str and error.validator in ("enum", "const", "pattern")
            return f"{name} of another form" if formed else name
    return "a number" if isinstance(value, float) else "nothing" if value is None else "something else"
