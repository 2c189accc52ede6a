"""Budget, breaker and trace by themselves, and the breaker on the wire."""

from __future__ import annotations

import asyncio
import json

import pytest

from broker import call as call_module
from broker.breaker import Breaker
from broker.budget import BLOCK, Budget
from broker.trace import MAX_ROWS, Trace
from config.clock import FakeClock
from config.grants import compile_profile
from config.match import Matcher
from config.problems import ProblemError
from tests.broker.calling import KEY, World, profile, world

# --- budget ---


def budget(limit: int) -> tuple[Budget, list[int]]:
    asked: list[int] = []
    left = limit

    async def reserve(wanted: int) -> int:
        nonlocal left
        asked.append(wanted)
        await asyncio.sleep(0)
        granted = min(wanted, left)
        left -= granted
        return granted

    return Budget(limit, reserve), asked


async def test_a_budget_gives_exactly_its_limit_however_many_ask_at_once():
    one, asked = budget(100)
    results = await asyncio.gather(*(one.spend() for _ in range(150)), return_exceptions=True)
    assert sum(result is None for result in results) == 100
    assert {result.code for result in results if isinstance(result, ProblemError)} == {"budget-exhausted"}
    assert asked == [BLOCK] * 5
    assert (one.spent, one.left, one.in_hand) == (100, 0, 0)


