"""One lease for a run and profile: fetched once, used to its margin, dropped when it ends, never used after."""

from __future__ import annotations

import asyncio
import gc

import pytest

from broker.heads import Dressed
from config.contract import WATCH_STALE_S
from config.problems import ProblemError
from tests.broker.calling import KEY, World, eventually, profile, world


@pytest.fixture
async def w(tmp_path):
    async with world(tmp_path, max_concurrent=200) as made:
        await made.watch()
        yield made


async def test_a_hundred_first_calls_are_one_request_to_the_minter_41(w: World):
    w.minter.hold = asyncio.Event()
    calls = [asyncio.create_task(w.call("GET", "/v1/items")) for _ in range(100)]
    await eventually(lambda: len(w.open_calls) == 100)
    w.minter.hold.set()
    assert {(await call).status for call in calls} == {200}
    assert len(w.minter.asked) == 1
    assert len(w.api.requests) == 100


async def test_a_hundred_calls_at_the_moment_of_expiry_are_one_request_too_41(w: World):
    assert (await w.call("GET", "/v1/items")).status == 200
    w.run.deadline = type(w.run.deadline).after(w.clock, 9000)
    w.clock.advance(900)
    w.minter.beat()
    await eventually(lambda: w.leases.watching)
    w.minter.leases.clear()
    calls = [asyncio.create_task(w.call("GET", "/v1/items")) for _ in range(100)]
    assert {(await call).status for call in calls} == {200}
    assert len(w.minter.asked) == 2


async def test_a_waiter_that_gives_up_does_not_take_the_others_along(w: World):
    w.minter.hold = asyncio.Event()
    first = await w.connect()
    await first.send(w.request("GET", "/v1/items"))
    await eventually(lambda: len(w.minter.asked) == 1)
    second = asyncio.create_task(w.call("GET", "/v1/items"))
    await eventually(lambda: len(w.open_calls) == 2)
    w.clock.advance(0.3)
    w.open_calls.sweep()
    first.writer.close()
    await eventually(lambda: len(w.open_calls) == 1)
    w.minter.hold.set()
    assert (await second).status == 200
    assert len(w.minter.asked) == 1


async def test_a_lease_is_used_again_until_its_margin(w: World):
    w.run.deadline = type(w.run.deadline).after(w.clock, 9000)
    await w.call("GET", "/v1/items")
    for seconds, asked in ((869, 1), (1, 2)):  # 900 s less 30 s
        w.clock.advance(seconds)
        w.minter.beat()
        await eventually(lambda: w.leases.watching)
        assert (await w.call("GET", "/v1/items")).status == 200
        assert len(w.minter.asked) == asked


async def test_a_short_lease_has_a_short_margin(w: World):
    w.minter.ttl_s = 10
    await w.call("GET", "/v1/items")
    lease = w.run.profiles["api"].lease.lease
    assert lease is not None
    assert lease.ends.expires_at - lease.use_until.expires_at == pytest.approx(1)


@pytest.mark.parametrize("jump", ["wall", "boot"])
async def test_either_clock_ends_the_use_of_a_lease(w: World, jump):
    w.run.deadline = type(w.run.deadline).after(w.clock, 900_000)
    await w.call("GET", "/v1/items")
    setattr(w.clock, jump, getattr(w.clock, jump) + 86_400)
    w.minter.beat()
    await eventually(lambda: w.leases.watching)
    await w.call("GET", "/v1/items")
    assert len(w.minter.asked) == 2


async def test_a_wall_clock_that_jumps_back_does_not_lengthen_a_lease(w: World):
    w.run.deadline = type(w.run.deadline).after(w.clock, 900_000)
    await w.call("GET", "/v1/items")
    w.clock.wall -= 86_400
    w.clock.advance(900)
    w.minter.beat()
    await eventually(lambda: w.leases.watching)
    await w.call("GET", "/v1/items")
    assert len(w.minter.asked) == 2


