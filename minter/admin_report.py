"""The auditors' call for the custody report."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from config.asgi import json_response
from config.clock import Clock, parse_rfc3339
from config.problems import ProblemError
from minter.custody_report import CustodyReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCalls:
    """Answers ``GET /v1/custody``."""

    report: CustodyReport
    clock: Clock

    async def custody(self, request: Request, _uid: int) -> Response:
        """Report every key and every open lease; ``?at=`` for another instant than now."""
        return json_response(await self.report.make(now=self._instant(request)))

    def _instant(self, request: Request) -> float:
        given = request.query_params.multi_items()
        if not given:
            return self.clock.now()
        if [name for name, _ in given] != ["at"]:
            raise ProblemError("parameter-unknown", "query parameters of this call, each at most once: at")
        try:
            at = parse_rfc3339(given[0][1])
        except (ValueError, OverflowError):
            at = -1.0
        if at < 0:
            raise ProblemError("parameter-unknown", "at is an RFC 3339 instant with zone, from 1970 on")
        return at
