from __future__ import annotations

import asyncio
import sqlite3

import pytest
import structlog

from broker import records
from broker.records import Idempotency
from config import tokens
from config.contract import DeniedCount
from config.problems import ProblemError
from tests.broker.house import ENDED, House, current, profile

KEY = Idempotency(key_digest=b"k" * 32, body_digest=b"b" * 32)


@pytest.fixture
async def house(tmp_path):
    made = await House(f"sqlite:{tmp_path}/state/broker.db").start()
    yield made
    await made.outbox.settle()
    made.stop()


async def refused(awaitable):
    with pytest.raises(ProblemError) as caught:
        await awaitable
    return caught.value.code


def digest(token):
    return tokens.digest(token.reveal(), tokens.RUN)


# --- opening ---


async def test_a_run_is_found_by_the_digest_of_its_token(house):
    run, token = await house.open()
    assert run.run_id.startswith("run_")
    assert len(run.run_id) == 26
    assert house.registry.by_digest(digest(token)) is run
    assert house.registry.by_digest(b"another") is None
    assert run.deadline.remaining(house.clock) == 900
    assert list(run.profiles) == ["memory"]
    assert run.profiles["memory"].lease is not None


async def test_the_token_is_nowhere_in_the_state(house, tmp_path):
    _, token = await house.open()
    for path in (tmp_path / "state").iterdir():
        assert token.reveal().encode() not in path.read_bytes()
        assert token.reveal()[4:47].encode() not in path.read_bytes()


@pytest.mark.parametrize("name", ["nothing", "others"])
async def test_a_profile_that_is_missing_and_one_of_other_callers_are_refused_alike(house, name):
    await house.registry.regrant(current(memory=profile(), others=profile(allowed_callers=["somebody"])))
    with pytest.raises(ProblemError) as caught:
        await house.open(name)
    assert (caught.value.code, caught.value.status, caught.value.detail) == (
        "profile-unknown",
        403,
        ProblemError("profile-unknown").detail,
    )


async def test_a_profile_for_every_caller_is_open_to_every_caller(house):
    await house.registry.regrant(current(memory=profile(allowed_callers=["*"])))
    assert await house.open(caller="anybody")


async def test_each_profile_takes_the_parameters_that_it_declares(house):
    route = "GET /v1/{customer}"
    await house.registry.regrant(
        current(
            a=profile(allow=[route], params={"customer": "[a-z]+"}),
            b=profile(allow=["GET /v1/{team}/{customer}"], params={"customer": "[a-z]+", "team": "[0-9]+"}),
        )
    )
    run, _ = await house.open("a", "b", params={"customer": "acme", "team": "7"})
    assert run.params == {"customer": "acme", "team": "7"}
    assert run.profiles["a"].params == {"customer": "acme"}
    assert run.profiles["b"].params == {"customer": "acme", "team": "7"}
    for params in ({}, {"customer": "acme"}, {"customer": "ACME", "team": "7"}):
        assert await refused(house.open("a", "b", params=params)) == "params-invalid"
    assert await refused(house.open("a", params={"customer": "acme", "team": "7"})) == "params-invalid"


@pytest.mark.parametrize("prefix", [tokens.RUN, tokens.CALLER, tokens.BROKER])
async def test_no_parameter_holds_a_token(house, prefix):
    await house.registry.regrant(
        current(a=profile(allow=["GET /v1/{customer}"], params={"customer": "[A-Za-z0-9_-]+"}))
    )
    token = tokens.generate(prefix).reveal()
    for value in (token, f"a-{token}-b"):
        with pytest.raises(ProblemError) as caught:
            await house.open("a", params={"customer": value})
        assert caught.value.code == "params-invalid"
        assert token not in str(caught.value.detail)
    assert await house.open("a", params={"customer": token[:-1]})


async def test_a_run_whose_grant_changes_while_it_is_being_written_is_not_opened(house):
    opening = asyncio.create_task(house.open())
    await asyncio.sleep(0)
    await house.registry.regrant(current(memory=profile(base_url="https://elsewhere.example.com")))
    assert await refused(opening) == "run-ended"
    assert house.registry.live() == []
    assert await house.store.read(records.live_runs) == []


