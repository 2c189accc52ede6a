"""What a lost mint may have left at an issuer: found and ended, found to be nothing, or in sight until it dies."""

from __future__ import annotations

import asyncio

import pytest

from minter.kinds import Ending, RevocationError
from minter.minting import MINT_S
from tests.minter.lease_world import RemoteKind, Served, World
from tests.minter.test_upstream import tick


class FindingKind(RemoteKind):
    """An issuer that can be asked for what was made for a lease."""

    def __init__(self):
        super().__init__()
        self.sought: list[str] = []
        self.silent: BaseException | None = None

    async def end_orphan(self, lease):
        self.sought.append(lease.id)
        if self.silent is not None:
            raise self.silent
        value = self.named.get(lease.id)
        if value not in self.live:
            return None
        self.live.discard(value)
        return Ending("upstream_deleted")


@pytest.fixture
async def finding(tmp_path, clock):
    world = World(tmp_path / "minter", clock)
    world.remote = FindingKind()
    await world.start()
    yield world
    await world.stop()


async def orphaned(world, *, made, ttl_s=600.0):
    """Crash in the middle of a mint; return the suspect's id. ``made``: whether the issuer had made a credential."""
    world.remote.gate.clear()
    world.remote.asked.clear()
    asking = asyncio.create_task(world.lease(profile="remote", ttl_s=ttl_s))
    await world.remote.asked.wait()
    [(lease_id,)] = await world.minter.store.read(
        lambda found: found.exec_driver_sql("SELECT id FROM leases WHERE state = 'intent'").all()
    )
    if made:
        world.remote.live.add("left-behind")
        world.remote.named[lease_id] = "left-behind"
    await world.crash()
    await asyncio.gather(asking, return_exceptions=True)
    world.remote.gate.set()
    return lease_id


async def settle(world):
    await tick(world)
    await tick(world)


async def test_what_a_crashed_mint_left_is_found_and_ended(finding):
    lease_id = await orphaned(finding, made=True)
    await settle(finding)
    assert finding.remote.live == set()
    row = await finding.row(lease_id)
    assert (row.state, row.how, row.end_reason) == ("revoked", "upstream_deleted", "restart")
    assert finding.codes(lease_id=lease_id)[-2:] == ["lease.orphaned", "lease.orphan-ended"]


async def test_nothing_to_be_found_is_believed_at_the_second_look_only_later_than_any_mint_takes(finding):
    lease_id = await orphaned(finding, made=False)
    await settle(finding)
    assert (await finding.row(lease_id)).state == "orphan_suspect"
    finding.clock.advance(MINT_S - 1)
    await settle(finding)
    assert len(finding.remote.sought) == 1
    finding.clock.advance(1)
    await settle(finding)
    row = await finding.row(lease_id)
    assert (row.state, row.how) == ("revoked", "never_made")
    event = finding.audit()[-1]
    assert (event["code"], event["how"], event["lease_id"]) == ("lease.orphan-ended", "never_made", lease_id)


async def test_what_arrives_at_the_issuer_between_both_looks_is_ended(finding):
    lease_id = await orphaned(finding, made=False)
    await settle(finding)
    finding.remote.live.add("late")
    finding.remote.named[lease_id] = "late"
    finding.clock.advance(MINT_S)
    await settle(finding)
    assert finding.remote.live == set()
    assert (await finding.row(lease_id)).how == "upstream_deleted"


async def test_a_mint_whose_answer_was_lost_is_looked_for_without_a_restart(finding):
    finding.remote.fail = RuntimeError("the connection broke")
    assert await finding.refusal(profile="remote") == "issuer-failed"
    [(lease_id,)] = await finding.minter.store.read(
        lambda found: found.exec_driver_sql("SELECT id FROM leases WHERE state = 'orphan_suspect'").all()
    )
    finding.remote.live.add("left")
    finding.remote.named[lease_id] = "left"
    await settle(finding)
    assert finding.remote.live == set()
    assert (await finding.row(lease_id)).state == "revoked"


async def test_an_issuer_that_does_not_answer_is_asked_again_and_the_suspect_stays_in_sight(finding):
    finding.remote.silent = RevocationError()
    lease_id = await orphaned(finding, made=True, ttl_s=3000.0)
    for _ in range(10):
        await settle(finding)
        finding.clock.advance(30)
    assert 3 <= len(finding.remote.sought) <= 9
    assert (await finding.row(lease_id)).state == "orphan_suspect"
    finding.remote.silent = None
    finding.clock.advance(1300)
    await settle(finding)
    assert finding.remote.live == set()
    assert (await finding.row(lease_id)).state == "revoked"


async def test_a_suspect_whose_issuer_was_silent_to_its_end_is_not_called_over_and_is_sought_on(finding):
    finding.remote.silent = RevocationError(permanent=True)
    lease_id = await orphaned(finding, made=True, ttl_s=100.0)
    await settle(finding)
    finding.clock.advance(100)
    await settle(finding)
    row = await finding.row(lease_id)
    assert row.state == "irrevocable"
    finding.remote.silent = None
    finding.clock.advance(5400)
    await settle(finding)
    assert finding.remote.live == set()
    assert (await finding.row(lease_id)).state == "revoked"


async def test_a_minter_that_was_away_longer_than_a_suspect_lives_asks_before_it_calls_it_over(finding):
    lease_id = await orphaned(finding, made=True, ttl_s=100.0)
    finding.remote.sought.clear()
    await finding.minter.store.write(
        lambda found: (
            found.exec_driver_sql(
                "UPDATE leases SET state = 'intent', next_attempt_at = NULL, how = '', attempts = 0"
            ).close(),
            (),
        )
    )
    finding.remote.live.add("left-behind")
    await finding.stop()
    finding.clock.advance(7200)
    await finding.start()
    await settle(finding)
    assert finding.remote.sought
    assert finding.remote.live == set()
    assert (await finding.row(lease_id)).state == "revoked"


async def test_a_suspect_of_a_kind_that_cannot_look_is_listed_first_with_the_time_it_dies(world):
    await world.lease(profile="remote")
    lease_id = await orphaned(world, made=False, ttl_s=100.0)
    await world.lease(profile="jwt")
    async with Served(world) as served:
        _, body, _ = await served.ask("admin", "GET", "/v1/leases")
        first = body["leases"][0]
        assert (first["lease_id"], first["state"]) == (lease_id, "orphan_suspect")
        assert first["lives_until"] == first["expires_at"]
    world.clock.advance(100)
    await settle(world)
    assert (await world.row(lease_id)).state == "expired"
