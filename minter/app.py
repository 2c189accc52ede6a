"""What brokers may ask of the minter: leases, their ends, the watch, a run's counts. Everything else is 404."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from config.asgi import Receive, Scope, Send, exception_handlers, json_response, read_body
from config.contract import LEASES, WATCH, Revoked, RunRecord, decode
from config.tokenfiles import Principal
from minter.brokers import Brokers
from minter.forms import check_record, check_run_id
from minter.lease_endpoint import LeaseEndpoint
from minter.readiness import Readiness
from minter.service import LeaseService
from minter.watch import WatchHub

#: The counts of a run name at most 256 routes.
MAX_RECORD: Final = 256 * 1024
_LEASES_TARGET: Final = LEASES.encode()


class BrokerApi:
    """The application behind ``listen``."""

    def __init__(
        self,
        *,
        lease_endpoint: LeaseEndpoint,
        service: LeaseService,
        brokers: Brokers,
        hub: WatchHub,
        readiness: Readiness,
    ) -> None:
        self._lease = lease_endpoint
        self._service = service
        self._brokers = brokers
        self._hub = hub
        self._readiness = readiness
        self._app = Starlette(
            routes=[
                Route(WATCH, self._of_broker(f"GET {WATCH}", self._watch), methods=["GET"]),
                Route(
                    LEASES + "/{lease_id}",
                    self._of_broker(f"DELETE {LEASES}/{{id}}", self._end_lease),
                    methods=["DELETE"],
                ),
                Route("/v1/runs/{run_id}", self._of_broker("DELETE /v1/runs/{id}", self._end_run), methods=["DELETE"]),
                Route(
                    "/v1/runs/{run_id}/record",
                    self._of_broker("POST /v1/runs/{id}/record", self._record),
                    methods=["POST"],
                ),
                Route("/livez", self._live, methods=["GET"]),
                Route("/readyz", self._ready, methods=["GET"]),
            ],
            exception_handlers=exception_handlers("minter"),
        )
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: a lease at once, everything else by its route."""
        if scope["type"] == "http" and scope["method"] == "POST" and scope["target"] == _LEASES_TARGET:
            await self._lease(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _of_broker(
        self, operation: str, answer: Callable[[Principal, Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Authenticate first: no endpoint sees a request that no broker sent."""

        async def endpoint(request: Request) -> Response:
            return await answer(self._brokers.authenticate(request.scope, operation=operation), request)

        return endpoint

    async def _watch(self, broker: Principal, _request: Request) -> Response:
        # Without the stream a broker goes on with what it holds for seconds only.
        self._service.check()
        return StreamingResponse(
            self._hub.lines(broker.id), media_type="application/x-ndjson", headers={"cache-control": "no-store"}
        )

    async def _end_lease(self, broker: Principal, request: Request) -> Response:
        lease_id = request.path_params["lease_id"]
        # Another broker's lease looks like none at all.
        ended = await self._service.end_one(lease_id, "revoked", broker=broker.id)
        return json_response(Revoked(leases=ended))

    async def _end_run(self, broker: Principal, request: Request) -> Response:
        run_id = check_run_id(request.path_params["run_id"])
        return json_response(Revoked(leases=await self._service.end_run(broker.id, run_id)))

    async def _record(self, broker: Principal, request: Request) -> Response:
        run_id = check_run_id(request.path_params["run_id"])
        record = decode(RunRecord, await read_body(request.receive, MAX_RECORD, request.scope))
        check_record(record)
        await self._service.record(broker.id, run_id, record)
        return Response(status_code=204)

    async def _live(self, _request: Request) -> Response:
        return json_response({"live": True})

    async def _ready(self, _request: Request) -> Response:
        ready = self._readiness.ready()
        return json_response({"ready": ready}, 200 if ready else 503)
