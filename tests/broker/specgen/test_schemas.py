"""Schemas of a document are looked through without trusting any of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.specgen import schemas as looking
from broker.specgen.model import DocumentError
from tests.broker.specgen import reading
from tests.broker.specgen.reading import at, to

COMMENT = {"type": "object", "properties": {"text": {"type": "string"}, "parent": to("Comment")}}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string"}),
        ({"type": ["string", "integer"]}, {"string", "integer"}),
        ({"type": "string", "nullable": True}, {"string"}),
        ({}, set()),
        ({"type": "null"}, set()),
        ({"type": "file"}, set()),
        ({"enum": ["a", 1, None, True]}, {"string", "integer", "boolean"}),
        ({"const": 0.5}, {"number"}),
        ({"properties": {"a": {}}}, {"object"}),
        ({"items": {}}, {"array"}),
        ({"allOf": [{"type": "integer"}, {"minimum": 1}]}, {"integer"}),
        ({"allOf": [{"type": "number"}, {"type": "integer"}]}, {"integer"}),
        ({"type": "string", "allOf": [{"type": "integer"}]}, {"string"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string"}),
        ({"oneOf": [{"type": "string"}, {"type": "array"}]}, {"string", "array"}),
        ({"anyOf": [{"type": "string"}, {}]}, set()),
        (to("Named"), {"boolean"}),
        (True, set()),
        (False, set()),
        ("string", set()),
        ([], set()),
        (None, set()),
        ({"type": {"a": 1}}, set()),
        ({"allOf": {"type": "string"}}, set()),
        ({"type": ["string", {}, 7]}, {"string"}),
        ({"type": "string", "enum": [1, 2]}, {"string"}),
        ({"anyOf": [True, {"type": "string"}]}, set()),
        ({"oneOf": [[], {"type": "null"}]}, set()),
    ],
)
def test_the_types_of_a_value_are_found_through_references_and_combinations(schema, types):
    document = reading.schemas(Named={"type": "boolean"})
    assert looking.types(document, at(schema)) == types


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"enum": ["a", "b"]}, ("a", "b")),
        ({"const": "x"}, ("x",)),
        ({"const": None}, (None,)),
        ({"enum": []}, None),
        ({"enum": "ab"}, None),
        ({"type": "string"}, None),
        ({"allOf": [{"enum": ["a", "b", "c"]}, {"enum": ["c", "b"]}]}, ("b", "c")),
        ({"anyOf": [{"enum": ["a"]}, {"enum": ["b", "a"]}]}, ("a", "b")),
        ({"anyOf": [{"enum": ["a"]}, {"type": "string"}]}, None),
        ({"anyOf": [{"enum": ["a"]}, {"type": "null"}]}, ("a",)),
        ({"enum": [1, True, 1.0, 1]}, (1, True, 1.0)),
        ({"enum": list(range(2000))}, None),
        ({"allOf": [{"enum": ["a"]}, {"enum": ["b"]}]}, None),
        ({"allOf": [to("Read"), to("ReadToo")]}, ("read from a file",)),
    ],
)
def test_an_enum_is_known_only_where_no_other_value_is_allowed(schema, values):
    document = reading.schemas(Read={"enum": ["x", "read from a file"]}, ReadToo={"enum": ["read from a file"]})
    found = looking.enum_of(document, at(schema))
    assert found == values
    if found is not None:
        assert [type(value) for value in found] == [type(value) for value in values]


def test_members_are_merged_from_all_of_in_the_documents_order():
    document = reading.schemas(Base={"properties": {"id": {"type": "string"}, "kind": {}}, "required": ["id"]})
    schema = {
        "allOf": [to("Base"), {"properties": {"kind": {"const": "x"}}}],
        "properties": {"a/b": {}},
        "required": ["kind", 3],
    }
    found = looking.members(document, at(schema))
    assert list(found) == ["id", "kind", "a/b"]
    assert found["kind"] == at({"const": "x"}, "#/here/allOf/1/properties/kind")
    assert found["id"].pointer == "#/components/schemas/Base/properties/id"
    assert found["a/b"].pointer == "#/here/properties/a~1b"
    assert looking.required_members(document, at(schema)) == {"id", "kind"}


def test_members_of_every_alternative_are_known_but_none_of_them_is_required():
    schema = {"oneOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]}
    assert list(looking.members(reading.schemas(), at(schema))) == ["a", "b"]
    assert looking.required_members(reading.schemas(), at(schema)) == set()


def test_a_schema_that_may_also_be_null_is_looked_into_like_one_that_may_not():
    schema = {"anyOf": [{"properties": {"a": {}}, "required": ["a"]}, {"type": "null"}]}
    assert list(looking.members(reading.schemas("3.1.0"), at(schema))) == ["a"]
    assert looking.required_members(reading.schemas("3.1.0"), at(schema)) == {"a"}


@pytest.mark.parametrize(
    ("schema", "items"),
    [
        ({"items": {"type": "string"}}, at({"type": "string"}, "#/here/items")),
        ({"oneOf": [{"type": "string"}, {"items": True}]}, at(True, "#/here/oneOf/1/items")),
        ({"items": [{"type": "string"}]}, at({})),
        ({"type": "array"}, at({})),
        (7, at({})),
    ],
)
def test_what_a_list_holds_is_found_or_nothing_is_said_of_it(schema, items):
    assert looking.items(reading.schemas(), at(schema)) == items


def test_a_comment_whose_parent_is_a_comment_is_cut_at_the_reference():
    document = reading.schemas(Comment=COMMENT)
    found = looking.members(document, at(to("Comment")))
    assert list(found) == ["text", "parent"]
    assert found["parent"].schema == to("Comment")


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_a_schema_made_of_itself_says_what_else_it_says(keyword):
    document = reading.schemas(Loop={keyword: [to("Loop")], "type": "object", "properties": {"a": {}}})
    assert looking.types(document, at(to("Loop"))) == {"object"}
    assert looking.enum_of(document, at(to("Loop"))) is None
    assert list(looking.members(document, at(to("Loop")))) == ["a"]
    assert looking.items(document, at(to("Loop"))).schema == {}


@pytest.mark.parametrize("reference", ["#/components/schemas/None", "https://else.where/x.json", 7, "#/components"])
def test_a_reference_that_leads_nowhere_says_nothing(reference):
    document = reading.schemas()
    assert looking.types(document, at({"$ref": reference})) == set()
    assert looking.resolved(document, at({"$ref": reference})).schema in ({}, document.root["components"])
    assert looking.members(document, at({"$ref": reference})) == {}


def asked(document, question, schema) -> int:
    """Return how often a reference was looked at to answer a question."""
    count = 0
    original = document.resolve

    def counted(node, pointer):
        nonlocal count
        count += 1
        return original(node, pointer)

    document.resolve = counted
    question(document, at(schema))
    document.resolve = original
    return count


@pytest.mark.parametrize("question", [looking.types, looking.members, looking.enum_of, looking.required_members])
def test_schemas_that_double_at_each_level_are_not_all_looked_at(question):
    named = {f"L{level}": {"allOf": [to(f"L{level + 1}")] * 8} for level in range(20)}
    document = reading.schemas(**named, L20={"type": "string"})
    assert asked(document, question, to("L0")) < 1000


@pytest.mark.parametrize("question", [looking.types, looking.members, looking.enum_of, looking.required_members])
def test_a_cycle_is_left_where_it_comes_back(question):
    document = reading.schemas(Loop={"allOf": [to("Loop"), to("Loop")]})
    assert asked(document, question, to("Loop")) == 3


@pytest.mark.parametrize("question", [looking.types, looking.members, looking.enum_of, looking.items])
def test_a_long_chain_of_schemas_is_left_before_it_gets_too_deep(question):
    named = {f"L{level}": {"allOf": [to(f"L{level + 1}")]} for level in range(250)}
    document = reading.schemas(**named, L250={"type": "string"})
    assert asked(document, question, to("L0")) < 50


def test_more_alternatives_than_are_looked_at_leave_the_type_open():
    schema = {"anyOf": [{"type": "string"}] * 300}
    assert looking.types(reading.schemas(), at(schema)) == set()
    assert looking.types(reading.schemas(), at({"anyOf": schema["anyOf"][:200]})) == {"string"}


@pytest.mark.parametrize("count", [2000, 5000])
def test_an_object_of_very_many_members_has_the_first_of_them(count):
    schema = {"properties": {f"m{index}": {} for index in range(count)}}
    assert list(looking.members(reading.schemas(), at(schema))) == [f"m{index}" for index in range(2000)]


@pytest.mark.parametrize(
    ("question", "schema"),
    [
        (looking.types, {"allOf": [{}] * 20}),
        (looking.types, {}),
        (looking.enum_of, {"enum": list(range(900))}),
        (looking.members, {"properties": {f"m{index}": {} for index in range(900)}}),
    ],
)
def test_a_document_whose_schemas_are_looked_at_too_often_is_refused_in_one_line(monkeypatch, question, schema):
    monkeypatch.setattr(looking, "MAX_LOOKED_AT", 100)
    document = reading.schemas()

    def often():
        for _ in range(101):
            question(document, at(schema))

    with pytest.raises(DocumentError) as caught:
        often()
    assert len(str(caught.value).splitlines()) == 1
    looking.types(reading.schemas(), at({}))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["string", "null", "#/components/schemas/A", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["$ref", "type", "enum", "const", "allOf", "anyOf", "oneOf", "properties", "required", "items", "a"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@given(ANYTHING, ANYTHING, st.sampled_from(["3.0.3", "3.1.0"]))
def test_no_schema_makes_looking_fail(schema, other, version):
    document = reading.schemas(version, A=other)
    here = at(schema)
    assert isinstance(looking.resolved(document, here).schema, dict | bool)
    looking.types(document, here)
    looking.enum_of(document, here)
    looking.required_members(document, here)
    looking.items(document, here)
    for member in looking.members(document, here).values():
        looking.types(document, member)
