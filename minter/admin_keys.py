"""The operators' calls about custody keys: where a key may go, and its rotation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from config.asgi import json_response, query_of, read_body
from config.clock import Clock, rfc3339
from config.contract import decode
from config.problems import ProblemError
from config.secret import Secret
from config.settings import KeySettings
from minter import key_age
from minter.custody import Custody
from minter.key_age import KeyAge
from minter.key_ending import KeyEnding
from minter.key_making import KeyMaking
from minter.rotation import Rotation, Step
from minter.rotation_steps import NOT_ACCEPTED
from minter.service import LeaseService
from minter.store import Store

B = TypeVar("B", bound=msgspec.Struct)

#: A new secret is at most 64 KiB; JSON may write a character in six.
_MAX_BODY: Final = 512 * 1024


class RotateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/keys/{alias}/rotate``. ``value`` is the new value of a static secret."""

    step: Step
    value: str | None = None
    dry_run: bool = False
    overlap_s: float | None = None
    force: bool = False
    compromised: bool = False

    def __repr__(self) -> str:
        return f"RotateRequest(step={self.step!r}, value=<secret>)"


class RebindRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/keys/{alias}/rebind``: every origin that the key may go to from now on."""

    origins: list[str]


class DeclareRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/keys/{alias}/import``: ``settings`` as minter.toml would have them, and the key's value.

    Without a value: it is at the source already. ``POST /v1/keys/{alias}/create`` takes none: the minter makes it.
    """

    settings: KeySettings
    value: str | None = None

    def __repr__(self) -> str:
        return f"DeclareRequest(settings={self.settings!r}, value=<secret>)"


class RetireRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/keys/{alias}/retire``. ``force``: though the grants in force refer to it."""

    force: bool = False


class DestroyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/keys/{alias}/destroy``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCalls:
    """Answers the calls about custody keys."""

    custody: Custody
    rotation: Rotation
    making: KeyMaking
    ending: KeyEnding
    store: Store
    service: LeaseService
    clock: Clock

    async def rotate(self, request: Request, uid: int) -> Response:
        """Take a step of a rotation; answer with its plan and state."""
        wanted = await self._read(RotateRequest, request)
        plan = await self.rotation.request(
            request.path_params["alias"],
            wanted.step,
            value=None if wanted.value is None else Secret(wanted.value),
            dry_run=wanted.dry_run,
            overlap_s=wanted.overlap_s,
            force=wanted.force,
            compromised=wanted.compromised,
            uid=uid,
        )
        return json_response(plan)

    async def ages(self, request: Request, _uid: int) -> Response:
        """Say how old each key is against its period, and whether the minter can rotate it by itself."""
        query_of(request)
        ages = await self.store.read(lambda c: key_age.ages(c, self.custody.settings_of, now=self.clock.now()))
        return json_response({"keys": [self._aged(age) for age in ages]})

    def _aged(self, age: KeyAge) -> dict[str, Any]:
        why = "" if (by_itself := age.problem != NOT_ACCEPTED) else "its issuer does not take the new version"
        if by_itself:
            try:
                by_itself = self.rotation.makes_itself(age.alias)
                why = "" if by_itself else f"a person brings its new value: minter rotate {age.alias}"
            except ProblemError as error:
                by_itself, why = False, error.detail
        return {
            **{name: getattr(age, name) for name in ("alias", "use", "level", "rotating", "problem")},
            "age_s": round(age.age_s, 3),
            "period_s": age.period_s,
            "due_at": None if age.due_at is None else rfc3339(age.due_at),
            "by_itself": by_itself,
            "why": why,
        }

    async def create(self, request: Request, uid: int) -> Response:
        """Make a signing key and take it into custody."""
        wanted = await self._read(DeclareRequest, request)
        if wanted.value is not None:
            raise ProblemError("body-malformed", "the minter makes the key itself: see import")
        return await self._declare(request, wanted, in_place=False, uid=uid)

    async def import_(self, request: Request, uid: int) -> Response:
        """Take a key that somebody else issued into custody."""
        wanted = await self._read(DeclareRequest, request)
        return await self._declare(request, wanted, in_place=wanted.value is None, uid=uid)

    async def _declare(self, request: Request, wanted: DeclareRequest, *, in_place: bool, uid: int) -> Response:
        value = None if wanted.value is None else Secret(wanted.value)
        alias = request.path_params["alias"]
        row = await self.making.declare(alias, wanted.settings, value, in_place=in_place, uid=uid)
        shown = ("alias", "version", "source_ref", "fingerprint", "algorithm")
        return json_response({name: getattr(row, name) for name in shown})

    async def retire(self, request: Request, uid: int) -> Response:
        """Take a key out of use for good."""
        wanted = await self._read(RetireRequest, request)
        return json_response(await self.ending.retire(request.path_params["alias"], force=wanted.force, uid=uid))

    async def destroy(self, request: Request, uid: int) -> Response:
        """Delete the values of a retired key."""
        await self._read(DestroyRequest, request)
        return json_response(await self.ending.destroy(request.path_params["alias"], uid=uid))

    async def rebind(self, request: Request, uid: int) -> Response:
        """Pin a key to other origins. Live leases made with it for an origin that is no longer one of them end."""
        alias = request.path_params["alias"]
        wanted = (await self._read(RebindRequest, request)).origins
        try:
            await self.custody.rebind(self.store, alias, wanted, uid=uid)
        finally:
            # By what is pinned now: it may stand though the log could not be told, or be what it was.
            origins = self.custody.origins_of(alias)
            ended = await self.service.end(
                lambda live: live.row.made_with(alias) and live.row.origin not in origins, "key-rebound", uid=uid
            )
        return json_response({"alias": alias, "origins": origins, "leases": ended})

    async def _read(self, type_: type[B], request: Request) -> B:
        query_of(request)
        return decode(type_, await read_body(request.receive, _MAX_BODY, request.scope))
