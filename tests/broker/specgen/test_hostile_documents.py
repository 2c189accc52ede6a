"""A document may be written by an enemy: it ends in one clear line, or is carried as far as it goes, within bounds."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from broker.specgen.document import read_document
from broker.specgen.generate import Options, generate
from broker.specgen.model import Choices, DocumentError
from broker.specgen.operations import read_api
from tests.broker.specgen.anything import DOCUMENTS

BROKER = Path(sys.executable).parent / "broker"
#: Of the whole process. The programs' own libraries take a part of the addresses.
MEMORY = 1 << 30
CPU_S = 20

OK = {"responses": {"200": {"description": "ok"}}}
CANARY = "canary-outside"


def api(paths: dict[str, Any], **members: Any) -> str:
    servers = [{"url": "https://api.example.com"}]
    return json.dumps({"openapi": "3.1.0", "info": {"title": "T"}, "servers": servers, "paths": paths, **members})


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str
    files: dict[str, bytes]


def run(directory: Path, document: str | bytes, name: str = "openapi.json") -> Done:
    """Run the command on a document, as a process of its own that may not take much."""
    path = directory / name
    path.write_bytes(document.encode() if isinstance(document, str) else document)

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))

    done = subprocess.run(
        [BROKER, "specgen", path, "-o", directory / "out"],
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", "HOME": str(directory)},
        capture_output=True,
        check=False,
        timeout=60,
        preexec_fn=bounded,
    )
    files = {file.name: file.read_bytes() for file in (directory / "out").glob("*")}
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode(), files)


BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 40)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{level}: &a{level} {{b: {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}, <<: *a{level - 1}}}\n"
    for level in range(1, 40)
)


@pytest.mark.parametrize(
    ("document", "name", "reason"),
    [
        (BOMB, "openapi.yaml", "aliases repeat more than"),
        (MERGES, "openapi.yaml", "aliases repeat more than"),
        ("a: &a {b: *a}\n", "openapi.yaml", "stands inside what it names"),
        ("[" * 10_000 + "]" * 10_000, "openapi.json", "nested deeper than 200 levels"),
        ("[" * 10_000 + "]" * 10_000, "openapi.yaml", "nest"),
        ("- " * 10_000, "openapi.yaml", "nested deeper than 200 levels"),
        ('{"a":' * 10_000 + "1" + "}" * 10_000, "openapi", "nested deeper than 200 levels"),
        (api({"/a": {"get": OK}})[:-1] + ', "openapi": "3.0.0"}', "openapi.json", "stands twice in #"),
        ("openapi: 3.0.0\npaths:\n  /a: {}\n  /a: {}\n", "openapi.yaml", '"/a" stands twice in its mapping, line 4'),
        ('{"swagger": "2.0", "paths": {"/a": {}}}', "openapi.json", 'Swagger "2.0" is not supported'),
        ("a: !!python/object/apply:os.system [touch pwned]\n", "openapi.yaml", "has no value in JSON"),
        ('{"openapi": "\x1b]0;pwned\x07\u202e"}', "openapi.json", "not JSON"),
        ('{"openapi": "\\u001b]0;pwned\\u0007\u202e"}', "openapi.json", "is not supported"),
        (b"\xff\xfe{\x00}\x00", "openapi.json", "not UTF-8"),
        (b"\x7fELF\x00\x01", "openapi.yaml", "not YAML"),
        ("[" + "{}," * 3_000_000 + "{}]", "openapi.json", "holds more than 4000000 values"),
        ("{" + ",".join(f'"{number}":[]' for number in range(600_000)) + "}", "openapi.json", "no member `openapi`"),
        (b" " * ((64 << 20) + 1), "openapi.json", "larger than 64 MiB"),
        (api({}, webhooks={"x": {"post": OK}}), "openapi.json", "only webhooks"),
        (api({f"/a{number}": {} for number in range(1_000_000)}), "openapi.json", "more than 20000 paths"),
    ],
)
def test_what_cannot_be_used_ends_in_one_line_and_status_3_within_bounds(tmp_path, document, name, reason):
    done = run(tmp_path, document, name)
    assert (done.status, done.out, done.files) == (3, "", {})
    lines = done.err.splitlines()
    assert len(lines) == 1
    assert reason in lines[0]
    assert name in lines[0]
    assert len(lines[0]) < 500
    assert lines[0].isprintable()
    assert not (tmp_path / "pwned").exists()


CHAIN = {f"s{number}": {"$ref": f"#/components/schemas/s{number + 1}"} for number in range(50_000)}
DOUBLING = {
    f"s{number}": {
        keyword: [{"$ref": f"#/components/schemas/s{number + 1}"}] * 2 for keyword in ("allOf", "anyOf", "oneOf")
    }
    | {"properties": {name: {"$ref": f"#/components/schemas/s{number + 1}"} for name in "abc"}}
    for number in range(60)
}
BODY = {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/s0"}}}}, **OK}
QUERY = {
    "parameters": [
        {"name": "q", "in": "query", "style": style, "schema": {"$ref": "#/components/schemas/s0"}}
        for style in ("form", "deepObject")
    ],
    **OK,
}
RESULT = {
    "responses": {"200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/s0"}}}}},
}
ALL = {"get": QUERY, "post": {**BODY, **QUERY}, "put": {**BODY, **RESULT}, "patch": RESULT}


def nested(depth: int, wrap: Any) -> Any:
    value: Any = {"type": "string"}
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(api({"/a": ALL}, components={"schemas": CHAIN}), id="a chain of references"),
        pytest.param(api({"/a": ALL}, components={"schemas": {**DOUBLING, "s60": {}}}), id="references that double"),
        pytest.param(
            api({"/a": ALL}, components={"schemas": {**DOUBLING, "s60": {"$ref": "#/components/schemas/s0"}}}),
            id="references that double and come back",
        ),
        pytest.param(
            api({"/a": ALL}, components={"schemas": {"s0": {"$ref": "#/components/schemas/s0"}}}),
            id="a reference to itself",
        ),
        pytest.param(
            api({"/a": ALL}, components={"schemas": {"s0": {"allOf": [{"$ref": "#/components/schemas/s0"}]}}}),
            id="a schema of itself",
        ),
        pytest.param(
            api(
                {"/a": ALL}, components={"schemas": {"s0": {"properties": {"p": {"$ref": "#/components/schemas/s0"}}}}}
            ),
            id="a schema inside itself",
        ),
        *(
            pytest.param(
                api({"/a": ALL}, components={"schemas": {"s0": nested(90, wrap)}}), id=f"schemas 90 deep: {name}"
            )
            for name, wrap in {
                "items": lambda inner: {"type": "array", "items": inner},
                "properties": lambda inner: {"properties": {"p": inner}},
                "allOf": lambda inner: {"allOf": [inner]},
                "anyOf": lambda inner: {"anyOf": [inner, {"type": "integer"}]},
            }.items()
        ),
        pytest.param(
            api(
                {"/a": ALL},
                components={"schemas": {"s0": {"properties": {f"p{number}": {} for number in range(100_000)}}}},
            ),
            id="a hundred thousand members",
        ),
        pytest.param(
            api({"/a": ALL}, components={"schemas": {"s0": {"enum": [f"v{number}" for number in range(200_000)]}}}),
            id="two hundred thousand values",
        ),
        pytest.param(
            api({"/a": {"get": {"parameters": [{"name": f"q{n}", "in": "query"} for n in range(50_000)], **OK}}}),
            id="fifty thousand parameters",
        ),
        pytest.param(api({f"/a{number}/{{x}}": {"get": OK} for number in range(5_000)}), id="five thousand paths"),
        pytest.param(api({"/" + "{x}" * 100_000: {"get": OK}}), id="a hundred thousand parameters in a path"),
        pytest.param(api({"/{x}" * 100_000: {"get": OK}}), id="a hundred thousand segments"),
        pytest.param(api({"/" + "a" * 2_000_000: {"get": OK}}), id="a path of two megabytes"),
        pytest.param(
            api({f"/a{number}": {"get": {"operationId": "x" * 3000, **OK}} for number in range(3_000)}),
            id="the same long operationId three thousand times",
        ),
        pytest.param(
            api({f"/{{{'x' * number}}}": {"get": OK} for number in range(1, 1500)}), id="paths that are one route"
        ),
        pytest.param(
            api({"/a": {"get": {"description": '\u202e`</script>*/"""' * 400_000, "summary": "x" * 3_000_000, **OK}}}),
            id="megabytes of prose",
        ),
        pytest.param(
            api(
                {
                    "/a/{x}": {
                        "get": {
                            "parameters": [
                                {"name": "x", "in": "path", "schema": {"type": "string", "pattern": "^(a+)+(b|" * 2000}}
                            ],
                            **OK,
                        }
                    }
                }
            ),
            id="a pattern that takes for ever",
        ),
    ],
)
def test_what_grows_when_it_is_followed_stays_within_bounds(tmp_path, document):
    done = run(tmp_path, document)
    assert done.status in {0, 5}, done.err[-2000:]
    assert "Traceback" not in done.err
    told = json.loads(done.files["report.json"])
    written = json.loads(document)["paths"]
    assert told
    assert len(done.files["description.txt"]) <= 40_000
    assert sum(map(len, done.files.values())) < 20 * len(document) + 5_000_000
    assert written


