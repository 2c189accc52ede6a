"""A small answer as a whole, for those who ask on the broker's own behalf."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from broker.wire.pool import Origin
from broker.wire.upstream import NO_BODY, AnswerHead, Headers
from config.problems import ProblemError


class Whole(NamedTuple):
    """An answer that is complete."""

    status: int
    headers: Headers
    body: bytes


async def fetch(origin: Origin, request: bytes, *, limit: int, within_s: float | None = None) -> Whole:
    """Send ``request``, head and body in one, and return the answer. It is sent once.

    The method is not HEAD. ``limit`` is for the answer's body, in bytes; ``within_s`` is for all of it.
    Errors: ``ProblemError``: ``upstream-unreachable``, ``upstream-address-refused``, ``upstream-broke-off``,
    ``upstream-malformed``, ``response-too-large``; ``TimeoutError``.
    """
    async with asyncio.timeout(within_s):
        connection = await origin.connect()
        gathering = _Gathering(limit)
        try:
            connection.send(gathering, request, head_only=False, body=NO_BODY)
            return await gathering.whole
        finally:
            if not gathering.over:
                connection.abandon()


class _Gathering:
    """Receives one answer into a future."""

    def __init__(self, limit: int) -> None:
        self.whole: asyncio.Future[Whole] = asyncio.get_running_loop().create_future()
        #: The connection is the pool's again, or closed.
        self.over = False
        self._left = limit
        self._limit = limit
        self._head: AnswerHead | None = None
        self._pieces: list[bytes] = []

    def answer_begins(self, answer: AnswerHead) -> None:
        self._head = answer

    def answer_piece(self, piece: bytes) -> None:
        self._left -= len(piece)
        if self._left >= 0:
            self._pieces.append(piece)
        elif not self.whole.done():
            self.whole.set_exception(ProblemError("response-too-large", limit=self._limit))

    def answer_pauses(self) -> None:
        pass

    def answer_complete(self) -> None:
        self.over = True
        if not self.whole.done() and self._head is not None:
            self.whole.set_result(Whole(self._head.status, self._head.headers, b"".join(self._pieces)))

    def answer_failed(self, problem: ProblemError, *, stale: bool) -> None:  # noqa: ARG002 - it is sent once
        self.over = True
        if not self.whole.done():
            self.whole.set_exception(problem)

    def upload_may_go_on(self, may: bool) -> None:  # noqa: FBT001 - the protocol's
        pass  # what is sent is sent in one piece
