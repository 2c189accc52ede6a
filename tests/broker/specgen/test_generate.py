from __future__ import annotations

import json
from dataclasses import replace

import pytest

from broker.placements import QUESTION, Registry
from broker.specgen.catalog import digest
from broker.specgen.document import read_document
from broker.specgen.generate import NAMES, Options, generate
from broker.specgen.model import Choices
from broker.specgen.operations import read_api
from config.grants import parse_grants
from tests.broker.specgen import corpus

CHOICES = Choices(server="https://api.example.com/base", deprecated=True)
OPTIONS = Options(profile="profile", global_name="api", callers=("agent",), grants=True)


@pytest.fixture(scope="module", params=corpus.paths(), ids=lambda path: path.name)
def made(request):
    document = read_document(request.param)
    api = read_api(document, CHOICES)
    return document, api, generate(document, api, OPTIONS)


def again(path, choices=CHOICES, options=OPTIONS):
    document = read_document(path)
    return generate(document, read_api(document, choices), options)


def test_every_file_is_made_and_the_catalog_has_their_digests(made):
    _, _, files = made
    assert tuple(files) == NAMES
    listed = json.loads(files["catalog.json"])["specgen"]["files"]
    assert listed == {name: digest(data) for name, data in sorted(files.items()) if name != "catalog.json"}


@pytest.mark.parametrize("path", corpus.paths(), ids=lambda path: path.name)
def test_the_same_document_gives_the_same_bytes(path):
    assert again(path) == again(path)


def test_the_counts_of_the_report_add_up_to_the_operations_of_the_document(made):
    document, _, files = made
    counts = json.loads(files["report.json"])["counts"]
    total = counts.pop("operations")
    counts.pop("routes")
    assert sum(counts.values()) == total == operations_of(document)


def test_the_profile_loads_once_its_questions_are_answered(made):
    _, api, files = made
    written = json.loads(files["grants.json"])
    profile = written["profiles"]["profile"]
    if profile.get("placement") == {"scheme": QUESTION}:
        profile["placement"] = {"scheme": "bearer"}
    loaded = parse_grants(json.dumps(written).encode(), name="grants.json", check_placement=Registry().check)
    assert len(loaded.profiles["profile"].catalog) == len(api.catalog)
    assert bool(loaded.profiles["profile"].allow) == bool(api.operations)


def table(client: bytes) -> dict:
    line = next(line for line in client.decode().splitlines() if line.startswith("_TABLE = "))
    return json.loads(json.loads(line.removeprefix("_TABLE = ").partition("  # the API")[0]))


def test_the_clients_have_the_list_that_was_granted_and_ask_for_it_otherwise():
    path = next(path for path in corpus.paths() if path.name == "agent-memory.openapi.json")
    chosen = Choices(allow=("agent-memory-recall",))
    granted = again(path, chosen)
    allow = json.loads(granted["grants.json"])["profiles"]["profile"]["allow"]
    assert allow
    assert table(granted["client.py"])["allow"] == allow
    assert table(again(path, chosen, replace(OPTIONS, grants=False))["client.py"])["allow"] is None
    mine = ["GET /mine"]
    assert table(again(path, chosen, replace(OPTIONS, granted=mine))["client.py"])["allow"] == mine


def test_no_file_names_a_folder_of_the_machine_that_made_it(made):
    document, _, files = made
    for data in files.values():
        assert str(corpus.__file__.rpartition("/")[0]).encode() not in data
        assert document.sha256.encode() in files["catalog.json"]


def operations_of(document) -> int:
    """Count what a document has under its paths in the plainest way that there is."""
    methods = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
    if document.minor >= 2:
        methods = {*methods, "query"}
    count = 0
    for key, item in document.root["paths"].items():
        if key.startswith("/"):
            found, _ = document.resolve(item, f"#/paths/{key.replace('~', '~0').replace('/', '~1')}")
            count += len(methods & found.keys()) + len(found.get("additionalOperations", {}))
    return count
