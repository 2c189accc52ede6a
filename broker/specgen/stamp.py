"""What every written file says of where it comes from: the tool's version, the document and its digest.

No time, no path and no machine: the same document gives the same bytes everywhere.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

from broker.specgen.model import Api


@cache
def tool_version() -> str:
    """Return the version of this tool."""
    return version("minter-broker")


def stamp(api: Api) -> dict[str, Any]:
    """Return the stamp, in the order that it is written in. The document's name is its file's, without folders."""
    return {"version": tool_version(), "document": api.source, "openapi": api.version, "sha256": api.sha256}
