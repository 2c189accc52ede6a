"""Forgetting a lease that nobody here can end: an operator's decision, never a way around a revocation."""

from __future__ import annotations

import os

import pytest

from minter.kinds import RevocationError
from tests.minter.lease_world import Served
from tests.minter.test_orphans import orphaned
from tests.minter.test_upstream import tick


@pytest.fixture
async def stuck(world):
    """A lease that is irrevocable."""
    live = await world.lease(profile="remote", ttl_s=3000.0)
    world.remote.refuse = [RevocationError(permanent=True)]
    await world.minter.service.end_run("b1", live.row.run_id)
    await tick(world)
    return live.row


async def forget(served, lease_id, reason="the issuer was shut down for good"):
    return await served.ask("admin", "POST", f"/v1/leases/{lease_id}/forget", json={"reason": reason})


async def test_an_irrevocable_lease_is_forgotten_with_a_reason_and_that_is_not_called_a_revocation(world, stuck):
    async with Served(world) as served:
        status, body, _ = await forget(served, stuck.id)
    assert (status, body) == (200, {"lease_id": stuck.id, "forgotten": True})
    row = await world.row(stuck.id)
    assert (row.state, row.how, row.next_attempt_at) == ("revoked", "forgotten", None)
    event = world.audit()[-1]
    assert (event["code"], event["words"], event["uid"]) == (
        "lease.forgotten",
        "the issuer was shut down for good",
        os.geteuid(),
    )
    assert "lease.revoked" not in world.codes(lease_id=stuck.id)
    world.clock.advance(7200)
    await tick(world)
    assert world.remote.revoked == [stuck.id], "it is tried no more"


async def test_a_suspect_is_forgotten(world):
    lease_id = await orphaned(world, made=False)
    async with Served(world) as served:
        assert (await forget(served, lease_id))[0] == 200
    assert (await world.row(lease_id)).how == "forgotten"


@pytest.mark.parametrize("damage", ["expires_at = 'soon'", "token = x'ff'"])
async def test_a_damaged_row_is_listed_and_forgotten(world, damage):
    bad = await world.lease(profile="jwt")
    update = f"UPDATE leases SET {damage} WHERE id = ?"  # noqa: S608
    await world.minter.store.write(lambda found: (found.exec_driver_sql(update, (bad.row.id,)).close(), ()))
    await world.restart()
    async with Served(world) as served:
        _, listed, _ = await served.ask("admin", "GET", "/v1/leases")
        assert [(one["lease_id"], one["reason"]) for one in listed["leases"]] == [(bad.row.id, "row-damaged")]
        assert (await forget(served, bad.row.id))[0] == 200
        _, listed, _ = await served.ask("admin", "GET", "/v1/leases")
        assert listed["leases"] == []
    assert world.audit()[-1]["reason"] == "row-damaged"


async def test_what_is_live_or_being_revoked_or_over_or_unknown_is_not_forgotten(world):
    live = await world.lease(profile="remote")
    over = await world.lease(profile="jwt")
    await world.minter.service.end_run("b1", over.row.run_id)
    retried = await world.lease(profile="remote")
    world.remote.refuse = [RevocationError()]
    await world.minter.service.end_run("b1", retried.row.run_id)
    async with Served(world) as served:
        for lease_id in (live.row.id, over.row.id, retried.row.id):
            status, body, _ = await forget(served, lease_id)
            assert (status, body["code"]) == (409, "lease-not-forgettable")
        status, body, _ = await forget(served, "lse_0000000000000000000000")
        assert (status, body["code"]) == (404, "lease-not-found")
    assert "lease.forgotten" not in world.codes()
    assert (await world.row(live.row.id)).state == "active"


@pytest.mark.parametrize("reason", ["", "  ", "ab", "x" * 201, "two\nlines", "ümlaut"])
async def test_without_a_reason_that_can_be_read_nothing_is_forgotten(world, stuck, reason):
    async with Served(world) as served:
        status, body, _ = await forget(served, stuck.id, reason)
    assert (status, body["code"]) == (400, "body-malformed")
    assert (await world.row(stuck.id)).state == "irrevocable"


async def test_a_lease_whose_revocation_is_being_tried_just_now_is_not_forgotten(world, stuck):
    world.minter.endings.upstream._held[stuck.id] = (stuck.kind, stuck.profile)
    async with Served(world) as served:
        assert (await forget(served, stuck.id))[0] == 409
    world.minter.endings.upstream._held.clear()


async def test_an_outcome_that_comes_late_does_not_bring_a_forgotten_lease_back(world, stuck):
    row = await world.row(stuck.id)
    async with Served(world) as served:
        await forget(served, stuck.id)
    from minter.lease_changes import Change

    row.attempts = 9
    await world.minter.endings.write([Change(row)])
    assert (await world.row(stuck.id)).how == "forgotten"
