"""Time: the end of a lease by either clock, whatever the scheduler did. See DESIGN section 7."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
from freezegun import freeze_time

from config.clock import SystemClock
from minter.expiry import STALE_S
from tests.minter.lease_world import World

DAY_S = 86400.0


@pytest.fixture
def frozen():
    # Loops stay on real time, so the scheduler notices nothing until it is woken: each test says when.
    with freeze_time("2031-05-01T12:00:00Z", real_asyncio=True) as frozen:
        yield frozen


@pytest.fixture
async def lent(tmp_path, frozen):
    """A minter on the system's clock, which freezegun moves."""
    world = await World(tmp_path / "minter", SystemClock("boot-1")).start()
    yield world
    await world.stop()


async def woken(world, *, until):
    """Wake the scheduler as a timer would, and wait for what it started to be over."""
    world.minter.expiry.wake()
    async with asyncio.timeout(5):
        while not until():  # noqa: ASYNC110 - what is waited for is the product's, and it announces nothing
            await asyncio.sleep(0.001)
        async with world.minter.expiry._sweeping:
            await world.minter.endings.drain(5)


def gone(world, live):
    return lambda: world.minter.book.get(live.row.id) is None


# --- on the frozen system clock, with the real scheduler ---


@pytest.mark.parametrize("profile", ["jwt", "remote"])
async def test_a_lease_is_usable_one_second_before_its_end(lent, frozen, profile):
    run_id = lent.run_id()
    live = await lent.lease(profile=profile, run_id=run_id, ttl_s=120.0)
    frozen.tick(timedelta(seconds=119))
    assert (await lent.lease(profile=profile, run_id=run_id, ttl_s=1.0)).row.id == live.row.id
    assert live.live.remaining(lent.clock, highest_wall=0.0) == 1


@pytest.mark.parametrize("late_s", [0, 1, 3600])
async def test_a_lease_is_refused_at_its_end_and_after_though_nothing_has_swept_it(lent, frozen, late_s):
    run_id = lent.run_id()
    live = await lent.lease(profile="remote", run_id=run_id, ttl_s=120.0)
    frozen.tick(timedelta(seconds=120 + late_s))
    assert lent.minter.book.get(live.row.id) is not None
    again = await lent.lease(profile="remote", run_id=run_id, ttl_s=60.0)
    assert again.row.id != live.row.id
    assert (await lent.row(live.row.id)).end_reason == "expired"


async def test_the_scheduler_sweeps_and_revokes_what_has_ended(lent, frozen):
    live = await lent.lease(profile="remote", ttl_s=120.0)
    kept = await lent.lease(profile="remote", ttl_s=121.0)
    frozen.tick(timedelta(seconds=120))
    await woken(lent, until=gone(lent, live))
    row = await lent.row(live.row.id)
    assert (row.state, row.how, row.end_reason) == ("expired", "upstream_deleted", "expired")
    assert lent.remote.live == {"remote-1"}
    assert [one.row.id for one in lent.minter.book] == [kept.row.id]
    assert lent.codes(lease_id=live.row.id)[-1] == "lease.expired"


async def test_a_run_that_goes_on_gets_a_new_credential_after_the_sweep(lent, frozen):
    run_id = lent.run_id()
    live = await lent.lease(profile="jwt", run_id=run_id, ttl_s=3600.0)
    frozen.tick(timedelta(seconds=600))
    await woken(lent, until=gone(lent, live))
    again = await lent.lease(profile="jwt", run_id=run_id, ttl_s=3000.0)
    assert again.row.expires_at == time.time() + 600


async def test_the_earliest_of_several_ends_is_what_the_scheduler_is_armed_for(lent, frozen):
    late = await lent.lease(profile="remote", ttl_s=500.0)
    early = await lent.lease(profile="remote", ttl_s=100.0)
    job = lent.minter.expiry.scheduler.get_job("earliest-end")
    assert job.next_run_time.timestamp() == early.row.expires_at
    frozen.tick(timedelta(seconds=100))
    await woken(lent, until=gone(lent, early))
    assert lent.minter.expiry.scheduler.get_job("earliest-end").next_run_time.timestamp() == late.row.expires_at


@pytest.mark.parametrize("lost", ["earliest-end", "tick"])
@pytest.mark.parametrize("late", [timedelta(), timedelta(hours=7)])
async def test_either_job_alone_sweeps_what_is_due_however_late(lent, frozen, lost, late):
    live = await lent.lease(profile="jwt", ttl_s=60.0)
    lent.minter.expiry.scheduler.remove_job(lost)
    lent.minter.expiry._timer.cancel()  # nor does anybody notice that the clock jumped
    frozen.tick(timedelta(seconds=60) + late)
    await woken(lent, until=gone(lent, live))


async def test_a_system_clock_that_is_set_back_does_not_let_the_scheduler_sleep_for_a_day(lent, frozen):
    await lent.lease(profile="jwt", ttl_s=3600.0)
    expiry = lent.minter.expiry
    frozen.tick(timedelta(days=-1))
    assert expiry.look()
    jobs = {job.id: job.next_run_time.timestamp() - time.time() for job in expiry.scheduler.get_jobs()}
    assert jobs["tick"] <= 5
    assert jobs["earliest-end"] <= 0


