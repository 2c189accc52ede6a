"""The OpenAPI 3.1 description of the control API, made from its own table of calls and the types of its messages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.envelope import HostCall
from broker.messages import ExtendRequest, OpenRequest
from config.problems import MEDIA_TYPE, PROBLEMS

if TYPE_CHECKING:
    from broker.app import Rule

JSON = dict[str, Any]

_SECURITY: Final[dict[str, list[dict[str, list[str]]]]] = {
    "caller": [{"callerToken": []}],
    "run": [{"runToken": []}],
    "anyone": [],
}
_BODIES: Final[dict[tuple[str, str], type[msgspec.Struct]]] = {
    ("POST", "/v1/runs"): OpenRequest,
    ("PATCH", "/v1/runs/{run_id}"): ExtendRequest,
    ("POST", "/v1/call"): HostCall,
}
_PARAMETER: Final = re.compile(r"\{(\w+)\}")


def document(rules: Iterable[Rule]) -> JSON:
    """Return the description of ``rules``."""
    bodies, components = msgspec.json.schema_components(
        list(_BODIES.values()), ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip(_BODIES.values(), bodies, strict=True))
    paths: dict[str, JSON] = {}
    for rule in rules:
        body = _BODIES.get((rule.method, rule.path))
        paths.setdefault(rule.path, {})[rule.method.lower()] = _operation(rule, by_type[body] if body else None)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Credential broker",
            "version": version("minter-broker"),
            "description": (
                "Callers open runs; a run's code calls APIs under /p/{profile}/ with its run token in the place "
                "of the API's key. What the data path takes depends on the grants and is not described here: a run "
                "asks GET /v1/self."
            ),
        },
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": _problem()},
            "securitySchemes": {
                "callerToken": {"type": "http", "scheme": "bearer", "bearerFormat": "clr_"},
                "runToken": {"type": "http", "scheme": "bearer", "bearerFormat": "brk_"},
            },
        },
    }


def _operation(rule: Rule, body: JSON | None) -> JSON:
    summary = (rule.handler.__doc__ or "").strip().splitlines()[0]
    operation: JSON = {
        "operationId": rule.handler.__name__,
        "summary": summary,
        "security": _SECURITY[rule.who],
        "responses": {
            str(rule.status): {"description": "Done.", "content": _answer(rule)},
            "default": {
                "description": "Refused or failed.",
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(rule.path)
    ] + [{"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in sorted(rule.query)]
    if rule.handler.__name__ == "open_run":
        parameters.append({"name": "Idempotency-Key", "in": "header", "required": False, "schema": {"type": "string"}})
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation


def _answer(rule: Rule) -> JSON:
    return {rule.media_type: {"schema": {"type": "object"} if rule.media_type == "application/json" else {}}}


def _problem() -> JSON:
    return {
        "type": "object",
        "required": ["type", "title", "status", "code", "detail", "by"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "code": {"type": "string", "enum": sorted(PROBLEMS)},
            "detail": {"type": "string"},
            "by": {"type": "string", "enum": ["broker"]},
        },
    }