@pytest.mark.parametrize("reference", ["../secret.json", "link.json", "%2e%2e/secret.json", "/etc/hostname", "SECRET"])
def test_a_reference_out_of_the_directory_is_told_and_what_it_leads_to_is_not_read(tmp_path, reference):
    inside = tmp_path / "inside"
    inside.mkdir()
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"get": {"summary": CANARY, **OK}}))
    (inside / "link.json").symlink_to(secret)
    reference = reference.replace("SECRET", str(secret))
    done = run(inside, api({"/a": {"get": OK}, "/b": {"$ref": reference}}))
    assert done.status == 5
    assert b"outside the document's directory" in done.files["report.txt"]
    assert not [name for name, data in done.files.items() if CANARY.encode() in data]


CODE = "');open('pwned','w');('\"\"\");*/\u2028\u2029\r\n</script>`${process.exit(9)}`\\"
SAFE = "plain"


def everywhere(text: str) -> str:
    schema = {
        "type": "object",
        "title": text,
        "description": text,
        "properties": {text: {"enum": [text], "default": text}},
    }
    return api(
        {
            f"/a/{{{text}}}/{text}": {"get": {"operationId": text, **OK}},
            "/b/{x}": {
                "summary": text,
                "post": {
                    "operationId": f"b{text}",
                    "summary": text,
                    "description": text,
                    "tags": [text],
                    "parameters": [
                        {"name": "x", "in": "path", "required": True, "description": text, "schema": schema},
                        {"name": text, "in": "query", "description": text, "schema": {"type": text, "pattern": text}},
                        {"name": f"X-{text}", "in": "header", "schema": {"const": text, "format": text}},
                    ],
                    "requestBody": {
                        "description": text,
                        "content": {text: {}, "application/json": {"schema": schema, "example": text}},
                    },
                    "responses": {"200": {"description": text, "content": {"application/json": {"schema": schema}}}},
                    "x-forge-require-confirmation": text,
                },
            },
        },
        tags=[{"name": text, "description": text}],
        security=[{text: [text]}],
        components={"securitySchemes": {text: {"type": "http", "scheme": "bearer", "description": text}}},
    ).replace('"T"', json.dumps(text))


