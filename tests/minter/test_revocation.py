"""How leases end upstream: tries, pauses, giving up honestly, and what a kill in the middle leaves."""

from __future__ import annotations

import asyncio
import math

import pytest

from minter.kinds import RevocationError
from minter.upstream import AT_ONCE_PER_PROFILE
from tests.minter.lease_world import World


@pytest.fixture
async def steady(world):
    """A world whose pauses are not spread, so that a test can name them."""
    world.minter.endings.upstream._spread = lambda low, high: (low + high) / 2
    return world


async def tick(world):
    await world.minter.expiry.tick()
    await world.minter.endings.drain(5)


async def ended(world, *errors, ttl_s=3000.0):
    """Mint, then end the run while the issuer refuses with ``errors``; return the row."""
    live = await world.lease(profile="remote", ttl_s=ttl_s)
    world.remote.refuse = list(errors)
    await world.minter.service.end_run("b1", live.row.run_id)
    return live.row


async def test_a_revocation_is_tried_six_times_with_doubling_pauses_and_is_irrevocable_then(steady):
    row = await ended(steady, *[RevocationError() for _ in range(6)])
    pauses = []
    for _ in range(5):
        now = steady.clock.now()
        due_at = (await steady.row(row.id)).next_attempt_at
        pauses.append(due_at - now)
        steady.clock.advance(due_at - now - 1)
        await tick(steady)
        assert (await steady.row(row.id)).next_attempt_at == due_at
        steady.clock.advance(1)
        await tick(steady)
    assert pauses == [10, 20, 40, 80, 160]
    last = await steady.row(row.id)
    assert (last.state, last.attempts) == ("irrevocable", 6)
    assert last.next_attempt_at == steady.clock.now() + 3600 or last.next_attempt_at == last.credential_ends_at
    assert steady.codes(lease_id=row.id)[-6:] == ["lease.revoke-failed"] * 5 + ["lease.irrevocable"]


@pytest.mark.parametrize("draw", [0.5, 1.5])
async def test_pauses_are_spread_by_half_to_both_sides(world, draw):
    asked = []

    def spread(low, high):
        asked.append((low, high))
        return draw

    world.minter.endings.upstream._spread = spread
    row = await ended(world, RevocationError())
    assert asked == [(0.5, 1.5)]
    assert (await world.row(row.id)).next_attempt_at == world.clock.now() + 10 * draw


async def test_a_retry_waits_at_least_as_long_as_the_issuer_says(steady):
    row = await ended(steady, RevocationError(retry_after=77.0))
    assert (await steady.row(row.id)).next_attempt_at == steady.clock.now() + 77


@pytest.mark.parametrize("pause_s", [math.nan, math.inf, 1e15, -5.0])
async def test_a_pause_that_is_none_holds_up_the_next_attempt_for_a_day_at_most(steady, pause_s):
    steady.remote.life_s = None
    row = await ended(steady, RevocationError(retry_after=pause_s))
    steady.clock.advance(86400)
    await tick(steady)
    assert len(steady.remote.revoked) == 2
    assert (await steady.row(row.id)).state == "revoked"


async def test_a_permanent_refusal_takes_no_retries_and_is_irrevocable_at_once(steady):
    row = await ended(steady, RevocationError(permanent=True))
    found = await steady.row(row.id)
    assert (found.state, found.attempts) == ("irrevocable", 0)
    assert found.next_attempt_at == steady.clock.now() + 3600
    assert steady.codes(lease_id=row.id)[-1] == "lease.irrevocable"


async def test_an_irrevocable_lease_is_tried_slowly_and_may_still_be_revoked(steady):
    row = await ended(steady, RevocationError(permanent=True), ttl_s=86400.0)
    steady.remote.life_s = None
    steady.clock.advance(3599)
    await tick(steady)
    assert len(steady.remote.revoked) == 1
    steady.clock.advance(1)
    await tick(steady)
    assert (await steady.row(row.id)).state in ("revoked", "expired")


async def test_an_irrevocable_lease_is_over_when_its_credential_ends_by_itself(steady):
    steady.remote.life_s = 1800.0
    row = await ended(steady, RevocationError(permanent=True))
    assert (await steady.row(row.id)).next_attempt_at == steady.clock.now() + 1800
    steady.clock.advance(1800)
    await tick(steady)
    found = await steady.row(row.id)
    assert (found.state, found.how, found.end_reason) == ("expired", "expired_only", "run-ended")
    assert len(steady.remote.revoked) == 1


