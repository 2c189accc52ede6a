"""Every operation of every document, through both generated clients: what they send is what the catalog allows."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.specgen.clients import javascript_client, python_client
from broker.specgen.document import Document, read_document
from broker.specgen.model import Api, Choices, Operation
from broker.specgen.operations import read_api
from config.match import DeniedError, Matcher
from tests.broker.specgen import corpus, sampling
from tests.broker.specgen.engine import Engine
from tests.broker.specgen.loading import load
from tests.config.grants_of import profile
from tests.worlds.api import Answer, Received
from tests.worlds.api import Api as Recorded

EXAMPLES = settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
MORE = settings(max_examples=300, deadline=None)
DOCUMENTS = corpus.paths()
#: Where the document says no server that can be used, an operator would say it.
SERVER = "https://api.test/base"


@dataclass(frozen=True)
class World:
    document: Document
    api: Api
    matcher: Matcher


@cache
def world(path: Path) -> World:
    document = read_document(path)
    choices = Choices(server="" if path.parent.name == "documents" else SERVER, deprecated=True)
    api = read_api(document, choices)
    fields = {"request_headers": list(api.request_headers)}
    return World(document, api, Matcher(profile(allow=list(api.catalog), **fields)))


def named(path: Path) -> str:
    return path.parent.name + "/" + path.name if path.name == "openapi.yaml" else path.name


every_document = pytest.mark.parametrize("path", DOCUMENTS, ids=named)


@pytest.fixture(scope="module")
def recorded():
    with Recorded() as api:
        api.otherwise = lambda _request: Answer()
        yield api


@every_document
def test_what_became_of_each_operation_is_told_once(path):
    api = world(path).api
    assert len({(told.pointer, told.label) for told in api.told}) == len(api.told) > 0
    carried = [told.pointer for told in api.told if told.status in ("carried", "limited")]
    assert carried == [operation.pointer for operation in api.operations]
    assert len({operation.identifier for operation in api.operations}) == len(api.operations)
    for told in api.told:
        if told.status in ("limited", "not-carried"):
            assert any(note.reason for note in told.notes), told


@every_document
def test_the_python_client_sends_what_the_catalog_allows(path, recorded, tmp_path):
    here = world(path)
    files = python_client(here.api, document=here.document, profile="p", global_name="api", allow=here.api.catalog)
    module = load(files["client.py"], tmp_path)
    with closing(module.Client(base_url=f"{recorded.origin}/p/p", token="brk_x")) as client:
        for operation in here.api.operations:
            python_sends(here, operation, client, recorded)


@every_document
def test_the_javascript_client_sends_what_the_python_one_does(path, recorded, tmp_path):
    here = world(path)
    names = {"profile": "p", "global_name": "api", "allow": here.api.catalog}
    module = load(python_client(here.api, document=here.document, **names)["client.py"], tmp_path)
    engine = Engine(javascript_client(here.api, document=here.document, **names)["client.js"].decode())
    with closing(module.Client(base_url=f"{recorded.origin}/p/p", token="brk_x")) as client:
        for operation in here.api.operations:
            both_send(here, operation, client, engine, recorded)


@every_document
def test_nothing_outside_the_document_passes_the_catalog(path):
    here = world(path)
    known = documented(here)
    pieces = sorted({piece for route in known for piece in route.pieces} | {"x", "42", "mine", "admin", ".env"})
    names = sorted({name for route in known for name in route.names} | {"admin", "debug"})

    @MORE
    @given(data=st.data())
    def call(data):
        route = data.draw(st.sampled_from(known))
        method = data.draw(st.sampled_from([route.method, "GET", "POST", "DELETE", "HEAD"]))
        mutate = st.sampled_from(pieces) | st.just("")
        parts = [data.draw(st.just(piece) | mutate) if data.draw(st.booleans()) else piece for piece in route.pieces]
        if data.draw(st.booleans()):
            parts.append(data.draw(mutate))
        target = "/" + "/".join("7" if piece.startswith("{") else piece for piece in parts)
        query = data.draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
        if query:
            target += "?" + "&".join(f"{name}=1" for name in query)
        try:
            here.matcher.match(method, target.encode(), {})
        except DeniedError:
            return
        assert any(one.holds(method, target) for one in known), (method, target)

    call()


def python_sends(here: World, operation: Operation, client: Any, recorded: Recorded) -> None:
    @EXAMPLES
    @given(drawn=sampling.calls(here.document, operation))
    def call(drawn):
        arguments, body, others = drawn
        given_body = [body] if operation.body is not None else []
        recorded.received.clear()
        getattr(client, operation.identifier)(*arguments, *given_body, **others)
        (request,) = recorded.received
        assert request.header("authorization") == "Bearer brk_x"
        judged(here, operation, request.method, request.target.removeprefix("/p/p"))
        bodies_agree(operation, body, request)

    call()


def both_send(here: World, operation: Operation, client: Any, engine: Engine, recorded: Recorded) -> None:
    @EXAMPLES
    @given(drawn=sampling.calls(here.document, operation))
    def call(drawn):
        arguments, body, others = drawn
        given_body = [body] if operation.body is not None else []
        recorded.received.clear()
        getattr(client, operation.identifier)(*arguments, *given_body, **others)
        (request,) = recorded.received
        engine.calls.clear()
        engine.call("api", operation.identifier, [*arguments, *given_body, others])
        (sent,) = engine.calls
        assert (sent["method"], "/p/p" + sent["path"]) == (request.method, request.target)
        judged(here, operation, sent["method"], sent["path"])
        same_body(operation, sent, request)

    call()


def judged(here: World, operation: Operation, method: str, target: str) -> None:
    """Assert that the catalog allows what was sent, by the operation's own route or one more specific."""
    assert method == operation.method
    match = here.matcher.match(method, target.encode("ascii"), {})
    if match.rule.text != operation.route_text:
        own = profile(allow=[operation.route])
        Matcher(own).match(method, target.encode("ascii"), {})


