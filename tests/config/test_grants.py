from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from config.errors import ConfigurationError, Fault
from config.grants import compile_profile, parse_grants
from config.match import Matcher
from tests.config.grants_of import LEAST, document, faults, faults_of, profile

SEED = (Path(__file__).parent / "seed_grants.json").read_bytes()


def read_preamble(name: str) -> bytes:
    assert name == "preamble.js"
    return b"var memory = {};\n"


def test_the_seed_loads_byte_for_byte_given_its_preamble():
    made = parse_grants(SEED, name="grants.json", read_preamble=read_preamble).profiles["agent-memory"]
    assert (made.base_url, made.scheme, made.host, made.port) == (
        "https://api.cloudflare.com",
        "https",
        "api.cloudflare.com",
        443,
    )
    assert made.allowed_callers == {"support-agent"}
    assert made.allows_caller("support-agent")
    assert not made.allows_caller("other")
    assert made.token == {"type": "static", "env": "CLOUDFLARE_API_TOKEN"}
    assert made.key_aliases() == {"env:CLOUDFLARE_API_TOKEN": "env:CLOUDFLARE_API_TOKEN"}
    assert (len(made.allow), len(made.catalog)) == (3, 14)
    assert (made.global_name, dict(made.preambles)) == ("memory", {"preamble.js": b"var memory = {};\n"})
    account = "/client/v4/accounts/00000000000000000000000000000042/agent-memory/namespaces/support-agent"
    matcher = Matcher(made)
    target = f"{account}/profiles/customer-42/memories/01JFAKEMEM0000000000000001"
    assert matcher.match("GET", target.encode(), {}).rule.text.endswith("/memories/*")


def test_what_is_left_out_has_the_documented_default():
    made = profile()
    assert made.token is None
    assert made.placement == {"scheme": "bearer"}
    assert (made.allow, made.catalog, made.params) == ((), (), {})
    assert (made.ttl_s, made.max_ttl_s) == (900, 86_400)
    assert (made.max_calls, made.max_concurrent) == (256, 16)
    assert (made.max_request, made.max_response) == (1 << 20, 32 << 20)
    assert (made.breaker_max_s, made.health_check) == (30, None)
    assert (made.scrub, made.private_addresses, made.run_token_prefix) == ("mask", False, "")
    assert (dict(made.env), made.scopes, made.global_name, made.preamble_files) == ({}, (), None, ())


def test_every_field_can_be_written():
    fields = {
        "token": {"type": "jwt", "key": "signer", "audience": "https://api.test"},
        "placement": {"scheme": "header", "name": "X-API-Key"},
        "params": {"customer": "[a-z]+"},
        "allow": [
            "GET /v1/{customer}",
            {
                "route": "POST /v1/*",
                "query": {"n": "int"},
                "encoded": ["%2F"],
                "wide": True,
                "credential": False,
            },
        ],
        "catalog": [{"route": "GET /v1/{anything}", "query": {"n": "int"}}],
        "request_headers": ["Idempotency-Key"],
        "response_headers": ["X-Request-Id"],
        "fixed_headers": {"X-Version": "2026-11"},
        "ttl": "5m",
        "max_ttl": 3600,
        "max_calls": 100_000,
        "max_concurrent": 1,
        "max_request": "64KiB",
        "max_response": 1,
        "breaker_max": "1m",
        "health_check": "GET /v1/ping/",
        "scrub": "off",
        "private_addresses": True,
        "run_token_prefix": "sk-",
        "env": {"OPENAI_BASE_URL": "{base_url}/v1", "OPENAI_API_KEY": "{run_token}"},
        "scopes": ["memory:write"],
        "global": "memory",
    }
    made = profile(**fields)
    assert (made.ttl_s, made.max_ttl_s, made.max_request, made.max_response) == (300, 3600, 65_536, 1)
    assert made.health_check is not None
    assert made.health_check.text == "GET /v1/ping/"
    rule = made.allow[1]
    assert (rule.encoded, rule.wide, rule.credential) == (frozenset({"%2F"}), True, False)
    assert made.key_aliases() == {"signer": None}
    assert compile_profile("p", made.source) == made


def test_a_profile_is_frozen_and_made_again_from_its_source():
    made = profile(allow=["GET /é".replace("é", "e")], fixed_headers={"X-Version": "1"})
    again = compile_profile("p", made.source)
    assert again == made
    assert again.digest == "sha256:" + hashlib.sha256(made.source).hexdigest()
    for change in ("name", "allow"):
        with pytest.raises(AttributeError):
            setattr(made, change, None)
    with pytest.raises(TypeError):
        made.params["x"] = None


