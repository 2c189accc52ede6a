"""From a document to calls: ``broker specgen`` writes the grant, both programs serve it, the clients call the API."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest

from tests.broker.specgen.engine import Engine, JavaScriptError
from tests.broker.specgen.loading import load
from tests.worlds.api import Answer
from tests.worlds.service import CANARY

pytestmark = pytest.mark.flow

OK = {"200": {"description": "ok"}}
JSON = {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
FORM = {"required": True, "content": {"application/x-www-form-urlencoded": {"schema": {"type": "object"}}}}


def path(name: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", **schema}}


def query(name: str, **members: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": {"type": "string"}, **members}


def operation(name: str, *parameters: Any, **members: Any) -> dict[str, Any]:
    return {"operationId": name, "parameters": list(parameters), "responses": OK, **members}


#: What the generator of the seed could not carry, one of each.
PATHS = {
    "/accounts/{account}/notes/": {
        "parameters": [path("account")],
        "get": operation(
            "notes-list",
            query("type", schema={"type": "string", "enum": ["fact", "event"]}),
            query("since", required=True, schema={"type": "integer"}),
            query("filter", style="deepObject", schema={"type": "object", "properties": {"eq": {"type": "string"}}}),
            query("tags", schema={"type": "array", "items": {"type": "string"}}),
        ),
        "post": operation("notes-add", {"$ref": "#/components/parameters/trace"}, requestBody=JSON),
    },
    "/accounts/{account}/notes/{note}": {
        "parameters": [path("account"), path("note")],
        "get": operation("notes/get"),
        "delete": operation("notes/delete", requestBody=JSON),
    },
    "/accounts/{account}/notes/latest": {
        "parameters": [path("account")],
        "get": operation("notes/latest"),
    },
    "/people/{customer}/files/{file}.json": {
        "parameters": [path("customer"), path("file", pattern="^[a-z0-9]+$")],
        "get": operation("files.get", query("DateCreated<")),
        "put": operation("files.put", requestBody=FORM),
    },
    "/people/{customer}/files:purge": {"parameters": [path("customer")], "post": operation("files.purge")},
    "/{ref}": {"$ref": "#/components/pathItems/one"},
}
GRANTED = ["notes-list", "notes-add", "notes/get", "files.*", "one"]


def document(origin: str) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "Notes", "version": "1"},
        "servers": [{"url": origin + "/base/"}],
        "security": [{"key": []}],
        "paths": PATHS,
        "components": {
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "Authorization"}},
            "parameters": {"trace": {"name": "X-Trace", "in": "header", "schema": {"type": "string"}}},
            "pathItems": {"one": {"parameters": [path("ref")], "get": operation("one")}},
        },
    }


@dataclass(frozen=True)
class Call:
    """A call as code makes it, and the bytes that it comes to."""

    name: str
    arguments: list[Any]
    others: dict[str, Any]
    method: str
    target: str
    body: bytes = b""
    content_type: str | None = None


GRANTED_CALLS = [
    Call("notes_list", [], {"since": 7}, "GET", "/base/accounts/42/notes/?since=7"),
    Call(
        "notes_list",
        [],
        {"since": -1, "type": "fact", "filter": {"eq": "a&b=c"}, "tags": ["x y", "é"]},
        "GET",
        "/base/accounts/42/notes/?since=-1&type=fact&filter[eq]=a%26b%3Dc&tags=x%20y&tags=%C3%A9",
    ),
    Call(
        "notes_add",
        [{"text": "é"}],
        {"X_Trace": "t 1"},
        "POST",
        "/base/accounts/42/notes/",
        '{"text":"é"}'.encode(),
        "application/json",
    ),
    Call("notes_get", ["a b(c)!"], {}, "GET", "/base/accounts/42/notes/a%20b(c)!"),
    Call("files_get", ["q3"], {"DateCreated_lt": "2026"}, "GET", "/base/people/acme/files/q3.json?DateCreated%3C=2026"),
    Call(
        "files_put",
        ["q3", {"name": "a&b", "tags": ["x", "y"]}],
        {},
        "PUT",
        "/base/people/acme/files/q3.json",
        b"name=a%26b&tags=x&tags=y",
        "application/x-www-form-urlencoded",
    ),
    Call("files_purge", [], {}, "POST", "/base/people/acme/files:purge"),
    Call("one", ["ü"], {}, "GET", "/base/%C3%BC"),
]
#: What the clients know and the grant does not allow, and what no route takes; with the broker's own answer.
REFUSED_CALLS = [
    (Call("notes_delete", ["7", {"sure": True}], {}, "DELETE", "/base/accounts/42/notes/7", b'{"sure":true}'), 403),
    (Call("notes_list", [], {"since": 7, "type": "task"}, "GET", "/base/accounts/42/notes/?since=7&type=task"), 403),
    (Call("notes_get", [".."], {}, "GET", "/base/accounts/42/notes/.."), 400),
    (Call("notes_get", ["%2e%2e"], {}, "GET", "/base/accounts/42/notes/%2e%2e"), 400),
    (Call("notes_get", ["a/b"], {}, "GET", "/base/accounts/42/notes/a%2Fb"), 403),
    (Call("notes_get", ["x?admin=true"], {}, "GET", "/base/accounts/42/notes/x?admin=true"), 403),
    (Call("notes_get", ["x#f"], {}, "GET", "/base/accounts/42/notes/x%23f"), 403),
    (Call("files_get", ["../7"], {}, "GET", "/base/people/acme/files/..%2F7.json"), 400),
]


@pytest.fixture
def granted(service, api):
    """Return a function that makes the grant as an operator would, starts both programs with it and opens a run.

    With ``narrowed`` the clients have every operation, and the grants file allows some of them.
    """
    with ExitStack() as opened:

        def start(*, narrowed: bool) -> tuple[Any, Any, Engine]:
            api.otherwise = lambda _request: Answer(body=b'{"found": true}')
            service.minter_top = service.broker_extra = 'grants = "made/grants.json"'
            service.prepare({})
            (service.root / "notes.json").write_text(json.dumps(document(api.origin)))
            specgen = ["specgen", "notes.json", "--profile=api", "--caller=support-agent", "--placement=token"]
            specgen += ["--bind=account=42", "--param=customer=[a-z]+"]
            allow = [f"--allow={pattern}" for pattern in GRANTED]
            service.run("broker", *specgen, "-o", "made", *([] if narrowed else allow))
            if narrowed:
                printed = service.run("broker", *specgen, *allow, "--emit=grants.json").stdout
                (service.root / "made/grants.json").write_bytes(printed)
            service.run("broker", "check", "made/grants.json")
            service.start()
            module, client, engine = served(service, service.open_run(params={"customer": "acme"}))
            opened.enter_context(closing(client))
            return module, client, engine

        yield start


def served(service, run):
    """Return both clients as the code of a run fetches them; JavaScript's has nothing but the host function."""
    as_run = [("Authorization", f"Bearer {run.token}")]
    python, javascript = (service.http("GET", f"/v1/self/client.{one}", headers=as_run) for one in ("py", "js"))
    assert (python.status, javascript.status) == (200, 200)
    assert run.token.encode() not in python.body + javascript.body

    def host(call):
        body = json.dumps(call).encode()
        reply = service.http("POST", "/v1/call", headers=[*as_run, ("Content-Type", "application/json")], body=body)
        assert reply.status == 200
        return reply.json

    module = load(python.body, service.root)
    client = module.Client(base_url=f"http://127.0.0.1:{service.port}", token=run.token)
    return module, client, Engine(javascript.body.decode("ascii"), host)


