"""Coroutines that begin at once, and what becomes of one that is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from broker.eager import begin, cancel


async def test_what_need_not_wait_is_done_without_a_task():
    done = []

    async def quick() -> None:
        done.append(asyncio.current_task())

    assert begin(quick()) is None
    assert len(done) == 1


@pytest.mark.parametrize("turns", [0, 1, 5])
async def test_what_waits_sees_its_cancellation_whenever_it_comes(turns):
    """Also before its task had its first turn, and then what it waits for is cancelled with it."""
    seen = []
    waited = asyncio.get_running_loop().create_future()

    async def story() -> None:
        try:
            await waited
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    rest = begin(story())
    assert rest is not None

    async def go_on() -> None:
        await rest

    task = asyncio.create_task(go_on())
    for _ in range(turns):
        await asyncio.sleep(0)
    cancel(task)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]
    assert waited.cancelled()
