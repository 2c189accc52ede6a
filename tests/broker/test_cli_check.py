from __future__ import annotations

import json
from copy import deepcopy

import pytest

from tests.worlds.console import Console

GRANTS = {
    "profiles": {
        "mem": {
            "base_url": "https://api.example.com",
            "allowed_callers": ["me"],
            "token": {"type": "static", "env": "KEY"},
            "params": {"customer": "[a-z]{1,20}"},
            "allow": [
                "GET /v1/{customer}/items/*",
                "GET /v1/{customer}/items/special",
                {"route": "POST /v1/search", "query": {"limit": "int"}},
            ],
            "catalog": ["GET /v1/*/items/export", "DELETE /v1/*/items/*"],
        }
    }
}


@pytest.fixture
def console(tmp_path):
    return Console(tmp_path)


@pytest.fixture
def grants(console):
    (console.root / "grants.json").write_text(json.dumps(GRANTS))
    return GRANTS


def test_a_file_that_loads_shows_its_routes_and_what_wildcards_cover(console, grants):
    done = console("broker", "check", "grants.json")
    assert done.status == 0
    assert "mem: https://api.example.com, 3 routes granted" in done.out
    assert "covers GET /v1/*/items/export (documented and not granted: refused)" in done.out


def test_the_same_is_said_in_json(console, grants):
    shown = console("broker", "check", "grants.json", "--json").json
    assert shown["profiles"]["mem"]["allow"][0] == "GET /v1/{customer}/items/*"
    assert {cover["covered"] for cover in shown["profiles"]["mem"]["covers"]} == {"GET /v1/*/items/export"}
    assert shown["digest"].startswith("sha256:")


def test_answers_that_are_not_scrubbed_are_warned_of(console):
    careless = deepcopy(GRANTS)
    careless["profiles"]["mem"]["scrub"] = "off"
    (console.root / "grants.json").write_text(json.dumps(careless))
    done = console("broker", "check", "grants.json")
    assert "warning: scrub is off: an API that sends the credential back shows it to the code" in done.out
    for harmless in ({"scrub": "mask"}, {"scrub": "refuse"}, {"scrub": "off", "token": None}):
        profile = {**careless["profiles"]["mem"], **harmless}
        profile = {name: value for name, value in profile.items() if value is not None}
        (console.root / "grants.json").write_text(json.dumps({"profiles": {"mem": profile}}))
        assert "scrub" not in console("broker", "check", "grants.json").out


def test_every_fault_is_named_with_its_place(console):
    broken = deepcopy(GRANTS)
    profile = broken["profiles"]["mem"]
    profile["base_url"] = "http://api.example.com"
    profile["alow"] = profile.pop("allow")
    profile["placement"] = {"scheme": "telepathy"}
    (console.root / "grants.json").write_text(json.dumps(broken))
    done = console("broker", "check", "grants.json")
    assert (done.status, done.out) == (3, "")
    for place in ("profiles.mem.base_url", "profiles.mem.alow", "profiles.mem.placement"):
        assert f"grants.json: {place}" in done.err
    assert "did you mean allow?" in done.err
    listed = console("broker", "check", "grants.json", "--json")
    assert listed.status == 3
    faults = json.loads(listed.out)["faults"]
    assert {"where": "grants.json: profiles.mem.alow", "what": "unknown name", "hint": "did you mean allow?"} in faults


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        ({"allowed_callers": ["*"]}, "every caller may open runs with it"),
        ({"allowed_callers": []}, "no caller may open runs with it"),
        ({"allow": []}, "allow is empty"),
        ({"private_addresses": True}, "private address"),
        ({"token": None}, "without a credential"),
        ({"allow": [{"route": "GET /a/*", "wide": True}]}, "GET /a/*: its wildcards are wide"),
        ({"allow": [{"route": "GET /a/*", "encoded": True}]}, "percent-encoding"),
        ({"allow": [{"route": "GET /a", "query": {"n": "integer"}}]}, "its query n takes the text integer"),
        ({"allow": [{"route": "GET /a", "credential": False}]}, "GET /a: goes out without the credential"),
    ],
)
def test_what_was_perhaps_not_meant_is_said_and_is_no_fault(console, change, warning):
    written = deepcopy(GRANTS)
    written["profiles"]["mem"] |= change
    if change.get("token", 1) is None:
        del written["profiles"]["mem"]["token"]
    (console.root / "grants.json").write_text(json.dumps(written))
    done = console("broker", "check", "grants.json")
    assert done.status == 0, done.err
    assert f"warning: {warning}" in done.out or warning in done.out