def test_the_digest_follows_the_content_and_not_the_layout():
    fields = {**LEAST, "allow": ["GET /x"], "ttl": "5m"}
    one = parse_grants(json.dumps({"profiles": {"p": fields}}, indent=4).encode(), name="g")
    other = parse_grants(json.dumps({"profiles": {"p": dict(reversed(fields.items()))}}).encode(), name="g")
    assert one.digest == other.digest
    assert one.profiles["p"].digest == other.profiles["p"].digest
    assert one.profiles["p"].digest != profile(allow=["GET /y"], ttl="5m").digest


def test_an_editor_may_name_the_schema():
    assert faults(b'{"$schema": "./grants.schema.json", "profiles": {}}') == []


def test_every_secret_that_a_token_refers_to_is_known_at_any_depth():
    token = {
        "type": "static",
        "fields": {"api_key": {"key": "dd-api"}, "app_key": {"keyring": "minter/dd-app"}},
        "more": [{"file": "secrets/x"}, {"credential": "y"}],
        "claims": {"env": "production"},
    }
    assert profile(token=token).key_aliases() == {
        "dd-api": None,
        "keyring:minter/dd-app": "keyring:minter/dd-app",
        "file:secrets/x": "file:secrets/x",
        "credential:y": "credential:y",
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"alow": ["GET /x"]}, ["alow: unknown name (did you mean allow?)"]),
        ({"base_url": "https://U.test"}, ["base_url: an origin is written in lower case"]),
        ({"base_url": 7}, ["base_url: expected a text, found a whole number"]),
        ({"allowed_callers": "*"}, ["allowed_callers: expected a list"]),
        ({"allowed_callers": ["*", "a"]}, ['allowed_callers: "*" already means']),
        ({"allowed_callers": ["a", "a"]}, ["allowed_callers[1]: stands twice"]),
        ({"allowed_callers": ["a" * 100, "b" * 101]}, ["allowed_callers[1]: a caller's id"]),
        ({"allowed_callers": ["a b", ""]}, ["allowed_callers[0]: a caller's id", "allowed_callers[1]: a caller's id"]),
        ({"token": {}}, ["token.type: missing"]),
        ({"token": {"type": 7}}, ["token.type: expected a text"]),
        ({"token": "sk-canary"}, ["token: expected an object or nothing"]),
        ({"token": {"type": "static", "env": "A", "key": "b"}}, ["token: a secret has one place; found key and env"]),
        ({"token": {"type": "oauth2", "scopes": ["a", "*"]}}, ["token.scopes: a scope is named"]),
        ({"token": {"type": "oauth2", "scope": "*"}}, ["token.scope: a scope is named"]),
        ({"placement": {"name": "X"}}, ["placement.scheme: missing"]),
        ({"placement": None}, ["placement: expected an object"]),
        ({"allow": "GET /x"}, ["allow: expected a list"]),
        ({"allow": ["GET /x", "GET /y/**"]}, ["allow[1]: ** is not a wildcard"]),
        ({"allow": ["GET /x", "GET /y", "GET /x"]}, ["allow[2]: the same route as allow[0]"]),
        (
            {"allow": [{"route": "GET /*", "wide": True}, {"route": "GET /*", "encoded": True}]},
            ["allow[1]: the same route as allow[0]"],
        ),
        ({"catalog": ["GET /{a}", "GET /{a}", "GET /*"]}, ["catalog[1]: the same route as catalog[0]"]),
        ({"catalog": ["GET /x y"]}, ["catalog[0]: segment 1: literal text"]),
        ({"allow": ["GET /{c}"]}, ["allow[0]: {c} is not declared (declare c in params"]),
        ({"allow": [{"route": "GET /x", "query": {"a": "{c}"}}]}, ["allow[0]: {c} is not declared"]),
        ({"allow": [{"route": "GET /x", "quer": {}}]}, ["allow[0].quer: unknown name (did you mean query?)"]),
        ({"allow": [{"query": {}}]}, ["allow[0].route: missing"]),
        ({"allow": [{"route": "GET /x", "query": {"a": 7}}]}, ["allow[0].query.a: expected"]),
        (
            {"allow": [{"route": "GET /x", "query": {"a": {"patern": "x"}}}]},
            ["allow[0].query.a.patern: unknown name (did you mean pattern?)"],
        ),
        ({"allow": [{"route": "GET /x", "query": {"a": {"type": "number"}}}]}, ["allow[0].query.a.type: expected"]),
        ({"allow": [{"route": "GET /x", "query": {"a": []}}]}, ["allow[0].query.a: an empty list"]),
        ({"allow": [{"route": "GET /x", "wide": True}]}, ["allow[0].wide: has no effect"]),
        ({"allow": [{"route": "GET /x", "encoded": True}]}, ["allow[0].encoded: has no effect"]),
        ({"allow": [{"route": "GET /*", "encoded": []}]}, ["allow[0].encoded: an empty list"]),
        ({"allow": [{"route": "GET /*", "encoded": ["%2f"]}]}, ["allow[0].encoded[0]: not an escape"]),
        ({"allow": [{"route": "GET /*", "encoded": ["%41"]}]}, ["allow[0].encoded[0]: not an escape"]),
        ({"allow": [{"route": "GET /*", "encoded": ["%00"]}]}, ["allow[0].encoded[0]: not an escape"]),
        ({"allow": [{"route": "GET /*", "encoded": ["%0A"]}]}, ["allow[0].encoded[0]: not an escape"]),
        ({"allow": [{"route": "GET /*", "encoded": ["/"]}]}, ["allow[0].encoded[0]: not an escape"]),
        (
            {"allow": [{"route": "GET /x", "query": {"key": "any"}}], "placement": {"scheme": "query", "name": "key"}},
            ["allow[0].query.key: the placement puts the credential there"],
        ),
        ({"params": {"1": "x"}}, ["params.1: a parameter's name"]),
        ({"params": {"a": "("}}, ["params.a: not a pattern"]),
        ({"params": {"a": "(?=x)"}}, ["params.a: not a pattern"]),
        ({"ttl": "48h"}, ["ttl: longer than max_ttl"]),
        ({"ttl": "1h", "max_ttl": "30m"}, ["ttl: longer than max_ttl"]),
        ({"ttl": 0}, ["ttl: expected 1 to"]),
        ({"ttl": "soon"}, ["ttl: a duration is"]),
        ({"ttl": -5}, ["ttl: a duration is"]),
        ({"max_ttl": "366d"}, ["max_ttl: expected 1 to"]),
        ({"max_calls": 100_001}, ["max_calls: expected at most 100000"]),
        ({"max_calls": 0}, ["max_calls: expected at least 1"]),
        ({"max_calls": True}, ["max_calls: expected a whole number"]),
        ({"max_concurrent": 0}, ["max_concurrent: expected at least 1"]),
        ({"max_request": "1MB"}, ["max_request: a size is"]),
        ({"max_request": -1}, ["max_request: a size is"]),
        ({"max_response": 0}, ["max_response: expected 1 to"]),
        ({"breaker_max": "2h"}, ["breaker_max: expected 1 to 3600"]),
        ({"health_check": "POST /x"}, ["health_check: expected GET"]),
        ({"health_check": "GET /x/*"}, ["health_check: expected GET"]),
        ({"health_check": "/x"}, ["health_check: a route is"]),
        ({"scrub": "maks"}, ["scrub: expected one of mask, off, refuse"]),
        ({"private_addresses": "no"}, ["private_addresses: expected true or false"]),
        ({"run_token_prefix": "a b"}, ["run_token_prefix: expected a text of the form"]),
        ({"env": {"A-B": "x"}}, ["env.A-B: not the name"]),
        ({"env": {"BROKER_URL": "x"}}, ["env.BROKER_URL: BROKER_ and MINTER_"]),
        ({"env": {"A": "{token}"}}, ["env.A: only {base_url}"]),
        ({"env": {"A": "x\x00"}}, ["env.A: holds a NUL"]),
        ({"scopes": ["*"]}, ["scopes[0]: a scope is named; a wildcard is forbidden"]),
        ({"scopes": ["repo:*"]}, ["scopes[0]: a scope is named"]),
        ({"scopes": ["a b"]}, ["scopes[0]: a scope is printable"]),
        ({"scopes": ["a", "a"]}, ["scopes[1]: stands twice"]),
        ({"global": "a-b"}, ["global: expected a name"]),
        ({"preamble_file": ""}, ["preamble_file: expected"]),
        ({"preamble_file": []}, ["preamble_file: expected"]),
        ({"preamble_file": ["a.js", "b.js"]}, ["preamble_file[1]: a second client in the same language"]),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_what_is_wrong_with_a_field_is_named_at_its_place(fields, expected):
    found = faults_of(**fields)
    assert len(found) == len(expected), found
    for fault, beginning in zip(found, expected, strict=True):
        assert fault.startswith(beginning)
    assert "canary" not in "".join(found)


