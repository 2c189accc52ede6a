"""The auditors' call for the custody report."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from config.asgi import json_response, query_of
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
        given = query_of(request, {"at"})
        if not given:
            return self.clock.now()
        try:
            at = parse_rfc3339(given["at"])
        except (ValueError, OverflowError):
            at = -1.0
        if at < 0:
            raise ProblemError("parameter-unknown", "at is an RFC 3339 instant with zone, from 1970 on")
        return at
