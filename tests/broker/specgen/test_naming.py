"""Names that the code uses, made of names that a document may write in any way."""

from __future__ import annotations

import keyword

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.specgen.model import MAX_TOOL_NAME
from broker.specgen.naming import RESERVED, Wanted, identifier, operation_names, tool_name

TEXTS = (
    st.text(max_size=120) | st.sampled_from(sorted(RESERVED)) | st.from_regex(r"[a-z_\-/.0-9]{1,90}", fullmatch=True)
)


def named(*wanted: Wanted) -> dict[str, str]:
    return {key: names[0] for key, names in operation_names(wanted).items()}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("recall", "recall"),
        ("createChatCompletion", "createChatCompletion"),
        ("agent-memory-recall", "agent_memory_recall"),
        ("meta/root", "meta_root"),
        ("deployment.series_name", "deployment_series_name"),
        ("item-id", "item_id"),
        ("$.xgafv", "xgafv"),
        ("include[]", "include"),
        ("filter[eq]", "filter_eq"),
        ("DateCreated<", "DateCreated_lt"),
        ("DateCreated>", "DateCreated_gt"),
        ("2things", "x_2things"),
        ("content-md5", "content_md5"),
    ],
)
def test_a_name_is_what_is_legal_of_it_and_keeps_its_case(text, name):
    assert identifier(text, set()) == name


@pytest.mark.parametrize("text", ["class", "default", "self", "client", "body", "headers", "this", "arguments"])
def test_a_reserved_name_is_told_apart_by_an_underscore(text):
    assert identifier(text, set()) == text + "_"


@pytest.mark.parametrize("text", ["__proto__", "_private", "__class__", "constructor", "prototype", "then", "toString"])
def test_no_name_is_that_of_a_member_every_object_has(text):
    assert identifier(text, set()) not in {text, "__proto__", "constructor", "prototype"}
    assert not identifier(text, set()).startswith("_")


@given(st.lists(TEXTS, max_size=12))
def test_any_names_are_legal_in_both_languages_and_differ(texts):
    taken: set[str] = set()
    names = [identifier(text, taken) for text in texts]
    assert len(set(names)) == len(names)
    assert taken == set(names)
    for name in names:
        assert name.isascii()
        assert name.isidentifier()
        assert not keyword.iskeyword(name)
        assert name not in RESERVED
        assert not name.startswith("_")
        assert len(name) <= 96


@given(st.lists(TEXTS, max_size=12))
def test_any_tools_have_names_of_at_most_64_characters_that_differ(texts):
    taken: set[str] = set()
    names = [tool_name(text, taken) for text in texts]
    assert len(set(names)) == len(names)
    for name in names:
        assert 1 <= len(name) <= MAX_TOOL_NAME
        assert all(character.isascii() and (character.isalnum() or character in "_-") for character in name)


def test_names_that_differ_only_behind_the_limit_are_told_apart_within_it():
    taken: set[str] = set()
    long = "x" * 5000
    names = {tool_name(long + end, taken) for end in "abc"}
    assert len(names) == 3
    assert {len(name) for name in names} == {MAX_TOOL_NAME}


def test_a_tool_keeps_the_hyphens_of_its_operation():
    assert tool_name("agent-memory-recall", set()) == "agent-memory-recall"
    assert tool_name("meta/root", set()) == "meta_root"


def test_an_operation_without_an_id_is_named_by_method_and_path():
    assert named(Wanted("", "GET", "/pets/{petId}/toys")) == {"GET /pets/{petId}/toys": "get_pets_petId_toys"}


def test_two_operations_of_one_id_both_have_a_name_whatever_their_order():
    both = [Wanted("GetX", "GET", "/b/x"), Wanted("GetX", "GET", "/a/x"), Wanted("", "GET", "/a/{y}")]
    found = named(*both)
    assert found["GET /a/x"] == "GetX"
    assert found["GET /b/x"].startswith("GetX_")
    assert named(*reversed(both)) == found


def test_a_new_operation_changes_no_name_of_another():
    before = named(Wanted("a", "GET", "/a"), Wanted("a", "PUT", "/a"))
    after = named(
        Wanted("b", "GET", "/0"), Wanted("a", "GET", "/a"), Wanted("", "GET", "/a/"), Wanted("a", "PUT", "/a")
    )
    assert before.items() <= after.items()


def test_a_name_that_the_document_says_goes_before_one_that_is_made_up():
    found = named(Wanted("", "GET", "/a"), Wanted("get_a", "POST", "/z"))
    assert found["POST /z"] == "get_a"
    assert found["GET /a"] != "get_a"


def test_a_trailing_slash_is_another_operation_with_another_name():
    found = named(Wanted("", "GET", "/a"), Wanted("", "GET", "/a/"))
    assert found["GET /a"] == "get_a"
    assert found["GET /a/"].startswith("get_a_")