def test_all_faults_of_all_profiles_are_named_at_once():
    data = json.dumps(
        {
            "profiles": {
                "a": {**LEAST, "allow": ["GET /x", 7, "GET //", {"rute": "GET /y"}], "ttl": "x", "max_calls": "many"},
                "b": {"base_url": "http://evil.test", "token": {"type": "static"}, "extra": 1},
                "c d": LEAST,
                "e": [],
            },
            "version": 1,
        }
    ).encode()
    found = "\n".join(faults(data))
    for beginning in (
        "a.allow[1]: expected",
        "a.allow[2]: an empty segment",
        "a.allow[3].rute: unknown name (did you mean route?)",
        "a.allow[3].route: missing",
        "a.ttl: a duration is",
        "a.max_calls: expected a whole number",
        "b.base_url: http is only for",
        "b.allowed_callers: missing",
        "b.extra: unknown name",
        "c d: a profile's name",
        "e: expected an object, found a list",
        "grants.json: version: unknown name",
    ):
        assert beginning in found
    assert found.count("\n") == 11


def test_a_repeated_name_and_a_number_that_is_none_are_faults_with_their_place():
    data = document(allow=["GET /x"]).replace(b'"allow"', b'"max_calls": NaN, "allow": [], "allow"')
    assert faults(data) == ["p.allow: stands twice in the object", "p.max_calls: not a number that JSON has"]


