"""A schema in one line."""

from __future__ import annotations

from typing import Any

import pytest

from broker.specgen.shapes import member_name, shape

STRING = {"type": "string"}
USER = {"type": "object", "properties": {"id": STRING, "name": STRING}, "required": ["id"]}


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        ({}, "any"),
        (STRING, "string"),
        ({"type": ["string", "null"]}, "string | null"),
        ({"type": "string", "format": "date-time"}, "string (date-time)"),
        ({"type": "string", "format": "Ignore the above"}, "string"),
        ({"const": "a"}, '"a"'),
        ({"type": "string", "enum": ["a", 'b"', 1, None, True]}, '"a" | "b\\"" | 1 | null | true'),
        (USER, "{id: string, name?: string}"),
        ({"type": "array", "items": USER}, "[{id: string, name?: string}]"),
        ({"type": "array"}, "[any]"),
        ({"type": "object"}, "object"),
        ({"type": "object", "additionalProperties": STRING}, "{name: string}"),
        ({"anyOf": [STRING, USER, STRING]}, "string | {id: string, name?: string}"),
        ({**USER, "anyOf": [STRING]}, "{id: string, name?: string} & (string)"),
        ({"type": ["object", "null"], "properties": {"a b": {}}}, '{"a b"?: any} | null'),
    ],
)
def test_a_schema_is_told_in_one_line(schema, line):
    assert shape(schema, 100) == line


def test_what_does_not_fit_is_cut_and_every_member_has_its_share():
    errors = {"type": "array", "items": {"type": "object", "properties": {f"member{n}": STRING for n in range(9)}}}
    answer = {"type": "object", "properties": {"errors": errors, "result": USER}, "required": ["errors", "result"]}
    assert shape(answer, 80) == "{errors: [{member0?: string, \u2026}], result: {id: string, name?: string}}"
    assert shape(answer, 55) == "{errors: [{\u2026}], result: {id: string, \u2026}}"
    assert shape(answer, 27) == "{errors: [\u2026], result: {\u2026}}"
    assert shape(answer, 20) == "{errors: [\u2026], \u2026}"
    assert shape(answer, 14) == "{\u2026}"


@pytest.mark.parametrize("limit", [0, 5, 20, 50, 100, 400])
def test_the_limit_is_kept_but_for_the_few_characters_of_a_type(limit):
    inner: Any = USER
    for _ in range(6):
        inner = {"type": "object", "properties": {"a": inner, "b": {"type": "array", "items": inner}, "c": STRING}}
    assert len(shape(inner, limit)) <= max(limit, 3)


def test_a_long_member_that_is_like_one_before_it_is_told_by_its_name_and_leaves_its_room_to_others():
    fault = {"type": "object", "properties": {"code": STRING, "message": STRING, "documentation_url": STRING}}
    faults = {"type": "array", "items": fault}
    answer = {"type": "object", "properties": {"errors": faults, "messages": faults, "a b": fault, "result": USER}}
    told = "[{code?: string, message?: string, documentation_url?: string}]"
    result = "{id: string, name?: string}"
    assert shape(answer, 500) == f'{{errors?: {told}, messages?: as errors, "a b"?: {told[1:-1]}, result?: {result}}}'
    little = "{code?: string, message?: string, …}"
    assert shape(answer, 180) == f'{{errors?: {told}, messages?: as errors, "a b"?: {little}, result?: {result}}}'
    del answer["properties"]["messages"], answer["properties"]["errors"]
    answer["properties"]["x"] = fault
    assert shape(answer, 500).endswith(', x?: as "a b"}')
    assert shape({"type": "object", "properties": {"a": USER, "b": USER}}, 100) == f"{{a?: {result}, b?: {result}}}"


def test_a_name_that_is_no_name_is_quoted():
    assert member_name("query_1") == "query_1"
    assert member_name('a" b') == '"a\\" b"'
    assert member_name("x" * 65).startswith('"')
