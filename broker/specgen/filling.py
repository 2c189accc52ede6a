"""Filling a client in: the copy that a run is served knows its profile, what it may call and its parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from config import tokens

#: The one line of a client that is filled in, as the runtimes have it.
_MARKS: Final = {
    "py": (b"\nRUN = None  # filled in by the broker\n", "\nRUN = {}  # filled in by the broker\n"),
    "js": (b"\n  var RUN = null; // filled in by the broker\n", "\n  var RUN = {}; // filled in by the broker\n"),
}
_TOKEN: Final = re.compile(tokens.PATTERN, re.ASCII)


def literal(value: Any) -> str:
    """Return JSON of a value as a text literal that reads alike in Python and JavaScript.

    It is ASCII and in one line, and nothing in it ends a script of an HTML page.
    """
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return json.dumps(text.replace("<", "\\u003c").replace("\x7f", "\\u007f"))


def fill(client: bytes, language: Literal["py", "js"], run: Mapping[str, Any]) -> bytes:
    """Return the client with what it should know of its run: ``profile``, ``routes`` and ``params``.

    A text without the mark is no client of ours and comes back as it is.

    Errors: ``ValueError`` when the run holds a token, which would then stand in a file.
    """
    mark, filled = _MARKS[language]
    if client.count(mark) != 1:
        return client
    told = literal({name: run[name] for name in ("profile", "routes", "params")})
    if _TOKEN.search(told):
        raise ValueError("a run that is written into a client holds no token")
    return client.replace(mark, filled.format(told).encode("ascii"))
