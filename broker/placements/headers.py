"""A credential of several fields, each in a header of its own.

``{"scheme": "headers", "headers": {"DD-API-KEY": "api_key", "DD-APPLICATION-KEY": "app_key"}}``
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from broker.placements import Headers as HeaderList
from broker.placements._value import header_name, usable
from config.secret import Secret

scheme = "headers"


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``headers`` names for each header the credential's field that it carries."""

    headers: Annotated[dict[str, str], msgspec.Meta(min_length=1, max_length=8)]


class Headers:
    """See the module."""

    token_query = None
    constant = True
    token_cookie = None

    def __init__(self, fields: dict[bytes, str]) -> None:
        """Take the credential's field for each lower-case header name."""
        self._fields = fields
        self.token_headers: Mapping[bytes, tuple[bytes, ...]] = dict.fromkeys(fields, (b"",))

    def place(
        self, headers: HeaderList, target: bytes, credential: Mapping[str, Secret]
    ) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Attach every field."""
        placed = [header for header in headers if header[0] not in self._fields]
        placed += [(name, usable(credential, field)) for name, field in self._fields.items()]
        return placed, target


def build(options: Options) -> Headers:
    """Return the placement."""
    fields = {header_name(name): field for name, field in options.headers.items()}
    if len(fields) != len(options.headers) or len(set(fields.values())) != len(fields):
        raise ValueError("headers: a header or a field stands twice")
    return Headers(fields)
