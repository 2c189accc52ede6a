"""Parameters that are never offered to the code: what carries a credential, and what the broker would not let pass.

Where the credential goes is said by the placement, whatever the document declares.
"""

from __future__ import annotations

import re
from typing import Final

from broker.specgen.declared import Declared
from broker.specgen.model import Note
from config.headers import credential_like, name_fault

#: Header parameters that mean nothing (OpenAPI "Fixed Fields" of a parameter): they have places of their own.
_IGNORED: Final = frozenset({"accept", "content-type", "authorization"})
#: Written by whoever sends a request, whatever the document says.
_WRITTEN: Final = frozenset({"host", "content-length"})
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD: Final = re.compile(r"[a-z0-9]+")
#: With one of these, a "token" says where a list goes on.
_PAGING: Final = frozenset(
    {"page", "paging", "pagination", "next", "prev", "previous", "start", "continuation", "continue", "cursor"}
    | {"sync", "resume", "scroll", "delta", "watch"}
)
#: After the words for a credential these name something about it, not the credential.
_ABOUT: Final = frozenset(
    {"id", "ids", "name", "names", "type", "types", "hint", "prefix", "status", "state", "kind", "count", "expiry"}
)
_IGNORED_REASON: Final = "is ignored, as OpenAPI says; the body's type and the placement write this header"
_CREDENTIAL_REASON: Final = "carries a credential, which the placement sends and the code never does"


def withheld(declared: Declared, refused: frozenset[str]) -> Note | None:
    """Return why a query, header or cookie parameter is not offered, or None when it is.

    ``refused`` are the names (lower case) of the document's security schemes.
    """
    lower = declared.name.lower()
    if declared.place == "header" and lower in _IGNORED:
        return declared.note("warn", _IGNORED_REASON)
    if lower in refused:
        return declared.note("warn", _CREDENTIAL_REASON)
    if declared.place == "cookie":
        return declared.lost("a cookie never passes", _placed(declared))
    if names_credential(declared.name) or _says_api_key(declared):
        return _named_like_one(declared)
    if declared.place == "header":
        return _withheld_header(declared, lower)
    return None


def names_credential(name: str) -> bool:
    """Say whether a name reads like that of a credential itself: not of a page, or of something about one.

    >>> [name for name in ("api_key", "authToken", "pageToken", "token_type", "key") if names_credential(name)]
    ['api_key', 'authToken']
    """
    words = _WORD.findall(_CAMEL.sub("-", name[:256]).lower())
    if not words or words[-1] in _ABOUT or not _PAGING.isdisjoint(words):
        return False
    return credential_like("-".join(words))


def _says_api_key(declared: Declared) -> bool:
    # `key` alone is the name of many things.
    description = declared.node.get("description")
    return declared.name == "key" and isinstance(description, str) and "api key" in description[:1000].lower()


def _withheld_header(declared: Declared, lower: str) -> Note | None:
    if lower in _WRITTEN:
        return declared.note("warn", "is written by whoever sends the request")
    fault = name_fault(declared.name)
    if fault is None:
        return None
    if credential_like(declared.name):
        return _named_like_one(declared)
    return declared.lost(fault)


def _named_like_one(declared: Declared) -> Note:
    if not declared.required:
        return declared.note("warn", _CREDENTIAL_REASON)
    return declared.note(
        "limit",
        "carries a credential and is required, but no security scheme says how it is sent; it is left out",
        _placed(declared),
    )


def _placed(declared: Declared) -> str:
    return "if it is where the API takes the credential: " + declared.option(f"--placement {declared.place}:")
