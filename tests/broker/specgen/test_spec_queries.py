"""Whatever parameters a document has: what its client writes is what its route takes, and nothing else passes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from broker.specgen.clients import python_client, table
from broker.specgen.model import Choices
from broker.specgen.operations import read_api
from broker.specgen.queries import wire_names
from config.match import DeniedError, Matcher
from tests.broker.specgen import reading, sampling
from tests.broker.specgen.loading import load
from tests.config.grants_of import profile

SCALARS = st.sampled_from(
    [
        *(
            {"type": "string"},
            {"type": "integer"},
            {"type": "number"},
            {"type": "boolean"},
            {},
            {"type": ["integer", "null"]},
        ),
        *({"enum": ["a", "b c", "any", "{x}"]}, {"enum": [1, 2.5, True]}, {"const": "int"}, {"enum": ["\u00e9", "x"]}),
        *(
            {"type": "string", "format": "date"},
            {"type": "string", "pattern": "^[a-z/]+$"},
            {"type": ["string", "integer"]},
        ),
        *({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"allOf": [{"type": "string"}, {"enum": ["x", "y"]}]}),
    ]
)
LISTS = SCALARS.map(lambda items: {"type": "array", "items": items})
NAMES = ("q", "include[]", "$.xgafv", "page", "self", "body", "deployment.series_name", "next_token", "a:b", "x!y")
MEMBERS = st.dictionaries(
    st.sampled_from(["eq", "like", "limit", "a b", "key"]), SCALARS | LISTS, min_size=1, max_size=3
)
OBJECTS = st.builds(
    lambda properties, required: {
        "type": "object",
        "properties": properties,
        "required": sorted(properties)[:required],
    },
    MEMBERS,
    st.integers(0, 1),
)
STYLES = st.sampled_from([{}, {}, {"explode": False}, {"explode": True}])


@st.composite
def queries(draw) -> list[dict[str, Any]]:
    found = []
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True)):
        schema = draw(SCALARS | LISTS | OBJECTS)
        style = draw(st.sampled_from([None, "form", "spaceDelimited", "pipeDelimited", "deepObject"]))
        one = {"name": name, "in": "query", "required": draw(st.booleans()), "schema": schema, **draw(STYLES)}
        if style is not None:
            one["style"] = style
        found.append(one)
    return found


PATHS = st.lists(
    st.builds(lambda schema: {"in": "path", "required": True, "schema": schema}, SCALARS | LISTS), max_size=2
).map(lambda found: [{**one, "name": f"p{index}"} for index, one in enumerate(found)])
HEADERS = st.lists(st.sampled_from(["X-Trace", "If-Match", "Accept"]), max_size=2, unique=True).map(
    lambda names: [{"name": name, "in": "header", "schema": {"type": "string"}} for name in names]
)


@cache
def runtime() -> ModuleType:
    document = reading.document(servers=[{"url": "https://api.test"}])
    with TemporaryDirectory() as directory:
        files = python_client(
            read_api(document, Choices()), document=document, profile="p", global_name="api", allow=None
        )
        return load(files["client.py"], Path(directory))


def carried(path: list[dict[str, Any]], own: list[dict[str, Any]], **choices: Any) -> Any:
    """Return the document and its only operation, which is carried; otherwise the example is none."""
    key = "/things" + "".join(f"/{{{one['name']}}}" for one in path)
    document = reading.document(
        "3.1.0",
        servers=[{"url": "https://api.test/base"}],
        paths={key: {"parameters": path, "get": {"operationId": "things", "parameters": own}}},
    )
    api = read_api(document, Choices(**choices))
    assume(api.operations)
    return document, api


def sent(document: Any, api: Any, data: st.DataObject) -> tuple[Matcher, str]:
    """Return the catalog's matcher, and a target that the client makes for arguments as code would give them."""
    (operation,) = api.operations
    written = table(api, document, profile="p", global_name="api", allow=None)["operations"][0]
    in_path, _, others = data.draw(sampling.calls(document, operation))
    keys = [one["id"] for one in written.get("path", ())]
    try:
        target, _ = runtime()._target(written, {**dict(zip(keys, in_path, strict=True)), **others}, {})
    except ValueError as error:
        # An empty value, or dots: no path can carry it, whatever the route takes.
        assert "never empty or dots only" in str(error)  # noqa: PT017
        assume(False)
    matcher = Matcher(profile(allow=list(api.catalog), request_headers=list(api.request_headers)))
    return matcher, target


def passes(matcher: Matcher, target: str) -> bool:
    try:
        matcher.match("GET", target.encode("ascii"), {})
    except DeniedError:
        return False
    return True


MANY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@MANY
@given(PATHS, queries(), HEADERS, st.data())
def test_what_the_client_writes_is_what_the_route_takes(path, own, headers, data):
    document, api = carried(path, own + headers)
    matcher, target = sent(document, api, data)
    assert passes(matcher, target), (target, api.catalog)


@MANY
@given(PATHS, queries(), st.data())
def test_a_parameter_that_the_document_lacks_never_passes(path, own, data):
    document, api = carried(path, own)
    matcher, target = sent(document, api, data)
    more = target + ("&" if "?" in target else "?")
    for name in ("admin", "access_token", "q[admin]"):
        assert not passes(matcher, more + name + "=1")


@MANY
@given(queries(), st.data())
def test_a_call_without_a_required_parameter_never_passes(own, data):
    document, api = carried([], own)
    (operation,) = api.operations
    single = [one for one in operation.arguments if one.required and wire_names(one) == (one.name,)]
    assume(single)
    matcher, target = sent(document, api, data)
    pairs = target.partition("?")[2].split("&")
    name = single[0].name
    kept = [pair for pair in pairs if pair.partition("=")[0].replace("%5B", "[").replace("%5D", "]") != name]
    assume(len(kept) < len(pairs))
    assert not passes(matcher, "/base/things" + ("?" + "&".join(kept) if kept else ""))


@MANY
@given(queries(), st.data())
def test_a_bound_parameter_is_sent_with_its_value_and_passes_with_no_other(own, data):
    bound = [one for one in own if one["schema"].get("type") != "object"]
    assume(bound)
    document, api = carried([], own, bind={bound[0]["name"]: "bound value"})
    (operation,) = api.operations
    assume(operation.fixed_query)
    matcher, target = sent(document, api, data)
    assert passes(matcher, target), (target, api.catalog)
    assert "=bound%20value" in target
    assert not passes(matcher, target.replace("bound%20value", "another"))
    assert not passes(matcher, target + "&" + target.partition("?")[2].partition("&")[0])
