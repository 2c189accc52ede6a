"""Revocations upstream: at a bounded rate, in turns, and after any failure until it is known how each ended."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

import pytest

from config.secret import Secret
from config.settings import LeaseLimits
from minter import lease_rows
from minter.kinds import Ending, RevocationError, ended_by
from minter.lease_rows import LeaseRow
from minter.lease_values import sealed
from minter.minter import Minter
from minter.upstream import AT_ONCE, AT_ONCE_PER_PROFILE, FRESH, PAGE
from tests.minter.lease_world import ORIGIN, World

RATE = 40


@pytest.fixture
async def slow(tmp_path, clock):
    """A world that begins forty revocations in a second, and no more."""
    world = await World(tmp_path / "minter", clock, lease_limits=LeaseLimits(revocation_rate=RATE)).start()
    yield world
    await world.stop()


class Issuer:
    """An issuer in memory that tells what was asked of it, and hangs while ``gate`` is closed."""

    name = "played"
    local = False

    def __init__(self, name="played"):
        self.name = name
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = self.most = 0
        self.error: RevocationError | None = None

    async def revoke(self, lease, credential):
        self.asked.append(lease.id)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
            if self.error is not None:
                raise self.error
        finally:
            self.running -= 1
        return Ending("upstream_deleted")


def row(world, number, *, kind="played", profile="p", token="{}", **fields):
    now = world.clock.now()
    return LeaseRow(
        **{
            "id": f"lse_{kind}{profile}{number:020d}",
            "broker": "b1",
            "run_id": f"run_{kind}{profile}{number:018d}",
            "caller": "agent",
            "profile": profile,
            "params_digest": "",
            "origin": ORIGIN,
            "grant_digest": "",
            "kind": kind,
            "state": "revoking",
            "created_at": now - 600,
            "expires_at": now - 1,
            "boot_expires_at": world.clock.boottime() - 1,
            "boot_id": world.clock.boot_id(),
            "run_ends_at": now - 1,
            "token": token,
            "next_attempt_at": now - 1,
            "ended_at": now - 1,
            "end_reason": "expired",
            **fields,
        }
    )


async def put(world, rows):
    def work(connection):
        for one in rows:
            lease_rows.insert(connection, one)
        return None, ()

    await world.minter.store.write(work)


def play(world, token, issuer):
    world.minter.kinds_of._known[token] = issuer
    return issuer


async def tick(world):
    await world.minter.expiry.tick()
    await world.minter.endings.drain(5)


async def test_no_more_begin_in_a_second_than_the_settings_say_over_all_kinds(slow):
    first, second = play(slow, "{}", Issuer()), play(slow, '{"b":1}', Issuer("other"))
    await put(slow, [row(slow, n) for n in range(60)])
    await put(slow, [row(slow, n, kind="other", token='{"b":1}') for n in range(60)])
    await tick(slow)
    assert (len(first.asked), len(second.asked)) == (RATE / 2, RATE / 2)
    for seconds in (1, 2):
        slow.clock.advance(1)
        await tick(slow)
        assert len(first.asked) + len(second.asked) == RATE * (1 + seconds)
    assert await slow.states() == {"expired": 120}


async def test_a_dead_issuer_with_a_long_queue_holds_up_neither_another_kind_nor_another_profile(world):
    dead, same_kind, other = (play(world, f'{{"i":{n}}}', Issuer()) for n in range(3))
    dead.gate.clear()
    await put(world, [row(world, n, profile="dead", token='{"i":0}') for n in range(500)])
    await put(world, [row(world, n, profile="well", token='{"i":1}') for n in range(50)])
    await put(world, [row(world, n, kind="other", token='{"i":2}') for n in range(50)])
    await world.minter.expiry.tick()
    async with asyncio.timeout(10):
        while len(same_kind.asked) < 50 or len(other.asked) < 50:  # noqa: ASYNC110 - issuers announce nothing
            await asyncio.sleep(0.005)
    assert len(dead.asked) == AT_ONCE_PER_PROFILE
    dead.gate.set()


async def test_no_more_run_at_once_than_the_caps_say_in_all_and_of_one_profile(world):
    issuer = play(world, "{}", Issuer())
    issuer.gate.clear()
    await put(world, [row(world, n, profile=f"p{n % 20}") for n in range(400)])
    await world.minter.expiry.tick()
    async with asyncio.timeout(10):
        while len(issuer.asked) < AT_ONCE:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    issuer.gate.set()
    for _ in range(4):
        await tick(world)
        world.clock.advance(1)
    assert len(set(issuer.asked)) == len(issuer.asked) == 400
    assert issuer.most == AT_ONCE
    assert await world.states() == {"expired": 400}


async def test_a_long_queue_is_read_in_small_pages_and_nothing_of_it_is_asked_twice(world):
    issuer = play(world, "{}", Issuer())
    await put(world, [row(world, n) for n in range(1000)])
    upstream = world.minter.endings.upstream
    await tick(world)
    assert len(issuer.asked) == 200
    assert len(upstream._held) <= 2 * PAGE
    for _ in range(4):
        world.clock.advance(1)
        await tick(world)
    assert len(set(issuer.asked)) == len(issuer.asked) == 1000
    assert len(upstream._held) == 0


async def test_an_end_that_just_began_does_not_wait_behind_a_backlog_of_its_own_kind(slow):
    issuer = play(slow, "{}", Issuer())
    await put(slow, [row(slow, n, profile="remote") for n in range(500)])
    live = await slow.lease(profile="remote")
    slow.minter.kinds_of._known[live.row.token] = issuer
    await tick(slow)
    ending = asyncio.create_task(slow.minter.service.end_run("b1", live.row.run_id))
    while not slow.minter.endings.upstream.holds(live.row.id):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    slow.clock.advance(0.2)
    assert [one.state for one in await ending] == ["revoked"]
    assert len(issuer.asked) < 100


async def test_ten_thousand_that_an_operator_ends_are_written_first_and_no_task_waits_for_each(slow, monkeypatch):
    issuer = play(slow, "{}", Issuer())
    await put(slow, [row(slow, n, state="active", ended_at=None, next_attempt_at=None) for n in range(3000)])
    async with slow.minter.expiry._sweeping:
        pass
    rows = await slow.minter.store.read(lambda found: lease_rows.rows_where(found, "1", (), 5000))
    for one in rows:
        one.expires_at = one.boot_expires_at = one.run_ends_at = slow.clock.now() + 9999
        slow.minter.book.add(one)
    monkeypatch.setattr("minter.revocation._ANSWER_S", 0.01)
    ended = await slow.minter.service.end(lambda _live: True, "operator", uid=0)
    assert len(ended) == 3000
    assert sum(one.state == "revoking" for one in ended) >= 3000 - RATE
    assert (await slow.states()).get("revoking", 0) >= 3000 - RATE
    assert len(asyncio.all_tasks()) < RATE + 20
    assert len(slow.minter.endings.upstream._held) <= FRESH + 2 * PAGE
    for _ in range(3000 // RATE):
        slow.clock.advance(1)
        await tick(slow)
    assert len(set(issuer.asked)) == len(issuer.asked) == 3000


async def test_a_start_that_finds_thirty_thousand_overdue_is_ready_and_lends_before_they_are_ended(slow):
    tokens = slow.minter.admission.policy.tokens
    digests = slow.minter.admission.policy.grants.profiles
    sealer = slow.minter.service.values.sealer

    def work(connection):
        for number in range(30_000):
            profile, kind = (("jwt", "jwt"), ("remote", "static"))[number % 2]
            one = row(slow, number, profile=profile, kind=kind, token=tokens[profile], state="active")
            one.next_attempt_at, one.ended_at, one.end_reason = None, None, ""
            one.grant_digest = digests[profile].digest
            lease_rows.insert(connection, one, sealed(one, {"value": Secret("x")}, sealer))
        return None, ()

    await slow.minter.store.write(work)
    await slow.stop()
    # The minter that wrote them may have begun with them.
    before = len(slow.remote.revoked)
    slow.minter = await Minter.start(slow.settings, clock=slow.clock, environ={})
    slow.play_remote()
    assert slow.minter.readiness.ready()
    # Nobody who asks meanwhile waits for long.
    async with asyncio.timeout(1):
        await slow.lease(profile="jwt")
    assert (await slow.states())["active"] > 10_000
    async with slow.minter.expiry._sweeping:
        pass
    # A sweep ends a part of them, and the next one is due at once.
    for _ in range(3):
        await tick(slow)
    states = await slow.states()
    assert (states["active"], states["expired"] + states["revoking"]) == (1, 30_000)
    assert len(slow.remote.revoked) - before == RATE
    for _ in range(5):
        slow.clock.advance(1)
        await tick(slow)
    assert len(slow.remote.revoked) - before == 6 * RATE


@pytest.mark.parametrize("overdue", [True, False])
async def test_a_stop_in_the_middle_of_what_a_start_found_leaves_the_rest_to_the_next(slow, overdue):
    # Either by their own end, or because no grant has their profile any more.
    policy = slow.minter.admission.policy
    given = {"state": "active", "next_attempt_at": None, "ended_at": None, "end_reason": "", "kind": "jwt"}
    if overdue:
        given |= {"profile": "jwt", "token": policy.tokens["jwt"], "grant_digest": policy.grants.profiles["jwt"].digest}
    sealer = slow.minter.service.values.sealer

    def work(connection):
        for number in range(6000):
            one = row(slow, number, **given)
            lease_rows.insert(connection, one, sealed(one, {"value": Secret("x")}, sealer))
        return None, ()

    await slow.minter.store.write(work)
    await slow.stop()
    slow.minter = await Minter.start(slow.settings, clock=slow.clock, environ={})
    path = slow.minter.store.path
    await slow.stop()
    with contextlib.closing(sqlite3.connect(path)) as state:
        [(left,)] = state.execute("SELECT count(*) FROM leases WHERE state = 'active'")
    assert left > 0
    await slow.start()
    assert (await slow.states()).get("active", 0) == 0
    assert len(slow.minter.book) == 0


async def test_an_issuer_that_is_down_for_an_hour_loses_nothing_and_all_is_revoked_after(world):
    world.remote.life_s = None
    lent = [await world.lease(profile="remote", ttl_s=600.0) for _ in range(20)]
    real, down = world.remote.revoke, RevocationError()

    async def refuse(_lease, _credential):
        raise down

    world.remote.revoke = refuse
    for live in lent:
        await world.minter.service.end_run("b1", live.row.run_id)
    for _ in range(60):
        world.clock.advance(60)
        await tick(world)
    states = await world.states()
    assert set(states) <= {"revoking", "irrevocable"}
    assert sum(states.values()) == 20
    world.remote.revoke = real
    for _ in range(120):
        world.clock.advance(60)
        await tick(world)
    assert world.remote.live == set()
    assert set(await world.states()) <= {"revoked", "expired"}


# --- kinds that are gone ---


async def test_a_lease_whose_kind_is_gone_is_shown_as_such_and_revoked_when_the_kind_is_back(world):
    gone = '{"type":"no-such-kind"}'
    await put(world, [row(world, 1, token=gone, end_reason="run-ended")])
    await tick(world)
    [found] = await world.minter.store.read(lambda c: lease_rows.rows_where(c, "1", (), 9))
    assert (found.state, found.how, found.next_attempt_at) == ("irrevocable", "kind-missing", None)
    event = next(event for event in world.audit() if event["code"] == "lease.irrevocable")
    assert event["problem"] == "kind-missing"
    for _ in range(3):
        world.clock.advance(7200)
        await tick(world)
    assert world.codes().count("lease.irrevocable") == 1
    assert "lease.revoke-failed" not in world.codes()
    issuer = play(world, gone, Issuer())
    await tick(world)
    await tick(world)
    assert issuer.asked == [found.id]
    assert await world.states() == {"revoked": 1}


async def test_a_lease_whose_kind_is_gone_is_over_when_its_credential_ends_by_itself(world):
    end = world.clock.now() + 100
    await put(world, [row(world, 1, token='{"type":"no-such-kind"}', credential_ends_at=end)])
    await tick(world)
    assert await world.states() == {"irrevocable": 1}
    world.clock.advance(100)
    await tick(world)
    assert await world.states() == {"expired": 1}


async def test_a_kind_that_cannot_even_be_built_stops_no_sweep_and_nobody_elses_end(world, monkeypatch):
    from minter import kinds

    def build(token, custody, where):
        raise RuntimeError("a plug-in's own")

    monkeypatch.setattr(kinds, "build", build)
    issuer = play(world, "{}", Issuer())
    await put(world, [row(world, n, token='{"type":"broken"}', profile="bad") for n in range(3)])
    active = {"state": "active", "next_attempt_at": None, "ended_at": None, "end_reason": ""}
    await put(world, [row(world, 9, token='{"type":"broken"}', profile="bad", **active)])
    await put(world, [row(world, n) for n in range(3)])
    await tick(world)
    await tick(world)
    assert len(issuer.asked) == 3
    assert await world.states() == {"irrevocable": 4, "expired": 3}
    assert world.minter.readiness.ready()


# --- what an issuer's answer says ---

GONE, LATER, NEVER, AGAIN = "upstream_deleted", "accepted_async", "permanent", "again"


@pytest.mark.parametrize(
    ("status", "by_itself", "says"),
    [
        (200, False, GONE),
        (204, False, GONE),
        (404, False, GONE),
        (410, False, GONE),
        (202, False, LATER),
        (401, True, GONE),
        (401, False, NEVER),
        (403, True, NEVER),
        (403, False, NEVER),
        (400, False, NEVER),
        (405, False, NEVER),
        (422, False, NEVER),
        (501, False, NEVER),
        (408, False, AGAIN),
        (409, False, AGAIN),
        (423, False, AGAIN),
        (429, False, AGAIN),
        (500, False, AGAIN),
        (502, False, AGAIN),
        (503, False, AGAIN),
        (302, False, AGAIN),
        (100, False, AGAIN),
    ],
)
def test_what_a_status_says_of_a_revocation(status, by_itself, says):
    if says in (GONE, LATER):
        assert ended_by(status, by_itself=by_itself, retry_after=7).how == says
        return
    with pytest.raises(RevocationError) as failed:
        ended_by(status, by_itself=by_itself, retry_after=7)
    assert (failed.value.permanent, failed.value.retry_after) == (says == NEVER, 7)


async def test_what_is_settled_while_the_table_is_read_is_not_tried_again(world, monkeypatch):
    issuer = play(world, "{}", Issuer())
    upstream, store = world.minter.endings.upstream, world.minter.store
    await put(world, [row(world, n) for n in range(3)])
    issuer.gate.clear()
    await world.minter.expiry.tick()
    async with asyncio.timeout(5):
        while len(issuer.asked) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    real = store.read_beside

    async def late(query):
        monkeypatch.setattr(store, "read_beside", real)
        found = await real(query)
        issuer.gate.set()
        while upstream._held:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return found

    monkeypatch.setattr(store, "read_beside", late)
    upstream.look()
    await world.minter.endings.drain(5)
    assert len(issuer.asked) == 3
    assert world.codes().count("lease.expired") == 3
