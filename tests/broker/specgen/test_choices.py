from __future__ import annotations

import builtins
import runpy

import pytest
import quickjs

from broker.specgen import choices
from broker.specgen.clients import javascript_client, python_client
from broker.specgen.model import Choices
from tests.broker.specgen.hostile import read, saying
from tests.broker.specgen.making import api, told


def test_pairs_are_read_and_a_value_may_hold_anything():
    assert choices.bindings(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    assert choices.run_parameters(["house=[a-z]=?", "pet"]) == {"house": "[a-z]=?", "pet": choices.DEFAULT_PATTERN}


def test_methods_are_taken_in_any_case():
    assert choices.methods(["get", "Delete"]) == {"GET", "DELETE"}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("bearer", {"scheme": "bearer"}),
        ("token", {"scheme": "token"}),
        ("basic", {"scheme": "basic", "user": ""}),
        ("basic:user:x-token", {"scheme": "basic", "user": "x-token"}),
        ("basic:password:", {"scheme": "basic", "password": ""}),
        ("header:X-Key", {"scheme": "header", "name": "X-Key"}),
        ("header:Authorization:Bot ", {"scheme": "header", "name": "Authorization", "prefix": "Bot "}),
        ("query:key", {"scheme": "query", "name": "key"}),
        ("cookie:session", {"scheme": "cookie", "name": "session"}),
        ('{"scheme": "headers", "headers": {"A": "a"}}', {"scheme": "headers", "headers": {"A": "a"}}),
    ],
)
def test_a_placement_is_a_scheme_and_what_it_needs(written, read):
    assert choices.placement(written) == read


@pytest.mark.parametrize(
    "written",
    ["", "?", "bearer:x", "basic:other:x", "header", "header:a b", "query:", "cookie:", "{", '{"scheme": 1}', "[]"],
)
def test_a_placement_that_no_broker_knows_is_refused(written):
    with pytest.raises(ValueError, match="--placement"):
        choices.placement(written)


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Agent Memory API", "agent-memory-api"),
        ("../../etc/passwd", "etc-passwd"),
        ("\u202e\x00", "api"),
        ("", "api"),
        ("x" * 10_000, "x" * 48),
    ],
)
def test_a_profile_is_called_by_the_title_in_safe_letters(title, name):
    assert choices.profile_name(None, title, "http://127.0.0.1:80") == name


@pytest.mark.parametrize(
    ("origin", "name"),
    [
        ("https://api.github.com", "github"),
        ("https://cardano-mainnet.blockfrost.io", "blockfrost"),
        ("https://api.example.co.uk", "example"),
        ("https://a.b.cc", "b"),
        ("https://localhost", "the-official-document-of-everything"),
        ("https://10.0.0.1", "the-official-document-of-everything"),
        ("https://[::1]:8443", "the-official-document-of-everything"),
    ],
)
def test_a_title_that_is_a_sentence_gives_way_to_the_name_of_the_host(origin, name):
    assert choices.profile_name(None, "The Official Document of Everything", origin) == name


def test_a_given_name_is_taken_as_it_is():
    assert choices.profile_name("Mine.1", "Other", "") == "Mine.1"
    assert choices.global_name("memory", "x") == "memory"


@pytest.mark.parametrize("written", ["", " a", "a" * 65, "-a", "a/b", "a\n"])
def test_a_profile_name_that_no_grants_file_takes_is_refused(written):
    with pytest.raises(ValueError, match="--profile"):
        choices.profile_name(written, "", "")


@pytest.mark.parametrize("profile", ["pet-houses", "9lives", "class", "var", "a.b", "self", "9" * 64, "then"])
def test_a_name_for_the_code_is_made_that_is_taken_when_given(profile):
    name = choices.global_name(None, profile)
    assert name.isidentifier()
    assert choices.global_name(name, "") == name


def test_a_client_never_takes_the_place_of_what_is_there_already(tmp_path):
    document, api = read(saying("", "a"))
    (tmp_path / "client.py").write_bytes(
        python_client(api, document, profile="p", global_name="p", allow=None)["client.py"]
    )
    module = runpy.run_path(str(tmp_path / "client.py"))
    script = javascript_client(api, document, profile="p", global_name="", allow=None)["client.js"].decode()
    engine = quickjs.Context()
    engine.eval(script)
    names = engine.eval("Object.getOwnPropertyNames(globalThis).join(' ')").split()
    there = {*module, *dir(builtins), *(name for name in names if name[0].islower()), "fetch", "process", "console"}
    for name in sorted(name for name in there if name[0] != "_"):
        made = choices.global_name(None, name)
        assert made not in there
        assert choices.global_name(made, "") == made
        if made != name:
            with pytest.raises(ValueError, match="--global"):
                choices.global_name(name, "")


@pytest.mark.parametrize(
    "written", ["", "a-b", "class", "function", "9a", "a$", "\u00e4", "a" * 65, "this", "None", "a\n"]
)
def test_a_name_that_one_of_the_languages_does_not_take_is_refused(written):
    with pytest.raises(ValueError, match="--global"):
        choices.global_name(written, "pets")


def test_names_that_the_document_lacks_are_refused():
    houses = api(told=(told("GET /houses/{house}"),))
    for chosen in (Choices(bind={"house": "1"}), Choices(params={"house": "x"}), Choices(slashes=frozenset({"house"}))):
        choices.check_found(chosen, houses)
        with pytest.raises(ValueError, match="house"):
            choices.check_found(chosen, api())


def test_filters_that_leave_nothing_are_refused():
    left = told("GET /pets", "left-out")
    with pytest.raises(ValueError, match="no operation that is carried passes"):
        choices.check_found(Choices(), api(operations=(), told=(left,)))
    choices.check_found(Choices(), api(operations=(), told=(told("TRACE /pets", "not-carried"),)))


def test_callers_are_ids_or_everybody():
    assert choices.callers(["ana", "ci@build", "ana"]) == ("ana", "ci@build")
    assert choices.callers(["*"]) == ("*",)
    assert choices.callers([]) == ()


@pytest.mark.parametrize("written", [[""], ["\x1b[31m"], ["a\n"], ["a b"], ["*", "ana"], ['"], "allow": ["']])
def test_a_caller_that_no_grants_file_takes_is_refused(written):
    with pytest.raises(ValueError, match="--caller"):
        choices.callers(written)
