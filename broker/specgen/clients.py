"""The clients: a fixed runtime for each language, and the API as one line of data in it.

There is no code that a document could shape: what it says is JSON in a text literal, and is only ever read as data.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, Final

from broker.specgen import schemas
from broker.specgen.document import Document
from broker.specgen.entries import argument_help, help_paragraphs
from broker.specgen.filling import literal
from broker.specgen.model import Api, Argument, Body, Operation, RouteEntry
from broker.specgen.stamp import stamp
from broker.specgen.stubs import javascript_stub, python_stub
from broker.specgen.texts import one_line

_TABLES: Final = {
    "client.py": (b'\n_TABLE = "{}"  # the API\n', "_TABLE = {}  # the API"),
    "client.js": (b'\n  var TABLE = "{}"; // the API\n', "  var TABLE = {}; // the API"),
}
#: So much of an operation's tags is searched by.
_MAX_TAGS: Final = 8
_MAX_TAG: Final = 80


def python_client(
    api: Api, document: Document, *, profile: str, global_name: str, allow: Sequence[RouteEntry] | None
) -> dict[str, bytes]:
    """Return ``client.py`` and its stub.

    ``allow`` are the routes that are checked before sending; where it is None, the client asks the broker.
    """
    written = table(api, document, profile=profile, global_name=global_name, allow=allow)
    return {"client.py": _filled("client.py", written), "client.pyi": python_stub(api, document, global_name)}


def javascript_client(
    api: Api, document: Document, *, profile: str, global_name: str, allow: Sequence[RouteEntry] | None
) -> dict[str, bytes]:
    """Return ``client.js`` and its stub; the arguments are those of :func:`python_client`."""
    written = table(api, document, profile=profile, global_name=global_name, allow=allow)
    return {"client.js": _filled("client.js", written), "client.d.ts": javascript_stub(api, document, global_name)}


def table(
    api: Api, document: Document, *, profile: str, global_name: str, allow: Sequence[RouteEntry] | None
) -> dict[str, Any]:
    """Return the data of an API. What is false, empty or usual is left out of it."""
    made = stamp(api)
    return {
        "specgen": made["version"],
        "document": made["document"],
        "sha256": made["sha256"],
        "profile": profile,
        "global": global_name,
        "allow": None if allow is None else list(allow),
        "operations": [_operation(document, operation) for operation in api.operations],
    }


@cache
def _runtime(name: str) -> bytes:
    return resources.files("broker.specgen").joinpath("runtime", name).read_bytes()


def _filled(name: str, written: dict[str, Any]) -> bytes:
    mark, line = _TABLES[name]
    before, found, after = _runtime(name).partition(mark)
    if not found:
        raise RuntimeError(f"{name} has no line for the table")
    return before + b"\n" + line.format(literal(written)).encode("ascii") + b"\n" + after


def _operation(document: Document, operation: Operation) -> dict[str, Any]:
    path = [one for one in operation.arguments if one.place in ("path", "run")]
    others = [one for one in operation.arguments if one.place in ("query", "header")]
    return {
        "name": operation.identifier,
        "method": operation.method,
        "template": operation.template,
        "route": _flags(operation.route),
        **_there(
            path=[_argument(document, one) for one in path],
            arguments=[_argument(document, one) for one in others],
            fixed=[list(pair) for pair in operation.fixed_query],
            body=_body(document, operation.body),
            tags=[one_line(tag, _MAX_TAG) for tag in operation.tags[:_MAX_TAGS]],
            doc="\n\n".join(help_paragraphs(operation)),
        ),
    }


def _flags(route: RouteEntry) -> RouteEntry:
    """Return what of a route says how its wildcards are written; its query is in the arguments."""
    if isinstance(route, str):
        return route
    kept = {name: route[name] for name in ("route", "encoded", "wide") if route.get(name)}
    return kept if len(kept) > 1 else str(route["route"])


def _argument(document: Document, one: Argument) -> dict[str, Any]:
    return {
        "id": one.identifier,
        "name": one.name,
        "in": one.place,
        "type": _type(document, one),
        **_there(
            required=one.required,
            style="" if one.style in ("simple", "form") else one.style,
            explode=one.explode,
            shape="" if one.shape == "scalar" else one.shape,
            members=list(one.members),
            doc=argument_help(one),
        ),
    }


def _type(document: Document, one: Argument) -> str:
    if one.style == "json":
        return ""
    if one.shape != "scalar":
        return one.shape
    return only_type(schemas.types(document, one.schema))


def only_type(kinds: frozenset[str]) -> str:
    """Return the one type of a value, or an empty text."""
    if kinds == {"integer", "number"}:
        return "number"
    return next(iter(kinds)) if len(kinds) == 1 else ""


def _body(document: Document, body: Body | None) -> dict[str, Any] | None:
    if body is None:
        return None
    kind = only_type(schemas.types(document, body.schema))
    return {"media": body.media, "form": body.form, **_there(required=body.required, type=kind)}


def _there(**members: Any) -> dict[str, Any]:
    """Return the members that say something."""
    return {name: value for name, value in members.items() if value not in (None, "", [], False)}
