"""The contract of placements, over the registry: a new scheme is tested without touching this file's cases."""

from __future__ import annotations

import base64
import importlib
import re
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.placements import Registry
from config.errors import ConfigurationError
from config.problems import ProblemError
from config.secret import Secret

BUILT_IN = Registry()

#: An example of each scheme's options; a scheme without one here is taken from its docstring.
EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "basic": [{"user": "x"}, {"password": ""}, {"password": "y"}],
    "cookie": [{"name": "session"}],
    "header": [{"name": "X-API-Key"}, {"name": "project_id"}, {"name": "Authorization", "prefix": "Bot "}],
    "headers": [{"headers": {"A-Key": "api_key", "B-Key": "app_key"}}],
    "query": [{"name": "key"}],
}
CASES = [{"scheme": scheme, **options} for scheme in BUILT_IN.schemes() for options in EXAMPLES.get(scheme, [{}])]
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=600)


def credential(case: dict[str, Any], value: str) -> dict[str, Secret]:
    fields = case["headers"].values() if case["scheme"] == "headers" else ["value"]
    return {field: Secret(value) for field in fields}


def occurrences(value: str, headers: list[tuple[bytes, bytes]], target: bytes) -> int:
    """Count where a value stands, as the receiver reads it."""
    found = 0
    for name, text in headers:
        readable = text
        if name == b"authorization" and text.startswith(b"Basic "):
            readable = base64.b64decode(text[6:])
        found += value.encode() in readable
    return found + sum(
        unquote_to_bytes(pair.partition(b"=")[2]) == value.encode() for pair in target.partition(b"?")[2].split(b"&")
    )


def test_the_schemes_are_these():
    assert BUILT_IN.schemes() == ["basic", "bearer", "cookie", "header", "headers", "query", "token"]
    for scheme in BUILT_IN.schemes():
        assert f'"scheme": "{scheme}"' in importlib.import_module(f"broker.placements.{scheme}").__doc__


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_value_occurs_once_in_each_declared_place_and_the_input_is_not_changed(case):
    placement = BUILT_IN.build(case)
    headers = [(b"accept", b"a/b"), (b"accept", b"c/d")]
    placed, target = placement.place(headers, b"/a?x=1", credential(case, "v4lue-not-elsewhere"))
    assert headers == [(b"accept", b"a/b"), (b"accept", b"c/d")]
    assert [header for header in placed if header[0] == b"accept"] == headers
    expected = len(case.get("headers", [1]))
    assert occurrences("v4lue-not-elsewhere", placed, target) == expected
    assert target.startswith(b"/a?x=1")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_the_code_sent_there_is_gone_first(case):
    placement = BUILT_IN.build(case)
    names = {b"authorization", b"cookie", *placement.token_headers}
    headers = [(name, b"from-the-code") for name in names for _ in range(2)]
    placed, _ = placement.place(headers, b"/a", credential(case, "v"))
    target_of = {name for name, value in placed if value != b"from-the-code"}
    assert all(sum(name == other for other, _ in placed) == 1 for name in target_of)


