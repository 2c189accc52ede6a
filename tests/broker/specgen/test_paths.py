"""Path keys: what is a route, and every trap of published documents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.specgen.paths import Name, PathError, check_literal, check_route, read_path
from tests.broker.specgen.operating import api, get, one, only, reasons, routes, stop


def pieces(key):
    return read_path(key, "#/p").pieces


def route(key) -> str:
    return one(api({key: get()})).route_text


def test_a_trailing_slash_is_kept_byte_for_byte():
    assert routes(api({"/api/v1/companies/": get(), "/api/v1/companies": get()})) == [
        "GET /api/v1/companies/",
        "GET /api/v1/companies",
    ]


def test_a_literal_colon_stays_in_its_segment():
    assert route("/levels:append") == "GET /levels:append"
    assert route("/shelves/{shelf}:merge") == "GET /shelves/*:merge"


def test_case_is_kept():
    assert route("/2010-04-01/Accounts/{AccountSid}") == "GET /2010-04-01/Accounts/*"


def test_a_partial_segment_is_a_glob_and_never_a_whole_star():
    assert route("/calls/{Sid}.json") == "GET /calls/*.json"
    assert route("/files/{id}/thumbnail.{extension}") == "GET /files/*/thumbnail.*"


def test_two_parameters_in_a_segment_are_a_glob_and_marked():
    found = api({"/compare/{base}...{head}": get()})
    assert one(found).route_text == "GET /compare/*...*"
    assert one(found).template == "/compare/{base}...{head}"
    assert "two parameters share a segment" in reasons(found)


def test_one_parameter_in_each_of_two_segments_is_not_marked():
    assert "share a segment" not in reasons(api({"/a/{x}/{y}": get()}))


def test_three_parameters_in_a_segment_are_not_carried():
    assert "at most two *" in stop(api({"/{a}-{b}-{c}": get()})).reason


def test_parameters_side_by_side_are_not_carried():
    note = stop(api({"/{a}{b}": get()}))
    assert "without text between" in note.reason
    assert note.remedy


def test_what_looks_like_a_parameter_of_express_is_literal_and_warned_of():
    found = api({"/items/:id": get()})
    assert routes(found) == ["GET /items/:id"]
    assert only(found).status == "carried"
    assert "looks like a parameter" in reasons(found)


@pytest.mark.parametrize("name", ["item-id", "default", "h", "$.x", "deployment.series_name", "a b", "日本", "class"])
def test_a_parameter_may_have_any_name(name):
    operation = one(api({f"/a/{{{name}}}": get()}))
    assert operation.route_text == "GET /a/*"
    assert operation.arguments[0].name == name
    assert operation.template == f"/a/{{{operation.arguments[0].identifier}}}"


def test_a_name_that_stands_twice_is_one_argument_and_a_limit():
    found = api({"/a/{id}/b/{id}": get()})
    assert one(found).template == "/a/{id}/b/{id}"
    assert one(found).route_text == "GET /a/*/b/*"
    assert len(one(found).arguments) == 1
    assert only(found).status == "limited"


@pytest.mark.parametrize("choices", [{"bind": {"id": "7"}}, {"params": {"id": "[0-9]+"}}])
def test_a_name_that_stands_twice_is_no_limit_where_the_code_does_not_choose_its_value(choices):
    assert only(api({"/a/{id}/b/{id}": get()}, choices=choices)).status == "carried"


@pytest.mark.parametrize("key", ["/a/{", "/a/}", "/a/{x", "/a/x}", "/a/{{x}}", "/a/{x}}", "/{a/b", "/a/{x{y}"])
def test_braces_that_do_not_match_are_not_carried(key):
    assert stop(api({key: get()})).remedy == "mend the document"


def test_a_parameter_without_a_name_is_not_carried():
    assert "without a name" in stop(api({"/a/{}": get()})).reason


@pytest.mark.parametrize("key", ["/a{?q}", "/a{&q}", "/a{#q}", "/a{;q}", "/a{/q}", "/v1/{name=shelves/*}", "/{a/b}"])
def test_a_uri_template_is_not_taken_for_a_parameter_of_one_segment(key):
    assert "parameter" in stop(api({key: get()})).reason


@pytest.mark.parametrize("key", ["/v1/{+parent}/x", "/v1/{path*}"])
def test_a_parameter_that_reads_like_many_segments_is_carried_as_one(key):
    found = api({key: get()})
    assert "*" in one(found).route_text
    assert "**" not in one(found).route_text
    assert "many segments" in reasons(found)


@pytest.mark.parametrize("key", ["/a/*", "/a/**", "/a*b", "/{x}*"])
def test_a_literal_star_never_becomes_a_wildcard(key):
    assert "literal *" in stop(api({key: get()})).reason


@pytest.mark.parametrize(
    "key", ["/semi;colon", "/a%20b", "/a b", "//a", "/a//b", "/a/..", "/./a", "/é", "/a\\b", "/a\n"]
)
def test_what_no_route_can_say_is_not_carried_and_says_why(key):
    assert stop(api({key: get()})).reason


def test_code_in_a_path_key_is_no_route():
    assert stop(api({"/a','GET')&&evil();('": get()})).reason


def test_a_path_that_does_not_begin_with_a_slash_is_told():
    found = api({"/a": get(), "pets": get(), "x-extension": get()})
    assert [told.label for told in found.told] == ["GET /a", "GET pets"]
    assert "begins with /" in reasons(found)


@pytest.mark.parametrize("key", ["/" + "a" * 5000, "/{" + "a" * 5000 + "}"])
def test_a_very_long_path_is_not_carried(key):
    assert "at most" in stop(api({key: get()})).reason


# Fragments and queries in the key


def test_the_fragment_of_a_key_is_never_sent():
    found = api({"/files/{file_id}#add_shared_link": get()})
    assert one(found).template == "/files/{file_id}"
    assert "never sent" in reasons(found)


def test_the_query_of_a_key_is_sent_with_every_call_and_granted_as_a_constant():
    operation = one(api({"/responses?beta=true": get()}))
    assert operation.template == "/responses"
    assert operation.fixed_query == (("beta", "true"),)
    assert operation.route == {"route": "GET /responses", "query": {"beta": {"const": "true", "required": True}}}


def test_a_key_may_have_both():
    operation = one(api({"/{Bucket}/{Key}?uploads=1&x=a%20b#list": get()}))
    assert operation.template == "/{Bucket}/{Key}"
    assert operation.fixed_query == (("uploads", "1"), ("x", "a b"))


def test_marks_in_a_name_cut_nothing():
    assert pieces("/a/{x#y}/b/{c?d}") == ("/a/", Name("x#y"), "/b/", Name("c?d"))


def test_an_empty_query_is_none():
    assert one(api({"/a?": get()})).route == "GET /a"


@pytest.mark.parametrize("query", ["x={x}", "x=a+b", "x=%", "x=%zz", "x=%ff", "x=%00", "access_token=1", "a b=1", "=1"])
def test_a_query_that_cannot_be_granted_is_not_carried(query):
    assert "the query in the path" in stop(api({f"/a?{query}": get()})).reason


def test_a_query_of_a_key_cannot_be_where_the_credential_goes():
    schemes = {"k": {"type": "apiKey", "in": "query", "name": "sig"}}
    found = api({"/a?sig=1": get()}, components={"securitySchemes": schemes}, security=[{"k": []}])
    assert "where the credential goes" in stop(found).reason


@given(st.text(max_size=40) | st.text(alphabet="/{}*?#&=ab:.%-", max_size=24).map(lambda text: "/" + text))
def test_any_key_is_read_or_refused_and_nothing_is_wider_than_it(key):
    try:
        path = read_path(key, "#/p")
        text = path.written("/base", dict.fromkeys(path.names, "*"))
        check_route(f"GET {text}")
    except PathError:
        return
    assert "**" not in text
    assert text.count("*") == sum(isinstance(piece, Name) for piece in path.pieces)
    assert key.startswith(path.written("", {name: "{" + name + "}" for name in path.names}))


@pytest.mark.parametrize("text", ["", "a/b", "*", "a%20", "{x}", "a?b", "a#b", "a;b", "a b"])
def test_what_cannot_stand_literally_in_a_path_is_refused(text):
    with pytest.raises(PathError):
        check_literal(text)
