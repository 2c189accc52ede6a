"""A document as a whole: every operation is told once, with its route, its arguments and what limits it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from broker.specgen.document import read_document
from broker.specgen.model import Choices, DocumentError
from broker.specgen.operations import read_api
from tests.broker.specgen import corpus
from tests.broker.specgen.anything import ANYTHING, DOCUMENTS
from tests.broker.specgen.operating import HOST, OK, api, check, get, one, only, reasons, routes, statuses, stop, text

TEXT = {"schema": {"type": "string"}}
NUMBER = {"schema": {"type": "integer"}}


def path(name, **fields):
    return {"name": name, "in": "path", "required": True, **TEXT, **fields}


def query(name, **fields):
    return {"name": name, "in": "query", **TEXT, **fields}


# Finding operations


def test_only_the_methods_of_a_path_item_are_operations():
    item = {"summary": "s", "description": "d", "parameters": [query("q")], "servers": [], "x-get": OK, "get": OK}
    assert statuses(api({"/pets": item})) == {"GET /pets": "carried"}


def test_methods_that_no_route_has_are_told_and_not_carried():
    item = {"get": OK, "head": OK, "options": OK, "trace": OK}
    found = api({"/x": item})
    assert statuses(found) == {
        "GET /x": "carried",
        "HEAD /x": "carried",
        "OPTIONS /x": "not-carried",
        "TRACE /x": "not-carried",
    }
    assert routes(found) == ["GET /x", "HEAD /x"]
    (note,) = found.told[2].notes
    assert note.pointer == "#/paths/~1x/options"
    assert '"OPTIONS" is no method of a route' in note.reason


def test_the_methods_of_3_2_are_told_and_not_carried():
    item = {
        "query": {**OK, "operationId": "q"},
        "additionalOperations": {"COPY": {**OK, "operationId": "c"}, "LINK": 5},
    }
    found = api({"/x": item}, version="3.2.0")
    assert statuses(found) == {"QUERY /x": "not-carried", "COPY /x": "not-carried", "LINK /x": "not-carried"}
    assert [told.id for told in found.told] == ["q", "c", ""]
    assert found.told[1].pointer == "#/paths/~1x/additionalOperations/COPY"


@pytest.mark.parametrize("written", [None, "x", 5, [], True])
def test_operations_of_other_methods_that_are_no_object_are_told_once(written):
    found = api({"/x": {"get": OK, "additionalOperations": written}}, version="3.2.0")
    assert statuses(found) == {"GET /x": "carried", "/x": "not-carried"}
    (note,) = found.told[1].notes
    assert note.pointer == "#/paths/~1x/additionalOperations"
    assert "is an object" in note.reason


def test_a_method_in_capitals_is_no_operation_and_is_told():
    assert "lower case" in stop(api({"/x": {"GET": OK}})).remedy


@pytest.mark.parametrize("node", [None, "x", 5, [], True])
def test_an_operation_or_a_path_item_of_another_type_is_told(node):
    assert "an operation is an object" in stop(api({"/x": {"get": node}})).reason
    if node is not None:
        assert "a path item is an object" in stop(api({"/x": node})).reason


def test_a_path_without_operations_is_a_note_on_the_document():
    found = api({"/x": {}, "/y": None, "/z": get()})
    assert [note.pointer for note in found.notes] == ["#/paths/~1x", "#/paths/~1y"]


def test_webhooks_are_noted_and_are_no_operations():
    found = api({"/x": get()}, version="3.1.0", webhooks={"a": get(), "b": get()})
    assert len(found.told) == 1
    assert "2 webhooks" in found.notes[0].reason


@pytest.mark.parametrize("webhooks", [{}, [], ["a"], "x", 7, None])
def test_what_is_no_webhook_is_not_noted(webhooks):
    assert api({"/x": get()}, version="3.1.0", webhooks=webhooks).notes == api({"/x": get()}, version="3.1.0").notes


def test_a_path_item_behind_a_reference_is_found_and_its_operations_are_told_for_each_path():
    components = {"pathItems": {"pet": {"parameters": [path("petId")], "get": OK, "delete": OK}}}
    shared = {"$ref": "#/components/pathItems/pet"}
    found = api({"/pets/{petId}": shared, "/archived-pets/{petId}": shared}, version="3.1.0", components=components)
    assert routes(found) == [
        "GET /pets/*",
        "DELETE /pets/*",
        "GET /archived-pets/*",
        "DELETE /archived-pets/*",
    ]
    assert found.told[0].pointer == "#/components/pathItems/pet/get"


def test_what_stands_beside_the_reference_of_a_path_item_counts_and_has_its_own_pointer():
    components = {"pathItems": {"pet": {"get": OK}}}
    found = api({"/x": {"$ref": "#/components/pathItems/pet", "put": OK}}, components=components)
    assert {told.label: told.pointer for told in found.told} == {
        "GET /x": "#/components/pathItems/pet/get",
        "PUT /x": "#/paths/~1x/put",
    }


def test_a_path_item_behind_a_reference_that_leads_nowhere_is_told_by_its_path():
    found = api({"/gone": {"$ref": "./pet.yaml"}, "/x": get()})
    assert statuses(found) == {"/gone": "not-carried", "GET /x": "carried"}
    (note,) = found.told[0].notes
    assert note.remedy


def test_progress_is_told_path_by_path(tmp_path):
    (tmp_path / "d.json").write_text(
        json.dumps({"openapi": "3.0.3", "servers": [{"url": HOST}], "paths": {"/a": get(), "/b": get(), "/c": {}}})
    )
    told = []
    read_api(read_document(tmp_path / "d.json"), Choices(), lambda *numbers: told.append(numbers))
    assert told == [(1, 3), (2, 3), (3, 3)]


# One operation


def test_an_operation_says_all_that_the_document_does():
    node = {
        **OK,
        "operationId": "pets/update",
        "summary": "Update",
        "description": "Updates.",
        "tags": ["pets", 5, "admin"],
        "parameters": [path("id"), query("dry", required=True), {"name": "X-Trace", "in": "header", **TEXT}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
    }
    found = api({"/pets/{id}": {"put": node}}, servers=[{"url": HOST + "/v1"}])
    operation = one(found)
    assert (operation.id, operation.identifier, operation.tool) == ("pets/update", "pets_update", "pets_update")
    assert (operation.summary, operation.description, operation.tags) == ("Update", "Updates.", ("pets", "admin"))
    assert (operation.method, operation.template) == ("PUT", "/v1/pets/{id}")
    assert operation.pointer == "#/paths/~1pets~1%7Bid%7D/put"
    assert [(argument.identifier, argument.place) for argument in operation.arguments] == [
        ("id", "path"),
        ("dry", "query"),
        ("X_Trace", "header"),
    ]
    assert operation.body is not None
    assert operation.route == {
        "route": "PUT /v1/pets/*",
        "query": {"dry": {"type": "any", "required": True}},
        "encoded": True,
        "wide": True,
    }
    assert found.request_headers == ("X-Trace",)
    assert (only(found).label, only(found).id) == ("PUT /pets/{id}", "pets/update")


@pytest.mark.parametrize("odd", [5, None, [], {}, True])
def test_texts_of_another_type_are_empty(odd):
    operation = one(
        api(
            {"/x": get(operationId=odd, summary=odd, description=odd, tags=odd, deprecated=odd is True)},
            choices={"deprecated": True},
        )
    )
    assert (operation.id, operation.summary, operation.description, operation.tags) == ("", "", "", ())
    assert operation.identifier == "get_x"


def test_only_the_wildcards_that_need_it_take_escapes_and_wide_characters():
    plain = one(api({"/x/{id}": get(parameters=[{"name": "id", "in": "path", "required": True, **NUMBER}])}))
    assert plain.route == "GET /x/*"
    free = one(api({"/x/{id}": get(parameters=[path("id")])}))
    assert free.route == {"route": "GET /x/*", "encoded": True, "wide": True}


def test_slashes_are_taken_only_where_the_operator_says_so():
    paths = {"/contents/{path}": get(parameters=[path("path")])}
    assert one(api(paths)).route["encoded"] is True
    assert one(api(paths, choices={"slashes": frozenset({"path"})})).route["encoded"] == ["%2F"]


def test_arguments_of_one_name_in_different_places_differ_and_keep_their_names_on_the_wire():
    parameters = [path("id"), query("id"), {"name": "id", "in": "header", **TEXT}, query("body"), query("client")]
    arguments = one(api({"/x/{id}": get(parameters=parameters)})).arguments
    assert [(argument.identifier, argument.name, argument.place) for argument in arguments] == [
        ("id", "id", "path"),
        ("id_query", "id", "query"),
        ("body_", "body", "query"),
        ("client_", "client", "query"),
        ("id_header", "id", "header"),
    ]


def test_a_required_parameter_that_is_lost_stops_its_operation():
    lost = {"$ref": "https://schemas.example/common.json#/components/parameters/Limit"}
    assert "network" in stop(api({"/x": get(parameters=[lost])})).reason


@pytest.mark.parametrize(
    ("item", "destructive"),
    [
        ({"delete": OK}, "DELETE removes what it names"),
        ({"delete": {**OK, "x-forge-require-confirmation": "Deletes all."}}, "Deletes all."),
        ({"delete": {**OK, "x-forge-require-confirmation": ""}}, "DELETE removes what it names"),
        ({"delete": {**OK, "x-forge-require-confirmation": False}}, "DELETE removes what it names"),
        ({"post": {**OK, "x-forge-require-confirmation": True}}, "the document asks for a confirmation"),
        ({"post": {**OK, "x-forge-require-confirmation": False}}, ""),
        ({"post": OK}, ""),
    ],
)
def test_what_destroys_says_why_one_should_ask_first(item, destructive):
    assert one(api({"/x": item})).destructive == destructive


# Choices


ACCOUNT = {"/accounts/{account_id}/x/{id}": get(parameters=[path("account_id"), path("id")])}


def test_a_bound_value_stands_in_template_and_route_and_is_no_argument():
    found = api(ACCOUNT, choices={"bind": {"account_id": "42"}})
    operation = one(found)
    assert (operation.template, operation.route_text) == ("/accounts/42/x/{id}", "GET /accounts/42/x/*")
    assert [argument.name for argument in operation.arguments] == ["id"]
    assert routes(found) == ["GET /accounts/42/x/*"]


def test_a_route_without_wildcards_says_nothing_of_escapes():
    assert api(ACCOUNT, choices={"bind": {"account_id": "42", "id": "a:b"}}).catalog == ("GET /accounts/42/x/a:b",)


@pytest.mark.parametrize("value", ["", "a/b", "*", "a b", "{x}", "..", ".", "a%2Fb", "?", "a;b"])
def test_a_value_that_cannot_stand_in_a_path_is_not_bound(value):
    found = api(ACCOUNT, choices={"bind": {"id": value}})
    assert stop(found).reason
    assert "**" not in str(found)


def test_a_bound_query_is_sent_with_every_call():
    operation = one(api({"/x": get(parameters=[query("v"), query("q")])}, choices={"bind": {"v": "2 3"}}))
    assert operation.fixed_query == (("v", "2 3"),)
    assert [argument.name for argument in operation.arguments] == ["q"]
    assert operation.route["query"]["v"] == {"const": "2 3", "required": True}


def test_a_run_parameter_stands_in_the_route_and_is_not_the_codes_to_choose():
    found = api(ACCOUNT, choices={"params": {"account_id": "[0-9]{1,9}", "unused": "x"}})
    operation = one(found)
    assert operation.route_text == "GET /accounts/{account_id}/x/*"
    assert operation.template == "/accounts/{account_id}/x/{id}"
    assert [(argument.name, argument.place) for argument in operation.arguments] == [
        ("account_id", "run"),
        ("id", "path"),
    ]
    assert found.params == {"account_id": "[0-9]{1,9}"}


def test_a_run_parameter_asks_for_no_escapes():
    paths = {"/{a}/{n}": get(parameters=[path("a"), {"name": "n", "in": "path", "required": True, **NUMBER}])}
    assert one(api(paths, choices={"params": {"a": "x"}})).route == "GET /{a}/*"


def test_a_run_parameter_beside_a_wildcard_in_one_segment_is_not_carried():
    assert "cannot share" in stop(api({"/{a}.{b}": get()}, choices={"params": {"a": "x"}})).reason


FILTERED = {
    "/pets": {"get": {**OK, "operationId": "list", "tags": ["a"]}, "post": {**OK, "operationId": "add", "tags": ["b"]}},
    "/pets/{id}": {"get": {**OK, "operationId": "read"}, "delete": {**OK, "operationId": "old", "deprecated": True}},
}


@pytest.mark.parametrize(
    ("choices", "kept"),
    [
        ({}, ["list", "add", "read"]),
        ({"deprecated": True}, ["list", "add", "read", "old"]),
        ({"tags": frozenset({"a", "c"})}, ["list"]),
        ({"methods": frozenset({"POST"})}, ["add"]),
        ({"allow": ("GET *",)}, ["list", "read"]),
        ({"allow": ("GET /pets/*",)}, ["read"]),
        ({"allow": ("add", "re?d")}, ["add", "read"]),
        ({"allow": ("LIST", "get *")}, []),
        ({"allow": ("*",), "tags": frozenset({"a"}), "methods": frozenset({"POST"})}, []),
    ],
)
def test_filters_leave_operations_out_and_the_catalog_whole(choices, kept):
    found = api(FILTERED, choices=choices)
    assert [operation.id for operation in found.operations] == kept
    assert routes(found) == ["GET /pets", "POST /pets", "GET /pets/*", "DELETE /pets/*"]
    left = [told for told in found.told if told.status == "left-out"]
    assert len(left) == 4 - len(kept)
    assert all("--" in told.notes[-1].reason for told in left)


def test_filters_change_no_name():
    everything = api({"/a": get(operationId="x"), "/b": get(operationId="x")})
    second = api({"/a": get(operationId="x"), "/b": get(operationId="x")}, choices={"allow": ("GET /b",)})
    assert one(second).identifier == everything.operations[1].identifier != "x"


def test_headers_that_always_pass_are_not_listed_and_others_once():
    def header(name):
        return {"name": name, "in": "header", **TEXT}

    found = api(
        {
            "/a": get(parameters=[header("X-One"), header("If-Match"), header("accept-language")]),
            "/b": get(parameters=[header("x-one"), header("Idempotency-Key")]),
        }
    )
    assert found.request_headers == ("X-One", "Idempotency-Key")


# Routes of one catalog


def test_operations_of_one_route_are_one_entry_that_says_that_granting_one_grants_all():
    link = get(operationId="share", parameters=[query("fields", required=True)])
    found = api({"/files/{file_id}": get(operationId="read"), "/files/{file_id}#share": link})
    assert [entry["query"] for entry in found.catalog] == [{"fields": "any"}]
    assert [operation.id for operation in found.operations] == ["read", "share"]
    assert "query" not in found.operations[0].route
    for told in found.told:
        assert told.notes[-1].pointer == told.pointer
        assert any('granting one grants all: "read", "share"' in note.reason for note in told.notes)


def test_an_operation_id_that_stands_twice_is_told_with_the_name_of_its_method():
    paths = {"/b": get(operationId="dup"), "/a": get(operationId="dup"), "/c": get(operationId="own")}
    found = api(paths)
    later, first, other = found.operations
    assert (first.identifier, other.identifier) == ("dup", "own")
    assert later.identifier.startswith("dup_")
    for operation in (first, later):
        (note,) = operation.notes
        assert (
            note.reason == f'2 operations have the operationId "dup"; in the client this one is {operation.identifier}'
        )
        assert (note.level, note.pointer) == ("warn", operation.pointer + "/operationId")
    assert other.notes == ()


def test_operations_of_one_route_and_one_operation_id_are_named_as_in_the_client():
    paths = {"/x/{a}": get(operationId="dup"), "/x/{b}": get(operationId="dup")}
    one, other = api(paths).operations
    assert f'granting one grants all: "{one.identifier}", "{other.identifier}"' in one.notes[-1].reason
    assert one.identifier != other.identifier


def test_a_route_that_is_shared_with_one_that_is_left_out_says_so_too():
    paths = {"/x/{a}": get(operationId="one"), "/x/{b}": get(operationId="two")}
    found = api(paths, choices={"allow": ("one",)})
    assert "granting one grants all" in found.operations[0].notes[-1].reason


def test_methods_of_templates_that_are_equal_stay_apart():
    found = api({"/orgs/{org}/x/{id}": get(), "/orgs/{org}/x/{other}": {"delete": OK}})
    assert routes(found) == ["GET /orgs/*/x/*", "DELETE /orgs/*/x/*"]
    assert "one route" not in reasons(found)


def test_a_wildcard_names_what_it_covers():
    found = api({"/pets/{petId}": {"get": OK, "delete": OK}, "/pets/mine": get()})
    assert ["cover" in " ".join(note.reason for note in told.notes) for told in found.told] == [True, False, False]
    assert '"GET /pets/mine"' in reasons(found)
    assert only(api({"/pets/mine": get()})).notes == ()


def test_a_template_without_literals_covers_a_bounded_number_in_its_note():
    found = api({"/{x}": get(), **{f"/a{number}": get() for number in range(300)}})
    assert "and 292 more" in found.told[0].notes[-1].reason


# Whole documents


@pytest.mark.parametrize("file", corpus.paths(), ids=lambda file: file.name)
def test_every_operation_of_every_document_is_told_once(file: Path):
    document = read_document(file)
    try:
        found = read_api(document, Choices(deprecated=True))
    except DocumentError:
        found = read_api(document, Choices(deprecated=True, server=HOST))
    check(found)
    written = 0
    for key, at in document.root["paths"].items():
        if not key.startswith("x-"):
            item, _ = document.resolve(at, "#/paths")
            methods = {"get", "put", "post", "delete", "options", "head", "patch", "trace", "query"}
            written += len(item.keys() & methods) + len(item.get("additionalOperations", {}))
    assert len(found.told) == written
    assert all(told.notes for told in found.told if told.status != "carried")


def test_the_order_of_the_paths_changes_no_name_and_no_route():
    document = read_document(corpus.paths()[0])
    forwards = read_api(document, Choices())
    turned = dict(document.root)
    turned["paths"] = dict(reversed(document.root["paths"].items()))
    found = api(turned.pop("paths"), **{**turned, "version": turned.pop("openapi")})
    assert {(told.label, told.status) for told in forwards.told} == {(told.label, told.status) for told in found.told}
    assert {text(entry) for entry in forwards.catalog} == {text(entry) for entry in found.catalog}
    assert {(one.method, one.pointer, one.identifier, one.tool) for one in forwards.operations} == {
        (one.method, one.pointer, one.identifier, one.tool) for one in found.operations
    }


def test_a_document_of_far_too_many_paths_operations_or_parameters_is_one_line():
    with pytest.raises(DocumentError, match="more than 20000 paths"):
        api({f"/a{number}": {} for number in range(20_001)})
    with pytest.raises(DocumentError, match="more than 20000 operations"):
        api({f"/a{number}": {"get": OK, "put": OK} for number in range(10_001)})
    many = {"parameters": [query(f"q{number}") for number in range(400)], "get": OK}
    shared = {f"/a{number}": {"$ref": "#/components/pathItems/p"} for number in range(300)}
    with pytest.raises(DocumentError, match="more than 100000 parameters"):
        api(shared, components={"pathItems": {"p": many}})


def test_covers_that_are_too_many_are_a_note_on_the_document():
    crossing = {f"/{{x}}/a{number}": get() for number in range(400)} | {
        f"/b{number}/{{x}}": get() for number in range(400)
    }
    found = api(crossing)
    assert "too many" in found.notes[0].reason
    assert "cover" not in reasons(found)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(DOCUMENTS)
def test_a_document_of_anything_is_carried_as_far_as_it_goes(written):
    members = dict(written) if isinstance(written, dict) else {}
    version = members.pop("openapi", "3.1.0")
    paths = members.pop("paths", {})
    with suppress(DocumentError):
        api(paths, version=version, choices={"server": HOST, "deprecated": True}, **members)


@given(ANYTHING, ANYTHING)
def test_a_path_item_and_an_operation_may_be_anything(item, operation):
    found = api({"/a/{x}": item, "/b/{x}": {"get": operation}}, choices={"deprecated": True})
    assert len(found.told) >= 1
