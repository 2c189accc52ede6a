"""The operators' calls about custody keys: the report, where a key may go, and its rotation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from config.asgi import json_response, read_body
from config.clock import Clock
from config.contract import decode
from config.secret import Secret
from minter.custody import Custody
from minter.custody_report import report
from minter.rotation import Rotation, Step
from minter.service import LeaseService
from minter.store import Store

#: A new secret is at most 64 KiB; JSON may write a character in six.
_MAX_BODY: Final = 512 * 1024


class RotateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/keys/{alias}/rotate``. ``value`` is the new value of a static secret."""

    step: Step
    value: str | None = None
    dry_run: bool = False
    overlap_s: float | None = None
    force: bool = False

    def __repr__(self) -> str:
        return f"RotateRequest(step={self.step!r}, value=<secret>)"


class RebindRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/keys/{alias}/rebind``: every origin that the key may go to from now on."""

    origins: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCalls:
    """Answers the calls about custody keys."""

    custody: Custody
    rotation: Rotation
    store: Store
    service: LeaseService
    clock: Clock

    async def report(self, _request: Request, _uid: int) -> Response:
        """Report every custody key: names, places and fingerprints."""
        now = self.clock.now()
        return json_response({"keys": await self.store.read(lambda found: report(self.custody, found, now=now))})

    async def rotate(self, request: Request, uid: int) -> Response:
        """Take a step of a rotation; answer with its plan and state."""
        wanted = decode(RotateRequest, await read_body(request.receive, _MAX_BODY, request.scope))
        plan = await self.rotation.request(
            request.path_params["alias"],
            wanted.step,
            value=None if wanted.value is None else Secret(wanted.value),
            dry_run=wanted.dry_run,
            overlap_s=wanted.overlap_s,
            force=wanted.force,
            uid=uid,
        )
        return json_response(plan)

    async def rebind(self, request: Request, uid: int) -> Response:
        """Pin a key to other origins. Live leases made with it for an origin that is no longer one of them end."""
        alias = request.path_params["alias"]
        wanted = decode(RebindRequest, await read_body(request.receive, _MAX_BODY, request.scope)).origins
        origins = await self.custody.rebind(self.store, alias, wanted, uid=uid)
        ended = await self.service.end(
            lambda live: live.row.made_with(alias) and live.row.origin not in origins, "key-rebound", uid=uid
        )
        return json_response({"alias": alias, "origins": origins, "leases": ended})