@pytest.mark.parametrize(
    ("wanted", "lasts"), [(None, 900), (1, 1), (3600, 3600), (0, None), (0.5, None), (3601, None), (-5, None)]
)
async def test_a_run_lasts_as_long_as_asked_and_never_longer_than_its_profiles_allow(house, wanted, lasts):
    await house.registry.regrant(current(memory=profile(max_ttl="1h"), other=profile(max_ttl="2h", ttl="1h")))
    if lasts is None:
        assert await refused(house.open("memory", "other", ttl_s=wanted)) == "ttl-invalid"
    else:
        run, _ = await house.open("memory", "other", ttl_s=wanted)
        assert run.deadline.remaining(house.clock) == lasts


async def test_a_caller_has_no_more_runs_than_allowed_even_when_it_opens_them_at_once(house):
    house.registry._max_runs = 3
    results = await asyncio.gather(*(house.open() for _ in range(10)), return_exceptions=True)
    opened = [result for result in results if not isinstance(result, BaseException)]
    assert len(opened) == 3
    assert {result.code for result in results if isinstance(result, ProblemError)} == {"too-many-runs"}
    await house.registry.end(opened[0][0], "caller")
    assert await house.open()


# --- Idempotency-Key ---


async def test_a_replay_returns_the_same_run_with_a_new_token_and_the_old_one_dies(house):
    run, old = await house.open(key=KEY)
    again, new = await house.open(key=KEY)
    assert again is run
    assert old.reveal() != new.reveal()
    assert house.registry.by_digest(digest(old)) is None
    assert house.registry.by_digest(digest(new)) is run
    await house.restart()
    assert house.registry.by_digest(digest(old)) is None
    assert house.registry.by_digest(digest(new)).run_id == run.run_id


async def test_a_replay_counts_against_no_limit(house):
    house.registry._max_runs = 1
    run, _ = await house.open(key=KEY)
    assert (await house.open(key=KEY))[0] is run


async def test_a_replay_with_another_body_is_refused_and_changes_nothing(house):
    run, token = await house.open(key=KEY)
    other = Idempotency(key_digest=KEY.key_digest, body_digest=b"o" * 32)
    assert await refused(house.open(key=other)) == "idempotency-key-reused"
    assert house.registry.by_digest(digest(token)) is run


async def test_the_same_key_of_another_caller_opens_another_run(house):
    await house.registry.regrant(current(memory=profile(allowed_callers=["*"])))
    run, _ = await house.open(key=KEY)
    other, _ = await house.open(key=KEY, caller="somebody")
    assert other.run_id != run.run_id


async def test_twenty_openings_at_once_with_one_key_make_one_run_and_one_token_that_works(house):
    results = await asyncio.gather(*(house.open(key=KEY) for _ in range(20)))
    assert len({run.run_id for run, _ in results}) == 1
    assert len(house.registry) == 1
    assert sum(house.registry.by_digest(digest(token)) is not None for _, token in results) == 1


async def test_a_replay_after_the_run_has_ended_is_a_conflict(house):
    run, _ = await house.open(key=KEY)
    await house.registry.end(run, "caller")
    assert await refused(house.open(key=KEY)) == "run-ended"


# --- extending ---


async def test_a_run_is_extended_up_to_its_ceiling_and_no_further(house):
    await house.registry.regrant(current(memory=profile(ttl="15m", max_ttl="1h")))
    run, _ = await house.open()
    house.clock.advance(600)
    await house.registry.extend(run, 1800)
    assert run.deadline.remaining(house.clock) == 1800
    await house.restart(current(memory=profile(ttl="15m", max_ttl="1h")))
    (run,) = house.registry.live()
    assert run.deadline.remaining(house.clock) == 1800
    await house.registry.extend(run, 86_400)
    assert run.deadline.remaining(house.clock) == 3000
    assert await refused(house.registry.extend(run, 86_400)) == "ttl-invalid"
    assert await refused(house.registry.extend(run, 60)) == "ttl-invalid"
    await house.restart(current(memory=profile(ttl="15m", max_ttl="1h")))
    (again,) = house.registry.live()
    assert again.deadline.remaining(house.clock) == 3000
    assert await refused(house.registry.extend(again, 86_400)) == "ttl-invalid"


