"""How the fake Agent Memory API knows who calls: by the digest of its key, or by a signed token of the minter.

The fake never holds the key: it is given the SHA-256 digest. A token (JWT, RFC 9068) is checked against the minter's
published keys, and, when an introspection address is given, the minter is asked each time whether the token still
counts (RFC 7662), so that a token whose run ended early is refused at once.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

import aiohttp
from joserfc import jwt
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from config.secret import Secret
from ops.fakes.memory_store import AUTHENTICATION, UNAVAILABLE, ApiError

How = Literal["key", "jwt"]

_ALGORITHMS: Final = ["Ed25519", "EdDSA", "ES256", "RS256"]
_TYPES: Final = frozenset({"at+jwt", "application/at+jwt"})
_LEEWAY_S: Final = 0
#: Keys are fetched again for an unknown key id, but not more often than this.
_REFETCH_S: Final = 1.0
_KEYS_AGE_S: Final = 60.0
_TIMEOUT: Final = aiohttp.ClientTimeout(total=5)


class Authenticator(Protocol):
    """One way to be known."""

    how: How

    async def accepts(self, token: str) -> bool:
        """Say whether the bearer token counts. Errors: 503 when it cannot be found out."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class KeyDigest:
    """Accepts the one key of which it has the digest."""

    how: How = "key"

    def __init__(self, digest_hex: str) -> None:
        """Take the SHA-256 digest as 64 hexadecimal digits. Errors: ``ValueError``."""
        self._digest = bytes.fromhex(digest_hex)
        if len(self._digest) != hashlib.sha256().digest_size:
            raise ValueError("a SHA-256 digest has 64 hexadecimal digits")

    async def accepts(self, token: str) -> bool:
        """Compare digests in constant time."""
        return hmac.compare_digest(hashlib.sha256(token.encode()).digest(), self._digest)

    async def close(self) -> None:
        """Nothing to let go of."""


class _Algorithms(JWSRegistry):
    """Our algorithms. The library warns about the name EdDSA, which most issuers still write (RFC 9864 renames it)."""

    def get_alg(self, name: str) -> Any:
        """Return an allowed algorithm."""
        if name not in _ALGORITHMS:
            raise UnsupportedAlgorithmError(f"Algorithm of '{name}' is not allowed")
        return self.algorithms[name]


class SignedToken:
    """Accepts access tokens of one issuer for one audience."""

    how: How = "jwt"

    def __init__(
        self,
        *,
        jwks_url: str,
        audience: str,
        issuer: str | None = None,
        introspect_url: str | None = None,
        introspect_credential: Secret | None = None,
    ) -> None:
        """``issuer`` None takes any ``iss`` that the keys at ``jwks_url`` signed for."""
        self._jwks_url = jwks_url
        self._introspect_url = introspect_url
        self._credential = introspect_credential
        self._claims = jwt.JWTClaimsRegistry(
            leeway=_LEEWAY_S,
            iss={"essential": True, **({"value": issuer} if issuer else {})},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
            sub={"essential": True},
        )
        self._keys: KeySet | None = None
        self._fetched_at = float("-inf")
        self._session: aiohttp.ClientSession | None = None

    async def accepts(self, token: str) -> bool:
        """Check signature, type and claims, and then whether the issuer still stands by the token."""
        if token.count(".") != 2:
            return False
        verified = self._verify(token, await self._current_keys(_KEYS_AGE_S))
        if not verified:
            # The issuer may have published a key since.
            verified = self._verify(token, await self._current_keys(_REFETCH_S))
        return verified and (self._introspect_url is None or await self._active(self._introspect_url, token))

    async def close(self) -> None:
        """Close the connections to the issuer."""
        if self._session is not None:
            await self._session.close()

    def _verify(self, token: str, keys: KeySet) -> bool:
        try:
            decoded = jwt.decode(token, keys, registry=_Algorithms())
            self._claims.validate(decoded.claims)
        except (JoseError, ValueError):
            return False
        return str(decoded.header.get("typ", "")).lower() in _TYPES

    async def _current_keys(self, age_s: float) -> KeySet:
        now = time.monotonic()
        if self._keys is None or now - self._fetched_at > age_s:
            body = await self._ask("GET", self._jwks_url)
            self._keys = KeySet.import_key_set(body)
            self._fetched_at = now
        return self._keys

    async def _active(self, url: str, token: str) -> bool:
        headers = {"Authorization": f"Bearer {self._credential.reveal()}"} if self._credential else {}
        return (await self._ask("POST", url, data={"token": token}, headers=headers)).get("active") is True

    async def _ask(self, method: str, url: str, **options: Any) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=False)
        try:
            async with self._session.request(method, url, allow_redirects=False, **options) as response:
                response.raise_for_status()
                return await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ApiError(503, UNAVAILABLE, "the token's issuer does not answer") from error


async def authenticate(authorization: Sequence[str], ways: Sequence[Authenticator]) -> How:
    """Return how the caller was known, by the one ``Authorization: Bearer`` header. Errors: 401, 503."""
    if len(authorization) == 1:
        scheme, _, token = authorization[0].partition(" ")
        if scheme.lower() == "bearer" and token:
            for way in ways:
                if await way.accepts(token):
                    return way.how
    raise ApiError(401, AUTHENTICATION, "Authentication error")
