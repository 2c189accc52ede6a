"""Servers: one origin for a profile, the base path before every path, and what is on another host."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.specgen.model import DocumentError
from broker.specgen.servers import Server, ServerError, parse_server
from config.origin import parse_origin
from config.routes import parse_route
from tests.broker.specgen.anything import ANYTHING
from tests.broker.specgen.operating import HOST, OK, api, get, one, only, routes, statuses, stop


def served(*urls, **choices):
    return api({"/x": get()}, servers=[{"url": url} for url in urls], choices=choices)


@pytest.mark.parametrize(
    ("url", "origin", "route"),
    [
        ("https://api.mem0.ai/", "https://api.mem0.ai", "GET /x"),
        ("https://api.mem0.ai", "https://api.mem0.ai", "GET /x"),
        ("https://api.cloudflare.com/client/v4", "https://api.cloudflare.com", "GET /client/v4/x"),
        ("https://api.example.com/v1/", "https://api.example.com", "GET /v1/x"),
        ("HTTPS://API.Example.com:443/V1", "https://api.example.com", "GET /V1/x"),
        ("https://api.example.com:8443/v1", "https://api.example.com:8443", "GET /v1/x"),
        ("http://localhost:5572", "http://localhost:5572", "GET /x"),
        ("http://127.0.0.1:80/a", "http://127.0.0.1", "GET /a/x"),
        ("http://[::1]:8080", "http://[::1]:8080", "GET /x"),
    ],
)
def test_the_base_path_is_part_of_every_route_and_never_doubles_a_slash(url, origin, route):
    found = served(url)
    assert found.origin == origin
    assert routes(found) == [route]


@pytest.mark.parametrize(
    "url",
    [
        "/",
        "/v1",
        "",
        "api.example.com",
        "//api.example.com",
        "ftp://api.example.com",
        "javascript:alert(1)",
        "http://stapi.co",
        "https://user:secret@api.example.com",
        "https://api.example.com?x=1",
        "https://api.example.com/v1#f",
        "https://api.example.com/a b",
        "https://api.example.com\\@evil.example",
        "https://api.example.com/v1//",
        "https://api.example.com//v1",
        "https://api.example.com/../x",
        "https://api.example.com/*",
        "https://api.example.com/%2e",
        "https://api.example.com/;x",
        "https://api.example.com:99999",
        "https://api.example.com.",
        "https://münchen.example",
        "https://api.example.com\n/v1",
        "https://" + "a" * 5000,
    ],
)
def test_a_server_that_no_profile_can_have_is_refused_and_the_option_named(url):
    with pytest.raises(DocumentError) as raised:
        served(url)
    assert "--server" in str(raised.value)
    assert "openapi.json" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("servers", [None, [], "x", {}, [None], [{}], [{"url": 5}], [[]], 7])
def test_without_a_server_the_operator_must_name_one(servers):
    with pytest.raises(DocumentError, match="--server"):
        api({"/x": get()}, servers=servers)
    assert routes(api({"/x": get()}, servers=servers, choices={"server": HOST + "/v2"})) == ["GET /v2/x"]


@pytest.mark.parametrize("url", ["/v1", "http://example.com", "https://a@b.example", "nothing"])
def test_the_operators_server_is_held_to_the_same(url):
    with pytest.raises(DocumentError, match="--server"):
        served(HOST, server=url)


def test_the_operators_server_takes_the_place_of_the_documents():
    found = served("https://api.example.com/v1", server="https://eu.example.com/v2/")
    assert (found.origin, routes(found), found.notes) == ("https://eu.example.com", ["GET /v2/x"], ())


def test_of_several_servers_the_first_counts_and_the_others_are_named():
    found = served("https://api.example.com/v1", "https://sandbox.example.com/v1", "https://api.example.com/v1")
    assert found.origin == "https://api.example.com"
    (note,) = found.notes
    assert "https://sandbox.example.com/v1" in note.reason
    assert (note.pointer, note.remedy) == ("#/servers/1", "give --server URL")


def test_a_server_that_cannot_be_used_is_passed_over_with_a_note():
    found = served("/v1", "https://api.example.com/v1")
    assert found.origin == "https://api.example.com"
    assert "relative" in found.notes[0].reason


# Variables


def variable(**fields):
    server = {"url": "https://{region}.example.com/{base}", "variables": {"region": fields, "base": {"default": "v1"}}}
    return api({"/x": get()}, servers=[server])


def test_variables_take_their_defaults():
    found = variable(default="eu", enum=["eu", "us"])
    assert (found.origin, routes(found)) == ("https://eu.example.com", ["GET /v1/x"])


@pytest.mark.parametrize(
    "fields",
    [{}, {"default": 5}, {"default": "eu", "enum": ["us"]}, {"default": "a.example/x#"}, {"default": "{base}"}],
)
def test_a_variable_without_a_fit_default_is_refused(fields):
    with pytest.raises(DocumentError, match="--server"):
        variable(**fields)


def test_a_variable_does_not_make_a_short_document_long():
    url = "https://a.example/" + "{v}" * 600
    server = {"url": url, "variables": {"v": {"default": "a" * 257}}}
    with pytest.raises(DocumentError, match="more than 256 characters"):
        api({"/x": get()}, servers=[server])
    with pytest.raises(DocumentError, match="url of at most 2048"):
        api({"/x": get()}, servers=[{**server, "url": url * 4}])


# Servers of paths and operations


def test_a_path_with_a_server_on_another_host_is_not_in_the_grant_of_the_root_host():
    pets = {"servers": [{"url": "https://api.pet.com/v2"}], "get": OK}
    found = api({"/pet": pets, "/x": get()}, servers=[{"url": "https://api.root.com/v3"}])
    assert statuses(found) == {"GET /pet": "not-carried", "GET /x": "carried"}
    assert routes(found) == ["GET /v3/x"]
    (note,) = found.told[0].notes
    assert "https://api.pet.com" in note.reason
    assert "--server" in note.remedy
    assert note.pointer == "#/paths/~1pet/servers"


def test_an_operations_servers_count_before_those_of_its_path():
    item = {"servers": [{"url": "https://other.example"}], "get": {**OK, "servers": [{"url": HOST + "/v9"}]}, "put": OK}
    found = api({"/x": item})
    assert statuses(found) == {"GET /x": "carried", "PUT /x": "not-carried"}
    assert routes(found) == ["GET /v9/x"]


def test_a_servers_list_that_is_empty_says_nothing():
    assert routes(api({"/x": {"servers": [], "get": {**OK, "servers": []}}})) == ["GET /x"]


def test_of_an_operations_servers_the_one_on_the_profiles_host_counts():
    own = [{"url": "https://other.example"}, {"url": "/v1"}, {"url": HOST + "/v2"}]
    assert routes(api({"/x": get(servers=own)})) == ["GET /v2/x"]


@pytest.mark.parametrize("own", ["x", {}, [{}], [5], [{"url": "/v2"}], [{"url": "https://u:p@api.example.com"}]])
def test_an_operation_whose_server_cannot_be_read_is_not_carried(own):
    assert stop(api({"/x": get(servers=own)})).pointer == "#/paths/~1x/get/servers"


def test_own_servers_that_repeat_the_documents_follow_the_operators():
    own = [{"url": "https://api.example.com/v1"}]
    found = api({"/x": get(servers=own)}, servers=own, choices={"server": "https://staging.example.com/v2"})
    assert routes(found) == ["GET /v2/x"]


def test_a_second_profile_is_for_the_operations_of_its_host_alone():
    paths = {"/upload": get(servers=[{"url": "https://upload.example.com/2.0"}]), "/x": get()}
    found = api(paths, choices={"server": "https://upload.example.com/2.0"})
    assert statuses(found) == {"GET /upload": "carried", "GET /x": "not-carried"}
    assert routes(found) == ["GET /2.0/upload"]
    assert HOST in found.told[1].notes[0].reason


@given(ANYTHING)
def test_servers_of_any_type_end_in_a_line_or_are_carried(servers):
    found = api({"/x": get(servers=servers)}, servers=servers, choices={"server": HOST})
    assert only(found).status in ("carried", "not-carried")


@given(st.text(max_size=40) | st.text(alphabet="/:@#?*%.\\a-1[]", max_size=20).map(lambda text: "https://a" + text))
def test_what_is_taken_for_a_server_is_an_origin_and_a_literal_path(text):
    try:
        server = parse_server(text)
    except ServerError:
        return
    parse_origin(server.origin)
    assert not parse_route(f"GET {server.base}/x").wildcards
    assert "//" not in server.base


def test_a_base_path_is_kept_as_it_is_written():
    assert parse_server("https://a.example/Client/v4:x/") == Server("https://a.example", "/Client/v4:x")
    assert one(api({"/": get()}, servers=[{"url": "https://a.example/v1"}])).template == "/v1/"
