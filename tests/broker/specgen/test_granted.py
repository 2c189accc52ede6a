"""Which operations a profile grants, and to what it narrows their arguments."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from broker.specgen.granted import Narrowed, granted_operations
from broker.specgen.model import Argument, Operation, SchemaAt
from config.match import DeniedError, Matcher
from config.routes import PLAIN, parse_route
from tests.config.grants_of import profile

ANY = SchemaAt({}, "#")
PATH = "/v1/accounts/{account}/profiles/{name}/recall"
ROUTE = "POST /v1/accounts/*/profiles/*/recall"


def argument(identifier: str, place: Any = "path", **fields: Any) -> Argument:
    given = {"name": identifier, "required": place == "path", "schema": ANY, **fields}
    return Argument(identifier=identifier, place=place, **given)


def operation(template: str = PATH, route: Any = ROUTE, *more: Argument, **fields: Any) -> Operation:
    named = [piece.partition("}")[0] for piece in template.split("{")[1:]]
    taken = {one.identifier for one in more}
    arguments = (*(argument(name) for name in named if name not in taken), *more)
    text = route if isinstance(route, str) else route["route"]
    return Operation(
        pointer="#",
        id="op",
        identifier="op",
        tool="op",
        method=text.partition(" ")[0],
        template=template,
        route=route,
        arguments=arguments,
        **fields,
    )


def narrowed(found: Any) -> dict[str, Narrowed]:
    (only,) = found
    return dict(only.narrowed)


def test_without_a_grant_every_operation_is_there_as_it_is():
    (found,) = granted_operations([operation()], None)
    assert (found.operation, dict(found.narrowed)) == (operation(), {})


def test_an_empty_grant_grants_nothing():
    assert granted_operations([operation()], []) == ()


def test_a_literal_and_a_run_parameter_narrow_a_wildcard():
    found = granted_operations([operation()], ["POST /v1/accounts/42/profiles/{customer}/recall"])
    assert narrowed(found) == {"account": Narrowed(values=("42",)), "name": Narrowed(params=("customer",))}
    assert found[0].narrowed["account"].only == "42"
    assert found[0].narrowed["name"].only is None


def test_a_glob_narrows_a_wildcard_and_a_wildcard_does_not():
    found = granted_operations([operation()], ["POST /v1/accounts/team-*/profiles/*/recall"])
    assert narrowed(found) == {"account": Narrowed(globs=("team-*",))}


def test_values_of_several_routes_stand_beside_each_other():
    routes = [f"POST /v1/accounts/{one}/profiles/{other}/recall" for one, other in (("1", "a"), ("2", "*"))]
    assert narrowed(granted_operations([operation()], routes)) == {"account": Narrowed(values=("1", "2"))}


@pytest.mark.parametrize(
    "route",
    [
        "GET /v1/accounts/42/profiles/x/recall",
        "POST /v1/accounts/42/profiles/x/recall/",
        "POST /v1/accounts/42/profiles/recall",
        "POST /v1/accounts/42/profiles/x/Recall",
        "POST /v1/accounts/42/*/x/recall",
        "POST /v1/accounts/42/profiles/x/{what}",
    ],
)
def test_another_route_is_no_grant(route):
    assert granted_operations([operation()], [route]) == ()


def test_a_trailing_slash_counts():
    one = operation("/v1/{id}/", "GET /v1/*/")
    assert granted_operations([one], ["GET /v1/7"]) == ()
    assert narrowed(granted_operations([one], ["GET /v1/7/"])) == {"id": Narrowed(values=("7",))}
    assert len(granted_operations([operation("/", "GET /")], ["GET /"])) == 1


@pytest.mark.parametrize(
    ("template", "route", "granted", "values"),
    [
        ("/{id}.json", "GET /*.json", "GET /*.json", {}),
        ("/{id}.json", "GET /*.json", "GET /7.json", {"id": Narrowed(values=("7",))}),
        ("/{id}.json", "GET /*.json", "GET /a{n}.json", {"id": Narrowed(globs=("a{n}",))}),
        ("/{a}...{b}", "GET /*...*", "GET /main...*", {"a": Narrowed(values=("main",))}),
        ("/{a}...{b}", "GET /*...*", "GET /x...y...z", {}),
        ("/{a}:{b}", "GET /*:*", "GET /{n}:y", {"a": Narrowed(params=("n",)), "b": Narrowed(values=("y",))}),
    ],
)
def test_partial_segments_are_narrowed_too(template, route, granted, values):
    assert narrowed(granted_operations([operation(template, route)], [granted])) == values


@pytest.mark.parametrize("granted", ["GET /*", "GET /*.xml", "GET /.json", "GET /{n}"])
def test_a_route_that_is_wider_than_the_partial_segment_is_no_grant(granted):
    assert granted_operations([operation("/{id}.json", "GET /*.json")], [granted]) == ()


def test_a_run_parameter_of_the_operation_is_granted_as_the_same_one():
    one = operation("/v1/{who}", "GET /v1/{customer}", argument("who", "run", name="customer"))
    assert len(granted_operations([one], ["GET /v1/{customer}"])) == 1
    assert len(granted_operations([one], ["GET /v1/acme"])) == 1
    assert granted_operations([one], ["GET /v1/{other}", "GET /v1/*"]) == ()


def queried(**fields: Any) -> Operation:
    own = {"route": "GET /v1", "query": {"kind": ["a", "b"], "page": "int", "filter[eq]": "any", "filter[gt]": "any"}}
    arguments = (
        argument("kind", "query"),
        argument("page", "query"),
        argument("filter", "query", style="deepObject", shape="object", members=("eq", "gt")),
        argument("x_trace", "header"),
    )
    return operation("/v1", own, *arguments, **fields)


def names(found: Any) -> list[str]:
    (only,) = found
    return [one.identifier for one in only.operation.arguments]


def test_query_names_that_the_grant_does_not_list_are_not_offered():
    found = granted_operations([queried()], [{"route": "GET /v1", "query": {"page": "int", "filter[gt]": "any"}}])
    assert names(found) == ["page", "filter", "x_trace"]
    assert found[0].operation.arguments[1].members == ("gt",)
    assert names(granted_operations([queried()], ["GET /v1"])) == ["x_trace"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (["a", "b"], None),
        (["a", "b", "c"], None),
        ("any", None),
        ({"pattern": "a+"}, None),
        ("a", Narrowed(values=("a",))),
        (["a", "z"], Narrowed(values=("a",))),
        (["z"], Narrowed(values=("z",))),
        ({"const": "b", "required": True}, Narrowed(values=("b",))),
        ({"values": ["b"]}, Narrowed(values=("b",))),
        ("{customer}", Narrowed(params=("customer",))),
        ({"param": "customer"}, Narrowed(params=("customer",))),
    ],
)
def test_a_query_rule_of_the_grant_narrows_what_the_document_takes(rule, expected):
    found = granted_operations([queried()], [{"route": "GET /v1", "query": {"kind": rule}}])
    assert narrowed(found).get("kind") == expected


def test_a_constant_that_looks_like_a_wildcard_is_a_constant():
    found = granted_operations([queried()], [{"route": "GET /v1", "query": {"page": {"const": "*"}}}])
    assert narrowed(found) == {"page": Narrowed(values=("*",))}


def test_what_the_grant_requires_is_required():
    rules = {"kind": {"type": "any", "required": True}, "page": "int"}
    (found,) = granted_operations([queried()], [{"route": "GET /v1", "query": rules}])
    assert [(one.identifier, one.required) for one in found.operation.arguments] == [
        ("kind", True),
        ("page", False),
        ("x_trace", False),
    ]


def test_a_grant_without_a_query_that_every_call_sends_is_no_grant():
    own = {"route": "GET /v1", "query": {"beta": "true", "q": {"type": "any", "required": True}}}
    one = operation("/v1", own, argument("q", "query", required=True), fixed_query=(("beta", "true"),))
    rules = {"beta": "true", "q": "any"}
    assert len(granted_operations([one], [{"route": "GET /v1", "query": rules}])) == 1
    for less in ({"q": "any"}, {"beta": "true"}, {"beta": "false", "q": "any"}):
        assert granted_operations([one], [{"route": "GET /v1", "query": less}]) == ()


WORDS = st.text("ab.*", min_size=1, max_size=4)


@given(st.lists(WORDS, min_size=1, max_size=3), st.lists(WORDS, min_size=1, max_size=3), st.data())
def test_what_a_grant_within_takes_the_operation_takes_too(own, granted, data):
    """Held against the broker's matcher, with each star filled by chance."""
    routes = ["GET /" + "/".join(words) for words in (own, granted)]
    assume(all(map(is_route, routes)))
    number = iter(range(9))
    template = "/" + "/".join("".join(f"{{p{next(number)}}}" if c == "*" else c for c in word) for word in own)
    if not granted_operations([operation(template, routes[0])], [routes[1]]):
        return
    filling = st.text(PLAIN.replace(".", ""), min_size=1, max_size=3)
    path = "".join(data.draw(filling) if character == "*" else character for character in "/" + "/".join(granted))
    try:
        Matcher(profile(allow=[routes[0]])).match("GET", path.encode(), {})
    except DeniedError as denied:
        pytest.fail(f"{denied.code}: {path}")


def is_route(text: str) -> bool:
    try:
        parse_route(text)
    except ValueError:
        return False
    return True


def test_a_thousand_operations_are_not_held_against_each_of_a_thousand_routes():
    operations = [operation(f"/v1/r{n}/{{id}}", f"GET /v1/r{n}/*") for n in range(3000)]
    assert len(granted_operations(operations, [str(one.route) for one in operations])) == 3000