async def test_a_revoked_lease_stops_the_next_call_and_cuts_an_open_answer(w: World):
    stuck = asyncio.Event()

    async def stall(_request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe\n")
        await stuck.wait()

    w.api.answer = stall
    code = await w.connect()
    await code.send(w.request("GET", "/v1/items"))
    assert (await code.head()).status == 200
    w.minter.refuse = ProblemError("run-over")
    [lease_id] = w.minter.leases.values()
    w.minter.end(lease_id)
    assert await code.rest() == b"he\n"
    await w.api.until(lambda api: api.gone == 1)
    reply = await w.call("GET", "/v1/items")
    assert (reply.status, reply.code) == (503, "lease-refused")
    assert len(w.api.requests) == 1


@pytest.mark.parametrize("ended_by", ["the minter", "the end of the run"])
async def test_nothing_that_was_prepared_with_a_credential_outlives_its_lease(w: World, ended_by):
    def with_a_credential() -> list[Dressed]:
        gc.collect()
        return [one for one in gc.get_objects() if isinstance(one, Dressed) and one.needles is not None]

    before = len(with_a_credential())
    code = await w.connect()
    for _ in range(2):
        await code.send(w.request("GET", "/v1/items"))
        assert (await code.reply()).status == 200
    assert len(with_a_credential()) == before + 1
    if ended_by == "the minter":
        w.minter.end(*w.minter.leases.values())
    else:
        w.run.end("by-caller")
    await eventually(lambda: w.run.profiles["api"].lease.lease is None)
    assert len(with_a_credential()) == before


async def test_an_ended_lease_of_another_run_changes_nothing(w: World):
    await w.call("GET", "/v1/items")
    w.minter.end("lse_of-somebody-else")
    await eventually(lambda: w.leases.has_ended("lse_of-somebody-else"))
    assert (await w.call("GET", "/v1/items")).status == 200
    assert len(w.minter.asked) == 1


async def test_a_reply_that_the_stream_overtook_is_not_used(w: World):
    """Race: the lease is revoked while the reply that hands it out is on its way."""
    w.minter.hold = asyncio.Event()
    call = asyncio.create_task(w.call("GET", "/v1/items"))
    await eventually(lambda: len(w.minter.asked) == 1)
    w.leases.end("lse_" + "1".rjust(22, "0"))
    w.minter.hold.set()
    assert (await call).code == "mint-failed"
    assert w.api.raw == []


async def test_while_the_stream_is_silent_a_lease_is_revalidated_before_use(w: World):
    await w.call("GET", "/v1/items")
    w.clock.advance(WATCH_STALE_S - 0.1)
    await w.call("GET", "/v1/items")
    assert len(w.minter.asked) == 1
    w.clock.advance(0.1)
    assert (await w.call("GET", "/v1/items")).status == 200
    assert len(w.minter.asked) == 2
    w.minter.refuse = ProblemError("lease-conflict")
    assert (await w.call("GET", "/v1/items")).code == "lease-refused"
    assert len(w.api.requests) == 3


async def test_after_the_stream_was_away_a_lease_is_revalidated_once(w: World):
    await w.call("GET", "/v1/items")
    before = w.leases.stream
    w.minter.hang_up()
    await eventually(lambda: w.leases.stream == before + 1)
    for _ in range(3):
        assert (await w.call("GET", "/v1/items")).status == 200
    assert len(w.minter.asked) == 2


async def test_a_lease_that_was_replaced_while_the_stream_was_away_cuts_what_was_open_on_it(w: World):
    stuck = asyncio.Event()

    async def stall(_request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe\n")
        await stuck.wait()

    w.api.answer = stall
    code = await w.connect()
    await code.send(w.request("GET", "/v1/items"))
    assert (await code.head()).status == 200
    w.clock.advance(WATCH_STALE_S)
    w.minter.leases.clear()
    other = await w.connect()
    await other.send(w.request("GET", "/v1/items"))
    assert await code.rest() == b"he\n"


async def test_a_minter_that_is_down_is_503_and_the_call_works_again_when_it_is_back(tmp_path):
    async with world(tmp_path) as w:
        transport = w.leases.link._transport
        path, transport._path = transport._path, str(tmp_path / "nobody")
        reply = await w.call("GET", "/v1/items")
        assert (reply.status, reply.code, reply.header("retry-after")) == (503, "minter-unavailable", "1")
        assert w.api.raw == []
        await transport.close()
        transport._path = path
        assert (await w.call("GET", "/v1/items")).status == 200


async def test_what_is_left_of_a_lease_may_be_used_while_the_minter_fails(w: World):
    """Inside the margin, with the stream alive, the credential is still good; at its end it is not."""
    w.run.deadline = type(w.run.deadline).after(w.clock, 9000)
    await w.call("GET", "/v1/items")
    w.minter.refuse = ProblemError("issuer-failed")
    for seconds, status in ((880, 200), (19, 200), (1, 503)):
        w.clock.advance(seconds)
        w.minter.beat()
        await eventually(lambda: w.leases.watching)
        assert (await w.call("GET", "/v1/items")).status == status


async def test_two_profiles_of_a_run_have_a_lease_each(w: World):
    token = w.open_run({"api": profile(w.api.url), "second": profile(w.api.url)})
    for name in ("api", "second", "api", "second"):
        headers = {"Authorization": f"Bearer {token}"}
        assert (await w.call("GET", "/v1/items", headers, profile=name, token=False)).status == 200
    assert [request.profile for request in w.minter.asked] == ["api", "second"]


async def test_params_go_to_the_minter_only_for_the_profile_that_declares_them(w: World):
    allow = ["GET /v1/{customer}/items"]
    declared = profile(w.api.url, params={"customer": "[a-z]+"}, allow=allow)
    token = w.open_run({"api": declared, "second": profile(w.api.url)}, params={"customer": "acme"})
    headers = {"Authorization": f"Bearer {token}"}
    assert (await w.call("GET", "/v1/acme/items", headers, token=False)).status == 200
    assert (await w.call("GET", "/v1/other/items", headers, token=False)).status == 403
    await w.call("GET", "/v1/items", headers, profile="second", token=False)
    assert [request.params for request in w.minter.asked] == [{"customer": "acme"}, {}]


async def test_the_end_of_a_run_forgets_the_credential(w: World):
    await w.call("GET", "/v1/items")
    slot = w.run.profiles["api"].lease
    w.run.end("by-caller")
    assert slot.lease is None
    with pytest.raises(ProblemError, match="run-token-invalid"):
        await slot.obtain(w.clock)
    assert len(w.minter.asked) == 1


async def test_a_lease_that_arrives_after_the_runs_end_is_not_kept(w: World):
    w.minter.hold = asyncio.Event()
    call = asyncio.create_task(w.call("GET", "/v1/items"))
    await eventually(lambda: len(w.minter.asked) == 1)
    w.run.end("by-caller")
    assert (await call).code == "run-token-invalid"
    w.minter.hold.set()
    slot = w.run.profiles["api"].lease
    await eventually(lambda: slot._fetching is None)
    assert slot.lease is None


async def test_no_text_of_a_lease_shows_the_credential(w: World):
    await w.call("GET", "/v1/items")
    lease = w.run.profiles["api"].lease.lease
    for shown in (repr(lease), str(lease), f"{lease}", repr(w.run), repr(w.leases.link)):
        assert KEY not in shown
        assert "mbk_" not in shown