async def test_of_two_extensions_at_once_the_shorter_does_not_take_back_the_longer(house):
    await house.registry.regrant(current(memory=profile(ttl="5m", max_ttl="1h")))
    run, _ = await house.open()
    longer = asyncio.create_task(house.registry.extend(run, 1800))
    shorter = asyncio.create_task(house.registry.extend(run, 600))
    await longer
    assert await refused(shorter) == "ttl-invalid"
    assert run.deadline.remaining(house.clock) == 1800
    await house.restart(current(memory=profile(ttl="5m", max_ttl="1h")))
    (again,) = house.registry.live()
    assert again.deadline.remaining(house.clock) == 1800


async def test_a_run_that_is_over_cannot_be_extended(house):
    run, _ = await house.open()
    house.clock.advance(900)
    assert await refused(house.registry.extend(run, 60)) == "run-ended"


# --- ending ---


async def test_an_end_is_durable_and_the_minter_is_told_with_the_counts(house):
    run, token = await house.open()
    run.trace.record(
        "memory", "GET", "GET /v1/items", status=200, delivered=True, bytes_sent=1, bytes_back=2, milliseconds=3.0
    )
    run.trace.denied("route-reserved", "DELETE /v1/items/*", profile="memory")
    with structlog.testing.capture_logs() as logs:
        ended = await house.registry.end(run, "caller")
    assert await ended.notice.revoked(within_s=5) == ENDED
    await house.outbox.settle()
    assert house.registry.by_digest(digest(token)) is None
    (revoke, record) = house.minter.told
    assert revoke == ("revoke", run.run_id)
    assert (record[2].calls, record[2].denied, record[2].ended) == (1, 1, "caller")
    assert (record[2].caller, record[2].trace_id) == ("orchestrator", "chat-7")
    assert [(count.profile, count.route, count.calls) for count in record[2].by_route] == [
        ("memory", "GET /v1/items", 1)
    ]
    assert record[2].denied_by == [
        DeniedCount(code="route-reserved", profile="memory", route="DELETE /v1/items/*", calls=1)
    ]
    assert record[2].grant_digests == {"memory": run.profiles["memory"].frozen.digest}
    (line,) = [entry for entry in logs if entry["event"] == "run-ended"]
    assert (line["trace_id"], line["trace"]["total"], line["reason"]) == ("chat-7", 1, "caller")
    kept = await house.store.read(lambda db: records.find_run(db, run.run_id))
    assert (kept.end_reason, kept.leases is not None) == ("caller", True)
    await house.restart()
    assert len(house.registry) == 0
    assert len(house.outbox) == 0


async def test_ending_twice_at_once_is_one_end(house):
    run, _ = await house.open()
    first, second = await asyncio.gather(house.registry.end(run, "caller"), house.registry.end(run, "operator"))
    assert first is second
    assert run.ended == "caller"
    await house.outbox.settle()
    assert len(house.minter.told) == 2
    assert await refused(house.registry.end(run, "caller")) == "run-not-found"


async def test_an_end_goes_on_when_whoever_asked_for_it_goes_away(house):
    run, _ = await house.open()
    asking = asyncio.create_task(house.registry.end(run, "caller"))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert run.ended == "caller"
    await asyncio.gather(*house.registry._endings.values())
    assert (await house.store.read(lambda db: records.find_run(db, run.run_id))).ended_at is not None


