"""Schemas of a document, written out for a model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from broker.specgen.jsonkeywords import safe_value
from broker.specgen.jsonschemas import Limits, json_schema
from broker.specgen.shapes import shape
from tests.broker.specgen import reading
from tests.broker.specgen.anything import SCHEMAS
from tests.broker.specgen.reading import at, to
from tests.broker.specgen.test_texts import QUOTATION, unseen

KEYWORDS = {
    *("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "description"),
    *("format", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
}
SLOW = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def written(schema: Any, version: str = "3.1.0", *, answer: bool = False, **named: Any) -> dict[str, Any]:
    limits = Limits()
    document = reading.schemas(version, **named)
    return json_schema(document, at(schema), limits, answer=answer)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "pattern": "(a+)+$", "x-y": 1, "example": "a"}, {"type": "string"}),
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}}),
        ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
        ({"minimum": 1, "exclusiveMinimum": False}, {"minimum": 1}),
        ({"exclusiveMinimum": 1, "maxLength": -1}, {"exclusiveMinimum": 1}),
        ({"allOf": [{"type": "string"}, {"maxLength": 3}]}, {"type": "string", "maxLength": 3}),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        ({"oneOf": [{"type": "string"}, {}]}, {}),
        ({"anyOf": [{"type": "string"}]}, {"type": "string"}),
        ({"description": "a \u202e\n b"}, {"description": '"a b"'}),
        ({"description": 'say "x"'}, {"description": '"say \\"x\\""'}),
        ({"type": "object", "additionalProperties": {"type": "integer"}},) * 2,
        ({"type": "array", "items": {"type": "integer"}},) * 2,
        ({"const": "a"}, {"const": "a"}),
        ({"enum": [1, True, "a", None]}, {"enum": [1, True, "a", None]}),
        ({"enum": ["a", "b\u200b"]}, {"description": 'One of 2 values, such as "a".'}),
        ({"const": {"a": 1}}, {}),
        ({"default": "x\x00"}, {}),
        ({"type": ["file", 3, None, "string"]}, {"type": "string"}),
        (True, {}),
        (False, {}),
        (["a"], {}),
        ({"$ref": "#/nowhere"}, {}),
    ],
)
def test_what_is_known_is_written_and_the_rest_is_left_out(schema, expected):
    assert written(schema) == expected


def test_an_enum_of_many_values_is_told_and_does_not_forbid_any():
    found = written({"type": "string", "enum": [f"v{n}" for n in range(500)]})
    assert found == {"type": "string", "description": 'One of 500 values, such as "v0", "v1", "v2".'}


def test_members_that_only_the_other_side_sends_are_left_out():
    schema = {
        "type": "object",
        "required": ["id", "name"],
        "properties": {"id": {"readOnly": True}, "name": {}, "secret": {"writeOnly": True}},
    }
    assert written(schema)["properties"] == {"name": {}, "secret": {}}
    assert written(schema)["required"] == ["name"]
    assert written(schema, answer=True)["properties"] == {"id": {}, "name": {}}


def test_a_member_whose_name_would_be_changed_is_not_shown_and_the_object_stays_open():
    schema = {"type": "object", "properties": {"a": {}, "b\u202e": {}}, "additionalProperties": False}
    assert written(schema) == {
        "type": "object",
        "properties": {"a": {}},
        "description": "1 more members are not shown.",
    }


def test_a_cycle_is_cut_where_it_comes_back():
    comment = {"type": "object", "properties": {"text": {"type": "string"}, "parent": to("Comment")}}
    found = written(to("Comment"), Comment=comment)
    assert found["properties"] == {
        "text": {"type": "string"},
        "parent": {"type": "object", "description": "The same again, one level deeper."},
    }
    assert shape(found, 200) == "{text?: string, parent?: object}"


def test_a_base_that_two_members_share_is_no_cycle():
    base = {"properties": {"id": {"type": "string"}}}
    inner = {"allOf": [to("Base"), {"properties": {"n": {"type": "integer"}}}]}
    found = written({"allOf": [to("Base"), {"properties": {"child": inner}}]}, Base=base)
    assert list(found["properties"]) == ["id", "child"]
    assert list(found["properties"]["child"]["properties"]) == ["id", "n"]


def test_how_deep_and_how_much_is_bounded():
    deep: Any = {"type": "string"}
    for _ in range(50):
        deep = {"type": "object", "properties": {"a": deep}}
    assert json.dumps(written(deep)).count('"a"') == 5
    wide = {"type": "object", "properties": {f"m{n}": {"type": "object", "properties": {"x": {}}} for n in range(5000)}}
    found = written(wide)
    assert len(found["properties"]) <= 64
    assert found["description"] == f"{5000 - len(found['properties'])} more members are not shown."


def test_forms_within_forms_are_bounded():
    forms: Any = [{"type": "string", "maxLength": n} for n in range(8)]
    for _ in range(4):
        forms = [{"title": str(n), "anyOf": forms} for n in range(8)]
    assert json.dumps(written({"anyOf": forms})).count('"maxLength"') < 200


def test_parts_within_parts_are_bounded():
    parts: Any = [{"type": "object", "properties": {f"p{n}": {}}} for n in range(200)]
    assert "description" not in written({"allOf": parts, "type": "object"})
    assert len(written({"allOf": parts, "type": "object"})["properties"]) == 63


def test_of_two_that_say_the_same_keyword_the_outer_one_counts():
    inner = {"type": "object", "description": "in", "properties": {"a": {"type": "string"}}}
    outer = {"description": "out", "properties": {"a": {"type": "integer"}}, "allOf": [inner]}
    assert written(outer)["description"] == '"out"'
    assert written(outer)["properties"] == {"a": {"type": "integer"}}


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**30, "x" * 300, "a\u200b", " a", [], {}])
def test_a_value_that_would_be_changed_to_be_shown_is_not_safe(value):
    assert not safe_value(value)


@pytest.mark.parametrize("value", [None, True, 1, -1.5, "", "a b", 2**63])
def test_a_plain_value_is_safe(value):
    assert safe_value(value)


@SLOW
@given(schema=SCHEMAS, named=st.dictionaries(st.sampled_from("ab"), SCHEMAS), answer=st.booleans())
def test_whatever_the_document_holds_it_is_a_schema_of_clean_texts(schema, named, answer):
    found = written(schema, answer=answer, **named)
    Draft202012Validator.check_schema(found)
    assert keywords(found) <= KEYWORDS
    assert not any(map(unseen, texts(found)))
    told = shape(found, 300)
    assert len(told) <= 300 or told == shape(found, 0)
    assert not any(map(unseen, told))
    assert '"' not in QUOTATION.sub("", told)


_TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null"])
_LEAVES = (
    st.fixed_dictionaries({"type": _TYPES | st.lists(_TYPES, min_size=1, max_size=2, unique=True)})
    | st.fixed_dictionaries({"type": st.just("integer")}, optional={"minimum": st.integers(-2, 2)})
    | st.fixed_dictionaries({"enum": st.lists(st.sampled_from(["a", 1, True, None]), min_size=1, max_size=3)})
    | st.sampled_from([{"const": 1}, {}, {"$ref": "#/components/schemas/A"}, {"$ref": "#/components/schemas/B"}])
)
_NAMES = st.sampled_from(["p", "q"])


def _nested(inner: Any) -> Any:
    several = st.lists(inner, min_size=1, max_size=3)
    members = st.dictionaries(_NAMES, inner, min_size=1)
    more = {"required": st.lists(_NAMES, max_size=1), "additionalProperties": st.booleans() | inner}
    forms = {"anyOf": several, "oneOf": several, "allOf": several}
    return (
        st.fixed_dictionaries({"type": st.just("object")}, optional={"properties": members, **more, **forms})
        | st.fixed_dictionaries({"type": st.just("array"), "items": inner}, optional={"maxItems": st.integers(0, 2)})
        | st.fixed_dictionaries({}, optional=forms)
    )


_SOUND = st.recursive(_LEAVES, _nested, max_leaves=8)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["a", "b", 1.5]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_NAMES | st.just("r"), inner, max_size=3),
    max_leaves=5,
)


@settings(SLOW, max_examples=400)
@given(_SOUND, _SOUND, _SOUND, st.lists(_VALUES, min_size=1, max_size=5))
def test_what_the_document_takes_the_written_schema_takes_too(schema, a, b, values):
    if {"$ref": "#/components/schemas/A"} in (a, b) or "$ref" in b:
        return  # a reference to itself is no schema
    named = {"A": a, "B": b}
    own = Draft202012Validator({"allOf": [schema], "components": {"schemas": named}})
    found = Draft202012Validator(written(schema, **named))
    for value in values:
        try:
            taken = own.is_valid(value)
        except RecursionError:
            return  # A is B, and B is A
        assert not taken or found.is_valid(value), value


def keywords(schema: dict[str, Any]) -> set[str]:
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    inner += [schema[name] for name in ("items", "additionalProperties") if isinstance(schema.get(name), dict)]
    return set(schema).union(*map(keywords, inner))


def texts(value: Any) -> str:
    if isinstance(value, dict):
        return "".join([*value, *map(texts, value.values())])
    return "".join(map(texts, value)) if isinstance(value, list) else value if isinstance(value, str) else ""
