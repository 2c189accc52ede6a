from __future__ import annotations

import json

import pytest

from config.cases import evaluate, parse_cases
from config.errors import ConfigurationError
from config.grants import parse_grants
from tests.config.grants_of import document

GRANTS = parse_grants(
    document(
        allow=["GET /v1/{customer}/items/*", "GET /v1/open"],
        catalog=["GET /v1/*/items/secret"],
        params={"customer": "[a-z]+"},
    ),
    name="grants.json",
)
ACME = {"profile": "p", "params": {"customer": "acme"}}


def run(**lists):
    results = evaluate(GRANTS, parse_cases(json.dumps(lists).encode(), name="cases.json"))
    return [(result.where, result.passed, result.what) for result in results]


def test_cases_that_hold_pass():
    assert run(
        must_allow=[
            {**ACME, "call": "GET /v1/acme/items/7", "route": "GET /v1/{customer}/items/*", "caller": "caller"},
            {**ACME, "call": "GET /v1/open"},
        ],
        must_refuse=[
            {**ACME, "call": "GET /v1/other/items/7"},
            {**ACME, "call": "GET /v1/acme/items/secret", "code": "route-reserved"},
            {"profile": "p", "call": "GET /v1/open", "code": "params-invalid"},
            {**ACME, "call": "GET /v1/open", "caller": "stranger", "code": "profile-unknown"},
            {"profile": "unheard", "call": "GET /v1/open"},
        ],
    ) == [
        *((f"must_allow[{index}]", True, "") for index in range(2)),
        *((f"must_refuse[{index}]", True, "") for index in range(5)),
    ]


def test_a_case_that_does_not_hold_says_what_happened_instead():
    assert run(
        must_allow=[
            {**ACME, "call": "GET /v1/acme/items/7/more"},
            {**ACME, "call": "GET /v1/open", "route": "GET /v1/*"},
            {"profile": "p", "call": "GET /v1/open", "params": {"customer": "acme", "typo": "x"}},
        ],
        must_refuse=[
            {**ACME, "call": "GET /v1/open"},
            {**ACME, "call": "GET /v1/../open", "code": "route-not-granted"},
        ],
    ) == [
        ("must_allow[0]", False, "refused: route-not-granted"),
        ("must_allow[1]", False, "decided by GET /v1/open"),
        ("must_allow[2]", False, "refused: params-invalid"),
        ("must_refuse[0]", False, "granted by GET /v1/open"),
        ("must_refuse[1]", False, "refused, but with target-malformed"),
    ]


@pytest.mark.parametrize(
    ("lists", "fault"),
    [
        ({}, "holds no case"),
        ({"must_alow": []}, "did you mean must_allow?"),
        ({"must_allow": [{"profile": "p"}]}, "must_allow[0].call: missing"),
        ({"must_allow": [{**ACME, "call": "/x"}]}, "must_allow[0].call: expected"),
        ({"must_refuse": [{**ACME, "call": "GET /x", "code": "no-such"}]}, "must_refuse[0].code: no such problem code"),
    ],
)
def test_a_cases_file_that_could_pass_by_mistake_is_refused(lists, fault):
    with pytest.raises(ConfigurationError) as refused:
        parse_cases(json.dumps(lists).encode(), name="cases.json")
    assert fault in str(refused.value)
