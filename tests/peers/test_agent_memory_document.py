"""The fake Agent Memory API and our document of it say the same: every operation, with good and with bad data."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig

from ops.fakes.agent_memory import start
from ops.fakes.memory_api import ROUTES
from ops.fakes.memory_auth import KeyDigest

DOCUMENT = Path(__file__).parents[2] / "ops/demo/agent-memory.openapi.json"
BASE = "/client/v4"
KEY = "canary-key-of-the-fake-memory-api"
EXAMPLES = settings(
    max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)

# Whether the token counts is a matter of its own: with every case presenting a bad one, nothing else would be seen.
# The double answers 501 to a method that it does not have: no test passes by luck.
config = SchemathesisConfig.from_dict(
    {
        "generation": {"with-security-parameters": False},
        "phases": {"coverage": {"unexpected-methods": []}, "fuzzing": {"enabled": False}},
    }
)
schema = schemathesis.openapi.from_path(DOCUMENT, config=config)
OPERATIONS = {found.ok().definition.raw["operationId"]: found.ok() for found in schema.get_all_operations()}


@pytest.fixture(scope="module")
def world():
    ways = [KeyDigest(hashlib.sha256(KEY.encode()).hexdigest())]
    running, api = start(ways=ways)
    with running:
        yield running.url, api


def stocked(api) -> dict[str, str]:
    """Return the path of a memory that is there, whatever was deleted before."""
    if "support" not in [namespace.name for namespace in api.store.namespaces("42")]:
        api.store.create_namespace("42", "support")
    kept = api.store.remember("42", "support", "customer-1", "Wants replies in Spanish.", "chat-7")
    names = {"account_id": "42", "namespace_name": "support", "profile_name": "customer-1", "session_id": "chat-7"}
    return {**names, "memory_id": kept.memory_id}


def checked(case: Any, url: str, *, key: str = KEY) -> int:
    """Make the call, hold the answer against the document, and return its status."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    response = case.call(base_url=url + BASE, headers=headers, timeout=10)
    case.validate_response(response, headers=headers)
    return response.status_code


def test_the_document_has_the_operations_of_the_fake_and_no_other():
    assert schema.raw_schema["servers"] == [{"url": "https://api.cloudflare.com" + BASE}]
    listed = {(name, one.method.upper(), BASE + one.path) for name, one in OPERATIONS.items()}
    assert listed == {(route.operation, route.method, route.template) for route in ROUTES}
    taken = {name: {each.name for each in one.query} for name, one in OPERATIONS.items()}
    assert taken == {route.operation: set(route.query) for route in ROUTES}


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_fits_the_document_is_taken_and_answered_as_it_says(world, name):
    url, api = world
    seen: set[int] = set()

    @EXAMPLES
    @given(case=OPERATIONS[name].as_strategy(generation_mode=GenerationMode.POSITIVE), there=st.booleans())
    def run(case, there):
        path = stocked(api)
        if there:
            case.path_parameters.update({key: path[key] for key in case.path_parameters})
        # A cursor is what the API gave out: a made-up one fits the document and means nothing.
        case.query.pop("cursor", None)
        seen.add(checked(case, url))

    run()
    assert seen & {200, 201}
    assert seen <= {200, 201, 404, 409}


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_does_not_fit_the_document_is_refused_as_it_says(world, name):
    url, api = world
    seen: set[int] = set()

    @EXAMPLES
    @given(case=OPERATIONS[name].as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def run(case):
        stocked(api)
        seen.add(checked(case, url))

    run()
    # A name that is none is found out before anything else, and one that nobody has before a bad query.
    assert seen - {404} == {400}


@pytest.mark.parametrize("name", OPERATIONS)
def test_whoever_has_no_token_is_refused_as_the_document_says(world, name):
    url, api = world
    body = {"body": {}} if OPERATIONS[name].body else {}
    case = OPERATIONS[name].Case(path_parameters=stocked(api), **body)
    assert checked(case, url, key="") == 401


@schema.parametrize()
def test_the_bounds_of_the_document_are_those_of_the_fake(world, case):
    url, api = world
    good = {
        place.value for place, component in case.meta.components.items() if component.mode == GenerationMode.POSITIVE
    }
    path = stocked(api)
    if "path" in good:
        case.path_parameters.update({key: path[key] for key in case.path_parameters})
    if "query" in good:
        case.query.pop("cursor", None)
    assert checked(case, url) < 500
