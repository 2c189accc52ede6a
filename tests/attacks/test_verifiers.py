"""Verifiers that cache keys, against a key set that rotates: facts/minters.md section Q, with PyJWT's own client.

The client fetches over HTTP what the minter publishes at that moment; freezegun moves the time of both.
"""

from __future__ import annotations

import itertools
import json
from datetime import timedelta

import jwt
import pytest
from freezegun import freeze_time

from config.clock import SystemClock
from minter.rotation import Rotation
from tests.minter.vault import ORIGIN, Vault, grants_of, quick_directory
from tests.worlds.api import Answer, Api

LIFE_S = 600


class World:
    """A vault with a signing key, its key set behind HTTP, and the time."""

    def __init__(self, vault: Vault, api: Api, frozen) -> None:
        self.vault = vault
        self.api = api
        self.frozen = frozen
        self._runs = itertools.count()
        self.rotation = Rotation(vault.custody, vault.store, clock=vault.clock)

    async def later(self, seconds: float) -> None:
        self.frozen.tick(timedelta(seconds=seconds))
        await self.rotation.tick(self.vault.clock.now())

    async def sign(self) -> str:
        """Lend a token: the lease table says how long its key is needed."""
        key, version = self.vault.custody.signing_key("signer", ORIGIN)
        now = int(self.vault.clock.now())
        await self.vault.lend("signer", version, run=f"run_{next(self._runs)}", ends_in=float(LIFE_S))
        return key.sign(json.dumps({"aud": ORIGIN, "iat": now - 10, "exp": now + LIFE_S}).encode()).reveal()

    def verifier(self, **options) -> jwt.PyJWKClient:
        return jwt.PyJWKClient(f"{self.api.origin}/jwks.json", **options)

    @property
    def fetches(self) -> int:
        return len(self.api.received)


def judged(verifier, token):
    key = verifier.get_signing_key_from_jwt(token)
    return jwt.decode(token, key, algorithms=["EdDSA"], audience=ORIGIN)


def kid(token):
    return jwt.get_unverified_header(token)["kid"]


@pytest.fixture
async def world():
    with Api() as api, freeze_time("2031-05-01T12:00:00Z", real_asyncio=True) as frozen, quick_directory() as folder:
        vault = Vault(folder, SystemClock("boot-1"))
        vault.key("signer", "file:signer.pem", use="signing")
        vault.grants = grants_of({"type": "jwt", "key": "signer", "audience": ORIGIN})
        await vault.start()
        api.on("GET", "/jwks.json", lambda _request: Answer(body=vault.custody.jwks()))
        yield World(vault, api, frozen)
        await vault.stop()


async def test_in_an_ordinary_rotation_no_verifier_meets_a_key_that_it_cannot_know(world):
    """mckinsey/agents-at-scale-ark#2457: a stale set. The key is published for longer than any cache lasts."""
    verifier = world.verifier()
    first = token = await world.sign()
    judged(verifier, first)
    await world.rotation.request("signer", "start")
    for _ in range(12):
        await world.later(30)
        token = await world.sign()
        judged(verifier, token)
    assert kid(token) != kid(first)
    assert await world.vault.phases("signer") == {1: "retiring", 2: "active"}
    # Six minutes of a cache of five: the first set, and one more. None was fetched for the new kid.
    assert world.fetches == 2


async def test_after_a_forced_rotation_a_stale_verifier_fetches_once_and_accepts(world):
    """mckinsey/agents-at-scale-ark#2457: exactly one fetch for the new kid."""
    verifier = world.verifier()
    judged(verifier, await world.sign())
    await world.later(60)
    await world.rotation.request("signer", "start", force=True)
    token = await world.sign()
    judged(verifier, token)
    judged(verifier, token)
    assert world.fetches == 2


async def test_a_flood_of_unknown_kids_is_not_a_flood_of_fetches(world):
    """mckinsey/agents-at-scale-ark#2457: one, and then none for a while."""
    verifier = world.verifier()
    judged(verifier, await world.sign())
    await world.later(60)
    for n in range(100):
        with pytest.raises(jwt.PyJWKClientError):
            verifier.get_signing_key(f"made-up-{n}")
    assert world.fetches == 2


async def test_a_withdrawn_key_is_refused_when_the_verifiers_cache_has_run_out(world):
    """jpadilla/pyjwt#1051."""
    verifier = world.verifier()
    old = kid(await world.sign())
    verifier.get_signing_key(old)
    await world.rotation.request("signer", "start", force=True)
    await world.later(LIFE_S + 60)
    assert await world.vault.phases("signer") == {1: "destroyed", 2: "active"}
    assert [key["kid"] for key in json.loads(world.vault.custody.jwks())["keys"]] != [old]
    with pytest.raises(jwt.PyJWKClientError):
        verifier.get_signing_key(old)


async def test_a_verifier_that_keeps_keys_for_ever_accepts_nothing_of_a_withdrawn_key(world):
    """jpadilla/pyjwt#1051: with ``cache_keys`` it stays. It outlives its tokens, and its name is not used again."""
    verifier = world.verifier(cache_keys=True)
    token = await world.sign()
    judged(verifier, token)
    await world.rotation.request("signer", "start", force=True)
    await world.later(LIFE_S - 1)
    judged(verifier, token)
    await world.later(61)
    assert await world.vault.phases("signer") == {1: "destroyed", 2: "active"}
    assert verifier.get_signing_key(kid(token))
    with pytest.raises(jwt.ExpiredSignatureError):
        judged(verifier, token)
    for _ in range(3):
        await world.rotation.request("signer", "start", force=True)
        assert kid(await world.sign()) != kid(token)
        await world.later(LIFE_S + 60)


async def test_a_key_set_that_cannot_be_fetched_for_a_while_costs_no_known_key(world):
    """jpadilla/pyjwt#1162: 503 after one good fetch."""
    verifier = world.verifier()
    token = await world.sign()
    judged(verifier, token)
    await world.later(60)
    good = world.api._handlers["GET", "/jwks.json"]
    world.api.on("GET", "/jwks.json", Answer(503))
    with pytest.raises(jwt.PyJWKClientConnectionError):
        verifier.get_signing_key("unknown")
    judged(verifier, token)
    world.api.on("GET", "/jwks.json", good)
    await world.later(300)
    judged(verifier, token)


async def test_the_published_set_has_nothing_private_while_keys_come_and_go(world):
    """confidential-dot-ai/c8s#298: the set is made anew at each step, and holds what its moment holds."""
    seen = set()
    for step in ("start", "publish", "retire"):
        if step == "start":
            await world.sign()
            await world.rotation.request("signer", "start")
        keys = json.loads(world.vault.custody.jwks())["keys"]
        assert all(key.keys() == {"kty", "crv", "x", "kid", "use", "alg"} for key in keys)
        seen.add(len(keys))
        await world.later(331 if step == "start" else LIFE_S + 60)
    assert len(json.loads(world.vault.custody.jwks())["keys"]) == 1
    assert seen == {1, 2}