async def test_a_block_is_32_calls_and_grows_with_what_was_spent():
    asked: list[tuple[int, int]] = []

    async def reserve(wanted: int) -> int:
        asked.append((wanted, one.spent))
        return wanted

    one = Budget(100_000, reserve)
    for _ in range(40_000):
        await one.spend()
        await asyncio.sleep(0)
    smallest = 100_000 // 64
    assert [wanted for wanted, _ in asked] == [max(smallest, spent // 8) for _, spent in asked]
    assert asked[-1][0] > 4_096
    reserved = sum(wanted for wanted, _ in asked)
    assert reserved - one.spent == one.in_hand <= one.spent // 8 + one.spent // 16


async def test_a_run_of_256_calls_has_blocks_of_32():
    one, asked = budget(256)
    for _ in range(256):
        await one.spend()
        await asyncio.sleep(0)
    assert asked == [BLOCK] * 9, "the last one finds nothing left"


@pytest.mark.parametrize(("limit", "first"), [(256, BLOCK), (2_048, BLOCK), (100_000, 1_562)])
async def test_the_first_block_is_32_calls_or_a_64th_of_the_limit(limit, first):
    one, asked = budget(limit)
    await one.spend()
    assert asked == [first]


async def test_the_next_block_is_reserved_before_a_call_needs_it():
    one, _ = budget(10_000)
    await one.spend()
    for _ in range(1_000):
        assert one.spend_in_hand(), "no call waits for the disk"
        await asyncio.sleep(0)
    assert one.spent == 1_001


@pytest.mark.parametrize(("limit", "largest"), [(256, BLOCK), (2_560, 320)])
async def test_blocks_grow_when_calls_come_faster_than_the_disk_but_not_beyond_an_eighth_of_the_limit(limit, largest):
    one, asked = budget(limit)
    for _ in range(limit):
        await one.spend()  # nothing is reserved meanwhile: the loop does not turn
    assert max(asked) == largest
    assert (one.spent, sum(asked)) == (limit, limit if largest == BLOCK else sum(asked))
    with pytest.raises(ProblemError, match="budget-exhausted"):
        await one.spend()


async def test_a_call_that_is_given_up_while_a_block_is_reserved_loses_the_others_none_of_it():
    written = asyncio.Event()
    left = 256

    async def reserve(wanted: int) -> int:
        nonlocal left
        granted = min(wanted, left)
        left -= granted
        await written.wait()
        return granted

    one = Budget(256, reserve)
    given_up = [asyncio.create_task(one.spend()) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in given_up:
        task.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)
    written.set()
    for _ in range(256):
        await one.spend()
    with pytest.raises(ProblemError, match="budget-exhausted"):
        await one.spend()
    assert (one.spent, left) == (256, 0)


async def test_a_state_that_fails_ahead_of_need_fails_nobody_until_it_is_needed():
    broken = False

    async def reserve(wanted: int) -> int:
        if broken:
            raise ProblemError("state-unavailable")
        return wanted

    one = Budget(1_000, reserve)
    await one.spend()
    broken = True
    for _ in range(BLOCK - 1):
        await one.spend()
        await asyncio.sleep(0)
    with pytest.raises(ProblemError, match="state-unavailable"):
        await one.spend()
    broken = False
    await one.spend()
    assert one.spent == BLOCK + 1


async def test_an_exhausted_budget_asks_no_more():
    one, asked = budget(0)
    for _ in range(3):
        with pytest.raises(ProblemError, match="budget-exhausted"):
            await one.spend()
    assert asked == [BLOCK]


async def test_a_limit_that_falls_while_a_block_is_reserved_holds_for_that_block():
    async def reserve(wanted: int) -> int:
        one.limit = 3
        return wanted

    one = Budget(100, reserve)
    for _ in range(3):
        await one.spend()
    assert (one.left, one.in_hand) == (0, 0)

    async def nothing(_wanted: int) -> int:
        return 0

    one._reserve = nothing
    with pytest.raises(ProblemError, match="budget-exhausted"):
        await one.spend()


async def test_a_budget_whose_limit_falls_and_rises_again_is_not_exhausted_any_more():
    granting = [0]

    async def reserve(wanted: int) -> int:
        return min(wanted, granting[0])

    one = Budget(100, reserve)
    one.change(0)
    with pytest.raises(ProblemError, match="budget-exhausted"):
        await one.spend()
    granting[0] = 100
    one.change(100)
    await one.spend()
    assert one.left == 99


async def test_a_limit_that_rises_while_the_state_says_that_nothing_is_left_is_asked_again():
    asked: list[int] = []

    async def reserve(wanted: int) -> int:
        asked.append(wanted)
        if len(asked) > 1:
            return wanted
        one.change(100)
        return 0

    one = Budget(0, reserve)
    await one.spend()
    assert (one.left, len(asked)) == (99, 2)


async def test_an_exhausted_budget_says_that_only_what_is_in_hand_is_left():
    granting = [32, 0]

    async def reserve(_wanted: int) -> int:
        return granting.pop(0)

    one = Budget(100, reserve)
    while granting:
        await one.spend()
        await asyncio.sleep(0)
    assert one.left == one.in_hand == 16


async def test_what_is_left_counts_no_call_that_was_reserved_and_can_never_be_made():
    async def reserve(wanted: int) -> int:
        return wanted

    one = Budget(100, reserve)
    await one.spend()
    assert (one.in_hand, one.left) == (31, 99)
    one.change(11)
    assert (one.in_hand, one.left) == (10, 10)
    one.change(100)
    assert (one.in_hand, one.left) == (10, 100 - 1 - 21)


async def test_a_reservation_that_is_over_and_has_not_said_so_is_not_waited_for():
    """A call that comes between the end of a reservation and its callback reserves anew."""
    reserved: list[int] = []

    async def reserve(wanted: int) -> int:
        reserved.append(wanted)
        if len(reserved) == 1:
            raise ProblemError("state-unavailable")
        return wanted

    one = Budget(100, reserve)
    fetching = one._fetch()
    while not fetching.done():  # noqa: ASYNC110 - the moment between its end and its callback
        await asyncio.sleep(0)
    # Its callback comes in the next turn of the loop; the state is well again by now.
    assert one._fetching is fetching
    await one.spend()
    assert one.left == 99


async def test_a_state_that_cannot_be_written_spends_nothing_and_is_tried_again():
    fail = True

    async def reserve(wanted: int) -> int:
        if fail:
            raise ProblemError("state-unavailable", retry_after=1)
        return wanted

    one = Budget(10, reserve)
    with pytest.raises(ProblemError, match="state-unavailable"):
        await one.spend()
    assert one.spent == 0
    fail = False
    await one.spend()
    assert (one.spent, one.left) == (1, 9)


async def test_what_was_spent_before_a_restart_stays_spent():
    one, _ = budget(10)
    assert Budget(10, one._reserve, spent=4).left == 6


# --- breaker ---


@pytest.mark.parametrize(
    ("retry_after", "pause"),
    [
        (b"5", 5), (b"0", 1), (None, 1), (b"", 1), (b"3600", 30), (b"99999999999999999999", 30), (b"-5", 1),
        (b"1.5", 1), (b"soon", 1), (b"\xff", 1), ("٣".encode(), 1), (b"Tue, 01 Jan 2030 00:00:10 GMT", 10),
        (b"Tue, 01 Jan 2030 00:00:00 GMT", 1), (b"Mon, 31 Dec 2029 00:00:00 GMT", 1),
        (b"Wed, 02 Jan 2030 00:00:00 GMT", 30), (b"Tue, 99 Jan 2030 00:00:00 GMT", 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", [429, 503])
def test_a_pause_is_what_the_api_asks_for_within_bounds(status, retry_after, pause):
    clock = FakeClock(wall=1_893_456_000.0)  # 2030-01-01T00:00:00Z
    breaker = Breaker(30.0)
    breaker.note(status, retry_after, clock)
    clock.advance(pause - 0.001)
    with pytest.raises(ProblemError, match="breaker-open") as error:
        breaker.check(clock)
    assert error.value.retry_after == pytest.approx(0.001)
    clock.advance(0.001)
    breaker.check(clock)


@pytest.mark.parametrize("status", [200, 400, 401, 404, 500, 502, 504])
def test_other_answers_open_nothing(status):
    clock = FakeClock()
    breaker = Breaker(30.0)
    breaker.note(status, b"10", clock)
    assert not breaker.is_open(clock)


def test_a_jump_of_the_wall_clock_does_not_move_a_pause():
    clock = FakeClock()
    breaker = Breaker(30.0)
    breaker.note(503, b"10", clock)
    clock.wall += 86_400
    assert breaker.is_open(clock)
    clock.wall -= 2 * 86_400
    clock.boot += 10
    assert not breaker.is_open(clock)


def test_a_shorter_pause_does_not_shorten_a_longer_one_and_a_429_may_not_be_probed():
    clock = FakeClock()
    breaker = Breaker(30.0)
    breaker.note(429, b"10", clock)
    breaker.note(503, b"1", clock)
    clock.advance(5)
    assert breaker.is_open(clock)
    assert not breaker.may_probe(clock)


@pytest.fixture
async def w(tmp_path):
    async with world(tmp_path) as made:
        yield made


async def test_while_the_api_wants_a_pause_calls_are_shed_without_a_word_to_anybody(w: World):
    w.api.says(b"HTTP/1.1 429 Slow\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n")
    first = await w.call("GET", "/v1/items")
    assert (first.status, first.header("retry-after")) == (429, "5")
    asked = len(w.minter.asked)
    for _ in range(3):
        reply = await w.call("POST", "/v1/items", body=b"x")
        assert (reply.status, reply.code, reply.header("retry-after")) == (503, "breaker-open", "5")
        assert reply.problem["upstream_status"] == 429
    assert (len(w.api.requests), len(w.minter.asked)) == (1, asked)
    assert (w.run.trace.kept.shed, len(w.rows), w.run.trace.kept.denied) == (3, 1, 0)
    assert w.recorder.refusals == [("api", "breaker-open")] * 3
    w.clock.advance(5)
    assert (await w.call("GET", "/v1/items")).status == 429
    assert len(w.api.requests) == 2


async def test_one_runs_pause_is_not_anothers(w: World):
    w.api.says(b"HTTP/1.1 503 Down\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n")
    await w.call("GET", "/v1/items")
    token = w.open_run({"api": profile(w.api.url)})
    reply = await w.call("GET", "/v1/items", {"Authorization": f"Bearer {token}"}, token=False)
    assert reply.header("broker-refused-by") is None
    assert reply.status == 503


async def test_a_503_is_probed_once_a_second_and_a_well_api_ends_the_pause(tmp_path):
    async with world(tmp_path, health_check="GET /healthz") as w:
        well = False

        async def answer(request, writer):
            if request.target == b"/healthz" and well:
                writer.write(b"HTTP/1.1 204 No\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 503 Down\r\nRetry-After: 20\r\nContent-Length: 0\r\n\r\n")

        w.api.answer = answer
        await w.call("GET", "/v1/items")
        assert (await w.call("GET", "/v1/items")).code == "breaker-open"
        assert [request.target for request in w.api.requests] == [b"/v1/items"]
        w.clock.advance(1)
        replies = await asyncio.gather(*(w.call("GET", "/v1/items") for _ in range(5)))
        assert {reply.code for reply in replies} == {"breaker-open"}
        assert [request.target for request in w.api.requests] == [b"/v1/items", b"/healthz"]
        assert w.api.requests[1].values(b"authorization") == [b"Bearer " + KEY.encode()]
        well = True
        w.clock.advance(1)
        w.api.says(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        assert (await w.call("GET", "/v1/items")).status == 200
        assert [request.target for request in w.api.requests[2:]] == [b"/healthz", b"/v1/items"]
        assert w.run.trace.kept.shed == 6


async def test_a_health_check_that_the_grants_do_not_name_any_more_is_not_sent(tmp_path):
    async with world(tmp_path, health_check="GET /healthz") as w:
        w.api.says(b"HTTP/1.1 503 Down\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n")
        await w.call("GET", "/v1/items")
        granted = w.run.profiles["api"]
        now = compile_profile("api", json.dumps(profile(w.api.url, health_check="GET /v1/items")).encode())
        granted.current = (now, Matcher(now))
        w.clock.advance(1)
        assert (await w.call("GET", "/v1/items")).code == "breaker-open"
        assert [request.target for request in w.api.requests] == [b"/v1/items"]


async def test_a_health_check_that_is_not_answered_in_time_is_no_sign_of_health(tmp_path, monkeypatch):
    monkeypatch.setattr(call_module, "_PROBE_TIMEOUT_S", 0.05)
    async with world(tmp_path, health_check="GET /healthz") as w:
        w.api.says(b"HTTP/1.1 503 Down\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n")
        await w.call("GET", "/v1/items")

        async def never(_request, _writer):
            await asyncio.Event().wait()

        w.api.answer = never
        w.clock.advance(1)
        assert (await w.call("GET", "/v1/items")).code == "breaker-open"
        assert [request.target for request in w.api.requests] == [b"/v1/items", b"/healthz"]
        await w.api.until(lambda api: api.gone == 1)
        assert w.run.trace.kept.shed == 1


async def test_a_call_that_is_cut_in_the_moment_its_health_check_is_answered_is_not_made(tmp_path):
    async with world(tmp_path, health_check="GET /healthz") as w:
        w.api.says(b"HTTP/1.1 503 Down\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n")
        await w.call("GET", "/v1/items")

        async def answer(_request, writer):
            [asking] = [task for task in asyncio.all_tasks() if task.get_coro().__qualname__ == "fetch"]
            [call] = w.run.open_calls
            asking.add_done_callback(lambda _: call.cut("route-not-granted"))
            writer.write(b"HTTP/1.1 204 No\r\n\r\n")

        w.api.answer = answer
        w.clock.advance(1)
        assert (await w.call("GET", "/v1/items")).code == "route-not-granted"
        assert [request.target for request in w.api.requests] == [b"/v1/items", b"/healthz"]


# --- trace ---


def test_rows_stop_and_counters_do_not():
    trace = Trace()
    for _ in range(MAX_ROWS + 10):
        trace.record("p", "GET", "GET /a", status=200, delivered=True, bytes_sent=0, bytes_back=1, milliseconds=1.23456)
    kept = trace.kept
    assert (len(kept.rows), kept.dropped, kept.total) == (MAX_ROWS, 10, MAX_ROWS + 10)
    assert kept.calls == {"p": {"GET /a": MAX_ROWS + 10}}
    assert kept.rows[-1].n == MAX_ROWS


def test_a_trace_comes_back_from_the_store_as_it_was():
    trace = Trace()
    trace.record("p", "GET", "GET /a", status=200, delivered=True, bytes_sent=1, bytes_back=2, milliseconds=3.0)
    trace.denied("route-not-granted", "DELETE /a")
    trace.shed()
    assert trace.dirty
    again = Trace.load(trace.dump())
    assert not trace.dirty
    assert again.snapshot() == trace.snapshot()
    again.record("p", "GET", "GET /a", status=200, delivered=True, bytes_sent=1, bytes_back=2, milliseconds=3.0)
    assert [row.n for row in again.kept.rows] == [1, 2]
