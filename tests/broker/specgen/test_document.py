"""A document is read whole or refused in one line that names it."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from broker.specgen.document import read_document
from broker.specgen.model import DocumentError

PATHS = {"/pets": {"get": {"responses": {}}}}


def written(directory: Path, document: object, name: str = "openapi.json") -> Path:
    path = directory / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(DocumentError) as caught:
        read_document(path)
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    assert len(line) < 500
    return line


@pytest.mark.parametrize(
    ("version", "minor"),
    [("3.0.0", 0), ("3.0.3", 0), ("3.1.0", 1), ("3.1.2", 1), ("3.2.0", 2), ("3.1", 1), ("3.0.0-rc1", 0)],
)
def test_every_version_of_openapi_3_that_there_is_is_read(tmp_path, version, minor):
    document = read_document(written(tmp_path, {"openapi": version, "info": {"title": "Pets"}, "paths": PATHS}))
    assert (document.version, document.minor, document.title) == (version, minor, "Pets")
    assert document.root["paths"] == PATHS


def test_a_document_is_known_by_its_name_and_the_sha256_of_its_bytes(tmp_path):
    path = written(tmp_path, {"openapi": "3.0.0", "paths": PATHS})
    document = read_document(path)
    assert document.name == "openapi.json"
    assert document.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("info", [{}, {"info": []}, {"info": {"title": 7}}])
def test_a_title_that_is_no_text_is_none(tmp_path, info):
    assert read_document(written(tmp_path, {"openapi": "3.0.0", "paths": PATHS, **info})).title == ""


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"swagger": "2.0", "paths": PATHS}, 'Swagger "2.0" is not supported; convert it to OpenAPI 3'),
        ({"swagger": ["x"], "paths": PATHS}, "Swagger (no text) is not supported"),
        ({"openapi": "4.0.0", "paths": PATHS}, 'OpenAPI "4.0.0" is not supported; 3.0, 3.1 and 3.2 are'),
        ({"openapi": "3.3.0", "paths": PATHS}, 'OpenAPI "3.3.0" is not supported'),
        ({"openapi": "3.0.0\n", "paths": PATHS}, 'OpenAPI "3.0.0" is not supported'),
        ({"openapi": ["3.0.0"], "paths": PATHS}, "OpenAPI (no text) is not supported"),
        ({"openapi": "\x1b[31m\u202e" + "x" * 99, "paths": PATHS}, 'OpenAPI "[31mxxx'),
        ({"paths": PATHS}, "it has no member `openapi`"),
        ([], "not an OpenAPI document: an object is expected"),
        ("null", "not an OpenAPI document: an object is expected"),
        ({"openapi": "3.1.0", "webhooks": {"x": {}}}, "has no paths, only webhooks"),
        ({"openapi": "3.1.0", "paths": {}}, "has no paths"),
        ({"openapi": "3.1.0", "paths": {"x-only": 1}}, "has no paths"),
        ({"openapi": "3.1.0", "paths": ["/pets"]}, "#/paths is not an object"),
        ({"openapi": "3.1.0", "paths": {"$ref": "paths.yaml"}}, "#/paths is a reference"),
    ],
)
def test_what_is_no_document_to_use_is_refused_by_its_reason(tmp_path, document, reason):
    line = refusal(written(tmp_path, document))
    assert line.startswith("openapi.json: ")
    assert reason in line
    assert line.isprintable()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"openapi": "3.0.0"', "not JSON: Expecting ',' delimiter, line 1 column 20"),
        ('{"openapi": "3.0.0", "openapi": "3.1.0"}', '"openapi" stands twice in #'),
        ('{"paths": {"/a": {"get": {}, "get": {}}}}', '"get" stands twice in #/paths/~1a'),
        ('{"a": {"b": 1, "b": 2}, "a": 3}', '"a" stands twice in #'),
        ('{"a": [0, NaN]}', "#/a/1 is a number that JSON does not have"),
        ('{"a": -Infinity}', "#/a is a number that JSON does not have"),
        ('{"a": 1e999}', "#/a is a number that JSON does not have"),
        ('{"a": ' + "9" * 5000 + "}", "holds a number with too many digits"),
        ('{"a": ["\\ud800"]}', "#/a/0 holds half of a surrogate pair"),
        ('{"\\udfff": 1}', "# holds half of a surrogate pair"),
        ("[" * 200 + "]" * 200, "an object is expected"),
        ("[" * 201 + "]" * 201, "nested deeper than 200 levels"),
        ("[" * 10_000 + "]" * 10_000, "nested deeper than 200 levels"),
        ('{"a":' * 10_000 + "1" + "}" * 10_000, "nested deeper than 200 levels"),
        ("[" * 3_000_000, "nested deeper than 200 levels"),
        ("[" + "1," * 4_000_000 + "1]", "holds more than 4000000 values"),
        ("", "not JSON"),
    ],
)
def test_json_that_two_readers_could_understand_differently_is_refused_with_its_place(tmp_path, text, reason):
    assert reason in refusal(written(tmp_path, text))


def test_a_whole_surrogate_pair_is_a_character(tmp_path):
    path = written(tmp_path, '{"openapi": "3.0.0", "info": {"title": "\\ud83d\\ude00"}, "paths": {"/a": {}}}')
    assert read_document(path).title == "\U0001f600"


def test_a_byte_order_mark_is_passed_over(tmp_path):
    path = written(tmp_path, "\ufeff" + json.dumps({"openapi": "3.0.0", "paths": PATHS}))
    assert read_document(path).minor == 0


def test_bytes_that_are_not_utf_8_are_refused_with_their_place(tmp_path):
    path = tmp_path / "openapi.json"
    path.write_bytes(b'{"a": "\xff"}')
    assert "not UTF-8, at byte 7" in refusal(path)


@pytest.mark.parametrize("name", ["openapi.yaml", "openapi.yml", "OPENAPI.YML", "openapi"])
def test_a_document_may_be_yaml(tmp_path, name):
    assert read_document(written(tmp_path, "openapi: 3.1\npaths: {/a: {}}\n", name)).version == "3.1"


def test_a_name_that_tells_nothing_is_json_when_it_starts_like_json(tmp_path):
    assert "not JSON" in refusal(written(tmp_path, ' {"a" 1}', "openapi"))


def test_a_json_name_promises_json(tmp_path):
    assert "not JSON" in refusal(written(tmp_path, "openapi: 3.1.0\npaths: {/a: {}}\n", "openapi.json"))


def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path):
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    assert "not a regular file" in refusal(pipe)
    assert "pipe.json: cannot be read" in refusal(pipe)
    assert "cannot be read" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "missing.json")


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "openapi.json"
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    assert "larger than 64 MiB" in refusal(path)
