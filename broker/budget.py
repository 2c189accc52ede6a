"""How many calls a run may still make with one profile.

Calls are reserved durably in blocks and spent in memory: a crash forfeits what a block had left and never widens.
A block is 32 calls, or a 64th of the limit or an eighth of what the run has spent where that is more: writing to the
disk then costs a run of thousands of calls next to nothing, and a crash forfeits little more than an eighth of what
was used. The next block is reserved while half of the last is left, so that no call waits for the disk; where one had
to all the same, blocks grow, up to an eighth of the limit.
An attempt that is denied spends too, so that the code cannot search for granted routes for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from config.problems import ProblemError

#: How many calls are reserved at once, at least; and which part of the limit, at least.
BLOCK: Final = 32
_PART: Final = 64
#: How much larger a block becomes when the last one was used up before the next was reserved; and at least how many
#: there are then for each call that waits.
_GROWTH: Final = 4
_FOR_EACH_WAITING: Final = 8

#: Reserves up to so many calls durably and returns how many it got: fewer, or none, at the end of the budget.
Reserve = Callable[[int], Awaitable[int]]


class Budget:
    """The budget of one profile in one run.

    ``reserve`` writes to the store. ``in_hand`` are calls that were reserved but not spent yet.
    """

    __slots__ = (
        "_block",
        "_exhausted",
        "_fetching",
        "_forfeited",
        "_low",
        "_outrun",
        "_raised",
        "_reserve",
        "_waiting",
        "in_hand",
        "limit",
        "spent",
    )

    def __init__(self, limit: int, reserve: Reserve, *, spent: int = 0) -> None:
        """Take what ``limit`` allows and, after a restart, what was ``spent`` or forfeited before."""
        self.limit = limit
        self.in_hand = 0
        self.spent = spent
        self._reserve = reserve
        self._exhausted = False
        #: How often the limit rose: what the state said before does not count then.
        self._raised = 0
        self._block = max(BLOCK, limit // _PART)
        self._outrun = False
        self._waiting = 0
        #: How many calls were reserved and can never be made.
        self._forfeited = 0
        #: With so many in hand the next block is reserved; and the task that does it.
        self._low = 0
        self._fetching: asyncio.Task[None] | None = None

    @property
    def left(self) -> int:
        """How many calls can still be made."""
        return self.in_hand if self._exhausted else max(self.in_hand, self.limit - self.spent - self._forfeited)

    def change(self, limit: int) -> None:
        """Go by another limit. What is in hand beyond it is forfeited; when it rises, the state is asked again."""
        if limit > self.limit:
            self._exhausted = False
            self._raised += 1
        self.limit = limit
        self._keep(self.in_hand)

    def _keep(self, in_hand: int) -> None:
        """Have so many calls in hand, or as many as the limit leaves: what is beyond it is reserved for nobody."""
        self.in_hand = max(0, min(in_hand, self.limit - self.spent))
        self._forfeited += in_hand - self.in_hand

    def spend_in_hand(self) -> bool:
        """Take one call from what is in hand; say whether there was one."""
        if not self.in_hand:
            return False
        self.in_hand -= 1
        self.spent += 1
        if self.in_hand == self._low and not self._exhausted:
            self._fetch()
        return True

    async def spend(self) -> None:
        """Take one call from the budget.

        Errors: ``ProblemError("budget-exhausted")``; whatever ``reserve`` raises when the state cannot be written.
        """
        while not self.spend_in_hand():
            if self._exhausted:
                raise ProblemError("budget-exhausted", max_calls=self.limit)
            self._outrun = self.spent > 0
            self._waiting += 1
            try:
                # A block is everybody's: a call that is given up here leaves it to the others.
                await asyncio.shield(self._fetch())
            finally:
                self._waiting -= 1

    def _fetch(self) -> asyncio.Task[None]:
        """Return the reservation of the next block: the one that is under way, if one is."""
        # One that is done and has not said so yet is not under way any more: who awaited it would not wait.
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_block())
            self._fetching.add_done_callback(self._fetched)
        return self._fetching

    def _fetched(self, task: asyncio.Task[None]) -> None:
        if self._fetching is task:
            self._fetching = None
        if not task.cancelled():
            task.exception()  # nobody may wait for it: what fails then fails again for the call that needs it

    async def _fetch_block(self) -> None:
        if self._outrun:
            # Calls come faster than the disk: they need not wait as often.
            self._outrun = False
            grown = max(self._block * _GROWTH, self._waiting * _FOR_EACH_WAITING)
            self._block = min(grown, max(BLOCK, self.limit // 8))
        raised = self._raised
        granted = await self._reserve(max(self._block, self.spent // 8))
        if granted <= 0:
            self._exhausted = self._raised == raised
        else:
            self._keep(self.in_hand + granted)  # the limit may have fallen meanwhile
            self._low = granted // 2