def test_cases_that_hold_end_well(console, grants):
    cases = {
        "must_allow": [
            {
                "profile": "mem",
                "call": "GET /v1/acme/items/7",
                "params": {"customer": "acme"},
                "route": "GET /v1/{customer}/items/*",
            }
        ],
        "must_refuse": [
            {"profile": "mem", "call": "GET /v1/other/items/7", "params": {"customer": "acme"}},
            {
                "profile": "mem",
                "call": "GET /v1/acme/items/export",
                "params": {"customer": "acme"},
                "code": "route-reserved",
            },
        ],
    }
    (console.root / "cases.json").write_text(json.dumps(cases))
    done = console("broker", "check", "grants.json", "--cases", "cases.json")
    assert done.status == 0, done.err + done.out
    assert "3 of 3 cases hold" in done.err


def test_a_case_that_does_not_hold_ends_with_five_and_is_named(console, grants):
    cases = {"must_refuse": [{"profile": "mem", "call": "POST /v1/search", "params": {"customer": "acme"}}]}
    (console.root / "cases.json").write_text(json.dumps(cases))
    done = console("broker", "check", "grants.json", "--cases", "cases.json")
    assert done.status == 5
    assert "FAILS  must_refuse[0]  POST /v1/search  granted by POST /v1/search" in done.out
    shown = console("broker", "check", "grants.json", "--cases", "cases.json", "--json").json
    assert [case["holds"] for case in shown["cases"]] == [False]


@pytest.mark.parametrize("cases", ["{}", '{"must_alow": []}', "nonsense"])
def test_a_cases_file_that_is_none_is_a_fault(console, grants, cases):
    (console.root / "cases.json").write_text(cases)
    done = console("broker", "check", "grants.json", "--cases", "cases.json")
    assert (done.status, done.out) == (3, "")
    assert "cases.json" in done.err


def test_check_needs_no_settings_and_no_service(console, grants):
    assert not (console.root / "broker.toml").exists()
    assert console("broker", "check", "grants.json").status == 0


def test_explain_names_the_deciding_route_and_why_not_the_others(console, grants):
    call = ("mem", "GET", "/v1/acme/items/special", "--param", "customer=acme", "--file", "grants.json")
    done = console("broker", "explain", *call)
    assert done.status == 0, done.err
    assert done.out.startswith("granted by GET /v1/{customer}/items/special\n")
    verdicts = {
        one["route"]: one["verdict"] for one in console("broker", "explain", *call, "--json").json["candidates"]
    }
    assert verdicts == {
        "GET /v1/{customer}/items/special": "decides",
        "GET /v1/{customer}/items/*": "matches",
        "POST /v1/search": "no",
    }


@pytest.mark.parametrize(
    ("method", "target", "code", "why"),
    [
        ("GET", "/v1/acme/items/export", "route-reserved", "A more specific route, which is not granted, matches"),
        ("GET", "/v1/other/items/7", "route-not-granted", "No granted route matches"),
        ("POST", "/v1/search?limit=x", "query-not-granted", "the value of limit is not one that the route takes"),
        ("BREW", "/v1/search", "method-not-supported", "The method is not one that this service carries"),
        ("GET", "/v1//items", "target-malformed", "the path holds an empty segment"),
        ("GET", "/v1/ä", "target-malformed", "the"),
    ],
)
@pytest.mark.usefixtures("grants")
def test_explain_says_why_a_call_is_refused_and_ends_with_five(console, method, target, code, why):
    call = ("mem", method, target, "--param", "customer=acme", "--file", "grants.json")
    done = console("broker", "explain", *call)
    assert done.status == 5
    assert done.out.startswith(f"refused: {code}: {why}")
    assert console("broker", "explain", *call, "--json").json["code"] == code


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("nope", "GET", "/v1/search"), 2),
        (("mem", "GET", "/v1/search", "--param", "customer"), 2),
        (("mem", "GET", "/v1/search", "--param", "customer=a", "--param", "customer=b"), 2),
        (("mem", "GET", "/v1/search", "--param", "customer=NOT"), 5),
        (("mem", "GET", "/v1/search", "--param", "custommer=a"), 5),
    ],
)
def test_explain_takes_only_what_a_run_could_be_opened_with(console, grants, arguments, status):
    done = console("broker", "explain", *arguments, "--file", "grants.json")
    assert (done.status, done.out) == (status, "")


def test_explain_finds_the_grants_by_the_settings(console, grants):
    (console.root / "broker.toml").write_text("")
    assert console("broker", "explain", "mem", "POST", "/v1/search", "--param", "customer=a").status == 0


def test_the_example_grants_file_loads_and_grants_what_the_readme_calls(console):
    console("broker", "init", "demo")
    assert console("broker", "check", "demo/grants.json").status == 0
    place = "/client/v4/accounts/42/agent-memory/namespaces/support"
    call = ("example", "POST", f"{place}/profiles/acme/recall", "--param", "customer=acme")
    assert console("broker", "explain", *call, "--config", "demo/broker.toml").status == 0
    call = ("example", "DELETE", place, "--param", "customer=acme")
    assert console("broker", "explain", *call, "--config", "demo/broker.toml").status == 5
