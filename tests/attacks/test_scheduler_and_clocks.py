"""APScheduler and freezegun as they were reported: facts/minters.md sections O and P.

Everything runs on the system's clock, which freezegun moves; loops stay on real time, so that nothing notices a move
unless it looks at the clock, as in a suspended machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from datetime import UTC, datetime, timedelta

import jwt
import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED
from freezegun import freeze_time

from config.clock import Deadline, SystemClock
from minter.expiry import STALE_S, Expiry
from minter.minting import MINT_S
from tests.minter.lease_world import ORIGIN, World

START = "2031-05-01T12:00:00Z"


@pytest.fixture
def frozen():
    with freeze_time(START, real_asyncio=True) as frozen:
        yield frozen


@pytest.fixture
async def minter(tmp_path, frozen):
    world = await World(tmp_path / "minter", SystemClock("boot-1")).start()
    yield world
    await world.stop()


@pytest.fixture
def missed(minter):
    """What the scheduler gave up without a word: nothing, whatever the case."""
    events: list = []
    mask = EVENT_JOB_MISSED | EVENT_JOB_ERROR
    minter.minter.expiry.scheduler.add_listener(events.append, mask)
    return events


class Sweeps:
    """A sweep that is counted, and held up while ``gate`` is closed."""

    def __init__(self):
        self.begun = self.ended = 0
        self.next_at = None
        self.fail = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self):
        self.begun += 1
        await self.gate.wait()
        if self.fail:
            raise RuntimeError("injected")
        self.ended += 1
        return self.next_at


@contextlib.asynccontextmanager
async def expiry():
    sweeps = Sweeps()
    made = Expiry(sweeps, clock=SystemClock("boot-1"))
    made.start()
    # It sweeps at once; what is looked at comes after that.
    await made._first
    sweeps.begun = sweeps.ended = 0
    try:
        yield made, sweeps
    finally:
        sweeps.gate.set()
        await made.stop()


async def until(condition):
    """Let the loop go round until what is on its way has come about."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for is the product's, and it announces nothing
            await asyncio.sleep(0.001)


async def turns():
    for _ in range(50):
        await asyncio.sleep(0)


def gone(minter, live):
    return lambda: minter.minter.book.get(live.row.id) is None


# --- O: APScheduler 3.11 ---


@pytest.mark.parametrize("late_s", [2, 5, 3000])
async def test_a_job_that_comes_late_is_run_and_not_dropped(minter, frozen, missed, late_s):
    """A loop that was blocked for two seconds, a run date five seconds in the past: by default the job is gone.

    The credential lives on at its issuer: only the sweep ends it there.
    """
    live = await minter.lease(profile="remote", ttl_s=60.0)
    frozen.tick(60 + late_s)
    minter.minter.expiry.wake()
    await until(gone(minter, live))
    await until(lambda: minter.remote.live == set())
    assert missed == []


async def test_every_job_carries_the_settings_itself(minter):
    """agronholm/apscheduler#146: given to the scheduler as keywords they are ignored."""
    await minter.lease(profile="jwt", ttl_s=60.0)
    jobs = minter.minter.expiry.scheduler.get_jobs()
    assert {job.id for job in jobs} == {"earliest-end", "tick"}
    for job in jobs:
        assert (job.misfire_grace_time, job.coalesce) == (None, True)
        assert job.max_instances > 1


async def test_a_jump_back_does_not_let_the_scheduler_sleep_for_the_size_of_the_jump(minter, frozen):
    """agronholm/apscheduler#351, #752, #339."""
    live = await minter.lease(profile="jwt", ttl_s=120.0)
    frozen.tick(-86_400)
    scheduler = minter.minter.expiry.scheduler
    assert scheduler.get_job("earliest-end").next_run_time.timestamp() > time.time() + 86_400
    assert minter.minter.expiry.look()
    await until(lambda: scheduler.get_job("earliest-end").next_run_time.timestamp() <= time.time() + 120)
    assert scheduler.get_job("tick").next_run_time.timestamp() <= time.time() + 5
    assert minter.minter.book.get(live.row.id) is not None
    assert 119 < live.live.remaining(minter.clock, highest_wall=0.0) <= 120


async def test_a_jump_forward_is_noticed_though_no_timer_ends(minter, frozen):
    """agronholm/apscheduler#794: after a resume from suspend the scheduler waits for its old timer."""
    live = await minter.lease(profile="jwt", ttl_s=500.0)
    frozen.tick(3600)
    await turns()
    assert minter.minter.book.get(live.row.id) is not None
    assert minter.minter.expiry.look()
    await until(gone(minter, live))


