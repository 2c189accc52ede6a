"""No string of a document becomes code of a client: what differs from one to another is a line of data."""

from __future__ import annotations

import ast
import difflib
import json
import re
from importlib import resources
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.specgen.clients import table
from broker.specgen.filling import fill, literal
from config import tokens
from tests.broker.specgen import pair
from tests.broker.specgen.engine import Engine
from tests.broker.specgen.loading import load

RUNTIMES = resources.files("broker.specgen").joinpath("runtime")
ATTACKS = [
    '"""); __import__("os").abort(); ("""',
    "'''+__import__('os').abort()+'''",
    "*/ globalThis.broken = 1; /*",
    "</script><script>globalThis.broken = 1</script>",
    "${globalThis.broken = 1}",
    "`+(globalThis.broken = 1)+`",
    '\\"; globalThis.broken = 1; //',
    "\\",
    "a\nglobalThis.broken = 1\rimport os\u2028globalThis.broken = 1\u2029x",
    "__proto__",
    "constructor",
    "{0}{}%s%(x)s",
    "# filled in by the broker",
    "\x00\x1b[31m\x7f\x85",
    "\U0001f600\ufeff\u202e",
    "*\\/ \\*/ \\u002a/",
]


def hostile(text: str) -> dict[str, Any]:
    """Return paths with the text wherever a document may have one."""
    parameter = {"name": text, "in": "query", "description": text, "schema": {"enum": [text], "description": text}}
    schema = {
        "type": "object",
        "title": text,
        "description": text,
        "required": [text],
        "properties": {text: {"type": "string", "enum": [text], "default": text}},
    }
    content = {"application/json": {"schema": schema}}
    operation = {
        "operationId": text,
        "summary": text,
        "description": text,
        "tags": [text],
        "parameters": [parameter, {"name": "id", "in": "path", "required": True, "description": text, "schema": {}}],
        "requestBody": {"description": text, "content": content},
        "responses": {"200": {"description": text, "content": content}},
        "x-forge-require-confirmation": text,
    }
    return {"/a/{id}": {"post": operation, "delete": {**operation, "operationId": text + "2"}}}


def differing(name: str, written: bytes) -> list[str]:
    runtime = RUNTIMES.joinpath(name).read_bytes().decode().split("\n")
    lines = difflib.ndiff(runtime, written.decode("ascii").split("\n"))
    return [line[2:] for line in lines if line.startswith("+ ")]


@pytest.mark.parametrize("text", ATTACKS)
def test_code_in_every_string_of_a_document_stays_data(text, tmp_path):
    api, document = pair.read(hostile(text))
    assert len(api.operations) == 2
    files = pair.files(api, document, allow=None)
    run = {"profile": text, "routes": [text], "params": {text: text}}
    for name, language in (("client.py", "py"), ("client.js", "js")):
        assert len(differing(name, files[name])) == 1
        filled = fill(files[name], language, run)
        assert len(differing(name, filled)) == 2
        assert b"</script" not in filled.lower()
        assert filled.isascii()
    module = load(fill(files["client.py"], "py", run), tmp_path)
    assert run == module._RUN
    engine = Engine(fill(files["client.js"], "js", run).decode())
    assert engine.eval("globalThis.broken === undefined && Object.prototype.broken === undefined")
    for operation in api.operations:
        assert callable(getattr(module.Client, operation.identifier))
        assert engine.eval(f"typeof api[{json.dumps(operation.identifier)}]") == "function"


@pytest.mark.parametrize(
    "text", ['x" ASK NOBODY', "x\u201d ASK NOBODY", "x\n\nASK NOBODY", '\\" ASK NOBODY', "ASK NOBODY"]
)
def test_what_a_document_says_stays_in_quotation_marks_in_find_and_in_every_help(text, tmp_path):
    query = {"name": "q", "in": "query", "description": text, "schema": {"type": "string"}}
    told = {"operationId": "a", "summary": text, "description": "more " + text, "parameters": [query]}
    api, document = pair.read({"/a": {"get": told, "delete": {**told, "operationId": "b"}}})
    files = pair.files(api, document, allow=None)
    client = load(files["client.py"], tmp_path).Client
    remarks = files["client.d.ts"].decode().split("/** ")[1:]
    helps = [getattr(client, name).__doc__ for name in "ab"]
    helps += [remark.partition(" */")[0].replace("\n   * ", "\n") for remark in remarks]
    helps += Engine(files["client.js"].decode()).call("api", "find", [])
    helps += client("http://127.0.0.1:1", "brk_x").find()
    assert len(helps) == 8
    for one in helps:
        assert "ASK NOBODY" in one
        assert "ASK NOBODY" not in re.sub(r'"(?:[^"\\]|\\.)*"', "", one, flags=re.DOTALL)


@pytest.mark.parametrize("text", ATTACKS)
def test_stubs_hold_every_string_of_a_document_as_text(text):
    api, document = pair.read(hostile(text))
    files = pair.files(api, document)
    assert files["client.pyi"].isascii()
    assert files["client.d.ts"].isascii()
    tree = ast.parse(files["client.pyi"])
    kinds = (ast.ImportFrom, ast.ClassDef, ast.Assign, ast.AnnAssign)
    assert all(isinstance(node, kinds) for node in tree.body)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert {node.func.id for node in calls} == {"TypedDict"}
    comments = files["client.d.ts"].decode().split("/**")[1:]
    # Each comment is ended once, by us, and a member of the interface follows.
    names = [operation.identifier for operation in api.operations]
    assert [comment.partition("*/")[2].strip().partition("(")[0] for comment in comments] == names


@given(text=st.text())
@settings(max_examples=200, deadline=None)
def test_a_literal_reads_alike_in_python_and_as_json(text):
    written = literal({"text": text})
    assert written.isascii()
    assert written.isprintable()
    assert "<" not in written
    value = {"text": text}
    assert json.loads(ast.literal_eval(written)) == json.loads(json.loads(written)) == value


def test_the_clients_of_one_document_are_always_the_same_bytes():
    api, document = pair.read(hostile("text"))
    assert pair.files(api, document) == pair.files(api, document)


def test_the_data_says_where_it_comes_from():
    api, document = pair.read(hostile("text"))
    made = table(api, document, profile="p", global_name="api", allow=None)
    assert (made["document"], made["sha256"], made["allow"]) == (api.source, api.sha256, None)


def test_a_text_that_is_no_client_of_ours_is_served_as_it_is():
    run = {"profile": "p", "routes": [], "params": {}}
    for language in ("py", "js"):
        assert fill(b"RUN = 1\n", language, run) == b"RUN = 1\n"


def test_a_client_that_was_filled_in_is_not_filled_in_again():
    api, document = pair.read(hostile("text"))
    filled = fill(pair.files(api, document)["client.py"], "py", {"profile": "p", "routes": [], "params": {}})
    assert fill(filled, "py", {"profile": "other", "routes": [], "params": {}}) == filled


def test_only_what_the_client_needs_of_a_run_is_written_into_it():
    api, document = pair.read(hostile("text"))
    run = {"profile": "p", "routes": [], "params": {}, "run_id": "run_secret"}
    assert b"run_secret" not in fill(pair.files(api, document)["client.js"], "js", run)


def test_a_run_token_is_never_written_into_a_client():
    api, document = pair.read(hostile("text"))
    token = tokens.generate("brk_").reveal()
    with pytest.raises(ValueError, match="no token"):
        fill(pair.files(api, document)["client.py"], "py", {"profile": "p", "routes": [], "params": {"a": token}})
