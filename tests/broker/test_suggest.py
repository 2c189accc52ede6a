"""A grant is narrowed to what runs really used."""

from __future__ import annotations

from broker.suggest import Only, suggest
from tests.config.grants_of import profile

ROUTE = {"route": "GET /v1/*/items/*", "encoded": True, "query": {"page": "int"}}
ALLOW = ["POST /v1/items", ROUTE, "DELETE /v1/items/*", "GET /v1/*.json"]


def trace(*calls, denied=()):
    return {
        "calls": [{"profile": name, "route": route, "count": count} for name, route, count in calls],
        "denied_by": [{"code": code, "template": template, "count": count} for code, template, count in denied],
    }


def test_entries_that_no_run_used_are_left_out_and_the_others_stay_as_written():
    traces = [
        trace(("p", "GET /v1/*/items/*", 2), ("other", "DELETE /v1/items/*", 9)),
        trace(("p", "GET /v1/*/items/*", 1), ("p", "POST /v1/items", 4), ("p", "GET /old", 1)),
    ]
    found = suggest("p", ALLOW, traces, [{}, {}])
    assert found.used == (("POST /v1/items", 4), (ROUTE, 3))
    assert found.unused == ("DELETE /v1/items/*", "GET /v1/*.json")
    assert found.gone == ("GET /old",)
    assert found.allow == ["POST /v1/items", ROUTE] == found.narrowed
    profile(allow=found.allow)


def test_a_wildcard_that_took_one_value_in_all_runs_becomes_that_literal():
    traces = [
        trace(("p", "GET /v1/*/items/*", 5), ("p", "DELETE /v1/items/*", 1), ("p", "GET /v1/*.json", 1)),
        trace(("p", "GET /v1/*/items/*", 2)),
        trace(("p", "POST /v1/items", 1)),
    ]
    learned = [
        {"p": {"GET /v1/*/items/*": ["acme", "1"], "DELETE /v1/items/*": ["7"], "GET /v1/*.json": ["a.json"]}},
        {"p": {"GET /v1/*/items/*": ["acme", "2"]}},
        {},
    ]
    found = suggest("p", ALLOW, traces, learned)
    assert found.only == (
        Only("GET /v1/*/items/*", 2, "acme"),
        Only("DELETE /v1/items/*", 3, "7"),
        Only("GET /v1/*.json", 2, "a.json"),
    )
    assert found.narrowed == [
        "POST /v1/items",
        {**ROUTE, "route": "GET /v1/acme/items/*"},
        "DELETE /v1/items/7",
        "GET /v1/a.json",
    ]
    profile(allow=found.narrowed)


def test_a_run_that_used_a_route_and_learnt_nothing_of_it_leaves_the_wildcard():
    traces = [trace(("p", "GET /v1/*.json", 1)), trace(("p", "GET /v1/*.json", 9))]
    for other in ({}, {"p": {}}, {"other": {"GET /v1/*.json": ["a.json"]}}):
        assert suggest("p", ALLOW, traces, [{"p": {"GET /v1/*.json": ["a.json"]}}, other]).only == ()


def test_many_values_and_values_with_escapes_stay_wildcards():
    traces = [trace(("p", "GET /v1/*/items/*", 1))]
    for taken in ([None, None], ["a%20b", None]):
        found = suggest("p", ALLOW, traces, [{"p": {"GET /v1/*/items/*": taken}}])
        assert (found.only, found.narrowed) == ((), [ROUTE])


def test_options_of_wildcards_go_with_the_last_of_them_and_no_route_stands_twice():
    allow = [{"route": "GET /v1/*", "encoded": True, "wide": True}, "GET /v1/a"]
    traces = [trace(("p", "GET /v1/*", 1), ("p", "GET /v1/a", 1))]
    found = suggest("p", allow, traces, [{"p": {"GET /v1/*": ["a"]}}])
    assert found.narrowed == ["GET /v1/a"]
    profile(allow=found.narrowed)


def test_what_was_refused_is_counted_over_the_runs():
    traces = [trace(denied=[("route-not-granted", "PUT /v1/items/*", 2), ("query-not-granted", None, 1)])] * 2
    assert suggest("p", ALLOW, traces, [{}, {}]).denied == (
        ("query-not-granted", "", 2),
        ("route-not-granted", "PUT /v1/items/*", 4),
    )
