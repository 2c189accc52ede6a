"""A route's query rules say of a value what they can say exactly, and nothing that would refuse the document's own."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.specgen.model import Argument, Choices
from broker.specgen.patterns import only_plain
from broker.specgen.queries import pair_fault, path_options, query_rules, wire_names
from config.problems import ProblemError
from config.query import check_query, compile_query
from config.routes import PLAIN
from tests.broker.specgen import reading
from tests.broker.specgen.reading import at, query, rules, to


def argument(schema, **fields):
    return Argument(
        **{"identifier": "", "name": "id", "place": "path", "required": True, "schema": at(schema), **fields}
    )


def takes(written, raw):
    """Say whether the broker would let a query pass."""
    compiled, wrong = compile_query(written)
    assert wrong == []
    try:
        check_query(compiled, raw.encode(), {})
    except ProblemError:
        return False
    return True


@pytest.mark.parametrize(
    ("members", "rule"),
    [
        ({"type": "string"}, "any"),
        ({"type": "integer"}, "int"),
        ({"type": "number"}, "any"),
        ({"type": "boolean"}, ["true", "false"]),
        ({"type": ["integer", "null"]}, "int"),
        ({"type": ["integer", "string"]}, "any"),
        ({"enum": ["fact", "event"]}, ["fact", "event"]),
        ({"type": "integer", "enum": [1, 2, 2.0]}, ["1", "2"]),
        ({"type": "string", "enum": [True, "true"]}, "true"),
        ({"enum": [0.5, 1e-7, -3.0, 100]}, ["0.5", "0.0000001", "-3", "100"]),
        ({"enum": ["a", None]}, "a"),
        ({"const": "yes"}, "yes"),
        ({"const": "any"}, {"const": "any"}),
        ({"const": "int"}, {"const": "int"}),
        ({"const": "{name}"}, {"const": "{name}"}),
        ({"enum": ["{name}", "b"]}, {"values": ["{name}", "b"]}),
        ({"enum": ["", "b"]}, ["", "b"]),
        ({"type": "string", "pattern": "^[a-z]$", "maxLength": 3}, "any"),
        ({"required": True, "type": "string"}, {"type": "any", "required": True}),
        ({"required": True, "type": "integer"}, {"type": "int", "required": True}),
        ({"required": True, "enum": ["a", "b"]}, {"values": ["a", "b"], "required": True}),
        ({"required": True, "const": "a"}, {"const": "a", "required": True}),
    ],
)
def test_a_scalar_is_a_whole_number_constants_or_any_text(members, rule):
    assert rules(query(**members)) == {"q": rule}


@pytest.mark.parametrize(
    "values",
    [
        [f"v{index}" for index in range(257)],
        ["x" * 257, "b"],
        ["a\nb", "c"],
        ["\x9f"],
        [{"a": 1}, "c"],
        [["a"]],
        [1e300],
        [2**70],
        [None],
    ],
)
def test_an_enum_that_no_list_of_constants_can_hold_takes_any_text(values):
    assert rules(query(type="string", enum=values)) == {"q": "any"}


def test_an_enum_behind_a_reference_is_a_list_of_constants():
    within = reading.schemas(Kind={"type": "string", "enum": ["fact", "event"]})
    assert rules(query(schema=to("Kind")), within=within) == {"q": ["fact", "event"]}


def test_an_exploded_list_may_repeat_and_each_value_is_an_item():
    written = rules(
        query("tags", type="array", items={"enum": ["a", "b"]}), query("n", type="array", items={"type": "integer"})
    )
    assert written == {"tags": {"values": ["a", "b"], "repeat": True}, "n": {"type": "int", "repeat": True}}
    assert takes(written, "tags=a&tags=b&n=1&n=-2")
    assert not takes(written, "tags=c")


@pytest.mark.parametrize("style", ["form", "spaceDelimited", "pipeDelimited"])
def test_a_list_in_one_value_takes_any_text(style):
    member = query("tags", required=True, style=style, explode=False, type="array", items={"type": "integer"})
    written = rules(member)
    assert written == {"tags": {"type": "any", "required": True}}
    assert takes(written, "tags=1,2")
    assert takes(written, "tags=1%202")
    assert takes(written, "tags=1%7C2")
    assert not takes(written, "tags=1&tags=2")


def test_a_text_or_a_list_of_texts_takes_either():
    written = rules(query(oneOf=[{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]))
    assert written == {"q": {"type": "any", "repeat": True}}


@pytest.mark.parametrize("required", [False, True])
def test_a_deep_object_is_one_parameter_a_member(required):
    properties = {"eq": {"type": "integer"}, "like": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": ["eq"]}
    written = rules(query("filter", required=required, style="deepObject", schema=schema))
    assert written == {"filter[eq]": "int", "filter[like]": "any"}
    assert takes(written, "filter%5Beq%5D=1")
    assert takes(written, "filter[eq]=1&filter[like]=x")
    assert not takes(written, "eq=1")
    assert not takes(written, "filter=1")


def test_an_exploded_object_is_its_members():
    schema = {"type": "object", "properties": {"limit": {"type": "integer"}, "sort": {"enum": ["up", "down"]}}}
    assert rules(query("page", schema=schema)) == {"limit": "int", "sort": ["up", "down"]}


def test_an_object_in_one_value_takes_any_text():
    schema = {"type": "object", "properties": {"limit": {"type": "integer"}}}
    assert rules(query("page", explode=False, schema=schema)) == {"page": "any"}


def test_json_in_a_query_takes_any_text():
    assert rules(query("where", content={"application/json": {"schema": {"type": "object"}}})) == {"where": "any"}


def test_a_fixed_pair_is_a_constant_that_must_be_there_whatever_the_parameter_says():
    written = query_rules(reading.document(), [argument({}, name="a", place="query")], [("a", "any"), ("b", "")])
    assert written == {"a": {"const": "any", "required": True}, "b": {"const": "", "required": True}}
    assert takes(written, "a=any&b=")
    assert not takes(written, "a=any")
    assert not takes(written, "a=1&b=")


def test_a_fixed_name_with_two_values_may_repeat():
    written = query_rules(reading.document(), [], [("a", "1"), ("a", "2"), ("b", "1"), ("b", "1")])
    assert written["a"] == {"values": ["1", "2"], "required": True, "repeat": True}
    assert written["b"] == {"const": "1", "required": True, "repeat": True}
    assert takes(written, "a=1&a=2&b=1&b=1")


def test_what_is_not_of_the_query_has_no_rule():
    assert query_rules(reading.document(), [argument({}), argument({}, place="header")], []) == {}


def test_names_on_the_wire_are_the_documents_byte_for_byte():
    names = ["include[]", "$.xgafv", "deployment.series_name", "content-md5", "self", "client", "body"]
    assert list(rules(*map(query, names))) == names


def test_a_name_with_angle_brackets_is_sent_escaped():
    written = rules(query("DateCreated<", type="string"), query("DateCreated>", type="string"))
    assert written == {"DateCreated<": "any", "DateCreated>": "any"}
    assert takes(written, "DateCreated%3C=2026-11-30&DateCreated%3E=2026-11-01")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("a b", "", "a query name is"),
        ("", "", "a query name is"),
        ("a", "\n", "control"),
        ("api_key", "", "credential"),
    ],
)
def test_a_pair_that_no_rule_lets_pass_is_told_with_the_reason(name, value, says):
    assert says in (pair_fault(name, value) or "")
    assert pair_fault("beta", "true") is None


def test_the_names_of_an_object_that_is_one_value_are_its_own():
    fields = {"name": "f", "place": "query", "shape": "object", "members": ("a", "b")}
    assert wire_names(argument({}, style="deepObject", explode=True, **fields)) == ("f[a]", "f[b]")
    assert wire_names(argument({}, style="form", explode=True, **fields)) == ("a", "b")
    assert wire_names(argument({}, style="pipeDelimited", **fields)) == ("f",)
    assert wire_names(argument({}, style="json", **fields)) == ("f",)


@pytest.mark.parametrize(
    ("schema", "fields", "options"),
    [
        ({"type": "integer"}, {}, (False, False)),
        ({"type": "number"}, {}, (False, False)),
        ({"type": ["boolean", "null"]}, {}, (False, False)),
        ({"type": "string", "format": "uuid"}, {}, (False, False)),
        ({"type": "string", "format": "date"}, {}, (False, False)),
        ({"type": "string", "format": "date-time"}, {}, (True, True)),
        ({"type": "string", "format": ["uuid"]}, {}, (True, True)),
        ({"type": ["string", "integer"], "format": "uuid"}, {}, (True, True)),
        ({"enum": ["png", "jpg"]}, {}, (False, False)),
        ({"enum": ["a:b"]}, {}, (False, True)),
        ({"enum": ["a b"]}, {}, (True, True)),
        ({"enum": ["a\nb"]}, {}, (True, True)),
        ({"type": "string", "pattern": r"^\d+$"}, {}, (False, False)),
        ({"type": "string", "pattern": "^[^/]+$"}, {}, (True, True)),
        ({"type": "string", "pattern": 7}, {}, (True, True)),
        ({"type": "string"}, {}, (True, True)),
        ({}, {}, (True, True)),
        ({"items": {"type": "integer"}}, {"shape": "array"}, (False, True)),
        ({"items": {"type": "string"}}, {"shape": "array"}, (True, True)),
        ({"type": "integer"}, {"style": "json"}, (True, True)),
        ({"properties": {"a": {"type": "integer"}}}, {"shape": "object"}, (True, True)),
    ],
)
def test_a_wildcard_takes_as_little_as_its_parameter_needs(schema, fields, options):
    assert path_options(reading.document(), argument(schema, **fields), Choices()) == options


def test_slashes_in_a_value_are_taken_escaped_where_the_operator_says_so():
    choices = Choices(slashes=frozenset({"path"}))
    plain = {"type": "integer"}
    assert path_options(reading.document(), argument(plain, name="path"), choices) == (["%2F"], True)
    assert path_options(reading.document(), argument(plain, name="other"), choices) == (False, False)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$",
        "^CA[0-9a-fA-F]{32}$",
        "^[0-9A-HJKMNP-TV-Z]{26}$",
        r"^[\w.-]{1,}$",
        "^(?:a|b)+$",
        "^[-a]$",
        r"^v\d\.\d$",
    ],
)
def test_an_anchored_pattern_of_plain_characters_is_seen_as_one(pattern):
    assert only_plain(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "[a-z]+",
        "^[a-z]+",
        "[a-z]+$",
        "^a|b$",
        "^.+$",
        "^(.)$",
        "^(?:a|/)$",
        "^[^/]$",
        "^[+-9]$",
        "^[A-z]$",
        r"^[\d-x]$",
        r"^a\$",
        r"^\W$",
        r"^\$",
        "^[a-z:]$",
        "^(?i)k$",
        "^(?!a)a$",
        "^a)(b$",
        "^(a$",
        "^\u00e9$",
        "^a\n$",
        "^" + "a" * 600 + "$",
        "",
        "^",
        "$",
    ],
)
def test_a_pattern_that_may_match_other_characters_is_not_taken_for_plain(pattern):
    assert not only_plain(pattern)


PARTS = (
    st.sampled_from(
        ["[a-z]", "[+-9]", "[A-z]", "[a-c-e]", "[^a]", "[-.]", r"[\w-]", r"[\d:]", r"\d", r"\.", r"\W", r"\$"]
    )
    | st.sampled_from(["(?:", "(?i:", "(?!", "{1,3}", "{2}"])
    | st.sampled_from(".aZ9/% :-()|*+?^$[]")
)


@settings(max_examples=500)
@given(st.lists(PARTS, min_size=1, max_size=6).map("".join), st.data())
def test_what_matches_a_plain_pattern_is_plain(inner, data):
    if only_plain(f"^{inner}$"):
        try:
            pattern = re.compile(f"^(?:{inner})$", re.ASCII)
        except re.error:
            return
        value = data.draw(st.from_regex(pattern, fullmatch=True))
        assert not set(value.removesuffix("\n")) - set(PLAIN)
