"""The fake Agent Memory API accepts a token of the minter while it counts, and no other."""

from __future__ import annotations

import http.client
import time
from urllib.parse import urlsplit

import pytest
from joserfc import jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, OctKey, OKPKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from config.secret import Secret
from ops.fakes.agent_memory import start
from ops.fakes.memory_auth import SignedToken
from ops.fakes.memory_record import Record
from ops.fakes.serving import start_in_thread

ISSUER = "https://minter.example"
AUDIENCE = "https://api.example"
TARGET = "/client/v4/accounts/42/agent-memory/namespaces"


class Issuer:
    """A small issuer: publishes keys, and answers whether a token still counts."""

    def __init__(self) -> None:
        self.keys = [OKPKey.generate_key("Ed25519", {"kid": "k1", "use": "sig"})]
        self.ended: set[str] = set()
        self.asked = 0
        self.status = 200

    def app(self) -> Starlette:
        async def jwks(request: Request) -> JSONResponse:
            return JSONResponse({"keys": [key.as_dict(private=False) for key in self.keys]}, self.status)

        async def introspect(request: Request) -> JSONResponse:
            self.asked += 1
            assert request.headers["authorization"] == "Bearer introspector"
            token = (await request.body()).decode().removeprefix("token=")
            return JSONResponse({"active": token not in self.ended}, self.status)

        return Starlette(routes=[Route("/jwks", jwks), Route("/introspect", introspect, methods=["POST"])])

    def token(self, *, key=None, header=None, **claims) -> str:
        key = key or self.keys[0]
        now = int(time.time())
        header = {"alg": "Ed25519", "typ": "at+jwt", "kid": key.kid} | (header or {})
        body = {"iss": ISSUER, "aud": AUDIENCE, "sub": "caller", "iat": now, "exp": now + 60} | claims
        body = {name: value for name, value in body.items() if value is not None}
        return jwt.encode(header, body, key, algorithms=[header["alg"]])


@pytest.fixture
def issuer():
    it = Issuer()
    with start_in_thread(it.app()) as running:
        it.url = running.url
        yield it


@pytest.fixture
def api(issuer, tmp_path):
    way = SignedToken(
        jwks_url=issuer.url + "/jwks",
        audience=AUDIENCE,
        issuer=ISSUER,
        introspect_url=issuer.url + "/introspect",
        introspect_credential=Secret("introspector"),
    )
    running, api = start(ways=[way], record=Record(keep_jwt=tmp_path / "jwt"))
    with running:
        yield running, api


def status(api, token: str) -> int:
    running, _ = api
    connection = http.client.HTTPConnection(urlsplit(running.url).netloc, timeout=10)
    try:
        connection.request("GET", TARGET, headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_token_counts_during_its_run_and_is_refused_at_once_when_the_run_has_ended(issuer, api, tmp_path):
    token = issuer.token()
    assert status(api, token) == 200
    assert api[1].record.received[-1].authenticated == "jwt"
    assert (tmp_path / "jwt").read_text() == token
    issuer.ended.add(token)
    assert status(api, token) == 401
    assert api[1].record.received[-1].authenticated == "refused"


def test_a_token_of_another_purpose_is_refused_without_asking_the_issuer(issuer, api):
    now = int(time.time())
    another = OKPKey.generate_key("Ed25519", {"kid": "k1"})
    public = str(issuer.keys[0].as_dict(private=False)["x"])
    wrong = {
        "another audience": issuer.token(aud="https://other.example"),
        "no audience": issuer.token(aud=None),
        "another issuer": issuer.token(iss="https://evil.example"),
        "expired": issuer.token(exp=now - 1),
        "no expiry": issuer.token(exp=None),
        "no subject": issuer.token(sub=None),
        "not yet valid": issuer.token(nbf=now + 100),
        "an identity token": issuer.token(header={"typ": "JWT"}),
        "another key": issuer.token(key=another),
        "the public key as a shared one": issuer.token(
            key=OctKey.import_key(public, {"kid": "k1"}), header={"alg": "HS256"}
        ),
        "unsigned": issuer.token().rsplit(".", 1)[0] + ".",
        "not a token": "a.b.c",
        "opaque": "brk_x",
    }
    assert {name: status(api, token) for name, token in wrong.items()} == dict.fromkeys(wrong, 401)
    assert issuer.asked == 0


def test_the_older_name_of_an_algorithm_counts_too(issuer, api):
    with pytest.warns(SecurityWarning):
        token = issuer.token(header={"alg": "EdDSA"})
    assert status(api, token) == 200


def test_a_key_that_was_published_later_is_fetched(issuer, api, monkeypatch):
    assert status(api, issuer.token()) == 200
    monkeypatch.setattr("ops.fakes.memory_auth._REFETCH_S", 0.0)
    issuer.keys.append(ECKey.generate_key("P-256", {"kid": "k2", "use": "sig"}))
    assert status(api, issuer.token(key=issuer.keys[1], header={"alg": "ES256"})) == 200


def test_an_issuer_that_does_not_answer_is_503_and_nothing_is_let_in(issuer, api):
    issuer.status = 500
    assert status(api, issuer.token()) == 503
