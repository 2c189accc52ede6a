"""Coroutines that are run at once as far as they get, and become a task only where they have to wait.

Most calls have everything at hand, and a task costs a call a tenth of its time. (``asyncio.eager_task_factory`` is
the same, from Python 3.12 on.)
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any


class _Rest:
    """What is left of a coroutine that has begun and waits for ``waited``."""

    __slots__ = ("_coroutine", "_waited")

    def __init__(self, coroutine: Coroutine[Any, Any, None], waited: Any) -> None:
        self._coroutine = coroutine
        self._waited = waited

    def __await__(self) -> Generator[Any, Any, None]:
        coroutine, waited = self._coroutine, self._waited
        try:
            while True:
                try:
                    sent = yield waited
                except BaseException as error:  # noqa: BLE001 - whatever it is, it is the coroutine's
                    waited = coroutine.throw(error)
                else:
                    waited = coroutine.send(sent)
        except StopIteration:
            return


def begin(coroutine: Coroutine[Any, Any, None]) -> Awaitable[None] | None:
    """Run ``coroutine`` until it waits, and return what is left of it, to be awaited in a task; None: it is done.

    Until then there is no current task: what needs one, such as ``asyncio.timeout``, has to be given its own.
    Errors: whatever the coroutine raises before it waits.
    """
    try:
        waited = coroutine.send(None)
    except StopIteration:
        return None
    return _Rest(coroutine, waited)


def cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task that awaits what :func:`begin` left.

    One that has not had its first turn yet has it before: a coroutine that never began does not see the cancellation,
    and what it has begun for the task would not be undone.
    """
    if inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_CREATED:  # type: ignore[arg-type]
        asyncio.get_running_loop().call_soon(task.cancel)
    else:
        task.cancel()
