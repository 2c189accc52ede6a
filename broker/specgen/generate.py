"""All files that specgen writes, as bytes: pure, and the same for the same document and options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.specgen.catalog import catalog_json, digest, granted_routes, grants_json
from broker.specgen.clients import javascript_client, python_client
from broker.specgen.describe import description
from broker.specgen.document import Document
from broker.specgen.model import Api, RouteEntry
from broker.specgen.report import report_json, report_text
from broker.specgen.tools import tools

#: Every file, in the order in which a person would look at them. The catalog names the digests of the others.
NAMES: Final = (
    "catalog.json",
    "grants.json",
    "client.py",
    "client.pyi",
    "client.js",
    "client.d.ts",
    "description.txt",
    "tools.json",
    "report.txt",
    "report.json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the operator chose beside :class:`broker.specgen.model.Choices`.

    ``granted`` are the routes of an existing profile: the clients, the description and the tools are for these. With
    ``grants`` the profile to start from allows the operations that the filters left in; it is for these then.
    """

    profile: str
    global_name: str
    callers: Sequence[str] = ()
    grants: bool = False
    granted: Sequence[RouteEntry] | None = None


def generate(document: Document, api: Api, options: Options) -> dict[str, bytes]:
    """Return the content of every file of :data:`NAMES`."""
    allow = granted_routes(api) if options.grants else []
    granted = options.granted if options.granted is not None else allow if options.grants else None
    profile, global_name = options.profile, options.global_name
    files = {
        "grants.json": grants_json(api, profile=profile, global_name=global_name, callers=options.callers, allow=allow),
        **python_client(api, document, profile=profile, global_name=global_name, allow=granted),
        **javascript_client(api, document, profile=profile, global_name=global_name, allow=granted),
        "description.txt": description(api, document, profile=profile, global_name=global_name, granted=granted),
        "tools.json": tools(api, document, granted=granted),
        "report.txt": report_text(api),
        "report.json": report_json(api),
    }
    files["catalog.json"] = catalog_json(api, {name: digest(data) for name, data in files.items()})
    return {name: files[name] for name in NAMES}
