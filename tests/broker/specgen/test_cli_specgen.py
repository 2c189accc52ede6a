from __future__ import annotations

import io
import json
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from pathlib import Path

import pytest

from broker.cli import main
from broker.specgen.generate import NAMES
from config.console import terminal
from tests.worlds.console import Console, Done

ROOT = Path(__file__).parents[3]

PET = {"name": "pet_id", "in": "path", "required": True, "schema": {"type": "string"}}
HOUSE = {"name": "house", "in": "path", "required": True, "schema": {"type": "string"}}
OK = {"responses": {"200": {"description": "ok"}}}

DOCUMENT = {
    "openapi": "3.0.3",
    "info": {"title": "Pet Houses", "version": "1"},
    "servers": [{"url": "https://api.example.com/v1"}],
    "security": [{"key": []}],
    "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    "paths": {
        "/houses/{house}/pets": {
            "parameters": [HOUSE],
            "get": {
                "operationId": "list_pets",
                "tags": ["read"],
                "parameters": [{"name": "limit", "in": "query", "schema": {"type": "integer"}}],
                **OK,
            },
            "post": {
                "operationId": "add_pet",
                "requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}},
                **OK,
            },
        },
        "/houses/{house}/pets/{pet_id}": {
            "parameters": [HOUSE, PET],
            "get": {"operationId": "get_pet", "tags": ["read"], **OK},
            "delete": {"operationId": "old_delete", "deprecated": True, **OK},
        },
    },
}
UNCARRIED = deepcopy(DOCUMENT)
UNCARRIED["paths"]["/other"] = {"trace": {"operationId": "trace_it", **OK}}


class Here(Console):
    """The same command lines in this process: there are many, and a start of Python costs more than what they do."""

    def __call__(self, program, *arguments, stdin=""):
        assert program == "broker"
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with pytest.MonkeyPatch.context() as patched, redirect_stdout(out), redirect_stderr(err):
            patched.chdir(self.root)
            patched.setattr(sys, "argv", [program, *map(str, arguments)])
            patched.setattr(terminal, "_program", program)
            with pytest.raises(SystemExit) as ended:
                main()
        return Done(ended.value.code or 0, *(stream.buffer.getvalue().decode() for stream in (out, err)))


@pytest.fixture
def console(tmp_path):
    (tmp_path / "pets.json").write_text(json.dumps(DOCUMENT))
    return Here(tmp_path)


def rewrite(console, document) -> None:
    (console.root / "pets.json").write_text(json.dumps(document))


def profile_of(console, name="pet-houses"):
    return json.loads((console.root / "out" / "grants.json").read_text())["profiles"][name]


def run(console, *arguments):
    return console("broker", "specgen", "pets.json", "-o", "out", *arguments)


def routes(entries) -> list[str]:
    return [entry if isinstance(entry, str) else entry["route"] for entry in entries]


ALL = [
    "GET /v1/houses/*/pets",
    "POST /v1/houses/*/pets",
    "GET /v1/houses/*/pets/*",
    "DELETE /v1/houses/*/pets/*",
]


def test_one_command_writes_every_file_and_says_what_to_do_next(console):
    done = run(Console(console.root))
    assert (done.status, done.out) == (0, "")
    assert sorted(path.name for path in (console.root / "out").iterdir()) == sorted(NAMES)
    assert "broker: 4 operations: 3 carried, 1 left out" in done.err
    assert "broker check out/grants.json" in done.err
    profile = profile_of(console)
    assert profile["allow"] == []
    assert profile["base_url"] == "https://api.example.com"
    assert routes(profile["catalog"]) == ALL


def test_what_is_written_loads(console):
    run(console, "--allow", "*", "--caller", "agent")
    done = console("broker", "check", "out/grants.json")
    assert done.status == 0, done.err
    assert "pet-houses: https://api.example.com, 3 routes granted" in done.out


def test_a_second_run_writes_nothing(console):
    run(console)
    before = {path.name: path.read_bytes() for path in (console.root / "out").iterdir()}
    stats = {path.name: path.stat().st_mtime_ns for path in (console.root / "out").iterdir()}
    done = run(console)
    assert done.status == 0
    assert "everything was up to date" in done.err
    assert {path.name: path.read_bytes() for path in (console.root / "out").iterdir()} == before
    assert {path.name: path.stat().st_mtime_ns for path in (console.root / "out").iterdir()} == stats