def test_code_in_every_text_of_a_document_runs_nowhere(tmp_path):
    done = run(tmp_path, everywhere(CODE))
    assert done.status in {0, 5}, done.err
    client = tmp_path / "out" / "client.py"
    subprocess.run([sys.executable, "-c", f"import runpy; runpy.run_path({str(client)!r})"], cwd=tmp_path, check=True)
    assert not (tmp_path / "pwned").exists()
    assert done.err.isascii() or done.err.replace("\n", "").isprintable()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(DOCUMENTS)
def test_a_document_of_anything_is_carried_or_refused_and_nothing_else(document):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "openapi.json"
        path.write_text(json.dumps(document))
        (Path(directory) / "other.json").write_text(json.dumps(document["paths"]))
        try:
            read = read_document(path)
            carried = read_api(read, Choices())
        except DocumentError as error:
            refused = error
        else:
            refused = None
            files = generate(read, carried, Options(profile="any", global_name="any"))
    if refused is not None:
        assert len(str(refused).splitlines()) == 1
        return
    assert json.loads(files["report.json"])
    assert json.loads(files["tools.json"]) is not None
    compile(files["client.py"], "client.py", "exec")


def test_a_named_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "openapi.json")
    done = subprocess.run(
        [BROKER, "specgen", tmp_path / "openapi.json", "-o", tmp_path / "out"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 3
    assert b"not a regular file" in done.stderr


@pytest.mark.parametrize("name", ["catalog.json", "grants.json", "client.py"])
@pytest.mark.parametrize("option", ["--force", "--check"])
def test_what_is_no_file_in_the_directory_is_named_and_left_there(tmp_path, name, option):
    (tmp_path / "openapi.json").write_text(api({"/a": {"get": OK}}))
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / name)
    (tmp_path / "endless").mkdir()
    (tmp_path / "endless" / name).symlink_to("/dev/zero")
    for directory in ("pipe", "endless"):
        done = subprocess.run(
            [BROKER, "specgen", tmp_path / "openapi.json", "-o", tmp_path / directory, option],
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True,
            check=False,
            timeout=30,
        )
        assert (done.returncode, done.stderr.decode()) == (
            3,
            f"broker: {tmp_path / directory / name}: not a regular file\n",
        )
        assert [path.name for path in (tmp_path / directory).iterdir()] == [name]
