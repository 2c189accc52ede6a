"""APIs of which much is known: what their documents come to, operation by operation."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.specgen.document import read_document
from broker.specgen.model import Api, Choices, Operation
from broker.specgen.operations import read_api
from config.match import Matcher
from tests.broker.specgen.engine import Engine
from tests.broker.specgen.operating import api, get, only
from tests.broker.specgen.pair import Pair, files
from tests.config.grants_of import profile
from tests.worlds.api import Answer
from tests.worlds.api import Api as Recorded

DOCUMENT = Path(__file__).parents[3] / "ops/demo/agent-memory.openapi.json"
N = "/client/v4/accounts/*/agent-memory/namespaces"
P = N + "/*/profiles/*"
#: operationId: the route, and the names of its query.
AGENT_MEMORY = {
    "agent-memory-namespace-list": (f"GET {N}", ["per_page", "order", "direction", "cursor"]),
    "agent-memory-namespace-create": (f"POST {N}", []),
    "agent-memory-namespace-get": (f"GET {N}/*", []),
    "agent-memory-namespace-delete": (f"DELETE {N}/*", []),
    "agent-memory-profile-list": (f"GET {N}/*/profiles", ["per_page", "cursor"]),
    "agent-memory-profile-delete": (f"DELETE {P}", []),
    "agent-memory-ingest": (f"POST {P}/ingest", []),
    "agent-memory-memory-list": (f"GET {P}/memories", ["per_page", "cursor", "session_id", "type"]),
    "agent-memory-memory-get": (f"GET {P}/memories/*", []),
    "agent-memory-memory-delete": (f"DELETE {P}/memories/*", []),
    "agent-memory-recall": (f"POST {P}/recall", []),
    "agent-memory-remember": (f"POST {P}/remember", []),
    "agent-memory-session-delete": (f"DELETE {P}/sessions/*", []),
    "agent-memory-summary": (f"POST {P}/summary", []),
}
CONFIRMED = {"agent-memory-profile-delete", "agent-memory-memory-delete", "agent-memory-session-delete"}


def read(root: dict[str, Any], directory: Path) -> Api:
    path = directory / "openapi.json"
    path.write_text(json.dumps(root))
    return read_api(read_document(path), Choices())


def rules(operation: Operation) -> dict[str, Any]:
    return operation.route.get("query", {}) if isinstance(operation.route, dict) else {}


def newer(node: Any) -> Any:
    """Return a schema of 3.0 as 3.1 and later write it: null is a type."""
    if isinstance(node, list):
        return [newer(one) for one in node]
    if not isinstance(node, dict):
        return node
    written = {name: newer(value) for name, value in node.items() if name != "nullable"}
    return {**written, "type": [written["type"], "null"]} if node.get("nullable") is True else written


@pytest.fixture
def document() -> dict[str, Any]:
    return json.loads(DOCUMENT.read_text())


@pytest.fixture
def memory(document, tmp_path) -> Api:
    return read(document, tmp_path)


def test_every_operation_of_agent_memory_is_carried_with_its_route_and_its_query(memory):
    found = {one.id: (one.route_text, list(rules(one))) for one in memory.operations}
    assert found == AGENT_MEMORY
    assert [told.status for told in memory.told] == ["carried"] * len(AGENT_MEMORY)
    assert memory.origin == "https://api.cloudflare.com"
    assert memory.security.placement == {"scheme": "bearer"}
    assert not any(
        argument.required for one in memory.operations for argument in one.arguments if argument.place != "path"
    )


def test_every_body_of_agent_memory_is_json_and_required_even_where_it_may_be_empty(memory):
    bodies = {one.id: (one.body.media, one.body.required) for one in memory.operations if one.body is not None}
    wanted = {"namespace-create", "ingest", "recall", "remember", "summary"}
    assert bodies == {f"agent-memory-{name}": ("application/json", True) for name in wanted}


def test_a_deletion_of_agent_memory_says_why_to_ask_first_and_a_read_by_post_does_not(memory):
    said = {one.id: one.destructive for one in memory.operations if one.destructive}
    assert set(said) == {name for name in AGENT_MEMORY if name.endswith("-delete")}
    assert {name for name, why in said.items() if why != "DELETE removes what it names"} == CONFIRMED


def test_the_newer_rendering_of_agent_memory_comes_to_the_same_routes_and_placement(document, memory, tmp_path):
    document = newer(document)
    document["openapi"] = "3.2.0"
    document["security"] = [{"api_email": [], "api_key": []}, {"api_token": []}]
    document["components"]["securitySchemes"] |= {
        "api_email": {"type": "apiKey", "in": "header", "name": "X-Auth-Email"},
        "api_key": {"type": "apiKey", "in": "header", "name": "X-Auth-Key"},
        "user_service_key": {"type": "apiKey", "in": "header", "name": "X-Auth-User-Service-Key"},
    }
    found = read(document, tmp_path)
    assert found.catalog == memory.catalog
    assert found.security.placement == memory.security.placement
    assert found.security.names >= {"x-auth-email", "x-auth-key", "x-auth-user-service-key", "authorization"}
    assert [(one.identifier, one.destructive) for one in found.operations] == [
        (one.identifier, one.destructive) for one in memory.operations
    ]


def test_a_pattern_of_the_document_that_is_wrong_denies_nothing(document, tmp_path):
    document["components"]["parameters"]["account_id"]["schema"]["pattern"] = r"^\d+$"
    catalog = list(read(document, tmp_path).catalog)
    target = N.replace("*", "f" * 32).encode()
    assert Matcher(profile(allow=catalog)).match("GET", target, {}).rule.text == f"GET {N}"


def test_a_mem0_key_goes_after_token_once_the_operator_has_said_so():
    scheme = {"type": "apiKey", "in": "header", "name": "Authorization", "description": "Prefix it with 'Token '."}
    members = {"security": [{"key": []}], "components": {"securitySchemes": {"key": scheme}}}
    paths = {"/v3/memories/": {"post": {"security": [{"tokenAuth": []}], **get()["get"]}}}
    asked = api(paths, servers=[{"url": "https://api.mem0.ai/"}], **members)
    assert asked.security.placement is None
    assert "--placement bearer, token" in asked.security.question
    assert "Prefix it with 'Token '." in asked.security.question
    assert "tokenAuth" in only(asked).notes[0].reason
    said = api(paths, choices={"placement": {"scheme": "token"}}, servers=[{"url": "https://api.mem0.ai/"}], **members)
    assert said.security.placement == {"scheme": "token"}
    assert said.catalog == ("POST /v3/memories/",)


def test_a_search_below_a_wildcard_is_a_route_of_its_own_in_any_order_of_the_document():
    paths = {"/shops/{shop}/pets/{id}": get(), "/shops/{shop}/pets/_search": get()}
    for written in (paths, dict(reversed(paths.items()))):
        found = api(written)
        search = next(one for one in found.operations if one.template.endswith("_search"))
        match = Matcher(profile(allow=list(found.catalog))).match("GET", b"/shops/1/pets/_search", {})
        assert match.rule.text == search.route_text == "GET /shops/*/pets/_search"


def test_an_answer_that_the_document_does_not_describe_is_returned_as_it_is(tmp_path):
    schema = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
    responses = {"200": {"description": "ok", "content": {"application/json": {"schema": schema}}}}
    root = {
        "openapi": "3.0.3",
        "info": {"title": "Wrong", "version": "1"},
        "servers": [{"url": "https://api.test"}],
        "paths": {"/x": {"get": {"operationId": "read", "responses": responses}}},
    }
    found = read(root, tmp_path)
    written = files(found, read_document(tmp_path / "openapi.json"))
    odd = [{"id": "no number"}, None]
    with Recorded() as recorded, closing(Pair(written, recorded, tmp_path).client) as client:
        recorded.otherwise = lambda _request: Answer(body=json.dumps(odd).encode())
        assert client.read() == odd
    answer = {"status": 200, "content_type": "application/json", "body": json.dumps(odd)}
    assert Engine(written["client.js"].decode("ascii"), lambda _call: answer).call("api", "read", []) == odd
