"""The credential as ``Authorization: Bearer VALUE`` (RFC 6750).

``{"scheme": "bearer"}``
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from broker.placements import Headers
from broker.placements._value import usable, with_header
from config.secret import Secret

scheme = "bearer"


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No options."""


class Bearer:
    """See the module."""

    token_headers: Mapping[bytes, tuple[bytes, ...]] = {}
    token_query = None
    constant = True
    token_cookie = None

    def place(
        self, headers: Headers, target: bytes, credential: Mapping[str, Secret]
    ) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Attach the credential."""
        return with_header(headers, b"authorization", b"Bearer " + usable(credential)), target


def build(options: Options) -> Bearer:  # noqa: ARG001 - the registry calls every scheme the same way
    """Return the placement."""
    return Bearer()
