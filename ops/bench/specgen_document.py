"""A made-up OpenAPI document of the size of GitHub's: as many bytes, operations and references, and the same each time.

``python -m ops.bench.specgen_document PATH`` writes it, as YAML where the path says so.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

COLLECTIONS: Final = 240
#: Of each collection: list, create, get, change, delete.
OPERATIONS: Final = 5 * COLLECTIONS
_SCHEMAS: Final = 900
_EXAMPLES: Final = 400
_PARAMETERS: Final = 260

_WORD_LIST: Final = """
repository branch commit release asset label milestone issue comment review thread team member owner webhook delivery
runner workflow artifact secret variable environment deployment status check suite ruleset package version license topic
traffic clone referrer fork stargazer watcher invitation collaborator key token
"""
_WORDS: Final = _WORD_LIST.split()
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_/.-]*(?: [A-Za-z0-9_/.,()-]*[A-Za-z0-9_/.()-])*", re.ASCII)
_YAML_WORDS: Final = {"null", "true", "false"}


def document() -> dict[str, Any]:
    """Return the document."""
    return {
        "openapi": "3.0.3",
        "info": {"title": "Large", "version": "1.1.4", "description": _prose(3, 400)},
        "servers": [{"url": "https://api.large.example"}],
        "tags": [{"name": word, "description": _prose(number, 12)} for number, word in enumerate(_WORDS)],
        "security": [{"token": []}],
        "paths": dict(path for number in range(COLLECTIONS) for path in _collection(number)),
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "parameters": {_parameter_name(number): _parameter(number) for number in range(_PARAMETERS)},
            "schemas": {_schema_name(number): _schema(number) for number in range(_SCHEMAS)},
            "responses": {
                name: {"description": name.replace("_", " "), "content": _json(_ref("schemas", _schema_name(number)))}
                for number, name in enumerate(("not_found", "validation_failed", "forbidden", "bad_request"))
            },
            "examples": {_example_name(number): _example(number) for number in range(_EXAMPLES)},
        },
    }


def _collection(number: int) -> list[tuple[str, dict[str, Any]]]:
    word = _WORDS[number % len(_WORDS)]
    base = f"/repos/{{owner}}/{{repo}}/{word}s-{number}"
    own = [_ref("parameters", "owner"), _ref("parameters", "repo")]
    paging = [_ref("parameters", "per_page"), _ref("parameters", "page")]
    extra = [_ref("parameters", _parameter_name(4 + number % (_PARAMETERS - 4)))]
    one = {"name": f"{word}_id", "in": "path", "required": True, "description": _prose(number, 9), "schema": _ID}
    return [
        (
            base,
            {
                "get": _operation(number, "list", word, [*own, *paging, *extra]),
                "post": _operation(number, "create", word, own, body=True),
            },
        ),
        (
            f"{base}/{{{word}_id}}",
            {
                "get": _operation(number, "get", word, [*own, one]),
                "patch": _operation(number, "update", word, [*own, one], body=True),
                "delete": _operation(number, "delete", word, [*own, one]),
            },
        ),
    ]


_ID: Final = {"type": "integer", "format": "int64"}


def _operation(
    number: int, verb: str, word: str, parameters: list[dict[str, Any]], *, body: bool = False
) -> dict[str, Any]:
    shown = {"default": _ref("examples", _example_name((number * 3 + len(verb)) % _EXAMPLES))}
    answer = _json(_ref("schemas", _schema_name(number * 3 % _SCHEMAS)), shown)
    made: dict[str, Any] = {
        "summary": f"{verb.capitalize()} {word}",
        "description": _prose(number + len(verb), 60),
        "tags": [word],
        "operationId": f"{word}s-{number}/{verb}",
        "externalDocs": {
            "description": "API method",
            "url": f"https://docs.large.example/rest/{word}s#{verb}-{number}",
        },
        "parameters": parameters,
        "responses": {
            "200": {"description": "Response", "content": answer},
            "403": _ref("responses", "forbidden"),
            "404": _ref("responses", "not_found"),
            "422": _ref("responses", "validation_failed"),
        },
        "x-large": {"enabledForApps": True, "category": word, "subcategory": f"{word}s"},
    }
    if body:
        members = {name: _member(number + at) for at, name in enumerate(_names(number, 8))}
        schema = {"type": "object", "properties": members, "required": list(members)[:2]}
        made["requestBody"] = {"required": True, "content": _json(schema)}
    return made


def _parameter_name(number: int) -> str:
    return ("owner", "repo", "per_page", "page")[number] if number < 4 else f"{_WORDS[number % len(_WORDS)]}-{number}"


def _parameter(number: int) -> dict[str, Any]:
    name = _parameter_name(number).replace("-", "_")
    if number < 2:
        return {"name": name, "in": "path", "required": True, "description": _prose(number, 14), "schema": _TEXT}
    schema = _ID if number < 4 else ({"type": "string", "enum": _names(number, 4)} if number % 3 else _TEXT)
    return {"name": name, "in": "query", "description": _prose(number, 20), "schema": schema}


_TEXT: Final = {"type": "string"}


def _schema_name(number: int) -> str:
    return f"{_WORDS[number % len(_WORDS)]}-{number}"


def _schema(number: int) -> dict[str, Any]:
    members = {name: _member(number * 7 + at) for at, name in enumerate(_names(number, 12 + number % 13))}
    for at in range(1 + number % 2):
        # Some lead back to where they came from.
        other = _ref("schemas", _schema_name((number * (at + 2) + at) % _SCHEMAS))
        members[f"{_WORDS[(number + at) % len(_WORDS)]}_of"] = {"type": "array", "items": other} if at else other
    return {
        "title": _schema_name(number),
        "description": _prose(number, 16),
        "type": "object",
        "properties": members,
        "required": list(members)[:6],
    }


def _member(number: int) -> dict[str, Any]:
    kinds: tuple[dict[str, Any], ...] = (
        {"type": "string", "description": _prose(number, 8)},
        {"type": "string", "format": "uri", "example": f"https://api.large.example/{number}"},
        {"type": "integer", "example": number},
        {"type": "boolean", "default": False, "description": _prose(number, 5)},
        {"type": "string", "enum": _names(number, 3), "nullable": True},
        {"type": "array", "items": {"type": "string"}, "description": _prose(number, 6)},
        {"type": "string", "format": "date-time", "nullable": True},
    )
    return kinds[number % len(kinds)]


def _example_name(number: int) -> str:
    return f"{_WORDS[number % len(_WORDS)]}-items-{number}"


def _example(number: int) -> dict[str, Any]:
    value = []
    for item in range(1 + number % 4):
        fields: dict[str, Any] = {
            "id": number * 1000 + item,
            "node_id": f"MDEwOlJlcG9zaXRvcnkx{number:08}",
            "fork": False,
        }
        owner = {f"{name}_url": f"https://api.large.example/users/one/{name}" for name in _names(number, 14)}
        fields["owner"] = {"login": "one", "id": number, "site_admin": False, **owner}
        fields |= {f"{word}s_url": f"https://api.large.example/repos/one/two/{word}s{{/{word}}}" for word in _WORDS}
        fields |= {f"{word}s_count": number + at for at, word in enumerate(_WORDS[:20])}
        fields["description"] = _prose(number + item, 25)
        value.append(fields)
    return {"summary": _prose(number, 4), "value": value}


def _json(schema: dict[str, Any], examples: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"application/json": {"schema": schema} | ({"examples": examples} if examples else {})}


def _ref(kind: str, name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/{kind}/{name}"}


def _names(number: int, count: int) -> list[str]:
    return [f"{_WORDS[(number + at * 5) % len(_WORDS)]}_{at}" for at in range(count)]


def _prose(number: int, words: int) -> str:
    chosen = (_WORDS[(number * 31 + at * at) % len(_WORDS)] for at in range(words))
    return " ".join(chosen).capitalize() + ". See [the guide](https://docs.large.example/guide)."


def as_yaml(value: Any) -> str:
    """Return a value as YAML in blocks, the way that published documents are written."""
    lines: list[str] = []
    _write_yaml(value, "", lines)
    return "\n".join(lines) + "\n"


def _write_yaml(value: Any, indent: str, lines: list[str]) -> None:
    named = value.items() if isinstance(value, dict) else ((None, inner) for inner in value)
    for name, inner in named:
        start = f"{indent}-" if name is None else f"{indent}{_yaml_scalar(name)}:"
        if isinstance(inner, (dict, list)) and inner:
            lines.append(start)
            _write_yaml(inner, indent + "  ", lines)
        else:
            lines.append(f"{start} {_yaml_scalar(inner)}")


def _yaml_scalar(value: Any) -> str:
    plain = isinstance(value, str) and _PLAIN.fullmatch(value) and value not in _YAML_WORDS
    return str(value) if plain else json.dumps(value)


def main(path: Path) -> None:
    """Write the document; say what is in it."""
    made = document()
    text = as_yaml(made) if path.suffix == ".yaml" else json.dumps(made, indent=2) + "\n"
    path.write_text(text)
    print(f"{len(text) / 1e6:.1f} MB, {OPERATIONS:,} operations, {json.dumps(made).count('$ref'):,} references")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
