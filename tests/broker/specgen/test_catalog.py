from __future__ import annotations

import json

import pytest

from broker.placements import QUESTION, Registry
from broker.specgen.catalog import catalog_json, digest, granted_routes, grants_json, is_catalog
from broker.specgen.model import Security
from config.errors import ConfigurationError
from config.grants import parse_grants
from tests.broker.specgen.making import api, operation


def written(made=None, **options):
    given = {"profile": "pets", "global_name": "pets", "callers": (), "allow": ()}
    return grants_json(made or api(), **{**given, **options})


def loaded(data: bytes):
    return parse_grants(data, name="grants.json", check_placement=Registry().check)


def test_the_catalog_has_every_route_and_says_what_it_was_made_of():
    document = json.loads(catalog_json(api(), {"report.txt": digest(b"x")}))
    assert document["catalog"] == list(api().catalog)
    stamp = document["specgen"]
    assert (stamp["document"], stamp["openapi"], stamp["sha256"]) == ("pets.json", "3.0.3", "ab" * 32)
    assert stamp["version"]
    assert stamp["files"] == {"report.txt": digest(b"x")}


def test_the_profile_to_start_from_loads_and_grants_nothing():
    profile = loaded(written()).profiles["pets"]
    assert profile.allow == ()
    assert profile.allowed_callers == frozenset()
    assert [rule.text for rule in profile.catalog] == ["GET /v1/pets", "GET /v1/pets/*", "DELETE /v1/pets/*"]
    assert profile.token == {"type": "static", "key": "pets"}
    assert profile.placement == {"scheme": "bearer"}
    assert profile.global_name == "pets"


def test_the_profile_allows_what_is_asked_for():
    profile = loaded(written(callers=["agent"], allow=granted_routes(api()))).profiles["pets"]
    assert [rule.text for rule in profile.allow] == ["GET /v1/pets", "GET /v1/pets/*"]
    assert profile.allowed_callers == {"agent"}


def test_an_open_question_is_a_value_that_does_not_load_and_its_answer_does():
    data = written(api(security=Security(placement=None, question="how is the key sent?")))
    with pytest.raises(ConfigurationError) as raised:
        loaded(data)
    assert [fault.where for fault in raised.value.faults] == ["grants.json: profiles.pets.placement"]
    document = json.loads(data)
    assert document["profiles"]["pets"]["placement"] == {"scheme": QUESTION}
    document["profiles"]["pets"]["placement"] = {"scheme": "token"}
    assert loaded(json.dumps(document).encode()).profiles["pets"].placement == {"scheme": "token"}


def test_an_api_without_a_credential_gets_no_token():
    profile = json.loads(written(api(security=Security(placement=None))))["profiles"]["pets"]
    assert "token" not in profile
    assert "placement" not in profile


def test_run_parameters_and_headers_stand_in_the_profile():
    made = api(
        request_headers=("idempotency-key",), params={"customer": "[a-z]+"}, catalog=("GET /v1/{customer}/pets",)
    )
    profile = loaded(written(made, allow=["GET /v1/{customer}/pets"])).profiles["pets"]
    assert profile.params["customer"].text == "[a-z]+"
    assert b"idempotency-key" in profile.request_headers


def test_operations_of_one_route_are_granted_once_with_what_each_of_them_sends():
    one, other = ({"route": "PUT /files/*", "query": {name: "any"}} for name in "ab")
    both = {"route": "PUT /files/*", "query": {"a": "any", "b": "any"}}
    made = api(catalog=(both,), operations=(operation(one, "one"), operation(other, "other")))
    assert granted_routes(made) == [both]


def test_what_only_an_operation_sends_that_was_left_out_is_not_granted():
    other = {"route": "PUT /files/*", "query": {"b": "any"}}
    both = {"route": "PUT /files/*", "query": {"a": "any", "b": "any"}}
    assert granted_routes(api(catalog=(both,), operations=(operation(other, "other"),))) == [other]


def test_a_route_is_a_line_and_all_is_ascii():
    data = written(allow=["GET /v1/pets", "GET /v1/pets/*", "GET /v1/pets/*/a/long/way/to/go/until/it/ends"])
    lines = data.decode("ascii").splitlines()
    assert '        "GET /v1/pets",' in lines
    assert '        {"route": "GET /v1/pets", "query": {"limit": "int"}},' in lines
    assert catalog_json(api(source="\u202e\u00e4.json"), {}).isascii()


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"specgen": {}}', b'{"specgen": 1, "catalog": []}', b"[" * 9999])
def test_what_we_did_not_write_is_no_catalog_of_ours(data):
    assert not is_catalog(data)
    assert is_catalog(catalog_json(api(), {}))