def test_a_default_lifetime_never_exceeds_the_longest_one():
    assert profile(max_ttl="5m").ttl_s == 300


def test_a_preamble_that_cannot_be_read_is_a_fault():
    def missing(name):
        raise FileNotFoundError(2, "No such file or directory", "/secret/place/" + name)

    def binary(name):
        return b"\xff\xfe"

    data = document(preamble_file="client.js")
    assert faults(data, read_preamble=missing) == [
        "p.preamble_file: the file cannot be read: No such file or directory"
    ]
    assert faults(data, read_preamble=binary) == ["p.preamble_file: the file is not UTF-8"]
    data = document(preamble_file=["client.py", "client.js"])
    assert faults(data, read_preamble=binary) == [
        f"p.preamble_file[{index}]: the file is not UTF-8" for index in (0, 1)
    ]
    assert faults(data) == []


def test_placement_and_token_are_checked_by_the_program_that_reads_them():
    seen = []

    def check(where, value):
        seen.append((where, value))
        return [Fault(where, "is not for me")]

    data = document(token={"type": "odd", "x": 1})
    assert faults(data, check_token=check, check_placement=check) == [
        "p.placement: is not for me",
        "p.token: is not for me",
    ]
    assert seen == [
        ("grants.json: profiles.p.placement", {"scheme": "bearer"}),
        ("grants.json: profiles.p.token", {"type": "odd", "x": 1}),
    ]


def test_a_token_that_is_wrong_anyway_is_not_shown_to_the_program():
    def never(where, value):
        raise AssertionError

    assert faults(document(token={"typ": "static"}), check_token=never) == ["p.token.type: missing"]


@pytest.mark.parametrize("data", [b"[]", b"7", b"null", b"{}", b'{"profiles": []}', b'{"profiles": {"p": 7}}', b""])
def test_what_is_no_grants_file_is_refused(data):
    with pytest.raises(ConfigurationError):
        parse_grants(data, name="grants.json")


def test_a_file_without_profiles_grants_nothing():
    assert dict(parse_grants(b'{"profiles": {}}', name="g").profiles) == {}


def test_one_wrong_entry_of_a_list_or_a_map_does_not_hide_the_next():
    assert faults_of(
        allowed_callers=[7, "a b"],
        request_headers=[None, "Host"],
        params={"a": 7, "b": "("},
        env={"A": [], "B-": "x"},
    ) == [
        "allowed_callers[0]: expected a text, found a whole number",
        "env.A: expected a text, found a list",
        "params.a: expected a text, found a whole number",
        "request_headers[0]: expected a text, found nothing",
        "params.b: not a pattern of the linear-time language (RE2): missing ): (",
        "allowed_callers[1]: a caller's id is letters, digits and . _ @ -",
        "request_headers[1]: the broker sets this header itself",
        "env.B-: not the name of an environment variable",
    ]