async def test_a_jump_forward_by_years_is_one_tick_and_not_one_for_each_missed(lent, frozen):
    live = await lent.lease(profile="jwt", ttl_s=60.0)
    frozen.tick(timedelta(days=10 * 365))
    start = time.process_time()
    await woken(lent, until=gone(lent, live))
    assert time.process_time() - start < 1


async def test_a_stopped_scheduler_turns_readiness_red_and_use_is_refused_all_the_same(lent, frozen):
    run_id = lent.run_id()
    live = await lent.lease(profile="jwt", run_id=run_id, ttl_s=600.0)
    assert lent.minter.readiness.ready()
    lent.minter.expiry.scheduler.shutdown(wait=False)
    await asyncio.sleep(0)
    assert "expiry" in {name for name, reason in lent.minter.readiness.report().items() if reason}
    frozen.tick(timedelta(seconds=600))
    again = await lent.lease(profile="jwt", run_id=run_id, ttl_s=60.0)
    assert again is not live


# --- on an injected clock: jumps and reboots ---


async def test_a_sweep_that_keeps_failing_turns_readiness_red_until_one_succeeds(world):
    async with world.locked_state():
        await world.minter.expiry.tick()
        assert not world.minter.readiness.ready()
    world.clock.advance(STALE_S + 1)
    assert not world.minter.readiness.ready()
    await world.minter.expiry.tick()
    assert world.minter.readiness.ready()


async def test_a_wall_clock_that_jumps_forward_a_day_ends_leases_early_and_the_run_mints_again(world):
    run_id = world.run_id()
    live = await world.lease(profile="jwt", run_id=run_id)
    world.clock.wall += DAY_S
    assert world.minter.expiry.look()
    await world.minter.expiry.tick()
    assert (await world.row(live.row.id)).state == "expired"
    await world.lease(profile="jwt", run_id=run_id)


async def test_a_wall_clock_that_jumps_back_a_day_does_not_let_a_lease_live_longer(world):
    run_id = world.run_id()
    live = await world.lease(profile="jwt", run_id=run_id, ttl_s=120.0)
    world.clock.wall -= DAY_S
    assert world.minter.expiry.look()
    world.clock.advance(119)
    await world.minter.expiry.tick()
    assert world.minter.book.get(live.row.id) is not None
    assert live.live.remaining(world.clock, highest_wall=0.0) == 1
    world.clock.advance(1)
    assert live.live.remaining(world.clock, highest_wall=0.0) == 0
    await world.minter.expiry.tick()
    assert (await world.row(live.row.id)).state == "expired"


async def test_after_a_jump_back_the_scheduler_is_armed_by_the_clock_that_ends_first(world):
    live = await world.lease(profile="jwt", ttl_s=120.0)
    world.clock.wall -= DAY_S
    await world.minter.expiry.tick()
    job = world.minter.expiry.scheduler.get_job("earliest-end")
    assert job.next_run_time.timestamp() - time.time() < 121
    assert world.minter.book.get(live.row.id) is not None


async def test_a_jump_is_told_from_time_that_passes(world):
    expiry = world.minter.expiry
    expiry.look()
    assert not expiry.look()
    world.clock.wall += 1
    assert expiry.look()
    world.clock.boot += 1
    assert expiry.look()
    assert not expiry.look()


async def test_after_a_reboot_the_wall_clock_decides(world):
    live = await world.lease(profile="jwt", ttl_s=600.0)
    dead = await world.lease(profile="jwt", ttl_s=60.0)
    await world.stop()
    world.clock.boot, world.clock.boot_name = 3.0, "boot-2"
    world.clock.wall += 100
    await world.start()
    assert (await world.row(live.row.id)).state == "active"
    assert (await world.row(dead.row.id)).state == "expired"


async def test_a_clock_set_back_across_a_reboot_does_not_bring_a_lease_to_life_again(world):
    live = await world.lease(profile="jwt", ttl_s=600.0)
    world.clock.advance(1200)
    await world.minter.store.read(lambda found: None)
    await world.stop()
    world.clock.boot, world.clock.boot_name = 3.0, "boot-2"
    world.clock.wall -= DAY_S
    await world.start()
    assert (await world.row(live.row.id)).state == "expired"


@pytest.mark.parametrize(("reboot", "state"), [(True, "revoked"), (False, "active")])
async def test_a_lease_of_another_boot_that_begins_later_than_now_is_ended_at_the_start(world, reboot, state):
    # The clock had been ahead when it was made, so its end by the wall is a day too late.
    world.clock.wall += DAY_S
    live = await world.lease(profile="jwt", ttl_s=600.0)
    await world.stop()
    world.clock.wall -= DAY_S
    if reboot:
        world.clock.boot, world.clock.boot_name = 3.0, "boot-2"
    await world.start()
    row = await world.row(live.row.id)
    assert (row.state, row.end_reason) == (state, "clock-set-back" if reboot else "")
    assert len(world.minter.book) == (0 if reboot else 1)