async def test_what_a_plugin_raises_counts_as_a_failed_try_and_its_text_stays_out(steady):
    row = await ended(steady, RuntimeError("upstream says: secret-detail-0451"))
    assert (await steady.row(row.id)).attempts == 1
    assert "secret-detail" not in (steady.folder / "state" / "audit.jsonl").read_text()


async def test_a_lease_that_outlives_its_end_upstream_is_revoked_there_when_it_ends(steady):
    steady.remote.life_s = None
    live = await steady.lease(profile="remote", ttl_s=60.0)
    steady.clock.advance(60)
    await tick(steady)
    assert steady.remote.live == set()
    found = await steady.row(live.row.id)
    assert (found.state, found.how) == ("expired", "upstream_deleted")


async def test_a_credential_that_ended_by_itself_is_not_revoked_upstream(steady):
    steady.remote.life_s = 60.0
    live = await steady.lease(profile="remote", ttl_s=60.0)
    steady.clock.advance(60)
    await tick(steady)
    assert steady.remote.revoked == []
    assert (await steady.row(live.row.id)).how == "expired_only"


async def test_a_clock_that_was_set_ahead_ends_use_and_the_issuer_is_asked_to_end_what_it_still_takes(steady):
    """By the wall clock it ended by itself; the issuer's clock, and that of the boot, know nothing of it."""
    steady.remote.life_s = 60.0
    live = await steady.lease(profile="remote", ttl_s=60.0)
    steady.clock.wall += 86_400
    steady.remote.refuse = [RevocationError()]
    await tick(steady)
    found = await steady.row(live.row.id)
    # It is tried again when it would end by itself, and then it has.
    assert (found.state, found.attempts) == ("revoking", 1)
    assert steady.clock.now() < found.next_attempt_at <= steady.clock.now() + 60
    steady.clock.advance(15)
    await tick(steady)
    assert steady.remote.live == set()
    assert (await steady.row(live.row.id)).how == "upstream_deleted"


async def test_a_profile_whose_issuer_hangs_does_not_hold_up_another(world):
    hanging = asyncio.Event()
    asked = []

    async def hang(lease, credential):
        asked.append(lease.id)
        await hanging.wait()
        raise RevocationError

    runs = [world.run_id() for _ in range(20)]
    for run_id in runs:
        await world.lease(profile="remote", run_id=run_id)
    world.remote.revoke = hang
    ending = [asyncio.create_task(world.minter.service.end_run("b1", run_id)) for run_id in runs]
    async with asyncio.timeout(5):
        while len(asked) < AT_ONCE_PER_PROFILE:  # noqa: ASYNC110 - the issuer that is played announces nothing
            await asyncio.sleep(0.001)
    live = await world.lease(profile="jwt")
    assert [one.state for one in await world.minter.service.end_run("b1", live.row.run_id)] == ["revoked"]
    assert len(asked) == AT_ONCE_PER_PROFILE == 8
    hanging.set()
    await asyncio.gather(*ending)
    assert len(asked) == 20


# --- ends in bulk, and in the middle of things ---


async def test_ten_thousand_due_at_once_are_ended_in_bounded_batches(world):
    lent = await asyncio.gather(*(world.lease(profile="jwt", ttl_s=60.0) for _ in range(1200)))
    kept = await world.lease(profile="jwt", ttl_s=300.0)
    world.clock.advance(60)
    await tick(world)
    assert [one.row.id for one in world.minter.book] == [kept.row.id]
    assert await world.states() == {"expired": len(lent), "active": 1}
    assert world.codes().count("lease.expired") == len(lent)


async def test_sweeping_twice_ends_nothing_twice(world):
    live = await world.lease(profile="remote", ttl_s=60.0)
    world.clock.advance(60)
    await asyncio.gather(world.minter.endings.sweep(), world.minter.endings.sweep(), world.minter.expiry.tick())
    await world.minter.endings.drain(5)
    assert world.remote.revoked == [live.row.id]
    assert world.codes(lease_id=live.row.id).count("lease.expired") == 1


async def test_ending_the_same_lease_from_two_sides_is_one_end(world):
    live = await world.lease(profile="remote")
    results = await asyncio.gather(
        world.minter.service.end_run("b1", live.row.run_id),
        world.minter.service.end(lambda _live: True, "operator", uid=0),
    )
    assert sorted(map(len, results)) == [0, 1]
    assert world.remote.revoked == [live.row.id]
    assert world.codes(lease_id=live.row.id).count("lease.revoked") == 1