@pytest.mark.parametrize(
    ("options", "granted"),
    [
        (["--allow", "get_pet"], [ALL[2]]),
        (["--allow", "GET */pets"], [ALL[0]]),
        (["--allow", "get_pet", "--allow", "add_pet"], [ALL[1], ALL[2]]),
        (["--allow", "*", "--tag", "read"], [ALL[0], ALL[2]]),
        (["--allow", "*", "--method", "post"], [ALL[1]]),
        (["--allow", "*", "--deprecated"], ALL),
        (["--allow", "*"], ALL[:3]),
    ],
)
def test_filters_narrow_what_is_granted_and_the_catalog_stays_whole(console, options, granted):
    assert run(console, *options).status == 0
    assert routes(profile_of(console)["allow"]) == granted
    assert routes(profile_of(console)["catalog"]) == ALL


def test_a_bound_name_is_no_wildcard_any_more(console):
    assert run(console, "--bind", "house=42").status == 0
    assert routes(profile_of(console)["catalog"])[2] == "GET /v1/houses/42/pets/*"


def test_a_run_parameter_stands_in_the_route_and_in_params(console):
    assert run(console, "--param", "house=[a-z]{1,8}", "--allow", "*").status == 0
    profile = profile_of(console)
    assert routes(profile["allow"])[2] == "GET /v1/houses/{house}/pets/*"
    assert profile["params"] == {"house": "[a-z]{1,8}"}


def test_slashes_are_let_through_where_they_are_asked_for(console):
    assert run(console, "--slashes", "pet_id", "--allow", "get_pet").status == 0
    assert profile_of(console)["allow"][0]["encoded"] == ["%2F"]


def test_server_profile_global_callers_and_placement_are_the_operators(console):
    done = run(
        console,
        *("--server", "https://eu.example.com/v2", "--profile", "pets", "--global", "zoo", "--caller", "agent"),
        *("--placement", "header:X-Key:Key "),
    )
    assert done.status == 0, done.err
    profile = profile_of(console, "pets")
    assert profile["base_url"] == "https://eu.example.com"
    assert routes(profile["catalog"])[0] == "GET /v2/houses/*/pets"
    assert profile["global"] == "zoo"
    assert profile["allowed_callers"] == ["agent"]
    assert profile["placement"] == {"scheme": "header", "name": "X-Key", "prefix": "Key "}
    assert profile["token"]["key"] == "pets"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bind", "hose=42"], "--bind hose: no operation"),
        (["--param", "hose"], "--param hose: no operation"),
        (["--slashes", "hose"], "--slashes hose: no operation"),
        (["--bind", "house"], "--bind is NAME=VALUE"),
        (["--bind", "house=1", "--bind", "house=2"], "--bind house stands twice"),
        *(
            (["--bind", f"house={value}"], "--bind house: a path takes")
            for value in ("..", "a/b", "", "a b", "*", "{x}", "%41")
        ),
        (["--param", "house", "--param", "house"], "--param house stands twice"),
        (["--param", "house=["], "--param house: not a pattern"),
        (["--param", "9house"], "--param is NAME"),
        (["--method", "fetch"], "--method is one of GET"),
        (["--placement", "telepathy"], "--placement: no such scheme"),
        (["--placement", "header:"], "--placement: "),
        (["--placement", "{"], "--placement starts as an object"),
        (["--profile", "a b"], "--profile is letters"),
        (["--global", "class"], "--global is a name"),
        (["--global", "a-b"], "--global is a name"),
        (["--emit", "client.rb"], "--emit is one of catalog.json"),
        (["--emit", "client.py"], "--emit prints one file"),
        (["--check", "--json"], "--check compares"),
        (["--allow", "nothing like it"], "no operation that is carried passes"),
        (["--tag", "absent"], "no operation that is carried passes"),
    ],
)
def test_what_cannot_be_meant_ends_with_status_2_and_writes_nothing(console, options, said):
    done = run(console, *options)
    assert done.status == 2, done.err
    assert said in done.err
    assert not (console.root / "out").exists()


def test_a_name_is_bound_or_a_run_parameter_and_not_both(console):
    done = run(console, "--bind", "house=1", "--param", "house")
    assert done.status == 2
    assert not (console.root / "out").exists()


def test_without_a_place_to_write_to_nothing_is_done(console):
    done = console("broker", "specgen", "pets.json")
    assert done.status == 2
    assert "Give -o DIR" in done.err


