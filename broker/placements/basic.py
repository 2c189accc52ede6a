"""The credential as one side of ``Authorization: Basic`` (RFC 7617); the other side is a constant.

``{"scheme": "basic", "user": "x-access-token"}`` (the credential is the password) or
``{"scheme": "basic", "password": ""}`` (the credential is the user)
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping

import msgspec

from broker.placements import Headers
from broker.placements._value import usable, with_header
from config.problems import ProblemError
from config.secret import Secret

scheme = "basic"


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Exactly one of ``user`` and ``password``: the side that is constant."""

    user: str | None = None
    password: str | None = None


class Basic:
    """See the module."""

    token_headers: Mapping[bytes, tuple[bytes, ...]] = {}
    token_query = None
    constant = True
    token_cookie = None

    def __init__(self, *, user: bytes | None, password: bytes | None) -> None:
        """Take the constant side; the other is None."""
        self._user = user
        self._password = password

    def place(
        self, headers: Headers, target: bytes, credential: Mapping[str, Secret]
    ) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Attach the credential."""
        value = usable(credential)
        if self._user is not None:
            pair = self._user + b":" + value
        elif b":" in value:
            # What stands behind a colon would be read as the password.
            raise ProblemError("credential-unusable", "the credential holds a colon and cannot be the user")
        else:
            pair = value + b":" + (self._password or b"")
        return with_header(headers, b"authorization", b"Basic " + b64encode(pair)), target


def build(options: Options) -> Basic:
    """Return the placement."""
    if (options.user is None) == (options.password is None):
        raise ValueError("expected exactly one of user and password: the side that is not the credential")
    constant = options.user if options.user is not None else options.password or ""
    if constant and not (constant.isascii() and constant.isprintable()):
        raise ValueError("expected printable ASCII")
    if options.user is not None and ":" in options.user:
        raise ValueError("user: cannot hold a colon")
    encoded = constant.encode("ascii")
    return Basic(user=encoded if options.user is not None else None, password=encoded)
