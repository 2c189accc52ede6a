"""What every scheme does with a value before it writes it, and how header names are checked when grants load."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from broker.placements import Headers
from config.problems import ProblemError
from config.secret import Secret

#: The field that most kinds of token have.
VALUE: Final = "value"

#: A field name of RFC 9110 section 5.1.
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)

#: Names that would change how the request is read instead of who sends it.
_FRAMING: Final = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def usable(credential: Mapping[str, Secret], field: str = VALUE) -> bytes:
    """Return a field of the credential as it can stand in a request: printable ASCII, not empty, no blank at an end.

    Errors: ``ProblemError("credential-unusable")``, which never says what the value is.
    """
    secret = credential.get(field)
    text = secret.reveal() if secret is not None else ""
    # An empty value would go out as "Bearer ", which some APIs take for an anonymous call.
    if not text or not (text.isascii() and text.isprintable()) or text != text.strip():
        raise ProblemError("credential-unusable", f"the credential's field {field} is missing, empty or not plain text")
    return text.encode("ascii")


def with_header(headers: Headers, name: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
    """Return a copy of ``headers`` with exactly one ``name``."""
    placed = [header for header in headers if header[0] != name]
    placed.append((name, value))
    return placed


def header_name(name: str) -> bytes:
    """Return a header name in lower case.

    Errors: ``ValueError`` when it is none, or would change how the request is read.
    """
    lowered = name.lower()
    # Some servers read an underscore as a hyphen.
    if not _NAME.fullmatch(name) or lowered.replace("_", "-") in _FRAMING:
        raise ValueError(f"{name!r} is not a header that can carry a credential")
    return lowered.encode("ascii")
