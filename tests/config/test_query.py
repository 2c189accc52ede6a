"""How rules compile; what they take is in ``corpus_routes.json``."""

from __future__ import annotations

import pytest

from config.problems import ProblemError
from config.query import check_query, compile_query


@pytest.mark.parametrize(
    ("name", "rule", "reason"),
    [
        ("a b", "any", "a query name is"),
        ("", "any", "a query name is"),
        ("a%20b", "any", "a query name is"),
        ("a&b", "any", "a query name is"),
        ("a=b", "any", "a query name is"),
        ("a;b", "any", "a query name is"),
        ("a+b", "any", "a query name is"),
        ("é", "any", "a query name is"),
        ("access_token", "any", "carries a credential"),
        ("API_KEY", "any", "carries a credential"),
        ("a", [], "an empty list"),
        ("a", {"values": []}, "an empty list"),
        ("a", ["x", "x"], "stands twice"),
        ("a", ["x", "{customer}"], "a rule of its own"),
        ("a", ["x\n"], "control"),
        ("a", {"const": "x\x00"}, "control"),
        ("a", {"const": "x", "values": ["y"]}, "one of type, pattern"),
        ("a", {"type": "int", "param": "x"}, "one of type, pattern"),
        ("a", {"pattern": "("}, "not a pattern"),
        ("a", {"pattern": r"(x)\1"}, "not a pattern"),
    ],
)
def test_a_rule_that_is_none_is_named_with_its_reason(name, rule, reason):
    _, wrong = compile_query({name: rule, "fine": "any"})
    assert [parameter for parameter, _ in wrong] == [name]
    assert reason in wrong[0][1]


def test_the_parameters_that_rules_refer_to_are_known():
    rules, _ = compile_query({"a": "{customer}", "b": {"param": "region"}, "c": "any"})
    assert rules.params == {"customer", "region"}


def test_a_constant_that_reads_like_a_word_is_written_as_const():
    rules, _ = compile_query({"a": {"const": "int"}, "b": {"const": "{x}"}})
    check_query(rules, b"a=int&b=%7Bx%7D", {"x": "1"})
    for query in (b"a=1", b"b=1"):
        with pytest.raises(ProblemError):
            check_query(rules, query, {"x": "1"})


def test_a_run_parameter_that_is_not_there_fits_no_value():
    rules, _ = compile_query({"a": "{x}"})
    for query in (b"a=", b"a=None"):
        with pytest.raises(ProblemError):
            check_query(rules, query, {})


def test_an_object_without_a_kind_takes_any_text():
    rules, _ = compile_query({"a": {"required": True}})
    check_query(rules, b"a=whatever", {})


def test_a_refusal_names_parameters_of_the_rules_only():
    rules, _ = compile_query({"cursor": "int"})
    for query in (b"canary=1", b"cursor=canary", b"cursor=1&canary=2", b"canary"):
        with pytest.raises(ProblemError) as refused:
            check_query(rules, query, {})
        assert "canary" not in refused.value.detail
        assert "cursor" in refused.value.detail


@pytest.mark.parametrize(
    ("query", "fits"),
    [
        (b"DateCreated%3C=2026-12-01", True),
        (b"DateCreated%3c=2026-12-01", True),
        (b"DateCreated%3E=2026-12-01", False),
        (b"DateCreated=2026-12-01", False),
        (b"%44ateCreated%3C=2026-12-01", False),
        (b"DateCreated%253C=2026-12-01", False),
    ],
)
def test_a_name_that_holds_an_angle_bracket_is_escaped_on_the_wire(query, fits):
    rules, wrong = compile_query({"DateCreated<": "any"})
    assert wrong == []
    if fits:
        check_query(rules, query, {})
    else:
        with pytest.raises(ProblemError, match="query-not-granted"):
            check_query(rules, query, {})
