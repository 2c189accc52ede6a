from __future__ import annotations

import re

import pytest

from config.routes import METHODS, Glob, Literal, Param, Star, parse_route, rank


def test_a_template_is_parsed_into_its_segments():
    route = parse_route("POST /v1/{customer}/session:{id}/*:merge/*.*/*/add/")
    assert route.method == "POST"
    assert route.segments == (
        Literal("v1"),
        Param("customer"),
        Param("id", "session:"),
        Glob(("", ":merge")),
        Glob(("", ".", "")),
        Star(),
        Literal("add"),
    )
    assert route.trailing_slash
    assert route.wildcards
    assert route.params == ("customer", "id")
    assert route.text == "POST /v1/{customer}/session:{id}/*:merge/*.*/*/add/"


def test_the_root_and_a_trailing_slash_are_routes_of_their_own():
    assert parse_route("GET /").segments == ()
    assert parse_route("GET /").trailing_slash
    assert parse_route("GET /x/").shape != parse_route("GET /x").shape


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_the_list_makes_a_route(method):
    assert parse_route(f"{method} /x").method == method


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "METHOD, one space"),
        ("GET", "METHOD, one space"),
        ("/v1/items", "METHOD, one space"),
        ("get /x", "in capitals"),
        ("TRACE /x", "the method is one of"),
        ("* /x", "the method is one of"),
        ("GET  /x", "starts with /"),
        ("GET x", "starts with /"),
        ("GET https://api.test/x", "starts with /"),
        ("GET /x?y=1", "granted by `query`"),
        ("GET /x#y", "fragment"),
        ("GET /x;y", "always refused"),
        ("GET /x%20y", "no escapes"),
        ("GET /**", "not a wildcard here"),
        ("GET /a**b", "not a wildcard here"),
        ("GET /x//y", "empty segment"),
        ("GET /./x", "dots only"),
        ("GET /x/..", "dots only"),
        ("GET /...", "dots only"),
        ("GET /x y", "literal text"),
        ("GET /x ", "literal text"),
        ("GET /é", "literal text"),
        ("GET /x\n", "literal text"),
        ("GET /x\\y", "literal text"),
        ("GET /a*b*c*d", "at most two *"),
        ("GET /{a}{b}", "at most one"),
        ("GET /{a", "one {name}"),
        ("GET /a}", "one {name}"),
        ("GET /{}", "a parameter's name"),
        ("GET /{1a}", "a parameter's name"),
        ("GET /{a b}", "a parameter's name"),
        ("GET /{a}*", "cannot share"),
        ("GET /x{a}|", "literal text"),
        ("GET /" + "x" * 2048, "at most 2048"),
    ],
)
def test_what_is_no_template_is_refused_with_its_reason(text, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_route(text)


def test_literal_outranks_param_outranks_glob_outranks_star():
    long_glob, long_param = Glob(("x" * 900, "y" * 900)), Param("a", "x" * 900, "y" * 900)
    order = [Star(), Glob(("", "a")), long_glob, Param("a"), long_param, Literal("a")]
    assert [rank(segment) for segment in order] == sorted({rank(segment) for segment in order})
