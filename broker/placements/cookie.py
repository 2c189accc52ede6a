"""The credential as a cookie, the only one that is sent (RFC 6265).

``{"scheme": "cookie", "name": "session"}``
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from broker.placements import Headers
from broker.placements._value import usable, with_header
from config.problems import ProblemError
from config.secret import Secret

scheme = "cookie"

_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
#: What ends a cookie or quotes it (RFC 6265 section 4.1.1).
_UNUSABLE: Final = re.compile(rb'[\s",;\\]')


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``name`` of the cookie."""

    name: str


class Cookie:
    """See the module."""

    token_headers: Mapping[bytes, tuple[bytes, ...]] = {}
    token_query = None
    constant = True

    def __init__(self, name: bytes) -> None:
        """Take the cookie's name."""
        self.token_cookie = name

    def place(
        self, headers: Headers, target: bytes, credential: Mapping[str, Secret]
    ) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Attach the credential."""
        value = usable(credential)
        if _UNUSABLE.search(value):
            raise ProblemError("credential-unusable", "the credential holds a character that a cookie cannot")
        return with_header(headers, b"cookie", self.token_cookie + b"=" + value), target


def build(options: Options) -> Cookie:
    """Return the placement."""
    if not _NAME.fullmatch(options.name):
        raise ValueError("name: expected a token of 1 to 64 characters")
    return Cookie(options.name.encode("ascii"))