async def test_many_leases_are_ended_at_once_and_each_is_reported(world):
    lent = [await world.lease(profile=profile) for profile in ("jwt", "static", "remote") for _ in range(3)]
    ended = await world.minter.service.end(lambda live: live.row.profile != "static", "operator", uid=7)
    assert {one.lease_id for one in ended} == {live.row.id for live in lent if live.row.profile != "static"}
    event = next(event for event in world.audit() if event["code"] == "lease.revoked")
    assert (event["reason"], event["uid"]) == ("operator", 7)


# --- restarts ---


@pytest.mark.parametrize("again", ["restart", "crash"])
@pytest.mark.parametrize("profile", ["static", "jwt", "remote"])
async def test_after_a_restart_a_live_lease_is_handed_out_again_as_it_was(world, profile, again):
    request = world.request(profile)
    first = await world.lease(request)
    await getattr(world, again)()
    second = await world.lease(request)
    assert second.row.id == first.row.id
    assert second.credential["value"].reveal() == first.credential["value"].reveal()
    assert world.codes(lease_id=first.row.id)[-2:] == ["lease.minted", "lease.reissued"]
    assert world.remote.revoked == []


async def test_after_a_restart_a_credential_can_still_be_ended_upstream(world):
    live = await world.lease(profile="remote")
    await world.restart()
    await world.minter.service.end_run("b1", live.row.run_id)
    assert world.remote.ended_with == [live.credential["value"].reveal()]


async def test_after_a_restart_another_caller_is_still_a_conflict(world):
    world.write_grants(static={"allowed_callers": ["*"]})
    await world.restart()
    run_id = world.run_id()
    await world.lease(run_id=run_id)
    await world.restart()
    assert await world.refusal(run_id=run_id, caller="somebody") == "lease-conflict"


async def test_a_mint_that_a_crash_cut_in_two_is_a_suspect_until_its_worst_case_end(world):
    world.remote.gate.clear()
    asking = asyncio.create_task(world.lease(profile="remote", ttl_s=100.0))
    await world.remote.asked.wait()
    await world.crash()
    await asyncio.gather(asking, return_exceptions=True)
    assert await world.states() == {"orphan_suspect": 1}
    assert world.codes()[-1] == "lease.orphaned"
    assert b'minter_leases{kind="remote",state="orphan_suspect"} 1.0' in await world.minter.exposition()
    world.clock.advance(100)
    await tick(world)
    assert await world.states() == {"expired": 1}


async def test_a_revocation_that_a_crash_interrupted_is_taken_up_again(world):
    row = await ended(world, RevocationError())
    await world.crash()
    world.play_remote()
    assert (await world.row(row.id)).state == "revoking"
    world.clock.advance(15)
    await tick(world)
    assert world.remote.revoked == [row.id, row.id]
    assert (await world.row(row.id)).state == "revoked"


async def test_thousands_of_expired_leases_do_not_keep_a_start_from_being_ready(world):
    await asyncio.gather(*(world.lease(profile="jwt", ttl_s=60.0) for _ in range(1500)))
    await world.stop()
    world.clock.advance(3600)
    await world.start()
    assert world.minter.readiness.ready()
    assert await world.states() == {"expired": 1500}


@pytest.mark.parametrize(
    "damage",
    [
        "state = 'active', expires_at = 'soon'",
        "expires_at = x'00ff'",
        "boot_id = 7.5, boot_expires_at = 'never'",
        "token = x'ff'",
        "created_at = 'x'",
    ],
)
async def test_one_damaged_row_does_not_stop_a_start_and_is_set_aside_where_it_is_seen(world, damage):
    bad, good = await world.lease(profile="jwt"), await world.lease(profile="jwt")

    def corrupt(connection):
        connection.exec_driver_sql(f"UPDATE leases SET {damage} WHERE id = ?", (bad.row.id,))  # noqa: S608
        return None, ()

    await world.minter.store.write(corrupt)
    await world.restart()
    assert [one.row.id for one in world.minter.book] == [good.row.id]
    assert (await world.states())["irrevocable"] == 1
    await tick(world)
    assert world.minter.readiness.ready()


