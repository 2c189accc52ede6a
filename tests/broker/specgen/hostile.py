"""A small document that has a text of anybody's at every place where one is shown to a model."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from broker.specgen.document import Document, read_document
from broker.specgen.model import Api, Choices, DocumentError
from broker.specgen.operations import read_api


def read(root: Any, **choices: Any) -> tuple[Document, Api]:
    """Return a document and its Api.

    Errors: ``DocumentError``.
    """
    with TemporaryDirectory() as directory:
        path = Path(directory) / "openapi.json"
        path.write_text(json.dumps(root))
        return read_file(path, **{"server": "https://api.test", **choices})


def read_file(path: Path, **choices: Any) -> tuple[Document, Api]:
    document = read_document(path)
    return document, read_api(document, Choices(**{"deprecated": True, **choices}))


def read_or_none(root: Any) -> tuple[Document, Api] | None:
    """Return a document of any kind and its Api, or None when it cannot be used at all."""
    try:
        return read(root)
    except DocumentError:
        return None


def saying(prose: str, name: str) -> dict[str, Any]:
    """Return a document that says ``prose`` wherever it tells something, and ``name`` wherever it names something."""
    member = {"type": "string", "description": prose, "enum": [name, "b"]}
    schema = {
        "type": "object",
        "description": prose,
        "properties": {name: member, "plain": {"type": "string", "format": name}},
    }
    parameters = [
        {"name": "id", "in": "path", "required": True, "description": prose, "schema": {"type": "string"}},
        {"name": "q", "in": "query", "description": prose, "schema": {"type": "string", "enum": [name]}},
    ]
    told = {"summary": prose, "description": "more " + prose, "tags": [prose], "parameters": parameters}
    body = {"description": prose, "content": {"application/json": {"schema": schema}}}
    answer = {"200": {"description": prose, "content": {"application/json": {"schema": schema}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": prose, "version": "1"},
        "paths": {
            "/a/{id}": {
                "get": {**told, "operationId": "get_a", "responses": answer},
                "put": {**told, "operationId": "put_a", "requestBody": body},
                "delete": {**told, "operationId": "delete_a", "x-forge-require-confirmation": prose},
            },
            "/b": {"post": {"summary": prose, "requestBody": {"content": {"text/plain": {"schema": schema}}}}},
        },
    }


def many(count: int, tags: int = 10) -> dict[str, Any]:
    """Return a document with ``count`` operations, each of them of one of so many tags."""
    paths = {}
    for number in range(count):
        told = {
            "summary": f"Get thing {number}",
            "description": "It says more. " * 30,
            "tags": [f"tag {number % tags}"],
        }
        method = "delete" if number % 10 == 9 else "get"
        paths[f"/things/{number}/{{id}}"] = {method: {**told, "operationId": f"get_thing_{number}"}}
    return {"openapi": "3.0.3", "info": {"title": "Many"}, "paths": paths}