def test_an_operation_that_is_not_carried_ends_with_status_5_and_the_files_are_written(console):
    rewrite(console, UNCARRIED)
    done = run(console)
    assert done.status == 5
    assert "not carried: TRACE /other (trace_it): " in done.err
    assert sorted(path.name for path in (console.root / "out").iterdir()) == sorted(NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"swagger": "2.0"}',
        '{"openapi": "3.0.3"}',
        '{"openapi": "3.0.3", "paths": {}}',
        "\x00",
        "a: &a *a",
    ],
)
def test_a_document_that_cannot_be_used_is_one_line_and_status_3(console, text):
    (console.root / "pets.json").write_text(text)
    done = run(console)
    assert (done.status, done.out) == (3, "")
    assert done.err.count("\n") == 1, done.err
    assert done.err.startswith("broker: ")
    assert not (console.root / "out").exists()


def test_a_document_that_is_not_there_is_one_line_and_status_3(console):
    done = console("broker", "specgen", "absent.json", "-o", "out")
    assert done.status == 3
    assert "absent.json" in done.err
    assert done.err.count("\n") == 1


def test_a_version_2_document_is_named_as_such(console):
    (console.root / "pets.json").write_text('{"swagger": "2.0", "paths": {}}')
    assert "2.0" in run(console).err


def test_an_operators_grants_file_is_kept_until_force(console):
    run(console)
    path = console.root / "out" / "grants.json"
    ours = path.read_text()
    edited = ours.replace('"allow": []', '"allow": ["GET /v1/houses/*/pets/*"]')
    path.write_text(edited)
    newer = deepcopy(DOCUMENT)
    newer["paths"]["/houses/{house}/pets/secret"] = {"get": OK}
    rewrite(console, newer)
    done = run(console)
    assert done.status == 0
    assert "kept out/grants.json" in done.err
    assert "--grants out/grants.json makes clients and texts" in done.err
    assert "fill allow" not in done.err
    assert "the catalog of pet-houses in it is not this document's" in done.err
    assert path.read_text() == edited
    assert "secret" in (console.root / "out" / "catalog.json").read_text()
    assert run(console, "--force").status == 0
    assert profile_of(console)["allow"] == []


def test_a_file_of_somebody_else_is_not_replaced_and_nothing_is_written(console):
    (console.root / "out").mkdir()
    (console.root / "out" / "client.py").write_text("mine")
    done = run(console)
    assert done.status == 6
    assert "out/client.py" in done.err
    assert "--force" in done.err
    assert [path.name for path in (console.root / "out").iterdir()] == ["client.py"]
    assert run(console, "--force").status == 0
    assert (console.root / "out" / "client.py").read_text() != "mine"


def test_a_place_that_cannot_be_written_is_one_line(console):
    (console.root / "out").write_text("a file")
    done = run(console)
    assert done.status == 3
    assert done.err.count("\n") == 1


def test_check_writes_nothing_and_says_which_file_differs_and_how(console):
    assert run(console, "--check").status == 1
    assert not (console.root / "out").exists()
    run(console)
    fresh = run(console, "--check")
    assert (fresh.status, fresh.out) == (0, "")
    assert "out is up to date" in fresh.err
    newer = deepcopy(DOCUMENT)
    newer["paths"]["/houses/{house}/pets/secret"] = {"get": OK}
    rewrite(console, newer)
    before = (console.root / "out" / "catalog.json").read_bytes()
    done = run(console, "--check")
    assert done.status == 1
    assert "out/catalog.json is stale" in done.out
    assert "GET /v1/houses/*/pets/secret" in done.out
    assert (console.root / "out" / "catalog.json").read_bytes() == before


def test_check_is_about_staleness_alone(console):
    rewrite(console, UNCARRIED)
    assert run(console).status == 5
    assert run(console, "--check").status == 0


@pytest.mark.parametrize("name", NAMES)
def test_emit_prints_one_file_as_it_would_be_written(console, name):
    run(console)
    done = console("broker", "specgen", "pets.json", "--emit", name)
    assert (done.status, done.err) == (0, "")
    assert done.out == (console.root / "out" / name).read_text()


def test_json_prints_the_report_and_needs_no_directory(console):
    done = console("broker", "specgen", "pets.json", "--json")
    assert (done.status, done.err) == (0, "")
    assert done.json["counts"]["operations"] == 4
    assert [path.name for path in console.root.iterdir()] == ["pets.json"]