@pytest.mark.parametrize("years", [1, 10, 100])
async def test_a_jump_by_years_is_one_tick_and_not_one_for_each_that_was_missed(frozen, years):
    """agronholm/apscheduler#526, #1066, #35: every missed time was enumerated until memory was full."""
    async with expiry() as (made, sweeps):
        frozen.tick(timedelta(days=365 * years))
        made.wake()
        await until(lambda: sweeps.ended)
        await turns()
        assert sweeps.ended == 1
        assert made.scheduler.get_job("tick").next_run_time == datetime.now(UTC) + timedelta(seconds=5)


async def test_what_falls_due_during_a_long_sweep_is_swept_after_it(frozen):
    """agronholm/apscheduler#1095: an overrun skips ticks, and what exceeds the instances allowed is dropped."""
    async with expiry() as (made, sweeps):
        dropped: list = []
        made.scheduler.add_listener(dropped.append, EVENT_JOB_MAX_INSTANCES | EVENT_JOB_MISSED)
        sweeps.gate.clear()
        made.arm(time.time() + 1)
        frozen.tick(1)
        made.wake()
        await until(lambda: sweeps.begun == 1)
        made.arm(time.time() + 3)
        frozen.tick(3)
        made.wake()
        await turns()
        assert sweeps.begun == 1  # never two at once
        sweeps.gate.set()
        await until(lambda: sweeps.ended == 2)
        assert dropped == []


async def test_a_stop_lets_the_sweep_that_runs_finish(frozen):
    """The scheduler's own shutdown cancels running coroutines, even with wait=True: a revocation would die half-way."""
    async with expiry() as (made, sweeps):
        sweeps.gate.clear()
        frozen.tick(5)
        made.wake()
        await until(lambda: sweeps.begun == 1)
        stopping = asyncio.create_task(made.stop())
        await turns()
        assert not stopping.done()
        sweeps.gate.set()
        await stopping
        assert sweeps.ended == 1
        assert not made.scheduler.running


async def test_a_sweep_that_raises_is_seen_in_readiness_and_tried_again(frozen, monkeypatch):
    """What a job or a listener raises goes into the scheduler's log and nowhere else."""
    boot = [SystemClock("boot-1").boottime()]
    monkeypatch.setattr(SystemClock, "boottime", lambda _self: boot[0])
    async with expiry() as (made, sweeps):
        sweeps.fail = True
        frozen.tick(5)
        made.wake()
        await until(lambda: sweeps.begun == 1)
        boot[0] += STALE_S + 1
        assert not made.healthy()
        sweeps.fail = False
        frozen.tick(5)
        made.wake()
        await until(lambda: sweeps.ended == 1)
        await until(made.healthy)


async def test_ten_thousand_leases_are_two_jobs(frozen):
    """A job for each lease costs more with every lease: the store of jobs is a sorted list."""
    async with expiry() as (made, _sweeps):
        for n in range(10_000):
            made.arm(time.time() + 20_000 - n)
        first, *others = made.scheduler.get_jobs()
        assert len(others) == 1
        assert made.scheduler.get_job("earliest-end").next_run_time == datetime.now(UTC) + timedelta(seconds=10_001)
        assert first.next_run_time <= others[0].next_run_time


async def test_a_job_holds_nothing_of_a_lease(minter):
    """Persistent stores pickle the arguments of jobs."""
    live = await minter.lease(profile="static", ttl_s=60.0)
    for job in minter.minter.expiry.scheduler.get_jobs():
        assert (job.args, job.kwargs, job.name) == ((), {}, "Expiry.tick")
        assert live.row.id not in repr((job, job.trigger))


