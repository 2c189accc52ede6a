"""The credential in a header of its own, with a constant text before it or none.

``{"scheme": "header", "name": "X-API-Key"}`` or ``{"scheme": "header", "name": "Authorization", "prefix": "Bot "}``
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from broker.placements import Headers
from broker.placements._value import header_name, usable, with_header
from config.secret import Secret

scheme = "header"


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``name`` of the header; ``prefix`` stands before the value, its blank included."""

    name: str
    prefix: str = ""


class Header:
    """See the module."""

    token_query = None
    constant = True
    token_cookie = None

    def __init__(self, name: bytes, prefix: bytes) -> None:
        """Take the lower-case name and the prefix."""
        self._name = name
        self._prefix = prefix
        self.token_headers: Mapping[bytes, tuple[bytes, ...]] = {name: (prefix, b"")}

    def place(
        self, headers: Headers, target: bytes, credential: Mapping[str, Secret]
    ) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Attach the credential."""
        return with_header(headers, self._name, self._prefix + usable(credential)), target


def build(options: Options) -> Header:
    """Return the placement."""
    prefix = options.prefix
    if not (prefix.isascii() and (not prefix or prefix.isprintable())) or prefix != prefix.lstrip():
        raise ValueError("prefix: expected printable ASCII that does not begin with a blank")
    return Header(header_name(options.name), prefix.encode("ascii"))
