"""The credential as a query parameter, the last one of the target.

Use it only for an API that takes nothing else: targets end up in the logs of the API's side.

``{"scheme": "query", "name": "key"}``
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

from broker.placements import Headers
from broker.placements._value import usable
from config.problems import ProblemError
from config.secret import Secret

scheme = "query"

_NAME: Final = re.compile(r"[A-Za-z0-9._~-]{1,64}", re.ASCII)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``name`` of the parameter."""

    name: str


class Query:
    """See the module."""

    token_headers: Mapping[bytes, tuple[bytes, ...]] = {}
    token_cookie = None

    def __init__(self, name: bytes) -> None:
        """Take the parameter's name."""
        self.token_query = name

    def place(
        self, headers: Headers, target: bytes, credential: Mapping[str, Secret]
    ) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Attach the credential.

        Errors: ``ProblemError("query-not-granted")`` when the code sent a parameter of that name: which of the two
        the API would believe is not known.
        """
        _, question_mark, query = target.partition(b"?")
        if any(unquote_to_bytes(pair.partition(b"=")[0]) == self.token_query for pair in query.split(b"&")):
            raise ProblemError("query-not-granted", "the parameter of the credential was sent by the code")
        value = quote(usable(credential), safe="").encode("ascii")
        return list(headers), target + (b"&" if question_mark else b"?") + self.token_query + b"=" + value


def build(options: Options) -> Query:
    """Return the placement."""
    if not _NAME.fullmatch(options.name):
        raise ValueError("name: expected 1 to 64 of letters, digits and -._~")
    return Query(options.name.encode("ascii"))
