"""What anyone may ask on ``public_listen``: the public keys; and, with a broker's token, whether a token is active."""

from __future__ import annotations

import hmac
import urllib.parse
from collections.abc import Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from config.asgi import exception_handlers, json_response, read_body
from config.clock import Clock
from config.problems import ProblemError
from config.secret import Secret
from config.tokenfiles import Principal
from minter.book import Book
from minter.brokers import Brokers
from minter.custody import Custody

_FORM: Final = "application/x-www-form-urlencoded"
_MAX_BODY: Final = 32 * 1024
#: Verifiers ask for a key that they do not know at most this much later; it is published longer before it signs.
_LEAD_S: Final = 30
_LONGEST_S: Final = 300
#: Claims that an answer repeats (RFC 7662, section 2.2, and our own).
_CLAIMS: Final[tuple[str, ...]] = (
    "iss",
    "sub",
    "aud",
    "exp",
    "iat",
    "jti",
    "client_id",
    "scope",
    "run_id",
    "authorization_details",
)


class PublicApi:
    """JWKS and introspection (RFC 7662)."""

    def __init__(
        self,
        *,
        custody: Custody,
        book: Book,
        brokers: Brokers,
        clock: Clock,
        highest_wall: Callable[[], float],
        verifier_cache_s: float,
        check: Callable[[], None],
    ) -> None:
        """Take what answers go by; ``check`` refuses while the state is in quarantine."""
        self._custody = custody
        self._book = book
        self._brokers = brokers
        self._clock = clock
        self._highest_wall = highest_wall
        self._check = check
        max_age = int(max(0, min(_LONGEST_S, verifier_cache_s - _LEAD_S)))
        self._jwks_headers = {"cache-control": f"public, max-age={max_age}", "x-content-type-options": "nosniff"}

    def app(self) -> Starlette:
        """Return the application."""
        app = Starlette(
            routes=[
                Route("/.well-known/jwks.json", self._jwks, methods=["GET"]),
                Route("/v1/introspect", self._introspect, methods=["POST"]),
                Route("/livez", self._live, methods=["GET"]),
            ],
            exception_handlers=exception_handlers("minter"),
        )
        app.router.redirect_slashes = False
        return app

    async def _jwks(self, _request: Request) -> Response:
        return Response(self._custody.jwks(), media_type="application/jwk-set+json", headers=self._jwks_headers)

    async def _introspect(self, request: Request) -> Response:
        principal = self._brokers.authenticate(request.scope, operation="POST /v1/introspect", by_token=True)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
            raise ProblemError("media-type-not-supported", f"send {_FORM}")
        token = _token(await read_body(request.receive, _MAX_BODY, request.scope))
        # What a restored state calls live may have been revoked since.
        self._check()
        return json_response(self.look_up(principal, token))

    def look_up(self, principal: Principal, token: str) -> dict[str, Any]:
        """Return the claims of a token that a live lease lends, to whom it concerns; for all else ``active: false``.

        The signature is checked first, so nothing about leases can be learned with a made-up token.
        """
        inactive = {"active": False}
        claims = self._custody.read_token(token)
        if claims is None:
            return inactive
        live = self._book.get(str(claims.get("jti")))
        if live is None or live.remaining(self._clock, highest_wall=self._highest_wall()) <= 0:
            return inactive
        if not hmac.compare_digest(live.row.fingerprint, Secret(token).fingerprint()):
            return inactive
        if not principal.introspect and live.row.broker != principal.id:
            return inactive
        found: dict[str, Any] = {name: claims[name] for name in _CLAIMS if name in claims}
        return {"active": True, "token_type": "Bearer", **found}

    async def _live(self, _request: Request) -> Response:
        return json_response({"live": True})


def _token(body: bytes) -> str:
    try:
        form = urllib.parse.parse_qs(body.decode("ascii"), strict_parsing=True, max_num_fields=10)
    except ValueError:
        raise ProblemError("body-malformed", "the body is not a form") from None
    if len(form.get("token", [])) != 1:
        raise ProblemError("body-malformed", "the form has not one field token")
    return form["token"][0]
