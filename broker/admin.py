"""The operators' API: the kill switch, metrics, readiness in parts, reload. On ``admin_listen`` only.

Who may is said by the kernel: the user at the other end of the Unix socket. There is no token to steal, and over TCP,
where the kernel says nothing, nobody may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from broker import records, views
from broker.app import how_it_ended
from broker.metrics import Metrics
from broker.reload import Reloader
from broker.run import Run
from broker.runs import Registry
from broker.status import Status
from broker.store import Store
from config.asgi import exception_handlers, json_response, query_of
from config.clock import Clock
from config.problems import ProblemError

log = structlog.get_logger("broker.admin")

_FILTERS: Final = ("profile", "caller", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """The operators' API."""

    registry: Registry
    store: Store
    clock: Clock
    status: Status
    metrics: Metrics
    reloader: Reloader
    operators: frozenset[int]

    def app(self) -> Starlette:
        """Return the application; every call of it is for operators."""
        app = Starlette(
            routes=[
                Route(path, self._endpoint(methods), methods=list(methods)) for path, methods in self._calls().items()
            ],
            exception_handlers=exception_handlers("broker"),
        )
        app.router.redirect_slashes = False
        return app

    def _calls(self) -> Mapping[str, Mapping[str, Callable[[Request], Awaitable[Response]]]]:
        return {
            "/metrics": {"GET": self.show_metrics},
            "/readyz": {"GET": self.ready},
            "/v1/admin/runs": {"GET": self.list_runs, "DELETE": self.end_runs},
            "/v1/admin/runs/{run_id}": {"GET": self.show_run, "DELETE": self.end_run},
            "/v1/admin/runs/{run_id}/learned": {"GET": self.show_learned},
            "/v1/admin/reload": {"POST": self.reload},
        }

    def _endpoint(
        self, methods: Mapping[str, Callable[[Request], Awaitable[Response]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            peer = request.scope.get("peer")
            if peer is None or peer.uid not in self.operators:
                log.warning("operator-refused", uid=peer.uid if peer is not None else None)
                raise ProblemError("operator-required")
            return await methods["GET" if request.method == "HEAD" else request.method](request)

        return endpoint

    async def show_metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus's text format."""
        query_of(request)
        return Response(self.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def ready(self, request: Request) -> Response:
        """Say whether the broker is ready; with ``?verbose`` in parts."""
        query_of(request, {"verbose"})
        ready = self.status.ready()
        shown: views.JSON = {"ready": ready}
        if "verbose" in request.query_params:
            shown |= {"parts": self.status.parts(), "minter_stream": self.status.minter_stream()}
        return json_response(shown, 200 if ready else 503)

    async def list_runs(self, request: Request) -> Response:
        """List the live runs that fit the filters."""
        query_of(request, _FILTERS)
        runs = self.registry.live(**_filters(request))
        return json_response({"runs": [views.live(run, self.clock, rows=False) for run in runs]})

    async def show_run(self, request: Request) -> Response:
        """Show a run, of whichever caller, with its trace."""
        query_of(request)
        run_id = request.path_params["run_id"]
        for run in self.registry.live(run_id=run_id):
            return json_response(views.live(run, self.clock, rows=True))
        row = await self.store.read(lambda db: records.find_run(db, run_id))
        if row is None:
            raise ProblemError("run-not-found")
        return json_response(views.ended(row, rows=True))

    async def show_learned(self, request: Request) -> Response:
        """Show what the wildcards of a run's routes took, by profile and route; null stands for many values."""
        query_of(request)
        return json_response({"learned": self.registry.learned.of(request.path_params["run_id"])})

    async def end_runs(self, request: Request) -> Response:
        """End every live run that fits the filters. None at all is refused: ``all=true`` must be meant.

        ``"profile_granted": false`` says that no run had the profile, and that the grants do not name it either.
        """
        query_of(request, {*_FILTERS, "all"})
        filters = _filters(request)
        everything = request.query_params.get("all") == "true"
        if bool(filters) == everything:
            raise ProblemError("filter-required", "give profile, caller or run, or all=true alone")
        runs = self.registry.live(**filters)
        log.warning("kill-switch", uid=request.scope["peer"].uid, runs=len(runs), **filters)
        shown: views.JSON = {"runs": await self._end(runs)}
        profile = filters.get("profile")
        if not runs and profile is not None and profile not in self.registry.current:
            shown["profile_granted"] = False
        return json_response(shown)

    async def end_run(self, request: Request) -> Response:
        """End one run."""
        query_of(request)
        runs = self.registry.live(run_id=request.path_params["run_id"])
        if not runs:
            raise ProblemError("run-not-found")
        log.warning("kill-switch", uid=request.scope["peer"].uid, runs=1, run=runs[0].run_id)
        return json_response((await self._end(runs))[0])

    async def _end(self, runs: list[Run]) -> list[views.JSON]:
        """End ``runs``, all of them even when one fails.

        Errors: ``ProblemError("state-unavailable")``; the runs have ended in memory then.
        """
        for run in runs:
            run.end("operator")
        ended = await asyncio.gather(*(self.registry.end(run, "operator") for run in runs), return_exceptions=True)
        told = await asyncio.gather(*(how_it_ended(one) for one in ended if not isinstance(one, BaseException)))
        for one in ended:
            if isinstance(one, BaseException):
                raise one
        return told

    async def reload(self, request: Request) -> Response:
        """Read grants and callers again."""
        query_of(request)
        faults = await self.reloader.reload()
        if faults:
            raise ProblemError("reload-refused", faults=[str(fault) for fault in faults])
        return json_response({"reloaded": True})


def _filters(request: Request) -> dict[str, str]:
    given = {name: request.query_params[name] for name in _FILTERS if name in request.query_params}
    if "run" in given:
        given["run_id"] = given.pop("run")
    return given