def test_the_served_clients_call_every_granted_operation_and_the_api_gets_the_bytes(granted, api):
    _, client, engine = granted(narrowed=False)
    for call in GRANTED_CALLS:
        api.received.clear()
        assert getattr(client, call.name)(*call.arguments, **call.others) == {"found": True}
        assert engine.call("api", call.name, [*call.arguments, call.others]) == {"found": True}
        assert len(api.received) == 2
        for request in api.received:
            assert (request.method, request.target, request.body) == (call.method, call.target, call.body)
            assert request.header("content-type") == call.content_type
            assert request.header("authorization") == f"Token {CANARY}"
            assert request.header("x-trace") == call.others.get("X_Trace")


def test_what_is_not_granted_is_refused_by_both_clients_and_by_the_broker_when_they_are_passed_by(granted, api):
    module, client, engine = granted(narrowed=True)
    for call, status in REFUSED_CALLS:
        with pytest.raises((module.NotAllowedError, ValueError)):
            getattr(client, call.name)(*call.arguments, **call.others)
        with pytest.raises(JavaScriptError, match=r"NotAllowedError|RangeError"):
            engine.call("api", call.name, [*call.arguments, call.others])
        assert engine.calls == []
        body = json.loads(call.body) if call.body else None
        one, other = (
            client.raw(call.method, call.target, body),
            engine.call("api", "raw", [call.method, call.target, body]),
        )
        assert (one.status, one.body["by"]) == (status, "broker"), (call, one)
        assert (other["status"], other["body"]["by"]) == (status, "broker"), (call, other)
        engine.calls.clear()
    assert api.received == []


def test_a_documented_literal_is_not_reached_through_the_wildcard_that_covers_it(granted, api):
    module, client, engine = granted(narrowed=True)
    for name, arguments in (("notes_get", ["latest"]), ("notes_latest", [])):
        with pytest.raises(module.CallError) as caught:
            getattr(client, name)(*arguments)
        with pytest.raises(JavaScriptError, match="CallError") as other:
            engine.call("api", name, arguments)
        assert (caught.value.status, caught.value.code) == (403, "route-reserved")
        assert (other.value.status, other.value.code) == (403, "route-reserved")
    assert api.received == []
