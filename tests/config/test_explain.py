from __future__ import annotations

from config.explain import Cover, covers, explain
from tests.config.grants_of import matcher, profile

FIELDS = {
    "allow": [
        "GET /v1/memories/*",
        "GET /v1/memories/7",
        "GET /v1/*/x:*",
        "POST /v1/memories/*",
        "GET /v1/memories/*/",
        "GET /v1/memories/*/history",
        "GET /v1/{customer}/y",
    ],
    "catalog": ["GET /v1/memories/events", "GET /v1/memories/*", "GET /v1/memories/7"],
    "params": {"customer": "[a-z]+"},
}


def reasons(method, target, params=None):
    explained = explain(matcher(**FIELDS), method, target.encode(), params or {})
    return explained, {(c.listed, c.route): (c.verdict, c.why) for c in explained.candidates}


def test_a_granted_call_is_explained_route_by_route():
    explained, why = reasons("GET", "/v1/memories/7")
    assert explained.granted
    assert explained.rule is not None
    assert explained.rule.text == "GET /v1/memories/7"
    assert why["allow", "GET /v1/memories/7"][0] == "decides"
    assert why["allow", "GET /v1/memories/*"] == ("matches", "less specific than the deciding route at segment 3")
    assert why["allow", "POST /v1/memories/*"] == ("no", "takes POST")
    assert why["allow", "GET /v1/*/x:*"] == ("no", "segment 3 does not have the form x:*")
    assert why["allow", "GET /v1/memories/*/"] == ("no", "a trailing slash is part of the route")
    assert why["allow", "GET /v1/memories/*/history"] == ("no", "has 4 segments")
    assert why["allow", "GET /v1/{customer}/y"] == ("no", "segment 2 needs the run parameter customer")
    assert why["catalog", "GET /v1/memories/*"][0] == "matches"
    assert explained.candidates[0].route == "GET /v1/memories/7"


def test_a_reserved_call_names_the_catalog_route_that_outranks():
    explained, why = reasons("GET", "/v1/memories/Events")
    assert (explained.granted, explained.code) == (False, "route-reserved")
    assert why["catalog", "GET /v1/memories/events"][0] == "reserves"
    assert why["allow", "GET /v1/memories/*"][0] == "decides"


def test_a_documented_route_that_is_granted_is_not_said_to_outrank_nothing():
    made = matcher(allow=["GET /v1/*/x", "GET /v1/b/*"], catalog=["GET /v1/*/x", "GET /v1/*/*"])
    explained = explain(made, "GET", b"/v1/b/x", {})
    assert explained.granted
    assert [(one.route, one.why) for one in explained.candidates if one.listed == "catalog"] == [
        ("GET /v1/*/x", "documents the call; allow lists it as well"),
        ("GET /v1/*/*", "documents the call; outranks nothing"),
    ]


def test_what_a_wildcard_and_a_parameter_do_not_take_is_said():
    _, why = reasons("GET", "/v1/memories/a:b")
    assert "does not take" in why["allow", "GET /v1/memories/*"][1]
    _, why = reasons("GET", "/v1/other/y", {"customer": "acme"})
    assert why["allow", "GET /v1/{customer}/y"] == ("no", "segment 2 is not the run's customer")
    _, why = reasons("GET", "/v1/ACME/y", {"customer": "ACME"})
    assert why["allow", "GET /v1/{customer}/y"] == ("no", "segment 2 needs a value of customer that fits its pattern")


def test_a_malformed_target_has_no_candidates():
    explained, why = reasons("GET", "/v1/../x")
    assert (explained.code, why) == ("target-malformed", {})


def test_covers_lists_what_wildcards_would_take_of_the_catalog():
    assert covers(profile(**FIELDS)) == [
        Cover("GET /v1/memories/*", "GET /v1/memories/events", granted=False),
        Cover("GET /v1/memories/*", "GET /v1/memories/7", granted=True),
        Cover("GET /v1/*/x:*", "GET /v1/memories/*", granted=True),
        Cover("GET /v1/memories/*/", "GET /v1/memories/events", granted=False),
        Cover("GET /v1/memories/*/", "GET /v1/memories/7", granted=True),
        # A run whose customer is called "memories" would be on it.
        Cover("GET /v1/{customer}/y", "GET /v1/memories/*", granted=True),
    ]
    assert covers(profile(allow=["GET /v1/memories/7"], catalog=FIELDS["catalog"])) == []
