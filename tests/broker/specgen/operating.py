"""Documents of a few paths, read as a whole: what the parts that find and carry operations are tried on."""

from __future__ import annotations

from typing import Any

from broker.specgen.model import Api, Choices, Note, Operation, RouteEntry, Told
from broker.specgen.operations import read_api
from config.grants import parse_grants
from tests.broker.specgen import reading

HOST = "https://api.example.com"
OK = {"responses": {"200": {"description": "ok"}}}
KEY = {"type": "apiKey", "in": "header", "name": "X-Key"}


def api(paths: dict[str, Any], *, choices: dict[str, Any] | None = None, version: str = "3.0.3", **members: Any) -> Api:
    """Read a document; what it comes to loads."""
    document = reading.document(version, **{"servers": [{"url": HOST}], "paths": paths, **members})
    found = read_api(document, Choices(**(choices or {})))
    check(found)
    return found


def check(found: Api) -> None:
    """Hold an Api against what must be true of any: every operation is told once, and its routes load."""
    carried = [told for told in found.told if told.status in ("carried", "limited")]
    assert [operation.pointer for operation in found.operations] == [told.pointer for told in carried]
    assert [operation.notes for operation in found.operations] == [told.notes for told in carried]
    placement = {"placement": dict(found.security.placement)} if found.security.placement is not None else {}
    profile = {"base_url": found.origin, "allowed_callers": [], "params": dict(found.params), **placement}
    profile |= {"request_headers": list(found.request_headers)}
    profile |= {"allow": list(found.catalog), "catalog": list(found.catalog)}
    parse_grants(reading.json.dumps({"profiles": {"p": profile}}).encode(), name="grants.json")
    for names in (
        [operation.identifier for operation in found.operations],
        [operation.tool for operation in found.operations],
        *([argument.identifier for argument in operation.arguments] for operation in found.operations),
    ):
        assert len(set(names)) == len(names)


def get(**members: Any) -> dict[str, Any]:
    return {"get": {**OK, **members}}


def routes(found: Api) -> list[str]:
    return [text(entry) for entry in found.catalog]


def text(entry: RouteEntry) -> str:
    return entry if isinstance(entry, str) else entry["route"]


def one(found: Api) -> Operation:
    (operation,) = found.operations
    return operation


def only(found: Api) -> Told:
    (told,) = found.told
    return told


def statuses(found: Api) -> dict[str, str]:
    return {told.label: told.status for told in found.told}


def stop(found: Api) -> Note:
    """Return why the only operation is not carried."""
    told = only(found)
    assert told.status == "not-carried"
    assert found.catalog == ()
    return next(note for note in told.notes if note.level == "stop")


def reasons(found: Api) -> str:
    return "\n".join(note.reason for told in found.told for note in told.notes)
