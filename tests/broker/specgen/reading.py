"""Small documents, written and read: what the parts that read an operation are tried on."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from broker.specgen.document import Document, read_document
from broker.specgen.model import Choices, SchemaAt
from broker.specgen.parameters import Parameters, read_parameters
from broker.specgen.queries import query_rules
from broker.specgen.references import child
from config.query import compile_query

ITEM = "#/paths/~1x"


def document(version: str = "3.0.3", **members: Any) -> Document:
    root = {"openapi": version, "paths": {"/x": {"get": {}}}, **members}
    with TemporaryDirectory() as directory:
        path = Path(directory) / "openapi.json"
        path.write_text(json.dumps(root))
        return read_document(path)


def schemas(version: str = "3.0.3", **named: Any) -> Document:
    return document(version, components={"schemas": named})


def at(schema: Any, pointer: str = "#/here") -> SchemaAt:
    return SchemaAt(schema, pointer)


def to(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def parameters(
    *own: Any,
    shared: Any = None,
    names: tuple[str, ...] = (),
    refused: tuple[str, ...] = (),
    within: Document | None = None,
    **choices: Any,
) -> Parameters:
    """Read the parameters of an operation that has ``own`` ones, in a path item that has ``shared`` ones."""
    return read_parameters(
        within or document(),
        {"parameters": shared} if shared is not None else {},
        ITEM,
        {"parameters": list(own)},
        child(ITEM, "get"),
        names=names,
        choices=Choices(**choices),
        refused=frozenset(refused),
    )


def query(name: str = "q", **members: Any) -> dict[str, Any]:
    """Return a query parameter; its schema's keywords may be given instead of a schema."""
    fields = ("required", "style", "explode", "schema", "content", "description", "deprecated", "allowEmptyValue")
    own = {key: value for key, value in members.items() if key in fields}
    schema = {key: value for key, value in members.items() if key not in fields}
    if schema or not {"schema", "content"} & own.keys():
        own["schema"] = schema
    return {"name": name, "in": "query", **own}


def rules(*own: Any, within: Document | None = None, **choices: Any) -> dict[str, Any]:
    """Return the query rules of an operation with these parameters; they load."""
    read_in = within or document()
    found = parameters(*own, within=read_in, **choices)
    assert not [note for note in found.notes if note.level == "stop"], found.notes
    written = query_rules(read_in, found.arguments, found.fixed_query)
    assert compile_query(written)[1] == []
    return written


def told(found: Parameters) -> list[tuple[str, str]]:
    """Return the levels and the reasons of the notes."""
    return [(note.level, note.reason) for note in found.notes]
