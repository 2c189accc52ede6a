"""A working Agent Memory API on loopback: 14 operations, Cloudflare's v4 envelope, no network and no account.

    python -m ops.fakes.agent_memory --port 9400 --key-digest HEX --namespace 42/support

It knows its callers by the digest of a key, by tokens of our minter (``--jwks URL --audience URL``), or by both.
``--record FILE`` writes every request it received as a JSON line (method, target, how the caller was known, status;
never the key). A request that the API does not have is answered 501, so that nothing passes a test by luck. In a test,
:func:`start` runs it in the same process on a free port.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from config.process import harden
from config.secret import Secret
from ops.fakes.memory_api import ROUTES, Call, Reply, Route
from ops.fakes.memory_auth import Authenticator, KeyDigest, SignedToken, authenticate
from ops.fakes.memory_record import Record
from ops.fakes.memory_store import INVALID, NO_ROUTE, ApiError, MemoryStore
from ops.fakes.serving import Running, run, start_in_thread
from ops.fakes.ulid import UlidSource

#: 500 messages of 32,768 bytes, and room for JSON around them.
MOST_BODY: Final = 24 * 1024 * 1024


class AgentMemory:
    """The API as an ASGI endpoint: find the operation, know the caller, check, answer, write it down."""

    def __init__(self, *, ways: Sequence[Authenticator], record: Record, store: MemoryStore) -> None:
        """``ways`` are the ways to be known, tried in order; without one every request is refused."""
        self.store = store
        self.record = record
        self._ways = ways

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        target = _target(scope)
        authenticated, operation = "none", ""
        try:
            route, path = _find(request.method, target.partition("?")[0])
            operation = route.operation
            authorization = request.headers.getlist("authorization")
            authenticated = "refused" if authorization else "none"
            authenticated = await authenticate(authorization, self._ways)
            if authenticated == "jwt":
                self.record.keep_jwt(authorization[0].partition(" ")[2])
            reply = route.run(Call(self.store, path, _query(route, scope["query_string"]), await _body(route, request)))
            response = _success(reply)
        except ApiError as error:
            response = _failure(error)
        self.record.add(
            method=request.method,
            target=target,
            operation=operation,
            authenticated=authenticated,
            status=response.status_code,
        )
        await response(scope, receive, send)

    async def close(self) -> None:
        """Let go of connections and of the record's file."""
        for way in self._ways:
            await way.close()
        self.record.close()


def start(
    *,
    ways: Sequence[Authenticator],
    namespaces: Sequence[tuple[str, str]] = (),
    record: Record | None = None,
    port: int = 0,
    now: Callable[[], float] = time.time,
) -> tuple[Running, AgentMemory]:
    """Serve the API from a thread of this process, for tests: ``running.url``, ``api.record.received``."""
    api = AgentMemory(ways=ways, record=record or Record(), store=MemoryStore(now))
    for account, name in namespaces:
        api.store.create_namespace(account, name)
    return start_in_thread(api, port=port, close=api.close), api


def _target(scope: Scope) -> str:
    path: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    return (path + (b"?" + query if query else b"")).decode("latin-1")


def _find(method: str, raw_path: str) -> tuple[Route, dict[str, str]]:
    # By the path as it was sent: a session id may hold an encoded slash.
    segments = raw_path.split("/")
    for route in ROUTES:
        path = route.match(method, segments)
        if path is not None:
            return route, path
    raise ApiError(501, NO_ROUTE, "No route for that URI")


def _query(route: Route, query_string: bytes) -> dict[str, str]:
    if not query_string:
        return {}
    try:
        pairs = parse_qsl(query_string.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        raise ApiError(400, INVALID, "malformed query") from None
    query = dict(pairs)
    if len(query) != len(pairs):
        raise ApiError(400, INVALID, "a query parameter was given twice")
    if not query.keys() <= route.query:
        raise ApiError(400, INVALID, "unknown query parameter")
    return query


async def _body(route: Route, request: Request) -> dict[str, Any]:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY:
            raise ApiError(413, INVALID, "the body is too large")
    if not route.has_body:
        return {}
    try:
        parsed = json.loads(bytes(body))
    except (ValueError, RecursionError):
        raise ApiError(400, INVALID, "the body is not JSON") from None
    if not isinstance(parsed, dict):
        raise ApiError(400, INVALID, "the body must be an object")
    return parsed


def _success(reply: Reply) -> JSONResponse:
    body: dict[str, object] = {"result": reply.result, "success": True, "errors": [], "messages": []}
    if reply.info is not None:
        body["result_info"] = reply.info
    return JSONResponse(body, status_code=reply.status)


def _failure(error: ApiError) -> JSONResponse:
    fault: dict[str, object] = {"code": error.code, "message": error.message}
    if error.pointer:
        fault["source"] = {"pointer": error.pointer}
    body = {"result": None, "success": False, "errors": [fault], "messages": []}
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return JSONResponse(body, status_code=error.status, headers=headers)


def _store(still: float | None) -> MemoryStore:
    """Return an empty store; one that answers the same bytes each time when its time stands still."""
    if still is None:
        return MemoryStore(time.time)
    return MemoryStore(lambda: still, UlidSource(lambda: still, lambda _: 0))


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ops.fakes.agent_memory", description="A working Agent Memory API.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9400, help="0 takes a free one; the ready line names it")
    parser.add_argument("--key-digest", help="SHA-256 of the key that is accepted, in hexadecimal")
    parser.add_argument("--jwks", help="where the keys of accepted tokens are published")
    parser.add_argument("--audience", help="what a token must be for")
    parser.add_argument("--issuer", help="who a token must be from")
    parser.add_argument("--introspect", help="where to ask whether a token still counts")
    parser.add_argument("--introspect-credential-file", type=Path, help="the bearer credential for that")
    parser.add_argument("--namespace", action="append", default=[], metavar="ACCOUNT/NAME", help="made at the start")
    parser.add_argument("--record", type=Path, help="a file for a JSON line per request received")
    parser.add_argument("--keep-jwt", type=Path, help="a file for the last accepted token: for the demo's thief")
    parser.add_argument("--still", type=float, metavar="SECONDS", help="time stands still there, and ids are counted")
    arguments = parser.parse_args(argv)
    if not arguments.key_digest and not arguments.jwks:
        parser.error("say who is accepted: --key-digest or --jwks")
    if bool(arguments.jwks) != bool(arguments.audience):
        parser.error("--jwks and --audience go together")
    return arguments


def main(argv: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM."""
    arguments = _arguments(argv)
    # Every request holds the key, and so does this process for a moment: nobody else may look into it.
    harden()
    ways: list[Authenticator] = []
    if arguments.key_digest:
        ways.append(KeyDigest(arguments.key_digest))
    if arguments.jwks:
        credential = arguments.introspect_credential_file
        ways.append(
            SignedToken(
                jwks_url=arguments.jwks,
                audience=arguments.audience,
                issuer=arguments.issuer,
                introspect_url=arguments.introspect,
                introspect_credential=Secret(credential.read_text().strip()) if credential else None,
            )
        )
    record = Record(path=arguments.record, keep_jwt=arguments.keep_jwt, key_digest=arguments.key_digest or "")
    api = AgentMemory(ways=ways, record=record, store=_store(arguments.still))
    for namespace in arguments.namespace:
        account, _, name = namespace.partition("/")
        api.store.create_namespace(account, name)
    asyncio.run(run(api, host=arguments.host, port=arguments.port, name="agent memory", close=api.close))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
