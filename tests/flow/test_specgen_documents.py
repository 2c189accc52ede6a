"""Every operation of every document at hand, through the served clients, both programs and to an API that records."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from broker.specgen.document import Document, read_document
from broker.specgen.model import Api, Choices, Operation
from broker.specgen.operations import read_api
from config.match import Matcher
from tests.broker.specgen import corpus, sampling
from tests.broker.specgen.engine import Engine
from tests.config.grants_of import profile
from tests.flow.test_specgen import served
from tests.worlds.api import Answer, Received
from tests.worlds.service import CANARY

pytestmark = pytest.mark.flow

#: One call of each operation: what values they take is tried without programs (tests/broker/specgen).
ONE = settings(
    max_examples=1,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def granted(service, api):
    """Both programs, with a profile for each document that grants all of its catalog."""
    api.otherwise = lambda _request: Answer()
    profiles = {}
    for number, path in enumerate(corpus.paths()):
        made = f"made/{number}"
        arguments = [f"--profile=p{number}", "--global=api", "--caller=support-agent", "--placement=bearer"]
        arguments += [f"--server={api.origin}/base", "--deprecated", "--allow=* *"]
        done = service.run("broker", "specgen", str(path), "-o", made, *arguments, check=False)
        assert done.returncode in (0, 5), done.stderr.decode()
        (written,) = json.loads((service.root / made / "grants.json").read_text())["profiles"].values()
        token = {"token": {"type": "static", "key": "api"}} if "token" in written else {}
        clients = [f"{made}/{name}" for name in written["preamble_file"]]
        profiles[f"p{number}"] = {**written, **token, "preamble_file": clients}
    service.prepare(profiles)
    service.start()
    return service


@dataclass(frozen=True)
class Way:
    """A document, as code and as the broker know it."""

    document: Document
    found: Api
    client: Any
    engine: Engine
    received: list[Received]

    def call(self, operation: Operation) -> None:
        """Call an operation in both languages, and hold what the API received against the catalog and each other."""

        @ONE
        @given(drawn=sampling.calls(self.document, operation))
        def call(drawn):
            arguments, body, others = drawn
            positional = [*arguments, *([body] if operation.body is not None else [])]
            self.received.clear()
            getattr(self.client, operation.identifier)(*positional, **others)
            self.engine.call("api", operation.identifier, [*positional, others])
            python, javascript = map(shown, self.received)
            assert python == javascript
            for request in self.received:
                assert request.method == operation.method
                self.matcher.match(request.method, request.target.encode("ascii"), {})
                sends = self.found.security.placement is not None and not without_credential(operation)
                assert request.header("authorization") == (f"Bearer {CANARY}" if sends else None)

        call()

    @cached_property
    def matcher(self) -> Matcher:
        """What the catalog takes, judged without the broker."""
        return Matcher(profile(allow=list(self.found.catalog), request_headers=list(self.found.request_headers)))


def test_every_operation_of_every_document_reaches_the_api_as_its_client_sent_it(granted, api):
    choices = Choices(server=f"{api.origin}/base", placement={"scheme": "bearer"}, deprecated=True)
    for number, path in enumerate(corpus.paths()):
        document = read_document(path)
        _, client, engine = served(granted, granted.open_run(f"p{number}"))
        way = Way(document, read_api(document, choices), client, engine, api.received)
        assert way.found.operations
        with closing(client):
            for operation in way.found.operations:
                way.call(operation)


def without_credential(operation: Operation) -> bool:
    return isinstance(operation.route, dict) and operation.route.get("credential") is False


def shown(request: Received) -> tuple[Any, ...]:
    """Return what both clients send alike."""
    content_type = request.header("content-type")
    body: Any = request.body
    if content_type is not None and "json" in content_type and body:
        body = json.loads(body)
    return request.method, request.target, content_type, body
