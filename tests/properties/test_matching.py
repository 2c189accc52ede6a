"""For any bytes: a call is refused, or it is exactly these bytes on a granted route.

The reference is ``tests/properties/rules.py``.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, unquote_to_bytes

import pytest
from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st

from config.match import DeniedError
from config.problems import ProblemError
from config.query import check_query, compile_query
from config.target import split_target
from tests.config.grants_of import matcher
from tests.properties.rules import GIVEN, decide, text

PARAMS = {"p": "[a-z.:]+", "q": "[a-z]+"}

SEGMENTS = ["a", "b", "bb", "A", "a.b", "x.json", "a:b", ".a"]
TEMPLATES = [*SEGMENTS, "*", "*", "*", "{p}", "{q}", "x{p}", "*.json", "a*", "*.*", "*:b", "{p}.b"]
WIRE = [*SEGMENTS, "xa", "y.json", "b:b", "(a)", "a%20b", "a%2Fb", "a%2Fbb", "%C3%A9", "%41", "%2E%2E", "a%2fb", "%zz"]
ODD = ["", ".", "..", "...", "é", "a;b", "a b", "%00", "%2E", "a%2F..", "%252E", "%E2%84%AA", "%2Fa", "a#", "a\\"]

methods = st.sampled_from(["GET", "HEAD", "POST"])
templates = st.builds(
    lambda method, segments, slash: f"{method} /" + "/".join(segments) + ("/" if slash and segments else ""),
    methods,
    st.lists(st.sampled_from(TEMPLATES), max_size=3),
    st.booleans(),
)


def entry(template, wide, encoded):
    return {"route": template, "wide": wide, "encoded": encoded} if "*" in template else template


entries = st.builds(entry, templates, st.booleans(), st.sampled_from([False, False, True, ["%2F", "%2E"], ["%3A"]]))
targets = st.builds(
    lambda segments, slash: "/" + "/".join(segments) + ("/" if slash else ""),
    st.lists(st.sampled_from(WIRE) | st.sampled_from(ODD), max_size=3),
    st.booleans(),
)
grants = st.builds(
    lambda allow, catalog: (
        list({text(item): item for item in allow}.values()),
        list(dict.fromkeys(catalog)),
    ),
    st.lists(entries, max_size=8),
    st.lists(templates, max_size=5),
)


# --- the properties ---


def outcome(built, method, target):
    try:
        return "granted", built.match(method, target.encode(), GIVEN).rule.text
    except DeniedError as refused:
        if refused.code in ("route-not-granted", "encoding-not-granted"):
            return "not-granted"
        return refused.code


@st.composite
def calls(draw):
    """A grants file and a call that is likely on one of its routes, and likely on a reserved one."""
    allow, catalog = draw(grants)
    target = draw(targets)
    method = draw(methods)
    templates_near = [text(item) for item in allow] + catalog
    if templates_near and draw(st.integers(0, 3)):
        method, _, path = draw(st.sampled_from(templates_near)).partition(" ")
        filled = re.sub(r"\{(.)\}", lambda name: GIVEN.get(name[1], "x"), path)
        target = re.sub(r"\*", lambda _: draw(st.sampled_from(WIRE)), filled)
    return allow, catalog, method, target


@settings(max_examples=300, deadline=None)
@given(calls())
@example((["GET /a/*", "GET /*/b"], ["GET /a/b/"], "GET", "/a/b"))
@example(([entry("GET /*", False, ["%2F"])], ["GET /*/b"], "GET", "/a%2Fb"))
def test_the_matcher_decides_as_the_rules_read_one_by_one_do(call):
    allow, catalog, method, target = call
    built = matcher(allow=allow, catalog=catalog, params=PARAMS)
    decided = outcome(built, method, target)
    event(decided if isinstance(decided, str) else "granted")
    assert decided == decide(allow, catalog, method, target)


EVERY_ESCAPE = ["%25", "%2F", "%5C", "%2E", "%3B", "%3F", "%23"]
WILDEST = matcher(
    allow=[
        *({"route": "GET " + "/*" * count, "wide": True, "encoded": EVERY_ESCAPE} for count in range(1, 5)),
        {"route": "GET /", "query": {"a": "any", "b": {"repeat": True}}},
    ]
)

raw_targets = (
    st.binary(max_size=40)
    | st.binary(max_size=30).map(lambda tail: b"/" + tail)
    | st.text("/.%25EFCabc;?#&=\\+ \0\r\n", max_size=30).map(lambda tail: b"/" + tail.encode())
)


@settings(max_examples=1000, deadline=None)
@given(raw_targets)
@example(b"/a/%2E%2E/b")
@example(b"/..%2F..%2Fetc")
@example(b"/%252E%252E")
def test_whatever_the_bytes_no_server_can_read_a_granted_target_as_another_path(raw):
    """Even of the widest routes: no dots-only or empty segment, no control, however often it is decoded."""
    try:
        WILDEST.match("GET", raw, {})
    except DeniedError:
        return
    path, _, query = raw.partition(b"?")
    assert raw.startswith(b"/")
    assert raw.isascii()
    assert not set(raw) & set(b"#;\\ \x7f" + bytes(range(32)))
    while True:
        segments = re.split(rb"[/\\]", path[1:])
        assert all(segments[:-1])
        assert not any(segment and not segment.split(b";")[0].strip(b".") for segment in segments)
        further = unquote_to_bytes(path)
        assert not set(further) & set(range(32))
        if further == path:
            break
        path = further
    assert raw != b"/?"
    assert not query or {pair.partition(b"=")[0] for pair in query.split(b"&")} <= {b"a", b"b"}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=4), st.data())
def test_a_granted_literal_route_takes_exactly_its_own_bytes(segments, data):
    path = "/" + "/".join(segments)
    built = matcher(allow=[f"GET {path}"])
    assert built.match("GET", path.encode(), {})
    raw = bytearray(path.encode())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    assume(bytes(raw) != path.encode())
    try:
        built.match("GET", bytes(raw), {})
    except DeniedError:
        return
    raise AssertionError


QUERY_RULES, _ = compile_query(
    {"any": "any", "n": "int", "one": ["a b", "a+b", "x"], "c": "k", "re": {"pattern": "[a-z ]*", "repeat": True}}
)
pairs = st.tuples(
    st.sampled_from(["any", "n", "one", "c", "re", "N", "zz", ""]),
    st.sampled_from(["", "1", "-0", "01", "a+b", "a%20b", "a%2Bb", "x", "k", "K", "%6B", "%C3%A9", "a=b", "abc", "99"]),
)


@settings(max_examples=500, deadline=None)
@given(st.lists(pairs, min_size=1, max_size=4))
def test_a_query_is_taken_exactly_when_every_pair_fits_under_both_readings(given_pairs):
    fits = {
        "any": lambda _: True,
        "n": lambda value: re.fullmatch("-?(0|[1-9][0-9]{0,18})", value),
        "one": lambda value: value in ("a b", "a+b", "x"),
        "c": lambda value: value == "k",
        "re": lambda value: re.fullmatch("[a-z ]*", value),
    }
    names = [name for name, _ in given_pairs]
    expected = all(name in fits for name in names) and all(names.count(name) == 1 or name == "re" for name in names)
    expected = expected and all(
        fits[name](unquote(reading)) for name, value in given_pairs for reading in (value, value.replace("+", " "))
    )
    raw = "&".join(f"{name}={value}" for name, value in given_pairs).encode()
    split_target(b"/?" + raw)
    if expected:
        check_query(QUERY_RULES, raw, {})
    else:
        with pytest.raises(ProblemError):
            check_query(QUERY_RULES, raw, {})
