"""Routes that are one on the wire are one in the catalog, and it takes what each of its operations sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.specgen.merging import covered, merged
from config.query import compile_query

VALUES = st.sampled_from(["1", "-7", "007", "a", "any", "int", "{x}", "", "01"])
FLAGS = st.fixed_dictionaries({}, optional={"required": st.booleans(), "repeat": st.booleans()})
SOURCES = (
    st.sampled_from([{"type": "any"}, {"type": "int"}, {}])
    | VALUES.map(lambda value: {"const": value})
    | st.lists(VALUES, min_size=1, unique=True).map(lambda values: {"values": values})
)
RULES = st.sampled_from(["any", "int", "one", ["1", "2"]]) | st.builds(lambda one, two: {**one, **two}, SOURCES, FLAGS)
QUERIES = st.dictionaries(st.sampled_from("abc"), RULES, max_size=3)


def both(one, other):
    (entry,) = merged([{"route": "GET /x", **one}, {"route": "GET /x", **other}])
    return entry


def query(one, other):
    return both({"query": one}, {"query": other})["query"]


def test_entries_keep_the_order_of_the_first_of_each():
    assert merged(["GET /b", "GET /a", "PUT /b", "GET /b"]) == ("GET /b", "GET /a", "PUT /b")


def test_other_methods_other_slashes_and_other_literals_stay_apart():
    routes = ["GET /x/*", "DELETE /x/*", "GET /x/*/", "GET /X/*", "GET /x/a"]
    assert merged(routes) == tuple(routes)


@pytest.mark.parametrize(
    ("one", "other", "rule"),
    [
        ("any", "any", "any"),
        ("int", "any", "any"),
        ("int", "int", "int"),
        (["a"], ["b", "a"], {"values": ["a", "b"]}),
        ("a", "int", "any"),
        ({"const": "a", "required": True}, {"const": "b", "required": True}, {"values": ["a", "b"], "required": True}),
        ({"type": "int", "required": True}, "int", "int"),
        ({"type": "int", "repeat": True}, "int", {"type": "int", "repeat": True}),
    ],
)
def test_of_two_rules_the_wider_counts(one, other, rule):
    assert query({"q": one}, {"q": other}) == {"q": rule}


def test_what_only_one_of_them_sends_is_allowed_and_not_required():
    assert query({"beta": {"const": "true", "required": True}}, {"n": "int"}) == {
        "beta": {"values": ["true"]},
        "n": "int",
    }
    assert both({"query": {"q": {"type": "any", "required": True}}}, {}) == {"route": "GET /x", "query": {"q": "any"}}


@pytest.mark.parametrize(
    ("one", "other", "encoded"),
    [
        (True, False, True),
        (["%2F"], True, ["%2F"]),
        (["%2F"], ["%3F", "%2F"], ["%2F", "%3F"]),
    ],
)
def test_escapes_and_wide_characters_are_those_of_both(one, other, encoded):
    assert both({"encoded": one}, {"encoded": other, "wide": True}) == {
        "route": "GET /x",
        "encoded": encoded,
        "wide": True,
    }


def test_the_credential_is_sent_when_either_needs_it():
    assert both({"credential": False}, {}) == "GET /x"
    assert both({"credential": False}, {"credential": False}) == {"route": "GET /x", "credential": False}


@given(QUERIES, QUERIES, st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3))
def test_a_merged_query_takes_all_that_each_takes(one, other, sent):
    entry = both({"query": one}, {"query": other})
    wide, wrong = compile_query(entry.get("query", {}) if isinstance(entry, dict) else {})
    assert wrong == []
    for written in (one, other):
        narrow, _ = compile_query(written)
        if narrow.required <= sent.keys() <= narrow.rules.keys():
            assert wide.required <= sent.keys() <= wide.rules.keys()
            for name, value in sent.items():
                if narrow.rules[name].fits(value, {}):
                    assert wide.rules[name].fits(value, {})
                assert wide.rules[name].repeat or not narrow.rules[name].repeat


def test_a_wildcard_names_the_more_specific_routes_that_it_covers():
    catalog = ["GET /pets/*", "GET /pets/mine", "DELETE /pets/mine", "GET /pets/*/toys", "GET /Pets/yours/"]
    assert covered(catalog, shown=8) == {"GET /pets/*": (["GET /pets/mine", "GET /Pets/yours/"], 2)}
    assert covered(catalog, shown=1) == {"GET /pets/*": (["GET /pets/mine"], 2)}


def test_a_glob_covers_a_literal_of_its_form():
    assert covered(["GET /*.json", "GET /a.json", "GET /a.xml"], shown=8) == {"GET /*.json": (["GET /a.json"], 1)}


def test_covers_that_nobody_would_look_at_are_not_worked_out():
    crossing = [f"GET /*/a{number}" for number in range(400)] + [f"GET /b{number}/*" for number in range(400)]
    assert covered(crossing, shown=8) is None
    assert covered([f"GET /a{number}" for number in range(4001)], shown=8) is None
    assert covered([f"GET /a{number}" for number in range(4000)], shown=8) == {}


def test_a_route_of_very_many_operations_is_merged_in_one_go():
    many = [{"route": "GET /x", "query": {f"q{number}": "any"}} for number in range(3000)]
    (entry,) = merged(many)
    assert len(entry["query"]) == 3000
