"""The control API (``/v1/*``).

Every call of the control API stands in :data:`RULES` with who may make it: a call without an entry does not exist.
The data path does not come through here: ``broker/wire/exchange.py`` answers it within the connection.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from broker import records, views
from broker.callers import Callers, Failures, bearer
from broker.envelope import Envelope
from broker.messages import ExtendRequest, OpenRequest
from broker.openapi import document
from broker.opening import Opening
from broker.records import Idempotency
from broker.run import Run
from broker.runs import Ended, Registry
from broker.specgen.filling import fill
from broker.status import Status
from broker.store import Store
from config import tokens
from config.asgi import Receive, exception_handlers, json_response, query_of, read_body
from config.clock import Clock
from config.contract import decode
from config.durations import parse_duration
from config.problems import ProblemError

Who = Literal["anyone", "caller", "run"]

#: A body of the control API is no larger, but that of the envelope.
MAX_BODY: Final = 64 * 1024
#: How long an answer waits for the minter to say how the leases ended.
MINTER_S: Final = 2.0
_LISTED: Final = 100

_TOKEN: Final = re.compile(tokens.PATTERN.encode(), re.ASCII)
_IDEMPOTENCY_KEY: Final = re.compile(r"[\x20-\x7e]{1,255}", re.ASCII)
_JSON: Final = re.compile(r"application/json[ \t]*(;.*)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The control API."""

    registry: Registry
    callers: Callers
    failures: Failures
    store: Store
    clock: Clock
    status: Status
    envelope: Envelope

    def app(self) -> Starlette:
        """Return the application; each path has one route, which knows its methods."""
        paths: dict[str, dict[str, Rule]] = {}
        for rule in RULES:
            paths.setdefault(rule.path, {})[rule.method] = rule
        app = Starlette(
            routes=[Route(path, self._endpoint(rules), methods=list(rules)) for path, rules in paths.items()],
            exception_handlers=exception_handlers("broker"),
        )
        app.router.redirect_slashes = False  # one spelling for each path
        return app

    def _endpoint(self, rules: Mapping[str, Rule]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            rule = rules["GET" if request.method == "HEAD" else request.method]
            _check_target(request, rule)
            if rule.who == "caller":
                return await rule.handler(self, request, self.callers.authenticate(request.scope))
            if rule.who == "run":
                return await rule.handler(self, request, self._run(request))
            return await rule.handler(self, request)

        return endpoint

    def _run(self, request: Request) -> Run:
        """Return the run whose token the request presents.

        Errors: ``ProblemError``: ``run-token-missing``, ``run-token-invalid``, ``too-many-requests``.
        """
        token = bearer(request.scope["headers"])
        if token is None:
            raise self.failures.failed(request.scope, "run-token-missing")
        digest = tokens.digest(token, tokens.RUN)
        run = self.registry.by_digest(digest) if digest is not None else None
        if run is None:
            raise self.failures.failed(request.scope, "run-token-invalid")
        run.check(self.clock)
        return run

    # --- callers -----------------------------------------------------------------------------------------------

    async def open_run(self, request: Request, caller: str) -> Response:
        """Open a run."""
        key = request.headers.get("idempotency-key")
        body = decode(OpenRequest, await _json_body(request))
        opening = Opening(
            caller=caller,
            profiles=body.names(),
            params=body.params,
            ttl_s=_duration(body.ttl),
            trace_id=body.trace_id,
        )
        run, token = await self.registry.open(opening, None if key is None else _idempotency(key, body))
        return json_response(
            views.opened(run, token, self.status.base_url), 201, {"Location": f"/v1/runs/{run.run_id}"}
        )

    async def list_runs(self, request: Request, caller: str) -> Response:
        """List the caller's runs: those that live, then the latest that ended."""
        state = request.query_params.get("state", "all")
        if state not in ("all", "live", "ended"):
            raise ProblemError("parameter-unknown", "state is all, live or ended")
        runs = []
        if state != "ended":
            runs = [views.live(run, self.clock, rows=False) for run in self.registry.live(caller=caller)]
        if state != "live":
            rows = await self.store.read(lambda db: records.ended_runs(db, caller, limit=_LISTED))
            runs += [views.ended(row, rows=False) for row in rows]
        return json_response({"runs": runs})

    async def show_run(self, request: Request, caller: str) -> Response:
        """Show a run with its trace."""
        run_id = request.path_params["run_id"]
        run = self.registry.find(run_id, caller)
        if run is not None:
            return json_response(views.live(run, self.clock, rows=True))
        return json_response(views.ended(await self._ended_row(run_id, caller), rows=True))

    async def extend_run(self, request: Request, caller: str) -> Response:
        """Let a run end later."""
        body = decode(ExtendRequest, await _json_body(request))
        ttl_s = _duration(body.ttl)
        run_id = request.path_params["run_id"]
        run = self.registry.find(run_id, caller)
        if run is None:
            await self._ended_row(run_id, caller)
            raise ProblemError("run-ended")
        await self.registry.extend(run, ttl_s or 0.0)
        return json_response(views.live(run, self.clock, rows=False))

    async def end_run(self, request: Request, caller: str) -> Response:
        """End a run; one that has ended is shown as it is."""
        run_id = request.path_params["run_id"]
        run = self.registry.find(run_id, caller)
        if run is None:
            return json_response(views.ended(await self._ended_row(run_id, caller), rows=False))
        return await end_and_tell(self.registry, run, "caller")

    async def _ended_row(self, run_id: str, caller: str) -> records.RunRow:
        """Return an ended run of the caller. Errors: ``ProblemError("run-not-found")``, alike for others' runs."""
        row = await self.store.read(lambda db: records.find_run(db, run_id))
        if row is None or row.caller != caller or row.ended_at is None:
            raise ProblemError("run-not-found")
        return row

    # --- the run's code ----------------------------------------------------------------------------------------

    async def carry(self, request: Request, run: Run) -> Response:
        """Make a call that is written as JSON."""
        _check_json(request)
        longest = max((granted.max_request for granted in run.profiles.values()), default=0)

        def body(receive: Receive) -> Awaitable[bytes]:
            # JSON writes a byte of text as up to six; the body that is sent is measured again.
            return read_body(receive, 6 * longest + MAX_BODY, request.scope)

        return await self.envelope.answer(run, body, request.receive)

    async def show_self(self, _request: Request, run: Run) -> Response:
        """Say what the run may call and what is left."""
        return json_response(views.oneself(run, self.clock, self.status.base_url))

    async def end_self(self, _request: Request, run: Run) -> Response:
        """Let the run end itself."""
        return await end_and_tell(self.registry, run, "self")

    async def show_client(self, request: Request, run: Run) -> Response:
        """Serve the client that the profile's ``preamble_file`` names; one of specgen is told what it may call."""
        name = request.query_params.get("profile")
        if name is None:
            if len(run.profiles) != 1:
                raise ProblemError("profile-not-granted", "the run has several profiles: say which with ?profile=")
            (name,) = run.profiles
        granted = run.profiles.get(name)
        if granted is None or granted.current is None:
            raise ProblemError("profile-not-granted")
        profile = granted.current[0]
        language = request.path_params["language"]
        for file, client in profile.preambles.items():
            if file.endswith(f".{language}"):
                filled = fill(client, language, views.told_to_client(granted))
                return Response(filled, media_type=_CLIENT_TYPES[language], headers=_CLIENT_HEADERS)
        raise ProblemError("not-found", "the profile has no client in this language")

    # --- anyone ------------------------------------------------------------------------------------------------

    async def live(self, _request: Request) -> Response:
        """Say that the process answers."""
        return json_response({"live": True})

    async def ready(self, _request: Request) -> Response:
        """Say whether the broker is ready, and nothing else."""
        ready = self.status.ready()
        return json_response({"ready": ready}, 200 if ready else 503)

    async def openapi(self, _request: Request) -> Response:
        """Describe this API."""
        return json_response(document(RULES))


@dataclass(frozen=True, slots=True)
class Rule:
    """One call of the control API: who may make it, the query parameters it takes, and what it answers with."""

    method: str
    path: str
    who: Who
    handler: Callable[..., Awaitable[Response]]
    query: frozenset[str] = frozenset()
    status: int = 200
    media_type: str = "application/json"


RULES: Final = (
    Rule("POST", "/v1/runs", "caller", Control.open_run, status=201),
    Rule("GET", "/v1/runs", "caller", Control.list_runs, frozenset({"state"})),
    Rule("GET", "/v1/runs/{run_id}", "caller", Control.show_run),
    Rule("PATCH", "/v1/runs/{run_id}", "caller", Control.extend_run),
    Rule("DELETE", "/v1/runs/{run_id}", "caller", Control.end_run),
    Rule("POST", "/v1/call", "run", Control.carry),
    Rule("GET", "/v1/self", "run", Control.show_self),
    Rule("DELETE", "/v1/self", "run", Control.end_self),
    Rule("GET", "/v1/self/client.{language}", "run", Control.show_client, frozenset({"profile"}), media_type="text/*"),
    Rule("GET", "/livez", "anyone", Control.live),
    Rule("GET", "/readyz", "anyone", Control.ready),
    Rule("GET", "/openapi.json", "anyone", Control.openapi),
)

_CLIENT_TYPES: Final = {"js": "text/javascript", "py": "text/x-python"}
_CLIENT_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


async def end_and_tell(registry: Registry, run: Run, reason: str) -> Response:
    """End a run and answer how that went."""
    ended = await registry.end(run, reason)
    return json_response(await how_it_ended(ended))


async def how_it_ended(ended: Ended) -> views.JSON:
    """Return what became of a run, with its leases if the minter says so soon."""
    return views.end(ended.run, ended.ended_at, await ended.notice.revoked(within_s=MINTER_S))


def _check_target(request: Request, rule: Rule) -> None:
    target = request.scope["target"]
    if _TOKEN.search(target):
        raise ProblemError("run-token-misplaced", "a token was sent in the target; send it in Authorization")
    # What stands encoded in the path is no call of ours: one spelling for each.
    if b"%" in target.partition(b"?")[0]:
        raise ProblemError("not-found")
    query_of(request, rule.query)


def _check_json(request: Request) -> None:
    if not _JSON.fullmatch(request.headers.get("content-type", "")):
        raise ProblemError("media-type-not-supported")


async def _json_body(request: Request) -> bytes:
    _check_json(request)
    return await read_body(request.receive, MAX_BODY, request.scope)


def _duration(value: float | str | None) -> float | None:
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ProblemError("ttl-invalid", str(error)) from None


def _idempotency(key: str, body: OpenRequest) -> Idempotency:
    if not _IDEMPOTENCY_KEY.fullmatch(key):
        raise ProblemError("idempotency-key-invalid")
    return Idempotency(
        key_digest=hashlib.sha256(key.encode()).digest(),
        body_digest=hashlib.sha256(msgspec.json.encode(body, order="sorted")).digest(),
    )