@pytest.mark.parametrize("writable", [True, False])
async def test_a_lease_that_is_being_minted_while_its_run_ends_is_revoked_too(house, writable):
    """The minter is told at once, and may then finish a lease that it was asked for before."""

    async def broken(_work):
        raise ProblemError("state-unavailable")

    run, _ = await house.open()
    slot = run.profiles["memory"].lease
    asking = asyncio.create_task(slot.obtain(house.clock))
    await asyncio.sleep(0)
    ended = await house.registry.end(run, "caller")
    await ended.notice.revoked(within_s=5)
    await house.outbox.settle()
    if not writable:
        house.registry._store = type("Broken", (), {"write": staticmethod(broken)})()
    house.minter.may_lend.set()
    with pytest.raises(ProblemError):
        await asking
    await asyncio.gather(*house.registry._late)
    await house.outbox.settle()
    assert [told[0] for told in house.minter.told] == ["revoke", "record", "lease", "revoke"]


async def test_a_minter_that_is_down_is_told_later_even_by_the_next_process(house):
    house.minter.down = True
    run, _ = await house.open()
    ended = await house.registry.end(run, "caller")
    assert await ended.notice.revoked(within_s=0.01) is None
    await house.outbox.settle()
    assert len(house.outbox) == 2
    await house.restart()
    house.outbox.tick()
    await house.outbox.settle()
    assert len(house.outbox) == 2
    house.minter.down = False
    house.outbox.tick()
    await house.outbox.settle()
    assert house.minter.told == []
    house.clock.advance(60)
    house.outbox.tick()
    await house.outbox.settle()
    assert [told[:2] for told in house.minter.told] == [("revoke", run.run_id), ("record", run.run_id)]
    assert len(house.outbox) == 0


async def test_a_notice_that_nobody_takes_is_given_up_once_every_lease_is_over(house):
    house.minter.down = True
    run, _ = await house.open()
    await house.registry.end(run, "caller")
    await house.outbox.settle()
    house.clock.advance(8 * 86400)
    with structlog.testing.capture_logs() as logs:
        house.outbox.tick()
        await house.outbox.settle()
    assert [entry["event"] for entry in logs].count("minter-never-told") == 2
    assert len(house.outbox) == 0
    assert await house.store.read(records.notices) == []


async def test_when_the_state_cannot_be_written_the_run_has_ended_all_the_same_and_is_written_later(house):
    run, token = await house.open()

    async def broken(_work):
        raise ProblemError("state-unavailable")

    house.registry._store = type("Broken", (), {"write": staticmethod(broken)})()
    assert await refused(house.registry.end(run, "caller")) == "state-unavailable"
    assert run.ended == "caller"
    assert house.registry.by_digest(digest(token)) is None
    house.registry._store = house.store
    await house.registry.tick()
    assert (await house.store.read(lambda db: records.find_run(db, run.run_id))).end_reason == "caller"


# --- expiry ---


async def test_a_run_is_swept_exactly_at_its_end(house):
    run, token = await house.open()
    house.clock.advance(899)
    await house.registry.tick()
    assert run.ended is None
    house.clock.advance(1)
    await house.registry.tick()
    assert run.ended == "expired"
    assert house.registry.by_digest(digest(token)) is None
    await house.outbox.settle()
    assert house.minter.told[0] == ("revoke", run.run_id)


@pytest.mark.parametrize("jump", [86_400, -86_400])
async def test_a_wall_clock_that_jumps_ends_a_run_early_and_never_late(house, jump):
    run, _ = await house.open()
    house.clock.wall += jump
    await house.registry.tick()
    assert run.ended == ("expired" if jump > 0 else None)
    house.clock.advance(900)
    await house.registry.tick()
    assert run.ended == "expired"


# --- restart ---


async def test_a_restart_loses_no_run(house):
    run, token = await house.open()
    run.trace.record(
        "memory", "GET", "GET /v1/items", status=200, delivered=True, bytes_sent=1, bytes_back=2, milliseconds=3.0
    )
    for _ in range(3):
        await run.profiles["memory"].budget.spend()
    await house.registry.tick()
    house.clock.advance(100)
    registry = await house.restart()
    again = registry.by_digest(digest(token))
    assert again is not run
    assert (again.run_id, again.caller, again.trace_id, again.params) == (run.run_id, run.caller, "chat-7", {})
    assert again.deadline.remaining(house.clock) == 800
    assert again.trace.kept.total == 1
    assert again.profiles["memory"].frozen == run.profiles["memory"].frozen
    # What was left of a block is forfeited: 256 less one block of 32.
    assert again.profiles["memory"].budget.left == 224
    assert again.profiles["memory"].lease is not None


