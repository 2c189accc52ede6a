"""Our tokens before an independent verifier that fetches the keys from the running minter, through a rotation."""

from __future__ import annotations

import socket

import jwt
import pytest

from tests.flow.test_main_job import profile

pytestmark = pytest.mark.flow


@pytest.mark.parametrize("algorithm", ["EdDSA", "ES256", "RS256"])
def test_pyjwt_verifies_tokens_of_the_old_and_the_new_key_through_a_rotation(service, api, algorithm):
    api.on("GET", "/v1/items")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    service.minter_top = f'public_listen = ["127.0.0.1:{port}"]\nissuer = "http://127.0.0.1:{port}"'
    service.prepare({"api": profile(api, token={"type": "jwt", "key": "signer", "audience": api.origin})})
    settings = service.root / "minter.toml"
    settings.write_text(settings.read_text().replace('use = "signing"', f'use = "signing"\nalgorithm = "{algorithm}"'))
    service.start()

    def presented():
        run = service.open_run()
        assert service.call(run, "GET", "/v1/items").status == 200
        return api.received[-1].header("authorization").removeprefix("Bearer ")

    def verified(token):
        # A client of its own each time: what a verifier that has just started sees.
        key = jwt.PyJWKClient(f"http://127.0.0.1:{port}/.well-known/jwks.json").get_signing_key_from_jwt(token)
        return jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=api.origin,
            issuer=f"http://127.0.0.1:{port}",
            options={"require": ["exp", "iat", "iss", "aud", "sub", "jti"]},
        )

    old = presented()
    assert verified(old)["sub"] == "support-agent"
    service.run("minter", "rotate", "signer", "--force")
    new = presented()
    assert jwt.get_unverified_header(old)["kid"] != jwt.get_unverified_header(new)["kid"]
    assert verified(new)["jti"] != verified(old)["jti"]