async def test_a_row_that_is_damaged_while_the_minter_runs_does_not_stop_the_sweep(world):
    bad, good = await world.lease(profile="jwt", ttl_s=60.0), await world.lease(profile="jwt", ttl_s=60.0)
    update = "UPDATE leases SET token = x'ff' WHERE id = ?"
    await world.minter.store.write(lambda found: (found.exec_driver_sql(update, (bad.row.id,)).close(), ()))
    world.clock.advance(60)
    await tick(world)
    assert (await world.row(good.row.id)).state == "expired"
    assert world.minter.readiness.ready()


async def test_a_lease_whose_profile_and_key_are_gone_at_a_start_can_still_be_ended(world):
    live = await world.lease(profile="jwt")
    world.write_grants(jwt=None)
    await world.restart()
    row = await world.row(live.row.id)
    assert (row.state, row.how) == ("revoked", "expired_only")


async def test_what_has_long_been_over_is_forgotten_and_the_audit_log_keeps_its_story(world):
    live = await world.lease(profile="jwt", ttl_s=60.0)
    world.clock.advance(60)
    await tick(world)
    world.clock.advance(86400 - 1)
    await tick(world)
    assert await world.row(live.row.id) is not None
    world.clock.advance(2)
    await tick(world)
    assert await world.row(live.row.id) is None
    assert "lease.expired" in world.codes(lease_id=live.row.id)


async def test_a_stop_does_not_revoke_what_is_live(world):
    live = await world.lease(profile="remote")
    await world.stop()
    assert world.remote.revoked == []
    assert world.codes(prefix="")[-1] == "service.stopped"
    await world.start()
    assert (await world.row(live.row.id)).state == "active"


async def test_a_stop_lets_a_revocation_under_way_finish(tmp_path, clock):
    world = await World(tmp_path / "minter", clock).start()
    hanging, begun = asyncio.Event(), asyncio.Event()
    real = world.remote.revoke

    async def slow(lease, credential):
        begun.set()
        await hanging.wait()
        return await real(lease, credential)

    live = await world.lease(profile="remote")
    world.remote.revoke = slow
    ending = asyncio.create_task(world.minter.service.end_run("b1", live.row.run_id))
    await begun.wait()
    stopping = asyncio.create_task(world.stop())
    await asyncio.sleep(0)
    hanging.set()
    await stopping
    await ending
    assert world.remote.live == set()


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_revocation_that_waits_by_a_clock_that_was_ahead_is_tried_when_the_clock_is_right(steady, restarted):
    steady.clock.wall += 86400
    steady.clock.advance(2)
    row = await ended(steady, RevocationError())
    assert (await steady.row(row.id)).state == "revoking"
    steady.clock.wall -= 86400
    if restarted:
        await steady.restart()
    await tick(steady)
    assert (await steady.row(row.id)).state == "revoked"
    # Once: a clock that stays behind what was seen does not take the pauses away.
    other = await ended(steady, RevocationError())
    await tick(steady)
    await tick(steady)
    assert (await steady.row(other.id)).attempts == 1


async def test_a_replaced_lease_whose_end_was_set_by_a_clock_that_was_ahead_ends_on_time(world):
    run_id = world.run_id()
    world.clock.wall += 86400
    first = await world.lease(profile="remote", run_id=run_id, ttl_s=3000.0)
    world.clock.advance(580)
    await world.lease(profile="remote", run_id=run_id, ttl_s=2420.0)
    world.clock.wall -= 86400
    await tick(world)
    assert world.minter.book.get(first.row.id) is not None
    assert world.remote.live == {"remote-0", "remote-1"}
    world.clock.advance(20)
    await tick(world)
    assert world.remote.live == {"remote-1"}
    assert (await world.row(first.row.id)).state == "expired"
    assert world.minter.book.count("b1", "remote") == 1


async def test_a_rotation_whose_keyring_hangs_holds_up_no_sweep(world, monkeypatch):
    asked, hang = [], asyncio.Event()

    async def tick(now):
        asked.append(now)
        await hang.wait()

    monkeypatch.setattr(world.minter.rotation, "tick", tick)
    live = await world.lease(ttl_s=60.0)
    for _ in range(3):
        world.clock.advance(61)
        async with asyncio.timeout(5):
            await world.minter.expiry.tick()
    assert (await world.row(live.row.id)).state == "expired"
    assert len(asked) == 1, "one at a time"
    hang.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await world.minter.expiry.tick()
    await asyncio.sleep(0)
    assert len(asked) == 2
    hang.clear()
    await world.stop()
