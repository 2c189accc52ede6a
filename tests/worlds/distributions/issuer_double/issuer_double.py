"""A token kind from another distribution, for tests: it mints at ``tests/worlds/issuer.py``.

Tokens are named ``NAMES`` + lease id, so that one whose lease was lost can be found and deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self
from urllib.parse import quote

import msgspec

from config.problems import ProblemError
from config.secret import Secret
from minter import egress
from minter.custody import Custody
from minter.kinds import Ending, LeaseView, Minted, MintRequest, RevocationError, Root, alias_of, options

NAMES = "mb-"


class _Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: str
    issuer: str
    key: str


class IssuerDouble:
    """A named token of the issuer double, made by right of the root key ``key`` and deleted at its end."""

    name: ClassVar[str] = "issuer-double"
    local: ClassVar[bool] = False
    example: ClassVar[Mapping[str, Any]] = {
        "type": "issuer-double",
        "issuer": "https://issuer.example.com",
        "key": "issuer-root",
    }

    def __init__(self, issuer: str, alias: str, custody: Custody) -> None:
        self._issuer = issuer
        self._alias = alias
        self._custody = custody

    @classmethod
    def build(cls, token: Mapping[str, Any], custody: Custody, where: str) -> Self:
        given = options(_Options, token, where)
        return cls(given.issuer, alias_of({"key": given.key}, where), custody)

    # --- tokens ---

    async def mint(self, request: MintRequest) -> Minted:
        root, version = self._custody.secret(self._alias, self._issuer)
        name = NAMES + request.lease_id
        body = {"name": name, "ttl_s": request.not_after - request.now}
        try:
            answer = await egress.call(
                self._issuer, "POST", "/tokens", bearer=root, body=json.dumps(body).encode(), timeout_s=5
            )
        except egress.EgressError as error:
            if error.unsent:
                raise ProblemError("not-ready", "the issuer cannot be reached", retry_after=1) from None
            raise ProblemError("issuer-failed", retry_after=1) from None
        if answer.status in (401, 403, 429, 503):
            raise ProblemError("not-ready", "the issuer made nothing", retry_after=answer.retry_after or 1)
        if answer.status != 201:
            raise ProblemError("issuer-failed", retry_after=1)
        made = json.loads(answer.body)
        value = Secret(made["value"])
        return Minted(
            credential={"value": value},
            # By our own clock: the issuer's may be wrong.
            expires_at=request.not_after,
            fingerprint=value.fingerprint(),
            key_versions=((self._alias, version),),
            how_ends="upstream_deleted",
        )

    async def revoke(self, lease: LeaseView, credential: Mapping[str, Secret] | None) -> Ending:
        del credential  # the name says which, also when the value was lost
        await self._delete(NAMES + lease.id)
        return Ending("upstream_deleted")

    async def end_orphan(self, lease: LeaseView) -> Ending | None:
        root, _ = self._custody.secret(self._alias, self._issuer)
        found = json.loads(await self._body("GET", f"/tokens?prefix={NAMES + lease.id}", root))["names"]
        for name in found:
            await self._delete(name)
        return Ending("upstream_deleted") if found else None

    async def _delete(self, name: str) -> bool:
        root, _ = self._custody.secret(self._alias, self._issuer)
        return await self._ask("DELETE", f"/tokens/{quote(name, safe='')}", root) != 404

    # --- root keys ---

    def root_alias(self) -> str:
        return self._alias

    def root_origin(self) -> str:
        return self._issuer

    async def create_root(self, current: Secret, name: str) -> Secret:
        return Secret(json.loads(await self._body("POST", "/roots", current, {"name": name}))["value"])

    async def prove_root(self, candidate: Secret) -> None:
        await self._body("GET", "/whoami", candidate)

    async def delete_root(self, using: Secret, old: Root) -> None:
        name = old.name
        if old.value is not None:
            try:
                name = json.loads(await self._body("GET", "/whoami", old.value))["name"]
            except RevocationError as error:
                if error.permanent:
                    return  # the issuer knows no such key any more
                raise
        await self._ask("DELETE", f"/roots/{quote(name, safe='')}", using)

    # --- asking ---

    async def _ask(self, method: str, target: str, root: Secret) -> int:
        answer = await self._answer(method, target, root, None)
        if answer.status not in (200, 204, 404):
            raise RevocationError(retry_after=answer.retry_after, permanent=answer.status == 403)
        return answer.status

    async def _body(self, method: str, target: str, root: Secret, body: Any = None) -> bytes:
        answer = await self._answer(method, target, root, body)
        if answer.status not in (200, 201):
            raise RevocationError(retry_after=answer.retry_after, permanent=answer.status in (401, 403))
        return answer.body

    async def _answer(self, method: str, target: str, root: Secret, body: Any) -> egress.Answer:
        data = None if body is None else json.dumps(body).encode()
        try:
            return await egress.call(self._issuer, method, target, bearer=root, body=data, timeout_s=5)
        except egress.EgressError:
            raise RevocationError from None


KIND = IssuerDouble
