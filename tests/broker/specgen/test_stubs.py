"""The stubs say what the clients take, and type checkers read them."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from typing import Any

import pytest

from broker.specgen.clients import javascript_client, python_client
from broker.specgen.document import read_document
from broker.specgen.model import Choices, SchemaAt
from broker.specgen.operations import read_api
from broker.specgen.types import ListOf, Named, OneOf, Types, Union
from tests.broker.specgen import corpus, pair, reading
from tests.broker.specgen.loading import load
from tests.broker.specgen.reading import at, to
from tests.broker.specgen.test_client_js import PATHS, op, path

NODE = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}, "parent": to("Node")}}


def methods(stub: bytes) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(stub)
    client = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Client")
    return {node.name: node for node in client.body if isinstance(node, ast.FunctionDef)}


def written(arguments: ast.arguments) -> list[tuple[str, bool, bool]]:
    """Return (name, by keyword only, may be left out) of each argument but the first."""
    plain = arguments.args
    optional = len(plain) - len(arguments.defaults)
    return [(one.arg, False, index >= optional) for index, one in enumerate(plain) if index] + [
        (one.arg, True, default is not None)
        for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]


def real(signature: inspect.Signature) -> list[tuple[str, bool, bool]]:
    return [
        (one.name, one.kind is one.KEYWORD_ONLY, one.default is not one.empty)
        for one in list(signature.parameters.values())[1:]
    ]


@pytest.mark.parametrize("document", corpus.paths(), ids=lambda one: one.name)
def test_the_stub_has_the_signatures_of_the_client(document, tmp_path):
    read = read_document(document)
    api = read_api(read, Choices(server="https://api.test/base", deprecated=True))
    named = {"profile": "p", "global_name": "api", "allow": None}
    files = python_client(api, read, **named)
    module = load(files["client.py"], tmp_path)
    told = methods(files["client.pyi"])
    assert set(told) == {operation.identifier for operation in api.operations} | {"__init__", "raw", "find", "close"}
    for name, node in told.items():
        assert written(node.args) == real(inspect.signature(getattr(module.Client, name))), name
    described = javascript_client(api, read, **named)["client.d.ts"].decode()
    for operation in api.operations:
        assert f"\n  {operation.identifier}(" in described


def test_a_type_checker_takes_the_stubs(tmp_path):
    for index, document in enumerate(corpus.paths()):
        read = read_document(document)
        api = read_api(read, Choices(server="https://api.test/base", deprecated=True))
        files = python_client(api, read, profile="p", global_name="api", allow=None)
        (tmp_path / f"client{index}.pyi").write_bytes(files["client.pyi"])
    names = {
        name: op(name, path("id"), body=("application/json", to("Node")))
        for name in ("list", "str", "dict", "Node", "Any", "Literal", "Answer")
    }
    document = reading.document(
        paths={
            f"/{name}/{{id}}": {
                "post": {
                    **one,
                    "responses": {
                        "200": {"content": {"application/json": {"schema": {"type": "array", "items": to("Node")}}}}
                    },
                }
            }
            for name, one in names.items()
        }
        | {"/last": {"get": op("last")}},
        servers=[{"url": "https://api.test"}],
        components={"schemas": {"Node": NODE}},
    )
    api = read_api(document, Choices())
    (tmp_path / "own.pyi").write_bytes(pair.files(api, document)["client.pyi"])
    (tmp_path / "use.py").write_text(
        "from own import Client\nreveal_type(Client().list('1', {'id': 1})[0]['parent']['parent']['id'])\n"
        "Client().str('1', {'id': 'no'})\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--no-error-summary", "."]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=110)
    lines = found.stdout.splitlines()
    assert len(lines) == 2, found.stdout
    assert 'Revealed type is "int"' in lines[0] or 'Revealed type is "builtins.int"' in lines[0]
    assert "has type" in lines[1]


def types(schema: Any, **schemas: Any) -> tuple[Any, dict[str, list[tuple[str, Any, bool]]]]:
    made = Types(reading.schemas(**schemas), set())
    found = made.of(SchemaAt(schema, "#/here"), "hint")
    return found, {name: [(one.name, one.type, one.required) for one in members] for name, members in made.named()}


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, "string"),
        ({"type": "integer"}, "integer"),
        ({}, ""),
        (True, ""),
        (["no", "schema"], ""),
        ({"enum": ["a", 1, None]}, Union((OneOf(("a", 1)), None))),
        ({"enum": [0.5]}, ""),
        ({"enum": [{"a": 1}]}, ""),
        ({"const": True}, OneOf((True,))),
        ({"type": ["string", "null"]}, Union(("string", None))),
        ({"type": "string", "nullable": True}, Union(("string", None))),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, Union(("string", None))),
        ({"type": ["string", "integer"]}, Union(("integer", "string"))),
        ({"type": "array", "items": {"type": "string"}}, ListOf("string")),
        ({"type": "array"}, ListOf("")),
        ({"type": "object"}, "object"),
    ],
)
def test_a_schema_has_the_type_that_it_says(schema, kind):
    assert types(schema) == (kind, {})


def test_a_schema_that_comes_back_to_itself_is_cut_at_its_name():
    found, named = types(to("Node"), Node=NODE)
    assert found == Named("Node")
    assert named == {"Node": [("id", "integer", True), ("parent", Named("Node"), False)]}


def test_an_object_without_a_name_is_named_by_its_place():
    found, named = types({"type": "object", "properties": {"a b": {"type": "object", "properties": {"c": {}}}}})
    assert found == Named("hint")
    assert named == {"hint": [("a b", Named("hint_a_b"), False)], "hint_a_b": [("c", "", False)]}


def test_lists_of_lists_without_end_end():
    found, _ = types(to("Nested"), Nested={"type": "array", "items": to("Nested")})
    depth = 0
    while isinstance(found, ListOf):
        found, depth = found.items, depth + 1
    assert found == ""
    assert 0 < depth < 10


def test_two_schemas_of_one_name_have_two():
    made = Types(reading.document(), set())
    one = made.of(at({"properties": {"a": {}}}, "#/one"), "x")
    other = made.of(at({"properties": {"a": {}}}, "#/other"), "x")
    assert isinstance(one, Named)
    assert one != other
    assert re.fullmatch(r"x_[0-9a-f]{6}", other.name)


def test_the_larger_document_has_its_stubs():
    api, document = pair.read(PATHS)
    files = pair.files(api, document, name="pets")
    assert b"\npets: Client\n" in files["client.pyi"]
    assert b"const pets: Client;" in files["client.d.ts"]
    assert b"  maybe(body: any | null" not in files["client.d.ts"]
    assert b"  maybe(body?: any | null, options?: { q?: (string)[] }): Promise<any>;" in files["client.d.ts"]
