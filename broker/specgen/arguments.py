"""The schemas of what code gives to an operation, for tools; where a grant narrows a value, that is told instead."""

from __future__ import annotations

import re
from typing import Any, Final

from broker.specgen import schemas
from broker.specgen.document import Document
from broker.specgen.entries import narrowed_text
from broker.specgen.granted import Narrowed
from broker.specgen.jsonkeywords import MAX_VALUES, safe_value
from broker.specgen.jsonschemas import Limits, json_schema
from broker.specgen.model import Argument, Body
from broker.specgen.texts import quoted

_NODES: Final = 120
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,18})", re.ASCII)


def argument_schema(
    document: Document, argument: Argument, narrowed: Narrowed | None, depth: int, text: int
) -> dict[str, Any]:
    """Return the schema of an argument; descriptions have at most ``text`` characters, none if it is 0."""
    schema = json_schema(document, argument.schema, Limits(depth=depth, nodes=_NODES, text=text))
    if argument.shape == "object" and argument.style != "json" and "properties" in schema:
        kept = {name: member for name, member in schema["properties"].items() if name in argument.members}
        required = [name for name in schema.get("required", ()) if name in kept]
        schema |= {"properties": kept, "required": required, "additionalProperties": False}
    if argument.place == "path" and not schema.keys() - {"description"}:
        schema["type"] = "string"
    if text and argument.description:
        schema["description"] = quoted(argument.description, text)
    return schema if narrowed is None else _narrowed(document, argument, schema, narrowed)


def body_schema(document: Document, body: Body, depth: int, text: int) -> dict[str, Any]:
    """Return the schema of a body, the same way."""
    if body.form == "raw":
        return {"type": "string", "description": f"The body as text, {quoted(body.media, 100)}."}
    schema = json_schema(document, body.schema, Limits(depth=depth, nodes=_NODES, text=text))
    if text and body.description:
        schema["description"] = quoted(body.description, text)
    if body.form != "json" and "type" not in schema:
        schema["type"] = "object"
    return schema


def _narrowed(document: Document, argument: Argument, schema: dict[str, Any], narrowed: Narrowed) -> dict[str, Any]:
    told = {"description": f"It is {narrowed_text(narrowed)}."}
    values = narrowed.values
    constants = not (narrowed.params or narrowed.globs) and len(values) <= MAX_VALUES and all(map(safe_value, values))
    if not constants or argument.shape != "scalar":
        return {**{name: value for name, value in schema.items() if name == "type"}, **told}
    whole = schemas.types(document, argument.schema) == {"integer"} and all(map(_INTEGER.fullmatch, values))
    typed = [int(value) for value in values] if whole else list(values)
    told |= {"type": "integer" if whole else "string"}
    return {**told, "const": typed[0]} if len(typed) == 1 else {**told, "enum": typed}
