"""What the fake Agent Memory API checks of names, fields and pages, with the bounds of the API's own pages."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from ops.fakes.memory_store import INVALID, ApiError

NAMESPACE_LENGTH: Final = 32
PROFILE_LENGTH: Final = 100
DEFAULT_PAGE: Final = 20

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.ASCII)
_ACCOUNT: Final = re.compile(r"[0-9a-f]{1,32}", re.ASCII)
_MEMORY_ID: Final = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}", re.ASCII)
_PAGE_CURSOR: Final = re.compile(r"[A-Za-z0-9_-]{1,256}", re.ASCII)
_INTEGER: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
_SESSION_LENGTH: Final = 64

T = TypeVar("T")


def name_of(value: str, what: str, longest: int) -> str:
    """Return a name that fits the pattern. Errors: 400."""
    if len(value) > longest or not _NAME.fullmatch(value):
        raise ApiError(400, INVALID, f"invalid {what} name")
    return value


def text_field(body: Mapping[str, Any], name: str, most_bytes: int | None = None) -> str:
    """Return a non-empty string of the body. Errors: 400."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise ApiError(400, INVALID, f"{name} must be a non-empty string", f"/{name}")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ApiError(400, INVALID, f"{name} must be well-formed Unicode", f"/{name}")
    if most_bytes is not None and len(value.encode()) > most_bytes:
        raise ApiError(400, INVALID, f"{name} must have at most {most_bytes} bytes", f"/{name}")
    return value


def choice(value: object, name: str, choices: Sequence[str]) -> str:
    """Return a value that is one of the choices. Errors: 400."""
    if not isinstance(value, str) or value not in choices:
        raise ApiError(400, INVALID, f"{name} must be one of {', '.join(choices)}", f"/{name}")
    return value


def session_id_of(value: object, name: str) -> str:
    """Return a session id: it has a length and no pattern, so it may hold anything. Errors: 400."""
    if not isinstance(value, str) or not 0 < len(value) <= _SESSION_LENGTH:
        raise ApiError(400, INVALID, f"{name} must have 1 to {_SESSION_LENGTH} characters", f"/{name}")
    return value


def optional_session(body: Mapping[str, Any]) -> str | None:
    """Return the body's session id, if it has one. Errors: 400."""
    return None if body.get("sessionId") is None else session_id_of(body["sessionId"], "sessionId")


def instant(value: object, pointer: str) -> str:
    """Return a date in ISO 8601. Errors: 400."""
    try:
        datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        raise ApiError(400, INVALID, "not a date", pointer) from None
    return str(value)


def per_page_of(query: Mapping[str, str], most: int) -> int:
    """Return the size of a page. Errors: 400."""
    text = query.get("per_page", str(DEFAULT_PAGE))
    if not _INTEGER.fullmatch(text) or not 1 <= int(text) <= most:
        raise ApiError(400, INVALID, f"per_page must be a number from 1 to {most}")
    return int(text)


def page_of(rows: Sequence[T], per_page: int, cursor_of: Callable[[T], str]) -> tuple[list[T], dict[str, object]]:
    """Answer the first page of the rows; without more of them there is no cursor."""
    page = list(rows[:per_page])
    info: dict[str, object] = {"count": len(page), "per_page": per_page}
    if len(rows) > per_page:
        info["cursor"] = cursor_of(page[-1])
    return page, info


def sealed_cursor(after: str, **context: str) -> str:
    """Write a cursor that points after a row, within one order."""
    body = json.dumps({"v": 1, "n": after, **context}, separators=(",", ":"))
    return base64.urlsafe_b64encode(body.encode()).decode().rstrip("=")


def opened_cursor(cursor: str | None, **context: str) -> str | None:
    """Return what a cursor points after. It belongs to the order in which it was given out."""
    if cursor is None:
        return None
    if not _PAGE_CURSOR.fullmatch(cursor):
        raise ApiError(400, INVALID, "invalid cursor")
    try:
        body = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except ValueError:
        raise ApiError(400, INVALID, "invalid cursor") from None
    if not isinstance(body, dict) or body != {"v": 1, "n": body.get("n"), **context} or not isinstance(body["n"], str):
        raise ApiError(400, INVALID, "invalid cursor")
    return body["n"]


def account_of(value: str) -> str:
    """Return an account id: the document's pattern has digits only, real ones are hexadecimal. Errors: 400."""
    if not _ACCOUNT.fullmatch(value):
        raise ApiError(400, INVALID, "invalid account id")
    return value


def memory_id_of(value: str, what: str = "memory id") -> str:
    """Return a memory id. Errors: 400."""
    if not _MEMORY_ID.fullmatch(value):
        raise ApiError(400, INVALID, f"invalid {what}")
    return value
