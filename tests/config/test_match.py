"""What a match costs, and what a refusal says; which calls match is in ``corpus_routes.json``."""

from __future__ import annotations

import contextlib

import pytest

from config.match import DeniedError
from config.target import split_target
from config.trie import Node
from tests.config.grants_of import matcher


def denied(built, method, target, params=None):
    with pytest.raises(DeniedError) as refused:
        built.match(method, target if isinstance(target, bytes) else target.encode(), params or {})
    return refused.value


def test_a_match_names_its_rule_and_profile_and_is_made_once():
    built = matcher(allow=["GET /v1/*"])
    match = built.match("GET", b"/v1/a", {})
    assert match.profile is built.profile
    assert match.rule is built.profile.allow[0]
    assert built.match("GET", b"/v1/b", {}) is match


def test_two_matchers_can_share_a_split_target():
    target = split_target(b"/v1/a")
    assert matcher(allow=["GET /v1/*"]).match("GET", target, {}).rule.text == "GET /v1/*"
    assert denied(matcher(allow=["GET /v2/*"]), "GET", b"/v1/a").code == "route-not-granted"


def test_a_refusal_names_up_to_three_granted_routes_that_are_near():
    built = matcher(
        allow=["GET /v1/items/*", "POST /v1/items", "DELETE /v1/items/*", "GET /v1/users", "GET /v2/x", "GET /v1/items"]
    )
    assert denied(built, "PUT", "/v1/items").members["nearest"] == [
        "GET /v1/items",
        "GET /v1/items/*",
        "POST /v1/items",
    ]
    assert denied(built, "GET", "/v2/y").members["nearest"][0] == "GET /v2/x"
    assert len(denied(built, "GET", "/elsewhere").members["nearest"]) == 3
    assert denied(matcher(), "GET", "/x").members["nearest"] == []


def test_a_query_that_is_refused_names_the_route_that_it_was_for():
    built = matcher(allow=["GET /v1/items"])
    assert denied(built, "GET", "/v1/items?x=1").members["nearest"] == ["GET /v1/items"]


def test_a_method_that_is_not_carried_is_answered_with_those_that_are():
    assert denied(matcher(), "TRACE", "/").members == {"allow": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]}


@pytest.mark.parametrize(
    ("method", "target", "template"),
    [
        ("DELETE", "/v1/namespaces/support", "DELETE /v1/namespaces/{name}"),
        ("DELETE", "/V1/NAMESPACES/x/", "DELETE /v1/namespaces/{name}"),
        ("DELETE", "/v1/namespaces/a%20b", "DELETE /v1/namespaces/{name}"),
        ("HEAD", "/v1/namespaces", "GET /v1/namespaces/"),
        ("GET", "/v1/items/secret", "GET /v1/items/secret"),
        ("GET", "/v1/unheard-of", None),
        ("GET", "/v1/../x", None),
    ],
)
def test_a_refusal_knows_the_catalog_template_for_counting_and_does_not_send_it(method, target, template):
    built = matcher(
        allow=["GET /v1/items/*"],
        catalog=["DELETE /v1/namespaces/{name}", "GET /v1/namespaces/", "GET /v1/items/secret"],
    )
    refused = denied(built, method, target)
    assert refused.denied_template == template
    assert template is None or template.encode() not in refused.body("broker")


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/canary"),
        ("GET", "/v1/canary"),
        ("GET", "/v1/canary?canary=canary"),
        ("GET", "/v1/canary/../x"),
        ("GET", "/v1/canary%20"),
        ("GET", "/q?canary=1"),
        ("GET", "/q?n=canary"),
        ("CANARY", "/v1/x"),
    ],
)
def test_a_refusal_repeats_nothing_of_the_call(method, target):
    built = matcher(
        allow=["GET /v1/*", {"route": "GET /q", "query": {"n": "int"}}], catalog=["GET /v1/canary", "GET /canary"]
    )
    refused = denied(built, method, target)
    assert b"canary" not in refused.body("broker").lower()
    assert "canary" not in str(refused).lower()


def visited(built, method, target, params):
    """Count the trie's places that a match looks at, by counting look-ups of literals."""
    count = 0

    class Counting(dict):
        def get(self, key, default=None):
            nonlocal count
            count += 1
            return super().get(key, default)

    def watch(node: Node):
        ways = [*node.literals.values(), *(entry[-1] for entry in node.params)]
        ways += [entry[-1] for *_, table in node.globs for entries in table.values() for entry in entries]
        for following in ways + ([node.star] if node.star is not None else []):
            watch(following)
        node.literals = Counting(node.literals)

    known = built._methods[method]
    watch(known.trie.root)
    for granted in {id(entry): entry for entry in leaves(known.trie.root)}.values():
        if granted.reserved is not None:
            watch(granted.reserved.root)
    with contextlib.suppress(DeniedError):
        built.match(method, target, params)
    return count


def leaves(node):
    if node.leaf is not None:
        yield node.leaf
    ways = [*node.literals.values(), *(entry[-1] for entry in node.params)]
    ways += [entry[-1] for *_, table in node.globs for entries in table.values() for entry in entries]
    for following in ways + ([node.star] if node.star is not None else []):
        yield from leaves(following)


def routes(count):
    """A list like a real API's: literals, wildcards, globs, parameters, many resources."""
    shapes = (
        "/v1/r{n}/*",
        "/v1/r{n}/*/parts/*",
        "/v1/r{n}/{{customer}}",
        "/v1/*/r{n}.json",
        "/v1/r{n}/*.x{n}",
        "/r{n}",
    )
    return [f"GET {shapes[n % len(shapes)].format(n=n // len(shapes))}" for n in range(count)]


@pytest.mark.parametrize(
    "target", [b"/v1/r1/acme", b"/v1/r1/other", b"/v1/r1/7/parts/8", b"/v1/zz/r1.json", b"/v1/r1/a.x1", b"/v1/zz/zz"]
)
def test_a_match_looks_at_no_more_of_1200_routes_than_of_12(target):
    fields = {"params": {"customer": "[a-z]+"}}
    given = {"customer": "acme"}
    few = matcher(allow=routes(12), catalog=routes(12), **fields)
    many = matcher(allow=routes(1200), catalog=routes(1200), **fields)
    assert visited(many, "GET", target, given) == visited(few, "GET", target, given)


def test_only_globs_whose_literal_ends_fit_are_looked_at():
    built = matcher(allow=[f"GET /files/*.ext{n:04}" for n in range(1200)])
    (bucket,) = built._methods["GET"].trie.root.literals[b"files"].globs
    assert len(bucket[2]) == 1200
    assert visited(built, "GET", b"/files/a.ext0007", {}) == 2


def test_two_stars_in_a_segment_take_time_linear_in_it():
    built = matcher(allow=["GET /*a*b"])
    assert denied(built, "GET", b"/" + b"a" * 8000).code == "route-not-granted"
    assert built.match("GET", b"/x" + b"a" * 8000 + b"b", {})
