"""``jwt``: an access token of our own, for one run, signed by a custody key (RFC 9068, RFC 9396)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

import msgspec

from config.errors import ConfigurationError, Fault
from config.problems import ProblemError
from config.secret import Secret
from minter.custody import Custody
from minter.kinds import Ending, HowEnded, LeaseView, Minted, MintRequest, alias_of, lifetime, options
from minter.signing import Algorithm

#: A verifier whose clock is behind ours by less than this does not see a token from the future.
BACK_DATED_S: Final = 10
#: The type of our ``authorization_details`` (RFC 9396): routes as the grants file writes them.
ROUTE_TYPE: Final = "minter-broker-route"
#: Claims that say what is true of the token; no constant may say otherwise.
OWN_CLAIMS: Final = frozenset(
    "iss sub aud exp nbf iat jti client_id scope run_id authorization_details cnf act".split()  # noqa: SIM905
)


class _Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: str
    audience: str
    key: str | None = None
    env: str | None = None
    file: str | None = None
    keyring: str | None = None
    credential: str | None = None
    algorithm: Algorithm | None = None
    ttl: float | str | None = None
    claims: dict[str, Any] = {}


class JwtKind:
    """A signed token for one run, which the API checks by itself with the published keys.

    ``key`` is a signing key of minter.toml, ``audience`` the API as it names itself. The token says who opened the run
    (``sub``), which run and lease it is for (``run_id``, ``jti``) and what was granted (``scope``,
    ``authorization_details``). It never lasts longer than the run, nor than ``ttl``; until then nothing ends it for an
    API that checks it alone. ``claims`` adds constants.
    """

    name: ClassVar[str] = "jwt"
    local: ClassVar[bool] = True
    how_ends: ClassVar[HowEnded] = "expired_only"
    example: ClassVar[Mapping[str, Any]] = {
        "type": "jwt",
        "key": "run-signer",
        "audience": "https://api.example.com",
        "ttl": "10m",
    }

    def __init__(self, given: _Options, alias: str, ttl_s: float, custody: Custody) -> None:
        self._given = given
        self._alias = alias
        self._ttl_s = ttl_s
        self._custody = custody

    @classmethod
    def build(cls, token: Mapping[str, Any], custody: Custody, where: str) -> Self:
        """Make the kind of a token object."""
        given = options(_Options, token, where)
        alias = alias_of(token, where)
        settings = custody.settings_of(alias)
        faults = []
        if settings is None:
            hint = (
                f"minter keys create {alias} while the minter runs and before grants name it, or [keys] in minter.toml"
            )
            faults.append(Fault(f"{where}.key", f"there is no key {alias!r}", hint))
        elif settings.use != "signing":
            faults.append(Fault(f"{where}.key", f"key {alias!r} is no signing key", 'it needs use = "signing"'))
        elif given.algorithm not in (None, settings.algorithm):
            faults.append(Fault(f"{where}.algorithm", f"key {alias!r} signs {settings.algorithm} and nothing else"))
        if not given.audience:
            faults.append(Fault(f"{where}.audience", "is empty", "name the API that is to accept the token"))
        faults += [
            Fault(f"{where}.claims.{name}", "is a claim that the minter sets")
            for name in sorted(given.claims.keys() & OWN_CLAIMS)
        ]
        if faults:
            raise ConfigurationError(faults)
        return cls(given, alias, lifetime(given.ttl, math.inf, where), custody)

    async def mint(self, request: MintRequest) -> Minted:
        """Sign a token for the run."""
        key, version = self._custody.signing_key(self._alias, request.origin)
        # Whole seconds, rounded down: the token never outlasts the lease.
        expires_at = math.floor(min(request.not_after, request.now + self._ttl_s))
        if expires_at <= request.now:
            raise ProblemError("run-over", "less than a second is left for a token")
        claims: dict[str, Any] = {
            **self._given.claims,
            "iss": self._custody.settings.issuer,
            "sub": request.caller,
            "aud": self._given.audience,
            "exp": expires_at,
            "iat": math.floor(request.now) - BACK_DATED_S,
            "jti": request.lease_id,
            "run_id": request.run_id,
            "client_id": request.broker or request.caller,
            "authorization_details": [
                {
                    "type": ROUTE_TYPE,
                    "profile": request.profile,
                    "locations": [request.origin],
                    "actions": request.routes,
                }
            ],
        }
        if request.scopes:
            claims["scope"] = " ".join(request.scopes)
        token = key.sign(msgspec.json.encode(claims))
        return Minted(
            credential={"value": token},
            expires_at=float(expires_at),
            fingerprint=token.fingerprint(),
            key_versions=((self._alias, version),),
            how_ends="expired_only",
        )

    async def revoke(self, lease: LeaseView, credential: Mapping[str, Secret] | None) -> Ending:
        """Say that only its own end ends the token for who checks it alone."""
        del lease, credential
        return Ending("expired_only")


KIND = JwtKind
