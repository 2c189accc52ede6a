from __future__ import annotations

import re

import jsonschema
import pytest

from broker.app import RULES
from broker.openapi import document
from config.problems import PROBLEMS
from tests.broker.asking import Desk


@pytest.fixture
def described():
    return document(RULES)


def test_every_call_of_the_table_is_described_and_no_other(described):
    listed = {(method.upper(), path) for path, calls in described["paths"].items() for method in calls}
    assert listed == {(rule.method, rule.path) for rule in RULES}
    assert described["openapi"].startswith("3.1.")


def test_every_call_says_what_it_needs(described):
    for rule in RULES:
        operation = described["paths"][rule.path][rule.method.lower()]
        scheme = {"caller": [{"callerToken": []}], "run": [{"runToken": []}], "anyone": []}[rule.who]
        assert operation["security"] == scheme
        assert operation["summary"].endswith(".")
        names = {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "path"}
        assert names == set(re.findall(r"\{(\w+)\}", rule.path))
        assert str(rule.status) in operation["responses"]
        assert "default" in operation["responses"]


def test_every_reference_leads_somewhere(described):
    def references(node):
        if isinstance(node, dict):
            yield from ([node["$ref"]] if "$ref" in node else [])
            node = list(node.values())
        if isinstance(node, list):
            for inner in node:
                yield from references(inner)

    found = set(references(described))
    assert found
    for reference in found:
        name = reference.removeprefix("#/components/schemas/")
        assert name in described["components"]["schemas"], reference


def test_the_problem_codes_are_those_of_the_table(described):
    assert set(described["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]) == set(PROBLEMS)


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        ({"profile": "memory", "params": {"customer": "acme"}, "ttl": "15m", "trace_id": "chat-7"}, True),
        ({"profiles": ["a", "b"], "ttl": 60}, True),
        ({"profile": "memory", "tll": 5}, False),
        ({"profile": "memory", "trace_id": "a b"}, False),
    ],
)
def test_the_schema_of_a_body_takes_what_the_call_takes(described, body, fits):
    schemas = described["components"]["schemas"]
    schema = {"$ref": "#/components/schemas/OpenRequest", "components": {"schemas": schemas}}
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(body) == fits


async def test_it_is_served(tmp_path, described):
    desk = await Desk(tmp_path).start()
    assert (await desk.ask("GET", "/openapi.json")).json == described
    await desk.stop()