def bodies_agree(operation: Operation, body: Any, request: Received) -> None:
    if body is None:
        assert request.body == b""
        return
    content_type = request.header("content-type") or ""
    assert operation.body is not None
    assert content_type.startswith(operation.body.media)
    if operation.body.form == "json":
        assert json.loads(request.body) == body
    elif operation.body.form == "raw":
        assert request.body == body.encode()


def same_body(operation: Operation, sent: dict[str, Any], request: Received) -> None:
    if operation.body is None or operation.body.form == "multipart":
        return  # its boundary is anything
    if operation.body.form == "json":
        assert sent.get("body") == (json.loads(request.body) if request.body else None)
    else:
        assert (sent.get("body") or "").encode() == request.body


@dataclass(frozen=True)
class Documented:
    """An operation as the document's own text has it: another reading than specgen's, and a simpler one."""

    method: str
    pieces: tuple[str, ...]
    names: frozenset[str]

    def holds(self, method: str, target: str) -> bool:
        path, _, query = target.partition("?")
        pattern = "/".join(
            re.sub(r"\\{[^/{}]*\\}", "[^/]+", re.escape(piece).replace("\\ ", " ")) for piece in ("", *self.pieces)
        )
        names = {pair.partition("=")[0] for pair in query.split("&")} if query else set()
        known = {re.sub(r"\[.*", "", name) for name in self.names}
        return (
            method == self.method
            and re.fullmatch(pattern, path) is not None
            and all(re.sub(r"\[.*", "", unquote(name)) in known for name in names)
        )


def documented(here: World) -> list[Documented]:
    found = []
    for told in here.api.told:
        method, _, key = told.label.partition(" ")
        for operation in here.api.operations:
            if operation.pointer == told.pointer:
                base = operation.template.split("/")[1:]
                # The base path is the server's; the rest is the document's own text.
                own = key.partition("#")[0].partition("?")[0].split("/")[1:]
                pieces = (*base[: len(base) - len(own)], *own)
                query = key.partition("#")[0].partition("?")[2]
                fixed = {pair.partition("=")[0] for pair in query.split("&") if pair}
                entry = operation.route
                rules = entry.get("query", {}) if isinstance(entry, dict) else {}
                found.append(Documented(method, pieces, frozenset({*fixed, *rules})))
    # Operations of one route are one on the wire: what one of them takes, all take.
    return [
        Documented(
            one.method,
            one.pieces,
            frozenset().union(
                *(other.names for other in found if (other.method, shape(other)) == (one.method, shape(one)))
            ),
        )
        for one in found
    ]


def shape(one: Documented) -> tuple[str, ...]:
    return tuple(re.sub(r"\{[^/{}]*\}", "*", piece) for piece in one.pieces)
