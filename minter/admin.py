"""What operators and auditors may ask, on ``admin_listen``: known by the user that their process runs as.

Every call stands in :meth:`AdminApi.calls` with who may make it; one without an entry does not exist. Answers hold
names, ids, instants and fingerprints: metadata only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from config.asgi import exception_handlers, json_response, query_of, read_body
from config.clock import parse_rfc3339, rfc3339
from config.contract import decode
from config.problems import ProblemError
from minter import kinds, lease_rows
from minter.admin_audit import AuditCalls
from minter.admin_keys import KeyCalls
from minter.admin_report import ReportCalls
from minter.admin_state import StateCalls
from minter.audit_events import Event, Value
from minter.book import Live
from minter.denials import Operators
from minter.forgetting import Forgetting
from minter.lease_rows import LeaseRow
from minter.readiness import Readiness
from minter.reload import Reloader
from minter.service import LeaseService
from minter.store import Store

Who = Literal["operator", "reader"]
Call = Callable[[Request, int], Awaitable[Response]]

#: No answer lists more leases.
MAX_LEASES: Final = 10_000

#: What an operator may do while a restored state is not confirmed; everything else would change it.
IN_QUARANTINE: Final = frozenset({"/v1/quarantine", "/v1/backup"})

_MAX_BODY: Final = 4096

#: What is shown of a lease: fields of its row, with their names in the answer, and instants.
_SHOWN: Final[Mapping[str, str]] = {"id": "lease_id", "end_reason": "reason"} | {
    name: name
    for name in (
        *("broker", "run_id", "caller", "profile", "origin", "kind", "state", "how", "fingerprint", "params_digest"),
        *("grant_digest", "key_alias", "key_version", "attempts", "trace_id"),
    )
}
_INSTANTS: Final = ("created_at", "expires_at", "run_ends_at", "lives_until", "next_attempt_at", "ended_at")

_FILTERS: Final = ("run", "profile", "kind", "caller", "key", "broker")


class ForgetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/leases/{lease_id}/forget``: why, in the operator's own words."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminApi:
    """The operators' and auditors' API."""

    operators: Operators
    service: LeaseService
    store: Store
    keys: KeyCalls
    reports: ReportCalls
    state: StateCalls
    forgetting: Forgetting
    reloader: Reloader
    readiness: Readiness
    metrics: Callable[[], Awaitable[bytes]]
    audit: AuditCalls
    third_party_kinds: tuple[str, ...] = ()

    def calls(self) -> Mapping[tuple[str, str], tuple[Who, Call]]:
        """Return every call with who may make it."""
        return {
            ("GET", "/v1/leases"): ("reader", self.list_leases),
            ("DELETE", "/v1/leases"): ("operator", self.end_leases),
            ("DELETE", "/v1/leases/{lease_id}"): ("operator", self.end_lease),
            ("POST", "/v1/leases/{lease_id}/forget"): ("operator", self.forget_lease),
            ("GET", "/v1/custody"): ("reader", self.reports.custody),
            ("GET", "/v1/audit"): ("reader", self.audit.read),
            ("POST", "/v1/audit/checkpoint"): ("reader", self.audit.checkpoint),
            ("POST", "/v1/audit/rotate"): ("operator", self.audit.rotate),
            ("GET", "/v1/kinds"): ("reader", self.list_kinds),
            ("GET", "/v1/ages"): ("reader", self.keys.ages),
            ("POST", "/v1/keys/{alias}/create"): ("operator", self.keys.create),
            ("POST", "/v1/keys/{alias}/import"): ("operator", self.keys.import_),
            ("POST", "/v1/keys/{alias}/retire"): ("operator", self.keys.retire),
            ("POST", "/v1/keys/{alias}/destroy"): ("operator", self.keys.destroy),
            ("POST", "/v1/keys/{alias}/rotate"): ("operator", self.keys.rotate),
            ("POST", "/v1/keys/{alias}/rebind"): ("operator", self.keys.rebind),
            ("POST", "/v1/reload"): ("operator", self.reload),
            ("GET", "/v1/process"): ("reader", self.state.process),
            ("POST", "/v1/backup"): ("operator", self.state.backup),
            ("GET", "/v1/quarantine"): ("reader", self.state.restored),
            ("DELETE", "/v1/quarantine"): ("operator", self.state.confirm),
            ("GET", "/readyz"): ("reader", self.ready),
            ("GET", "/metrics"): ("reader", self.show_metrics),
        }

    def app(self) -> Starlette:
        """Return the application."""
        paths: dict[str, dict[str, tuple[Who, Call]]] = {}
        for (method, path), entry in self.calls().items():
            paths.setdefault(path, {})[method] = entry
        routes = [Route(path, self._endpoint(path, methods), methods=list(methods)) for path, methods in paths.items()]
        routes.append(Route("/livez", _live, methods=["GET"]))
        app = Starlette(routes=routes, exception_handlers=exception_handlers("minter"))
        app.router.redirect_slashes = False
        return app

    def _endpoint(self, path: str, methods: Mapping[str, tuple[Who, Call]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            who, call = methods[method]
            may = self.operators.operator if who == "operator" else self.operators.reader
            uid = may(request.scope, operation=f"{method} {path}")
            if who == "operator" and path not in IN_QUARANTINE:
                self.service.check()
            return await call(request, uid)

        return endpoint

    async def list_leases(self, request: Request, _uid: int) -> Response:
        """List leases: those that are stuck first, then those that are not over, then the newest."""
        filters = _filters(request, {*_FILTERS, "state", "since"})
        rows = await self.store.read_beside(lambda found: lease_rows.search(found, filters, limit=MAX_LEASES + 1))
        damaged = []
        if not filters or filters == {"state": "irrevocable"}:
            damaged = await self.store.read_beside(lambda found: lease_rows.damaged(found, limit=MAX_LEASES))
        read = {row.id for row in rows}
        shown = [_damaged(lease_id) for lease_id in damaged if lease_id not in read] + [_shown(row) for row in rows]
        return json_response({"leases": shown[:MAX_LEASES], "truncated": len(shown) > MAX_LEASES})

    async def end_leases(self, request: Request, uid: int) -> Response:
        """End the live leases that fit every filter. None at all is refused: ``all=true`` must be meant."""
        filters = _filters(request, {*_FILTERS, "since", "all"})
        everything = filters.pop("all", None) == "true"
        if bool(filters) == everything:
            raise ProblemError("filter-required", "give filters, or all=true alone")
        # A token that was just taken out of the brokers file must not be good for a lease that begins after these end.
        await self.reloader.follow_brokers()
        ended = await self.service.end(lambda live: _fits(live, filters), "operator", uid=uid, final="run" in filters)
        fields: dict[str, Value] = {"uid": uid, "count": len(ended), "reason": ",".join(sorted(filters)) or "all"}
        await self.store.write(lambda _connection: (None, [Event("leases.mass-revoked", fields)]))
        return json_response({"leases": ended, "pending": sum(one.state == "revoking" for one in ended)})

    async def end_lease(self, request: Request, uid: int) -> Response:
        """End one live lease."""
        query_of(request)
        ended = await self.service.end_one(request.path_params["lease_id"], "operator", uid=uid)
        return json_response({"leases": ended, "pending": sum(one.state == "revoking" for one in ended)})

    async def forget_lease(self, request: Request, uid: int) -> Response:
        """Forget one lease that nobody here can end."""
        query_of(request)
        wanted = decode(ForgetRequest, await read_body(request.receive, _MAX_BODY, request.scope))
        lease_id = request.path_params["lease_id"]
        await self.forgetting.forget(lease_id, wanted.reason, uid=uid)
        return json_response({"lease_id": lease_id, "forgotten": True})

    async def list_kinds(self, request: Request, _uid: int) -> Response:
        """Describe the token kinds."""
        query_of(request)
        third = self.third_party_kinds
        return json_response({"kinds": [kinds.describe(name, third) for name in kinds.names(third)]})

    async def reload(self, request: Request, uid: int) -> Response:
        """Read grants, brokers and secrets again."""
        query_of(request)
        faults = await self.reloader.reload(uid=uid)
        if faults:
            raise ProblemError(
                "reload-refused", "; ".join(str(fault) for fault in faults), faults=[str(fault) for fault in faults]
            )
        return json_response({"reloaded": True})

    async def ready(self, request: Request, _uid: int) -> Response:
        """Say whether the minter is ready; with ``?verbose`` each check by name, and what is wrong beside them."""
        verbose = "verbose" in query_of(request, {"verbose"})
        report = self.readiness.report()
        failed = {name: reason for name, reason in report.items() if reason}
        if failed:
            raise ProblemError("not-ready", "; ".join(f"{name}: {reason}" for name, reason in failed.items()))
        notes = {name: reason or True for name, reason in self.readiness.notes().items()}
        return json_response(dict.fromkeys(report, True) | notes if verbose else {"ready": True})

    async def show_metrics(self, request: Request, _uid: int) -> Response:
        """Return the metrics in Prometheus's text format."""
        query_of(request)
        return Response(await self.metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _filters(request: Request, allowed: set[str]) -> dict[str, Any]:
    """Return the query parameters of a list or a mass end, read."""
    given: dict[str, Any] = dict(query_of(request, allowed))
    if "since" in given:
        try:
            given["since"] = parse_rfc3339(given["since"])
        except ValueError:
            raise ProblemError("parameter-unknown", "since is an RFC 3339 instant with zone") from None
    if given.get("state", "active") not in lease_rows.STATES:
        raise ProblemError("parameter-unknown", f"state is one of {', '.join(lease_rows.STATES)}")
    return given


def _fits(live: Live, filters: Mapping[str, Any]) -> bool:
    row = live.row
    checks: Mapping[str, Callable[[Any], bool]] = {
        "since": lambda instant: row.created_at >= instant,
        "key": row.made_with,
        "run": lambda run_id: row.run_id == run_id,
    }
    return all(
        checks[name](wanted) if name in checks else getattr(row, name) == wanted for name, wanted in filters.items()
    )


def _damaged(lease_id: str) -> dict[str, Any]:
    """Show a row of which nothing but its id is believed."""
    return {
        **dict.fromkeys((*_SHOWN.values(), *_INSTANTS)),
        "lease_id": lease_id,
        "state": "irrevocable",
        "reason": lease_rows.DAMAGED,
    }


def _lives_until(row: LeaseRow) -> float | None:
    """Return when the credential dies by itself at the latest; None when it is over, or when nothing says so."""
    if row.state in ("revoked", "expired"):
        return None
    return row.expires_at if row.state in ("intent", "orphan_suspect") else row.credential_ends_at


def _shown(row: LeaseRow) -> dict[str, Any]:
    instants = {name: getattr(row, name) for name in _INSTANTS if name != "lives_until"}
    instants["lives_until"] = _lives_until(row)
    shown: dict[str, Any] = {shown_as: getattr(row, name) for name, shown_as in _SHOWN.items()}
    return shown | {name: None if value is None else rfc3339(value) for name, value in instants.items()}


async def _live(_request: Request) -> Response:
    return json_response({"live": True})
