"""A disk that is full, read-only or slow: nothing is lent, and what was lent is ended all the same."""

from __future__ import annotations

import asyncio

import pytest

from minter.kinds import Ending
from tests.minter.lease_world import Served
from tests.minter.test_store import DISKS, Disk
from tests.minter.test_upstream import tick


@pytest.fixture
def disk(world):
    disk = Disk(world.minter.store)
    yield disk
    disk.error = ""
    disk.gate.set()


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the disk and the issuer that are played announce nothing
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("error", DISKS)
async def test_nothing_is_lent_and_health_says_why(world, disk, error):
    live = await world.lease(profile="remote")
    async with Served(world) as served:
        disk.error = error
        for profile in ("remote", "jwt", "static"):
            status, body, _ = await served.lease(profile=profile)
            assert (status, body["code"]) == (503, "state-unavailable")
        assert (await served.ask("admin", "GET", "/livez"))[0] == 200
        status, body, _ = await served.ask("admin", "GET", "/readyz?verbose")
        assert (status, body["detail"]) == (503, "state: it cannot be written")
        status, body, _ = await served.ask("admin", "GET", "/v1/leases")
        assert [one["lease_id"] for one in body["leases"]] == [live.row.id]
        assert (await served.ask("admin", "GET", "/metrics"))[0] == 200
        disk.error = ""
        assert (await served.lease(profile="jwt"))[0] == 200
        assert (await served.ask("admin", "GET", "/readyz"))[0] == 200


@pytest.mark.parametrize("error", DISKS)
async def test_use_stops_and_the_issuer_is_asked_though_the_row_cannot_be_written(world, disk, error):
    lent = [await world.lease(profile="remote") for _ in range(3)]
    disk.error = error
    for live in lent:
        [ended] = await world.minter.service.end_run("b1", live.row.run_id)
        assert ended.state in ("revoking", "revoked")
    assert len(world.minter.book) == 0
    await world.minter.endings.drain(5)
    assert world.remote.live == set()
    assert {(await world.row(live.row.id)).state for live in lent} == {"active"}
    disk.error = ""
    await tick(world)
    assert await world.states() == {"revoked": 3}
    assert len(world.remote.revoked) == 3, "asked once, and not again when the disk was mended"
    assert world.codes().count("lease.revoked") == 3


async def test_no_lease_of_a_key_whose_end_is_not_written_is_lent_before_it_is(world, disk):
    request = world.request("remote")
    live = await world.lease(request)
    disk.error = DISKS[0]
    await world.minter.endings.close([live.live], "operator")
    assert await world.refusal(request) == "state-unavailable"
    disk.error = ""
    assert (await world.lease(request)).row.id != live.row.id


async def test_a_mint_whose_failure_could_not_be_written_is_a_suspect_and_audited_once_it_can(world, disk):
    request = world.request("remote")
    world.remote.gate.clear()
    world.remote.fail = RuntimeError()
    asking = asyncio.create_task(world.refusal(request))
    await world.remote.asked.wait()
    disk.error = DISKS[0]
    world.remote.gate.set()
    assert await asking == "state-unavailable"
    disk.error, world.remote.fail = "", None
    await world.lease(request)
    assert await world.states() == {"orphan_suspect": 1, "active": 1}
    assert world.codes().count("lease.orphaned") == 1


async def test_a_write_that_hangs_holds_up_neither_the_end_of_use_nor_the_issuer(world, disk, monkeypatch):
    monkeypatch.setattr("minter.revocation._SLOW_WRITE_S", 0.05)
    monkeypatch.setattr("minter.store._BESIDE_S", 0.05)
    given = []

    async def revoke(lease, credential):
        given.append((lease.id, None if credential is None else credential["value"].reveal()))
        world.remote.live.clear()
        return Ending("upstream_deleted")

    live = await world.lease(profile="remote")
    world.remote.revoke = revoke
    disk.statements.clear()
    disk.gate.clear()
    ending = asyncio.create_task(world.minter.service.end_run("b1", live.row.run_id))
    await until(lambda: given)
    assert not ending.done()
    assert len(world.minter.book) == 0
    # Read beside the write that hangs: some issuers need the value itself.
    assert given == [(live.row.id, "remote-0")]
    world.clock.advance(6)
    assert "5 s" in world.minter.readiness.report()["state"]
    assert await world.refusal(profile="jwt") == "state-unavailable"
    assert b"minter_leases" in await world.minter.exposition()
    disk.gate.set()
    await ending
    await world.minter.endings.drain(5)
    await tick(world)
    assert (await world.row(live.row.id)).state == "revoked"
    assert len(given) == 1
    assert world.minter.readiness.ready()


async def test_a_value_that_cannot_be_read_now_makes_no_failure_final(world, monkeypatch):
    from minter.kinds import RevocationError

    live = await world.lease(profile="remote", ttl_s=3000.0)

    async def unreadable(_row):
        return False, None

    async def needs_it(_lease, credential):
        assert credential is None
        raise RevocationError(permanent=True)

    monkeypatch.setattr(world.minter.endings.upstream._values, "to_revoke", unreadable)
    world.remote.revoke = needs_it
    await world.minter.service.end_run("b1", live.row.run_id)
    row = await world.row(live.row.id)
    assert (row.state, row.attempts) == ("revoking", 1)