async def test_a_budget_is_no_larger_after_any_number_of_restarts(house):
    grants = current(memory=profile(max_calls=70))
    await house.registry.regrant(grants)
    _, token = await house.open()
    for _ in range(3):
        registry = await house.restart(grants)
        await registry.by_digest(digest(token)).profiles["memory"].budget.spend()
    registry = await house.restart(grants)
    budget = registry.by_digest(digest(token)).profiles["memory"].budget
    assert budget.left == 0
    assert await refused(budget.spend()) == "budget-exhausted"


async def test_a_run_that_expired_while_the_broker_was_down_is_ended_by_its_start(house):
    run, token = await house.open()
    house.stop()
    house.clock.advance(900)
    await house.start()
    assert house.registry.by_digest(digest(token)) is None
    await house.outbox.settle()
    assert [told[:2] for told in house.minter.told] == [("revoke", run.run_id), ("record", run.run_id)]


async def test_after_a_reboot_a_run_goes_on_by_the_wall_clock(house):
    _, token = await house.open()
    house.stop()
    house.clock.wall += 300
    house.clock.boot, house.clock.boot_name = 5.0, "boot-2"
    await house.start()
    run = house.registry.by_digest(digest(token))
    assert run.deadline.remaining(house.clock) == 600
    house.clock.wall -= 86_400
    house.clock.boot += 600
    assert run.deadline.ended(house.clock)


async def test_a_clock_set_back_across_a_reboot_brings_no_run_to_life(house):
    _, token = await house.open()
    house.clock.advance(890)
    await house.registry.tick()
    house.stop()
    house.clock.wall -= 5000
    house.clock.boot, house.clock.boot_name = 5.0, "boot-2"
    await house.start()
    run = house.registry.by_digest(digest(token))
    assert run.deadline.remaining(house.clock) == pytest.approx(10)


async def test_a_stored_grant_that_is_not_understood_any_more_ends_its_run(house, tmp_path):
    await house.open()
    house.stop()
    database = sqlite3.connect(tmp_path / "state/broker.db")
    database.execute("UPDATE grants SET source = ?", (b'{"from": "another version"}',))
    database.commit()
    database.close()
    await house.start(current(memory=profile(allow=["GET /v1/items"])))
    assert house.registry.live() == []


async def test_ended_runs_are_kept_for_a_day(house):
    run, _ = await house.open()
    await house.registry.end(run, "caller")
    await house.outbox.settle()
    house.clock.advance(86_399)
    await house.registry.tick()
    assert await house.store.read(lambda db: records.find_run(db, run.run_id)) is not None
    house.clock.advance(3601)
    await house.registry.tick()
    assert await house.store.read(lambda db: records.find_run(db, run.run_id)) is None


async def test_a_trace_that_could_not_be_written_is_written_later(house):
    run, token = await house.open()
    run.trace.denied("route-not-granted")

    async def broken(_work):
        raise ProblemError("state-unavailable")

    house.registry._store = type("Broken", (), {"write": staticmethod(broken)})()
    await house.registry.tick()
    house.registry._store = house.store
    await house.registry.tick()
    await house.restart()
    assert house.registry.by_digest(digest(token)).trace.kept.denied == 1


async def test_traces_are_written_only_when_they_changed_and_the_wall_clock_once_a_minute(house):
    writes = []
    write = house.store.write

    async def counted(work):
        writes.append(work)
        return await write(work)

    house.store.write = counted
    run, _ = await house.open()
    await house.registry.tick()
    writes.clear()
    await house.registry.tick()
    assert writes == []
    run.trace.denied("route-not-granted")
    await house.registry.tick()
    assert len(writes) == 1
    house.clock.advance(60)
    await house.registry.tick()
    assert len(writes) == 2