@pytest.mark.parametrize("value", ["", " Zq", "Zq ", "Zq\r\nb", "Zq\nb", "Zq\x00b", "Zq\x7fb", "Zä", "Zq\u2028b", "\t"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_value_that_cannot_be_written_plainly_is_refused_and_not_repeated(case, value):
    with pytest.raises(ProblemError, match="credential-unusable") as error:
        BUILT_IN.build(case).place([], b"/a", credential(case, value))
    assert "Z" not in str(error.value)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_credential_without_the_field_is_refused(case):
    with pytest.raises(ProblemError, match="credential-unusable"):
        BUILT_IN.build(case).place([], b"/a", {"other": Secret("v")})


@given(VALUES)
def test_any_printable_credential_goes_out_whole_or_is_refused(value):
    for case in CASES:
        try:
            placed, target = BUILT_IN.build(case).place([], b"/a", credential(case, value))
        except ProblemError:
            # The only ones that must: a cookie has an end of its own, a user's name no colon.
            assert re.search(r'[",;\\]', value) if case["scheme"] == "cookie" else ":" in value and "password" in case
            continue
        assert occurrences(value, placed, target) == len(case.get("headers", [1]))
        assert all(b"\r" not in text and b"\n" not in text for _, text in placed)
        assert b" " not in target


@pytest.mark.parametrize("value", ["a;b", 'a"b', "a,b", "a\\b", "a b"])
def test_a_value_that_would_end_a_cookie_is_refused(value):
    with pytest.raises(ProblemError, match="credential-unusable"):
        BUILT_IN.build({"scheme": "cookie", "name": "session"}).place([], b"/a", {"value": Secret(value)})


def test_a_value_that_would_end_the_user_of_a_basic_pair_is_refused():
    with pytest.raises(ProblemError, match="credential-unusable"):
        BUILT_IN.build({"scheme": "basic", "password": "x"}).place([], b"/a", {"value": Secret("a:b")})


@pytest.mark.parametrize("query", [b"key=x", b"a=1&key=x", b"key", b"k%65y=x", b"%6Bey=", b"a=1&key=x&b=2"])
def test_a_parameter_of_the_codes_own_beside_the_credentials_is_refused(query):
    placement = BUILT_IN.build({"scheme": "query", "name": "key"})
    with pytest.raises(ProblemError, match="query-not-granted"):
        placement.place([], b"/a?" + query, {"value": Secret("v")})
    assert placement.place([], b"/a?keys=1&akey=2", {"value": Secret("v")})[1] == b"/a?keys=1&akey=2&key=v"


def test_a_token_of_five_hundred_characters_with_dots_is_as_good_as_any():
    value = "ghs_" + "a1._-" * 104
    placed, _ = BUILT_IN.build({"scheme": "bearer"}).place([], b"/", {"value": Secret(value)})
    assert placed == [(b"authorization", f"Bearer {value}".encode())]


@pytest.mark.parametrize(
    "placement",
    [
        {}, {"scheme": ""}, {"scheme": "nope"}, {"scheme": "bearer", "name": "x"}, {"scheme": "header"},
        {"scheme": "header", "name": ""}, {"scheme": "header", "name": "a b"}, {"scheme": "header", "name": "X\r\nY"},
        {"scheme": "header", "name": "Host"}, {"scheme": "header", "name": "Content-Length"},
        {"scheme": "header", "name": "Connection"}, {"scheme": "header", "name": "Content_Length"},
        {"scheme": "header", "name": "X", "prefix": "a\r\n"}, {"scheme": "header", "name": "X", "prefix": " a"},
        {"scheme": "header", "name": 1}, {"scheme": "headers", "headers": {}}, {"scheme": "headers"},
        {"scheme": "headers", "headers": {"A": "x", "a": "y"}}, {"scheme": "headers", "headers": {"A": "x", "B": "x"}},
        {"scheme": "headers", "headers": {"Transfer-Encoding": "x"}}, {"scheme": "basic"},
        {"scheme": "basic", "user": "a", "password": "b"}, {"scheme": "basic", "user": "a:b"},
        {"scheme": "basic", "user": "ä"}, {"scheme": "query"}, {"scheme": "query", "name": ""},
        {"scheme": "query", "name": "a&b"}, {"scheme": "query", "name": "a=b"}, {"scheme": "cookie", "name": "a;b"},
        {"scheme": "cookie", "name": "a=b"}, {"scheme": "cookie"},
    ],
    ids=str,
)  # fmt: skip
def test_a_placement_that_is_none_is_a_fault_with_its_place(placement):
    [fault] = BUILT_IN.check("grants.json: profiles.x.placement", placement)
    assert fault.where == "grants.json: profiles.x.placement"


def test_a_third_partys_scheme_loads_only_when_the_settings_name_it_and_it_is_there():
    with pytest.raises(ConfigurationError, match="no such placement"):
        Registry(["not-installed"])
    with pytest.raises(ConfigurationError):
        Registry(["bearer"])


def test_a_question_that_specgen_left_says_that_it_is_one():
    (fault,) = Registry().check("profiles.p.placement", {"scheme": "?"})
    assert fault.what.startswith("a question that is still to be answered; there are basic, bearer")
