"""Small helpers for ASGI applications of both programs: answers, bodies, and errors as problem+json."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from typing import Any, Final

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from uvicorn.protocols.utils import ClientDisconnected

from config.problems import By, ProblemError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

_log = structlog.get_logger("config.asgi")

_COMMON: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
_STATUS_CODES: Final = {404: "not-found", 405: "method-not-supported", 413: "request-too-large"}


class BodyBrokeOff(OSError):  # noqa: N818 - it names what happened
    """The client went away before its body was complete: there is nobody to answer."""


#: The client is gone: while its body was read, while it was answered, and as Starlette says the latter of a stream.
GONE: Final = (BodyBrokeOff, ClientDisconnected, ClientDisconnect)


async def send_problem(send: Send, error: ProblemError, by: By, *, extra: Headers = ()) -> None:
    """Answer with ``error``. ``extra`` are headers to add, such as ``Allow``."""
    body = error.body(by)
    headers = [*error.headers(by), (b"content-length", b"%d" % len(body)), *extra]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, status: int, payload: Any, *, extra: Headers = ()) -> None:
    """Answer with ``payload`` (anything msgspec encodes) as JSON that nobody may cache."""
    body = msgspec.json.encode(payload)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *_COMMON, *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def json_response(payload: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return the same as a Starlette response."""
    response = Response(msgspec.json.encode(payload), status, headers, media_type="application/json")
    for name, value in _COMMON:
        response.headers.setdefault(name.decode(), value.decode())
    return response


def query_of(request: Request, allowed: Collection[str] = ()) -> dict[str, str]:
    """Return the query parameters. One that is misspelt or doubled is refused: it must not widen what is meant.

    Errors: ``ProblemError`` parameter-unknown.
    """
    given = request.query_params.multi_items()
    found = dict(given)
    if len(found) != len(given) or not found.keys() <= set(allowed):
        taken = ", ".join(sorted(allowed)) or "none"
        raise ProblemError("parameter-unknown", f"query parameters of this call, each at most once: {taken}")
    return found


async def read_body(receive: Receive, limit: int, scope: Scope | None = None) -> bytes:
    """Read a whole body of at most ``limit`` bytes.

    With the ``scope`` of :mod:`config.server` a body that is announced as too long is refused unread.

    Errors: ``ProblemError`` request-too-large; :class:`BodyBrokeOff` when the client is gone.
    """
    if scope is not None and (scope.get("body_length") or 0) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise BodyBrokeOff
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_large(limit: int) -> ProblemError:
    return ProblemError("request-too-large", f"a body may have at most {limit} bytes", limit=limit)


def describe(error: BaseException, log: Any = _log) -> ProblemError:
    """Log an unexpected error by its type, its place and a random request id, and return what to answer.

    Neither the error's text nor its traceback is logged: either may hold a value. An error is logged once, however
    many layers hand it on.
    """
    request_id = getattr(error, "request_id", None)
    if request_id is None:
        request_id = secrets.token_hex(8)
        log.error("unexpected-error", type=type(error).__qualname__, at=_place(error), request_id=request_id)
        with contextlib.suppress(AttributeError):  # An exception with slots is logged twice, no more.
            error.request_id = request_id  # type: ignore[attr-defined]
    return ProblemError("internal-error", request_id=request_id)


def _place(error: BaseException) -> str:
    """Return module, line and function of the innermost frames."""
    places = []
    frame = error.__traceback__
    while frame is not None:
        module = frame.tb_frame.f_globals.get("__name__", "?")
        places.append(f"{module}:{frame.tb_lineno} {frame.tb_frame.f_code.co_name}")
        frame = frame.tb_next
    return " < ".join(reversed(places[-4:]))


def exception_handlers(by: By) -> dict[Any, Callable[[Request, Any], Response]]:
    """Return the handlers that make a Starlette application answer every error as problem+json."""

    def problem(error: ProblemError, headers: Mapping[str, str] | None = None) -> Response:
        response = Response(error.body(by), error.status, headers)
        for name, value in error.headers(by):
            response.headers[name.decode()] = value.decode()
        return response

    def on_problem(_request: Request, error: ProblemError) -> Response:
        return problem(error)

    def on_http(_request: Request, error: HTTPException) -> Response:
        code = _STATUS_CODES.get(error.status_code, "body-malformed")
        return problem(ProblemError(code), error.headers)

    def on_unexpected(_request: Request, error: Exception) -> Response:
        if isinstance(error, GONE):
            return Response(status_code=400)  # nobody reads it
        return problem(describe(error))

    return {ProblemError: on_problem, HTTPException: on_http, Exception: on_unexpected}