def grant(console, allow, **profile):
    written = {"base_url": "https://api.example.com", "allowed_callers": [], "allow": allow, **profile}
    (console.root / "mine.json").write_text(json.dumps({"profiles": {"mine": written}}))


def test_the_texts_are_for_what_an_existing_profile_grants(console):
    grant(console, ["GET /v1/houses/7/pets/*"], **{"global": "zoo", "preamble_file": "out/client.py"})
    assert run(console, "--grants", "mine.json").status == 0
    shown = (console.root / "out" / "description.txt").read_text()
    assert "get_pet" in shown
    assert "add_pet" not in shown
    assert "zoo." in shown
    assert profile_of(console, "mine")["global"] == "zoo"
    (console.root / "out" / "grants.json").write_text("{}")
    assert "makes clients and texts" not in run(console, "--grants", "mine.json").err


@pytest.mark.parametrize("name", ["other", "pet-houses"])
def test_a_profile_that_the_grants_file_lacks_is_said(console, name):
    grant(console, [])
    done = run(console, "--grants", "mine.json", "--profile", name)
    assert done.status == 2
    assert "Give --profile with one of: mine" in done.err


def test_of_several_profiles_one_is_named(console):
    one = {"base_url": "https://api.example.com", "allowed_callers": [], "allow": ["GET /v1/houses/7/pets/*"]}
    (console.root / "mine.json").write_text(json.dumps({"profiles": {"one": one, "two": one}}))
    done = run(console, "--grants", "mine.json")
    assert done.status == 2
    assert "Give --profile with one of: one, two" in done.err
    assert run(console, "--grants", "mine.json", "--profile", "two").status == 0
    assert profile_of(console, "two")


def test_a_grants_file_that_does_not_load_names_its_faults(console):
    (console.root / "mine.json").write_text('{"profiles": {"mine": {}}}')
    done = run(console, "--grants", "mine.json")
    assert done.status == 3
    assert "mine.json: profiles.mine.base_url: missing" in done.err


def test_what_the_document_leaves_open_is_asked_for_by_name(console):
    asking = deepcopy(DOCUMENT)
    asking["components"]["securitySchemes"]["key"] = {"type": "apiKey", "in": "header", "name": "Authorization"}
    rewrite(console, asking)
    done = run(console)
    assert done.status == 0
    assert "question: placement: " in done.err
    assert "answer in out/grants.json" in done.err
    assert profile_of(console)["placement"] == {"scheme": "?"}
    assert console("broker", "check", "out/grants.json").status == 3
    assert run(console, "--placement", "token").status == 0
    assert console("broker", "check", "out/grants.json").status == 0


def test_a_hostile_document_writes_no_control_character_to_the_terminal(console):
    hostile = deepcopy(UNCARRIED)
    hostile["info"]["title"] = "\x1b]0;owned\x07\u202e"
    hostile["paths"]["/other"]["trace"]["operationId"] = "\x1b[2J\u202e"
    hostile["paths"]["/x\x1b[31m\r\n"] = {"get": OK}
    rewrite(console, hostile)
    done = run(console)
    for character in "\x1b\x07\u202e\r":
        assert character not in done.err
        assert character not in (console.root / "out" / "report.txt").read_text()


def test_on_a_terminal_a_short_run_shows_no_progress(console):
    status, shown = console.on_a_terminal("broker", "specgen", "pets.json", "-o", "out")
    assert status == 0
    assert "4 operations" in shown
    assert "\u2501" not in shown


def test_help_says_what_is_written_and_what_the_statuses_mean(console):
    done = console("broker", "specgen", "--help")
    assert done.status == 0
    for word in (*NAMES, "--allow", "--bind", "--check", "--emit", "specgen suggest", "Status 5"):
        assert word in done.out


def test_the_command_of_the_readme_writes_what_loads(console):
    text = (ROOT / "README.md").read_text()
    command = text[text.index("broker specgen ") :].partition("```")[0]
    words = shlex.split(command.replace("\\\n", " "))
    done = console(*(str(ROOT / word) if word.startswith("ops/") else word for word in words))
    assert done.status == 0, done.err
    assert "2 routes granted" in console("broker", "check", "memory/grants.json").out


def test_suggest_is_a_command_of_its_own_and_a_document_of_that_name_is_a_path(console):
    done = console("broker", "specgen", "suggest", "--help")
    assert "--run" in done.out
    (console.root / "suggest").write_text(json.dumps(DOCUMENT))
    assert console("broker", "specgen", "./suggest", "-o", "out").status == 0
