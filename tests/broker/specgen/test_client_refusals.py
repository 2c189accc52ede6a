"""What neither client sends, and how they say why: a model reads it and mends its call."""

from __future__ import annotations

import pytest

from tests.broker.specgen.engine import JavaScriptError
from tests.broker.specgen.pair import Pair, files, read
from tests.worlds.api import Api as Recorded

PLACES = ("path", "query", "header")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"level": "middle"}, "its query does not take this level"),
        ({"size": "many"}, "its query does not take this size"),
        ({"other": "x"}, "its query takes no other"),
        ({"tags": []}, "its query needs tags"),
        ({"tags": ["a", "b"]}, "its query takes tags once"),
    ],
)
def test_a_query_that_the_route_does_not_take_is_told_by_its_name_in_both(tmp_path, given, why):
    schemas = {"level": {"enum": ["low", "high"]}, "size": {"type": "integer"}, "other": {}}
    schemas["tags"] = {"type": "array", "items": {"type": "string"}}
    parameters = [{"name": name, "in": "query", "schema": schema} for name, schema in schemas.items()]
    found, document = read({"/x": {"get": {"operationId": "get", "parameters": parameters}}})
    query = {"level": ["low", "high"], "size": "int", "tags": {"type": "any", "required": True}}
    with Recorded() as recorded:
        written = files(found, document, allow=["GET /other", {"route": "GET /x", "query": query}])
        pair = Pair(written, recorded, tmp_path)
        told = pair.refused("get", **{"tags": ["a"], **given})
        assert told.startswith("not allowed, nothing was sent: GET /x")
        assert told.endswith(": " + why)
        with pytest.raises(JavaScriptError) as caught:
            pair.engine.call("api", "get", [{"tags": ["a"], **given}])
        assert str(caught.value) == "NotAllowedError: " + told
        pair.both("get", tags=["a"], level="low", size=7)
        pair.client.close()


@pytest.mark.parametrize("missing", [*PLACES, "body"])
def test_nothing_does_not_stand_for_what_is_required_in_either(tmp_path, missing):
    names = {place: f"in_{place}" for place in PLACES}
    parameters = [{"name": name, "in": place, "required": True, "schema": {}} for place, name in names.items()]
    body = {"required": True, "content": {"application/json": {}}}
    operation = {"operationId": "add", "parameters": parameters, "requestBody": body}
    found, document = read({"/x/{in_path}": {"post": operation}})
    given = {**dict.fromkeys(PLACES, "a"), "body": {}}
    with Recorded() as recorded:
        pair = Pair(files(found, document), recorded, tmp_path)
        pair.both("add", given["path"], given["body"], in_query=given["query"], in_header=given["header"])
        given[missing] = None
        told = pair.refused("add", given["path"], given["body"], in_query=given["query"], in_header=given["header"])
        assert told.startswith(f"add() needs {names.get(missing, missing)}")
        pair.client.close()
