"""A budget gives exactly what the state gave it, whoever asks at once, gives up, or finds the state broken."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.budget import Budget
from config.problems import ProblemError


class State:
    """Reserves when the test lets it, once for all that wait, and fails when the test says so."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.given = 0
        self.broken = False
        self.writing: list[asyncio.Future[None]] = []

    async def reserve(self, wanted: int) -> int:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writing.append(written)
        await written
        if self.broken:
            raise ProblemError("state-unavailable")
        granted = max(0, min(wanted, self.limit - self.given))
        self.given += granted
        return granted

    def write(self) -> None:
        while self.writing:
            written = self.writing.pop()
            if not written.done():
                written.set_result(None)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("spend"), st.integers(1, 80)),
        st.tuples(st.just("give up"), st.integers(0, 200)),
        st.tuples(st.just("write"), st.just(0)),
        st.tuples(st.just("turn"), st.integers(1, 3)),
        st.tuples(st.just("break"), st.just(0)),
        st.tuples(st.just("heal"), st.just(0)),
        st.tuples(st.just("change"), st.sampled_from([0, 1, 30, 64, 100])),
    ),
    max_size=60,
)


@given(limit=st.sampled_from([1, 2, 31, 32, 33, 63, 64, 65, 256, 2_049]), actions=ACTIONS)
@settings(max_examples=300, deadline=None)
def test_no_more_calls_than_the_limit_and_none_is_lost(limit, actions):
    asyncio.run(asyncio.wait_for(_play(limit, actions), 20))


async def _play(limit: int, actions: list[tuple[str, int]]) -> None:
    state = State(limit)
    one = Budget(limit, state.reserve)
    calls: list[asyncio.Task[None]] = []
    for action, number in actions:
        if action == "spend":
            calls += [asyncio.create_task(one.spend()) for _ in range(number)]
        elif action == "give up" and calls:
            calls[number % len(calls)].cancel()
        elif action == "write":
            state.write()
        elif action == "turn":
            for _ in range(number):
                await asyncio.sleep(0)
        elif action in ("break", "heal"):
            state.broken = action == "break"
        elif action == "change":
            # A reload: to so many hundredths of what it was.
            state.limit = limit * number // 100
            one.change(state.limit)
            assert one.in_hand == 0 or one.spent + one.in_hand <= state.limit
        assert len(state.writing) <= 1, "one reservation at a time"
        assert one.spent + one.in_hand + one._forfeited == state.given <= limit
        assert one.in_hand <= one.left <= limit
    state.broken = False
    state.limit = limit
    one.change(limit)
    limit -= one._forfeited
    while not all(call.done() for call in calls):
        state.write()
        await asyncio.sleep(0)
    made = sum(1 for call in calls if not call.cancelled() and call.exception() is None)
    assert made <= one.spent, "a call that is given up in the moment that it is granted is spent"
    # What is left can still be spent, to the last call, and not one more.
    while one.spent < limit:
        last = asyncio.create_task(one.spend())
        while not last.done():
            state.write()
            await asyncio.sleep(0)
        last.result()
    over = asyncio.create_task(one.spend())
    while not over.done():
        state.write()
        await asyncio.sleep(0)
    assert isinstance(over.exception(), ProblemError)
    assert (one.spent, one.left, state.given) == (limit, 0, state.limit)