@pytest.mark.parametrize("night", ["2031-03-30T00:59:30Z", "2031-10-26T00:59:30Z"])
async def test_a_lease_ends_on_time_in_the_night_when_the_clocks_change(tmp_path, monkeypatch, night):
    """agronholm/apscheduler#1021: the local zone decides nothing, an hour that is missing or comes twice neither."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        with freeze_time(night, real_asyncio=True) as frozen:
            world = await World(tmp_path / "minter", SystemClock("boot-1")).start()
            live = await world.lease(profile="jwt", ttl_s=60.0)
            job = world.minter.expiry.scheduler.get_job("earliest-end")
            assert job.next_run_time == datetime.fromisoformat(night) + timedelta(seconds=60)
            assert job.next_run_time.utcoffset() == timedelta(0)
            frozen.tick(59)
            world.minter.expiry.wake()
            await turns()
            assert world.minter.book.get(live.row.id) is not None
            frozen.tick(1)
            world.minter.expiry.wake()
            await until(gone(world, live))
            await world.stop()
    finally:
        monkeypatch.undo()
        time.tzset()


# --- P: freezegun 1.5 ---


async def test_a_tick_of_the_frozen_clock_alone_runs_nothing_and_a_wake_up_runs_it(minter, frozen):
    """With ``real_asyncio`` the loop's timer does not see the tick: a test that forgot to wake would pass by luck."""
    live = await minter.lease(profile="jwt", ttl_s=60.0)
    frozen.tick(60)
    await turns()
    assert minter.minter.book.get(live.row.id) is not None
    minter.minter.expiry.wake()
    await until(gone(minter, live))


def test_a_deadline_from_before_a_freeze_is_not_decades_late():
    """spulec/freezegun#384: a frozen monotonic clock returns seconds since 1970; the boot clock is another."""
    clock = SystemClock("boot-1")
    now = time.time()
    deadline = Deadline.after(clock, 600)
    with freeze_time(datetime.fromtimestamp(now, UTC), real_asyncio=True) as frozen:
        assert clock.boottime() < now / 2
        assert deadline.remaining(clock) == pytest.approx(600, abs=0.5)
        frozen.tick(599)
        assert deadline.remaining(clock) == pytest.approx(1, abs=0.5)
        frozen.tick(2)
        assert deadline.ended(clock)


async def test_a_mint_is_not_cut_off_by_a_jump_of_the_wall_clock(minter, frozen):
    """spulec/freezegun#437, #563: time limits of work under way are the loop's, which a jump does not move."""
    minter.remote.gate.clear()
    asking = asyncio.create_task(minter.lease(profile="remote", ttl_s=600.0))
    await minter.remote.asked.wait()
    frozen.tick(MINT_S + 1)
    minter.remote.gate.set()
    live = await asyncio.wait_for(asking, 5)
    assert live.row.expires_at == datetime.fromisoformat(START).timestamp() + 600
    assert 600 - MINT_S - 2 < live.live.remaining(minter.clock, highest_wall=0.0) <= 600 - MINT_S - 1


@pytest.mark.parametrize("back_s", [1, 20, 3600])
async def test_our_own_verifier_takes_a_token_that_seems_to_be_from_the_future(minter, frozen, back_s):
    """jpadilla/pyjwt#854: a clock that is set back by a moment does not make live tokens unknown."""
    live = await minter.lease(profile="jwt", ttl_s=120.0)
    frozen.tick(-back_s)
    claims = minter.minter.custody.read_token(live.credential["value"].reveal())
    assert claims["jti"] == live.row.id


async def test_rows_and_audit_lines_have_the_frozen_time_though_a_thread_writes_them(minter, frozen):
    """freezegun leaves threads near their start on real time, and SQLite's CURRENT_TIMESTAMP always."""
    frozen.tick(100)
    live = await minter.lease(profile="jwt", ttl_s=60.0)
    with contextlib.closing(sqlite3.connect(minter.minter.store.path)) as state:
        [row] = state.execute("SELECT created_at, expires_at FROM leases WHERE id = ?", (live.row.id,))
    began = datetime.fromisoformat(START).timestamp()
    assert row == (began + 100, began + 160)
    [line] = [event for event in minter.audit() if event["code"] == "lease.minted"]
    assert line["at"] == "2031-05-01T12:01:40.000Z"


async def test_a_token_is_good_one_second_before_its_end_and_not_at_it_for_the_library_too(minter, frozen):
    """PyJWT goes by the frozen clock as well: the end that we wrote is the end that a verifier sees."""
    live = await minter.lease(profile="jwt", ttl_s=120.0)
    token = live.credential["value"].reveal()
    [key] = jwt.PyJWKSet.from_json(minter.minter.custody.jwks().decode()).keys
    frozen.tick(119)
    assert jwt.decode(token, key, algorithms=["EdDSA"], audience=ORIGIN)["jti"] == live.row.id
    frozen.tick(1)
    with pytest.raises(jwt.ExpiredSignatureError):
        jwt.decode(token, key, algorithms=["EdDSA"], audience=ORIGIN)
