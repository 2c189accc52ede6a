"""The credential as ``Authorization: Token VALUE``, as Django REST framework and Mem0 take it.

``{"scheme": "token"}``
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from broker.placements import Headers
from broker.placements._value import usable, with_header
from config.secret import Secret

scheme = "token"


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No options."""


class Token:
    """See the module."""

    token_headers: Mapping[bytes, tuple[bytes, ...]] = {}
    token_query = None
    constant = True
    token_cookie = None

    def place(
        self, headers: Headers, target: bytes, credential: Mapping[str, Secret]
    ) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Attach the credential."""
        return with_header(headers, b"authorization", b"Token " + usable(credential)), target


def build(options: Options) -> Token:  # noqa: ARG001 - the registry calls every scheme the same way
    """Return the placement."""
    return Token()
