"""Grants that change while runs are open: a run only ever gets narrower."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from broker.call import Call
from broker.views import oneself, routes
from config.problems import ProblemError
from config.target import split_target
from tests.broker.house import House, current, profile


@pytest.fixture
async def house(tmp_path):
    made = await House(f"sqlite:{tmp_path}/state/broker.db").start()
    yield made
    await made.outbox.settle()
    made.stop()


async def opened(house, **changes):
    await house.registry.regrant(current(memory=profile(**changes)))
    run, _ = await house.open(params={"customer": "acme"} if "params" in changes else {})
    return run


def calling(run, method, target):
    """An open call of the run, which waits for its API until it is cut."""
    granted = run.profiles["memory"]
    call = Call(None, run, granted, SimpleNamespace(method=method, length=0))
    call.target, call.credential = split_target(target), True
    call.waiting = asyncio.create_task(asyncio.Event().wait())
    run.open_calls.add(call)
    call.waiting.add_done_callback(lambda _task: run.open_calls.discard(call))
    return call


def allows(run, method, target):
    granted = run.profiles["memory"]
    if granted.current is None:
        return False
    try:
        for matcher in (granted.frozen_matcher, granted.current[1]):
            matcher.match(method, split_target(target), granted.params)
    except ProblemError:
        return False
    return True


async def test_a_route_that_is_taken_away_is_gone_and_its_open_calls_are_cut(house):
    run = await opened(house)
    cut, kept = calling(run, "GET", b"/v1/items/7"), calling(run, "GET", b"/v1/items")
    await house.registry.regrant(current(memory=profile(allow=["GET /v1/items"])))
    assert (cut.cut_by, kept.cut_by) == ("route-not-granted", "")
    assert not allows(run, "GET", b"/v1/items/7")
    assert allows(run, "GET", b"/v1/items")
    assert routes(run.profiles["memory"]) == ["GET /v1/items"]
    assert run.ended is None
    kept.cut("run-token-invalid")


async def test_an_open_call_does_not_keep_a_credential_that_its_route_has_lost(house):
    run = await opened(house)
    cut, kept = calling(run, "GET", b"/v1/items"), calling(run, "GET", b"/v1/items")
    kept.credential = False
    await house.registry.regrant(current(memory=profile(allow=[{"route": "GET /v1/items", "credential": False}])))
    assert (cut.cut_by, kept.cut_by) == ("route-not-granted", "")


async def test_open_calls_are_cut_when_private_addresses_are_refused_from_now_on(house):
    run = await opened(house, private_addresses=True)
    call = calling(run, "GET", b"/v1/items")
    await house.registry.regrant(current(memory=profile(private_addresses=True, max_calls=7)))
    assert call.cut_by == ""
    await house.registry.regrant(current(memory=profile()))
    assert call.cut_by == "upstream-address-refused"


@pytest.mark.parametrize("scrub", ["mask", "refuse"])
async def test_open_calls_whose_answer_is_not_scrubbed_are_cut_when_it_must_be_from_now_on(house, scrub):
    run = await opened(house, scrub="off")
    call, bare = calling(run, "GET", b"/v1/items"), calling(run, "GET", b"/v1/items")
    bare.credential = False
    await house.registry.regrant(current(memory=profile(scrub="off", max_calls=7)))
    assert call.cut_by == ""
    await house.registry.regrant(current(memory=profile(scrub=scrub)))
    assert (call.cut_by, bare.cut_by) == ("profile-not-granted", "")
    later = calling(run, "GET", b"/v1/items")
    await house.registry.regrant(current(memory=profile(scrub="off")))
    assert later.cut_by == ""


async def test_a_route_that_is_added_is_for_later_runs_only(house):
    run = await opened(house, allow=["GET /v1/items"])
    await house.registry.regrant(current(memory=profile(allow=["GET /v1/items", "GET /v1/more"])))
    assert not allows(run, "GET", b"/v1/more")
    assert routes(run.profiles["memory"]) == ["GET /v1/items"]
    later, _ = await house.open()
    assert allows(later, "GET", b"/v1/more")


@pytest.mark.parametrize(
    "changes",
    [
        {"base_url": "https://elsewhere.example.com"},
        {"token": {"type": "static", "key": "another"}},
        {"placement": {"scheme": "token"}},
    ],
    ids=["origin", "token", "placement"],
)
async def test_a_change_of_where_or_with_what_is_called_ends_the_run(house, changes):
    run = await opened(house)
    call = calling(run, "GET", b"/v1/items")
    await house.registry.regrant(current(memory=profile(**changes)))
    assert run.ended == "grant-changed"
    assert call.cut_by == "run-token-invalid"
    assert house.registry.live() == []
    await house.outbox.settle()
    assert house.minter.told[0] == ("revoke", run.run_id)


async def test_such_a_change_while_the_broker_was_down_ends_the_run_at_its_start(house):
    await opened(house)
    registry = await house.restart(current(memory=profile(placement={"scheme": "token"})))
    assert registry.live() == []


async def test_a_change_in_one_profile_ends_the_whole_run(house):
    await house.registry.regrant(current(a=profile(), b=profile()))
    run, _ = await house.open("a", "b")
    await house.registry.regrant(current(a=profile(), b=profile(base_url="https://elsewhere.example.com")))
    assert run.ended == "grant-changed"


@pytest.mark.parametrize(
    "now",
    [
        current(other=profile()),
        current(memory=profile(allowed_callers=["somebody"])),
        current(memory=profile(allow=["GET /v1/{customer}"], params={"customer": "[0-9]+"})),
        current(memory=profile(allow=["GET /v1/{customer}/{team}"], params={"customer": "[a-z]+", "team": "[a-z]+"})),
    ],
    ids=["profile gone", "caller not allowed", "parameter does not fit", "parameter missing"],
)
async def test_a_profile_that_the_run_could_not_be_opened_with_any_more_makes_no_call(house, now):
    run = await opened(house, allow=["GET /v1/{customer}"], params={"customer": "[a-z]+"})
    call = calling(run, "GET", b"/v1/acme")
    await house.registry.regrant(now)
    assert run.profiles["memory"].current is None
    assert call.cut_by == "profile-not-granted"
    assert routes(run.profiles["memory"]) == []
    assert oneself(run, house.clock, "")["profiles"]["memory"]["granted"] is False


async def test_of_every_limit_the_smaller_one_holds(house):
    run = await opened(house, max_calls=100, max_concurrent=8, max_request=1000)
    granted = run.profiles["memory"]
    for _ in range(10):
        await granted.budget.spend()
    await house.registry.regrant(current(memory=profile(max_calls=12, max_concurrent=20, max_request=500)))
    assert (granted.max_calls, granted.max_concurrent, granted.max_request) == (12, 8, 500)
    await granted.budget.spend()
    await granted.budget.spend()
    with pytest.raises(ProblemError):
        await granted.budget.spend()
    await house.registry.regrant(current(memory=profile(max_calls=1000)))
    assert granted.max_calls == 100


async def test_a_shorter_ceiling_brings_the_end_of_open_runs_forward_durably(house):
    run = await opened(house, ttl="1h", max_ttl="2h")
    house.clock.advance(600)
    shorter = current(memory=profile(ttl="15m", max_ttl="30m"))
    await house.registry.regrant(shorter)
    assert run.deadline.remaining(house.clock) == 1200
    await house.restart(current(memory=profile(ttl="1h", max_ttl="2h")))
    (again,) = house.registry.live()
    assert again.deadline.remaining(house.clock) == 1200
    await house.registry.extend(again, 86_400)
    assert again.deadline.remaining(house.clock) == 6600


async def test_a_shorter_ceiling_holds_for_a_run_that_is_restored(house):
    await opened(house, ttl="1h", max_ttl="2h")
    house.clock.advance(600)
    await house.restart(current(memory=profile(ttl="15m", max_ttl="30m")))
    (again,) = house.registry.live()
    assert again.deadline.remaining(house.clock) == 1200


async def test_a_restored_run_keeps_to_the_grant_it_was_opened_with(house):
    run = await opened(house, allow=["GET /v1/items"])
    await house.restart(current(memory=profile(allow=["GET /v1/items", "GET /v1/more"])))
    (again,) = house.registry.live()
    assert again.run_id == run.run_id
    assert again.profiles["memory"].frozen.digest == run.profiles["memory"].frozen.digest
    assert not allows(again, "GET", b"/v1/more")
    assert allows(again, "GET", b"/v1/items")
