"""Public keys, and introspection (RFC 7662): active only for a live lease's token, and for nobody else's."""

from __future__ import annotations

import time

import jwt as pyjwt
import pytest

from tests.minter.lease_world import CANARY, ORIGIN


async def introspect(served, token, *, broker="b1", **given):
    status, body, _ = await served.ask(
        "public", "POST", "/v1/introspect", broker=broker, **(given or {"data": {"token": token}})
    )
    return status, body


@pytest.fixture
async def token(served):
    live = await served.world.lease(profile="jwt")
    return live.credential["value"].reveal()


async def test_a_token_verifies_with_the_published_keys(served, token):
    status, jwks, headers = await served.ask("public", "GET", "/.well-known/jwks.json")
    assert status == 200
    assert headers["Cache-Control"] == "public, max-age=300"
    key = pyjwt.PyJWKSet.from_dict(jwks)[pyjwt.get_unverified_header(token)["kid"]]
    # The fake clock's now is in the future of the system's.
    claims = pyjwt.decode(
        token, key, algorithms=["EdDSA"], audience=ORIGIN, options={"verify_iat": False, "verify_nbf": False}
    )
    assert claims["sub"] == "agent"
    assert claims["exp"] > time.time()
    assert "d" not in jwks["keys"][0]


async def test_the_token_of_a_live_lease_is_active_with_its_claims(served, token):
    status, body = await introspect(served, token)
    assert status == 200
    assert (body["active"], body["sub"], body["aud"], body["client_id"]) == (True, "agent", ORIGIN, "b1")


async def test_it_is_inactive_from_its_end_on_whatever_the_scheduler_did(served, token):
    served.world.clock.advance(599)
    assert (await introspect(served, token))[1]["active"] is True
    served.world.clock.advance(1)
    assert await introspect(served, token) == (200, {"active": False})


async def test_it_is_inactive_as_soon_as_its_run_has_ended(served, token):
    live = next(iter(served.world.minter.book))
    await served.world.minter.service.end_run("b1", live.row.run_id)
    assert await introspect(served, token) == (200, {"active": False})


async def test_a_token_that_was_replaced_near_its_end_stays_active_until_then(served, token):
    world = served.world
    run_id = next(iter(world.minter.book)).row.run_id
    world.clock.advance(580)
    await world.lease(profile="jwt", run_id=run_id, ttl_s=500.0)
    assert (await introspect(served, token))[1]["active"] is True
    world.clock.advance(20)
    assert (await introspect(served, token))[1]["active"] is False


async def test_another_brokers_token_is_inactive_and_a_resource_servers_question_is_answered(served, token):
    served.world.write_brokers(b1={}, b2={}, api={"introspect": True, "profiles": [], "uid": None})
    await served.world.minter.reloader.reload()
    assert await introspect(served, token, broker="b2") == (200, {"active": False})
    assert (await introspect(served, token, broker="api"))[1]["active"] is True
    assert (await served.lease(broker="api"))[0] == 401


@pytest.mark.parametrize("change", ["signature", "other", "static", "garbage", "none"])
async def test_what_is_not_exactly_the_token_is_inactive(served, token, change):
    static = await served.world.lease(profile="static")
    assert static.credential["value"].reveal() == CANARY
    head, payload, signature = token.split(".")
    wrong = {
        "signature": f"{head}.{payload}.{'A' * len(signature)}",
        "other": pyjwt.encode({"jti": "lse_0", "exp": 9e9}, "x" * 32, headers={"kid": "1"}),
        "static": CANARY,
        "garbage": "é",
        "none": pyjwt.encode({"jti": "lse_0"}, None, algorithm="none"),
    }[change]
    assert await introspect(served, wrong) == (200, {"active": False})


async def test_without_a_brokers_token_nothing_is_told(served, token):
    status, body = await introspect(served, token, broker=None)
    assert (status, body["code"]) == (401, "broker-token-invalid")


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"data": {}}, 400),
        ({"data": b"token=a&token=b", "headers": {"Content-Type": "application/x-www-form-urlencoded"}}, 400),
        ({"data": b"token", "headers": {"Content-Type": "application/x-www-form-urlencoded"}}, 400),
        ({"json": {"token": "x"}}, 415),
        ({"data": {"token": "x" * 40_000}}, 413),
    ],
)
async def test_a_question_of_another_form_is_refused(served, given, status):
    headers = {**served.bearer(), **given.pop("headers", {})}
    assert (await served.ask("public", "POST", "/v1/introspect", headers=headers, **given))[0] == status


async def test_nothing_else_is_public(served):
    for path in ("/v1/leases", "/v1/custody", "/metrics", "/readyz", "/v1/reload", "/"):
        assert (await served.ask("public", "GET", path, broker="b1"))[0] == 404


async def test_public_keys_come_through_a_proxy_and_custody_does_not(served):
    forwarded = {"X-Forwarded-For": "10.0.0.1", "Via": "1.1 proxy"}
    assert (await served.ask("public", "GET", "/.well-known/jwks.json", headers=forwarded))[0] == 200
    for group in ("brokers", "admin"):
        assert (await served.ask(group, "GET", "/readyz", headers=forwarded))[0] == 403
