"""``catalog.json`` and ``grants.json``: the document's routes, and a profile to start from.

The catalog is the document's and is written anew each time. The profile is the operator's from the moment that it is
written: it grants nothing but what was asked for by ``--allow``, and where the document leaves a question open the
field holds :data:`broker.placements.QUESTION`, which no broker loads, so that nothing starts before it is answered.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.placements import QUESTION
from broker.specgen.merging import merged
from broker.specgen.model import Api, RouteEntry
from broker.specgen.stamp import stamp

#: The longest line that an object, and a list, is written on.
_WIDTH: Final = 116
_LIST_WIDTH: Final = 60


def catalog_json(api: Api, files: Mapping[str, str]) -> bytes:
    """Return ``catalog.json``. ``files`` are the digests of the files that are written beside it."""
    return _written({"specgen": {**stamp(api), "files": dict(sorted(files.items()))}, "catalog": list(api.catalog)})


def digest(data: bytes) -> str:
    """Return the digest of a file as the catalog names it."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def is_catalog(data: bytes) -> bool:
    """Say whether a file is a catalog that we wrote."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and isinstance(document.get("specgen"), dict) and "catalog" in document


def grants_json(
    api: Api, *, profile: str, global_name: str, callers: Sequence[str], allow: Sequence[RouteEntry]
) -> bytes:
    """Return ``grants.json`` with the one profile.

    Its token is a static key of the name of the profile: the operator puts something shorter-lived there where the API
    has it.
    """
    return _written({"profiles": {profile: _profile(api, profile, global_name, callers, allow)}})


def granted_routes(api: Api) -> list[RouteEntry]:
    """Return the entries of the operations that no filter left out, and no more than what these send."""
    return list(merged(operation.route for operation in api.operations))


def _profile(
    api: Api, profile: str, global_name: str, callers: Sequence[str], allow: Sequence[RouteEntry]
) -> dict[str, Any]:
    written: dict[str, Any] = {"base_url": api.origin, "allowed_callers": list(callers)}
    security = api.security
    if security.placement is not None:
        written |= {"token": _token(profile), "placement": dict(security.placement)}
    elif security.question:
        written |= {"token": _token(profile), "placement": {"scheme": QUESTION}}
    if api.request_headers:
        written["request_headers"] = list(api.request_headers)
    if api.params:
        written["params"] = dict(api.params)
    written |= {"global": global_name, "preamble_file": ["client.py", "client.js"]}
    return {**written, "allow": list(allow), "catalog": list(api.catalog)}


def _token(profile: str) -> dict[str, str]:
    return {"type": "static", "key": profile}


def _written(value: Any) -> bytes:
    """Write JSON in ASCII for people and for ``diff``: what fits stands on one line, so a route is a line."""
    return (_laid_out(value, "") + "\n").encode("ascii")


def _laid_out(value: Any, indent: str) -> str:
    line = json.dumps(value)
    within = indent + "  "
    if len(line) <= (_LIST_WIDTH if isinstance(value, list) else _WIDTH) - len(indent):
        return line
    if isinstance(value, dict):
        lines = [f"{within}{json.dumps(name)}: {_laid_out(inner, within)}" for name, inner in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list):
        return "[\n" + ",\n".join(within + json.dumps(inner) for inner in value) + f"\n{indent}]"
    return line
