"""Who used a key: counted at each mint, written at each tick, bounded whatever brokers say."""

import pytest

from minter import key_users
from minter.key_users import OTHERS
from tests.minter.vault import CANARY, ORIGIN, Vault, grants_of, quick_directory


@pytest.fixture
async def vault(clock):
    with quick_directory() as directory:
        made = Vault(directory, clock)
        made.put("api-key", CANARY)
        made.key("api", "file:api-key")
        made.grants = grants_of({"type": "static", "key": "api"})
        await made.start()
        yield made
        await made.stop()


async def use(vault, caller="agent", broker="b1"):
    await vault.store.write(
        lambda connection: (
            None,
            vault.custody.record_use(
                connection, [("api", 1)], origin=ORIGIN, caller=caller, broker=broker, now=vault.clock.now()
            ),
        )
    )


async def users(vault):
    found = await vault.store.read(vault.custody.uses.read)
    return {(user.caller, user.broker): (user.uses, user.first_used_at, user.last_used_at) for user in found["api"]}


async def tick(vault):
    await vault.store.write(vault.custody.flush)


async def test_a_use_is_counted_by_caller_and_broker_with_its_first_and_last_instant(vault):
    start = vault.clock.now()
    await use(vault)
    vault.clock.advance(10)
    await use(vault)
    await use(vault, broker="b2")
    expected = {("agent", "b1"): (2, start, start + 10), ("agent", "b2"): (1, start + 10, start + 10)}
    assert await users(vault) == expected  # before anything was written
    await tick(vault)
    assert await users(vault) == expected
    await vault.restart()
    assert await users(vault) == expected


async def test_uses_of_several_ticks_add_up_and_none_is_counted_twice(vault):
    start = vault.clock.now()
    for _ in range(3):
        await use(vault)
        await tick(vault)
        await tick(vault)
        vault.clock.advance(1)
    await use(vault)
    assert await users(vault) == {("agent", "b1"): (4, start, start + 3)}


async def test_a_broker_that_makes_up_callers_cannot_make_the_table_grow_without_end(vault, monkeypatch):
    monkeypatch.setattr(key_users, "MAX_USERS", 5)
    for number in range(4):
        await use(vault, caller=f"early-{number}")
    await tick(vault)
    for number in range(50):
        await use(vault, caller=f"made-up-{number}")
        if number % 7 == 0:
            await tick(vault)
    await use(vault, caller="early-0")
    for _ in range(2):
        known = await users(vault)
        assert len(known) == 5 + 1
        assert sum(uses for uses, *_ in known.values()) == 4 + 50 + 1
        assert known[OTHERS, ""][0] == 49
        assert known["early-0", "b1"][0] == 2
        await tick(vault)
