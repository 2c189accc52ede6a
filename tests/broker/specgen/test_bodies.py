"""What an operation is sent and what it answers: one of all that the document offers, and the rest is told."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.specgen.bodies import read_body, read_result
from tests.broker.specgen import reading

OPERATION = "#/paths/~1x/post"
BODY = OPERATION + "/requestBody"
JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"


def read(request_body, method="POST", within=None):
    return read_body(within or reading.document(), {"requestBody": request_body}, OPERATION, method)


def carried(content, **members):
    body, notes = read({"content": content, **members})
    assert body is not None
    return body, [(note.level, note.reason) for note in notes]


def lost(request_body, method="POST"):
    body, (note,) = read(request_body, method)
    assert body is None
    return note


def result(responses, within=None):
    return read_result(within or reading.document(), {"responses": responses}, OPERATION)


def test_an_operation_without_a_body_has_none_and_nothing_is_told():
    assert read(None) == (None, ())
    assert read_body(reading.document(), {}, OPERATION, "POST") == (None, ())


def test_a_json_body_is_read_with_its_schema_and_where_it_stands():
    schema = {"type": "array", "title": "Values"}
    body, notes = carried({JSON: {"schema": schema}}, required=True, description="the values")
    assert (body.media, body.form, body.required, body.description) == (JSON, "json", True, "the values")
    assert body.schema == reading.at(schema, BODY + "/content/application~1json/schema")
    assert notes == []


@pytest.mark.parametrize(
    ("media", "form"),
    [
        (JSON, "json"),
        ("application/json; charset=utf-8", "json"),
        ("Application/JSON", "json"),
        ("application/merge-patch+json", "json"),
        ("application/json-patch+json", "json"),
        ("application/vnd.api+json;version=1", "json"),
        (FORM, "form"),
        (MULTIPART, "multipart"),
        ("text/plain", "raw"),
        ("text/csv; charset=utf-8", "raw"),
    ],
)
def test_a_body_is_written_as_its_media_type_wants(media, form):
    body, notes = carried({media: {"schema": {}}})
    assert (body.media, body.form) == (media, form)
    assert notes == []


@pytest.mark.parametrize(
    "media", ["application/cbor", "application/x-ndjson", "application/xml", "multipart/mixed", "image/png"]
)
def test_a_body_that_is_neither_json_nor_a_form_is_sent_as_it_is_and_that_is_told(media):
    body, ((level, reason),) = carried({media: {}})
    assert (body.media, body.form, level) == (media, "raw", "limit")
    assert media in reason


@pytest.mark.parametrize(
    ("offered", "picked"),
    [
        (["application/xml", MULTIPART, FORM, "application/merge-patch+json", JSON], JSON),
        (["application/xml", MULTIPART, FORM, "application/merge-patch+json"], "application/merge-patch+json"),
        (["application/xml", MULTIPART, FORM], FORM),
        (["application/xml", MULTIPART], MULTIPART),
        (["application/xml", "application/cbor"], "application/xml"),
        (["application/vnd.a+json", "application/vnd.b+json"], "application/vnd.a+json"),
    ],
)
def test_json_is_preferred_to_forms_and_forms_to_the_rest_and_the_choice_is_told(offered, picked):
    body, notes = carried({media: {} for media in offered})
    assert body.media == picked
    level, reason = notes[0]
    assert level == "warn"
    assert f"sent as {picked}" in reason
    assert all(other in reason for other in offered if other != picked)


@pytest.mark.parametrize(
    ("written", "schema", "media"),
    [
        ("*/*", {"type": "object"}, JSON),
        ("application/*", {"properties": {"a": {}}}, JSON),
        ("*/*", {"type": "string", "format": "binary"}, "application/octet-stream"),
        ("*/*", {}, "application/octet-stream"),
        ("image/*", {}, "application/octet-stream"),
        ("image/*", {"type": "object"}, "application/octet-stream"),
        ("text/*", {}, "text/plain"),
        ("text/*", {"type": "object"}, "text/plain"),
    ],
)
def test_a_range_of_media_types_is_sent_as_one_of_them(written, schema, media):
    body, _ = carried({written: {"schema": schema}})
    assert body.media == media


@pytest.mark.parametrize(
    "media",
    ["json", "a b/c", "application/json\r\nX-A: 1", "application/\u00e9", "a/b;c", "*/json", "", "a/" + "b" * 200],
)
def test_what_is_no_media_type_is_never_sent_as_one(media):
    assert lost({"content": {media: {}}, "required": True}).level == "stop"
    body, _ = carried({media: {}, "text/plain": {}})
    assert body.media == "text/plain"


@pytest.mark.parametrize("content", [{}, None, [], "x", 7, {"text": {}}])
def test_a_body_without_a_media_type_limits_or_stops(content):
    optional = lost({"content": content})
    assert optional.level == "limit"
    assert "required" not in optional.reason
    required = lost({"content": content, "required": True})
    assert (required.level, required.pointer) == ("stop", BODY)
    assert required.reason.endswith("; it is required")


@pytest.mark.parametrize("described", [None, [], "x", 7, True])
def test_a_media_type_that_is_described_by_anything_else_takes_any_value(described):
    body, notes = carried({JSON: described})
    assert (body.form, body.schema.schema, notes) == ("json", {}, [])


def test_of_a_list_of_media_types_the_first_hundred_are_looked_at():
    raw = {f"image/x{number}": {} for number in range(99)}
    body, _ = carried({**raw, JSON: {}})
    assert body.media == JSON
    body, _ = carried({**raw, "image/last": {}, JSON: {}})
    assert body.media == "image/x0"


def test_a_delete_carries_its_body():
    body, notes = read({"content": {JSON: {}}}, "DELETE")
    assert body is not None
    assert notes == ()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_body_of_get_and_head_is_not_sent_and_stops_where_it_is_required(method):
    assert lost({"content": {JSON: {}}}, method).level == "limit"
    assert lost({"content": {JSON: {}}, "required": True}, method).level == "stop"


def test_a_body_that_is_a_reference_is_followed():
    within = reading.document(
        components={"requestBodies": {"Link": {"content": {JSON: {"schema": {}}}, "required": True}}}
    )
    body, notes = read({"$ref": "#/components/requestBodies/Link"}, within=within)
    assert body is not None
    assert body.required
    assert body.schema.pointer == "#/components/requestBodies/Link/content/application~1json/schema"
    assert notes == ()


@pytest.mark.parametrize("request_body", [{"$ref": "#/none"}, [], "x", 7, True])
def test_a_body_that_cannot_be_read_stops_the_operation(request_body):
    assert lost(request_body).level == "stop"


def test_a_schema_that_cannot_be_resolved_limits_the_body():
    _, notes = carried({JSON: {"schema": {"$ref": "#/none"}}})
    assert [level for level, _ in notes] == ["limit"]


@pytest.mark.parametrize("required", [None, 0, "true", [True]])
def test_only_true_makes_a_body_required(required):
    body, _ = carried({JSON: {}}, required=required)
    assert body.required is False


@pytest.mark.parametrize("media", [FORM, MULTIPART])
@pytest.mark.parametrize("one", [{"style": "deepObject"}, {"explode": False}, {"headers": {"X-A": {}}}])
def test_an_encoding_that_is_not_followed_limits_a_form(media, one):
    body, ((level, reason),) = carried({media: {"encoding": {"usual": {"style": "form"}, "metadata": one}}})
    assert body.form in ("form", "multipart")
    assert level == "limit"
    assert '"metadata"' in reason
    assert '"usual"' not in reason


@pytest.mark.parametrize(
    "encoding", [{"a": {"style": "form", "explode": True}}, {"a": {"contentType": "text/plain"}}, {"a": 7}, 7]
)
def test_an_encoding_that_is_the_usual_one_is_not_told(encoding):
    assert carried({FORM: {"encoding": encoding}})[1] == []


def test_the_content_type_of_a_part_is_the_codes_to_give():
    _, ((level, reason),) = carried({MULTIPART: {"encoding": {"file": {"contentType": "image/png"}}}})
    assert level == "warn"
    assert '"file"' in reason


def test_the_encoding_of_json_means_nothing():
    assert carried({JSON: {"encoding": {"a": {"style": "deepObject"}}}})[1] == []


def test_the_list_of_other_media_types_is_bounded_and_of_one_line():
    many = {f"text/x{index}": {} for index in range(60)}
    _, ((_, reason),) = carried(many)
    assert len(reason) < 500
    assert "and 54 more" in reason


# What it answers


def test_the_result_is_the_json_of_the_first_success():
    responses = {
        "400": {"content": {JSON: {"schema": {"title": "error"}}}},
        "204": {"description": "nothing"},
        "201": {
            "content": {
                "text/plain": {"schema": {"title": "text"}},
                "application/hal+json": {"schema": {"title": "made"}},
            }
        },
        "200": {"content": {JSON: {"schema": {"title": "found"}}}},
    }
    found = result(responses)
    assert found.schema == {"title": "made"}
    assert found.pointer == OPERATION + "/responses/201/content/application~1hal+json/schema"


@pytest.mark.parametrize("code", ["2XX", "200", "226"])
def test_every_way_to_write_a_success_is_one(code):
    assert result({code: {"content": {JSON: {"schema": {}}}}}) is not None


@pytest.mark.parametrize("code", ["300", "2xx", "20", "2000", "x200", "\u0662\u0660\u0660"])
def test_no_other_code_is_a_success(code):
    assert result({code: {"content": {JSON: {"schema": {}}}}}) is None


def test_the_default_response_counts_only_where_no_success_is_described():
    default = {"content": {JSON: {"schema": {"title": "any"}}}}
    assert result({"default": default}).schema == {"title": "any"}
    assert result({"default": default, "404": {}}).schema == {"title": "any"}
    assert result({"default": default, "204": {"description": "nothing"}}) is None


def test_a_response_that_is_a_reference_is_followed():
    within = reading.document(components={"responses": {"Found": {"content": {JSON: {"schema": {"title": "found"}}}}}})
    found = result({"200": {"$ref": "#/components/responses/Found"}}, within)
    assert found.pointer == "#/components/responses/Found/content/application~1json/schema"


@pytest.mark.parametrize(
    "responses",
    [
        *(None, [], "x", {}, {"200": None}, {"200": []}, {"200": {"$ref": "#/none"}}, {"200": {"content": 7}}),
        *({"200": {"content": {JSON: content}}} for content in ({}, [], {"$ref": 7})),
    ],
)
def test_an_answer_that_says_no_schema_has_none(responses):
    assert result(responses) is None


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.text(max_size=4)
    | st.sampled_from(["#/components/a", "string"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "$ref",
                    "content",
                    "description",
                    "required",
                    "schema",
                    "encoding",
                    "200",
                    "2XX",
                    "default",
                    "*/*",
                    JSON,
                    FORM,
                    "text/*",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@settings(max_examples=300, deadline=None)
@given(ANYTHING, ANYTHING, ANYTHING, st.sampled_from(["GET", "POST", "DELETE"]))
def test_bodies_and_responses_of_any_type_anywhere_never_fail(request_body, responses, component, method):
    within = reading.document("3.2.0", components={"a": component})
    operation = {"requestBody": request_body, "responses": responses}
    body, notes = read_body(within, operation, OPERATION, method)
    assert body is None or (body.media.isascii() and isinstance(body.description, str))
    assert all(note.pointer and note.reason for note in notes)
    read_result(within, operation, OPERATION)
