"""Who makes a call and gets its answer, as the call sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.call import Call
    from broker.heads import Headers
    from config.problems import ProblemError


class Asking(Protocol):
    """A request on the code's connection, or one written as JSON.

    ``length`` is that of the body: 0 for none, None when only its end tells. The body is handed to the call
    (:meth:`Call.body_piece`, :meth:`Call.body_end`) once it is wanted.
    """

    method: str
    target: bytes
    headers: Headers
    length: int | None
    call: Call | None

    async def body_begun(self) -> int:
        """Wait until some of the body is here, or its end, and return how many bytes."""

    def want_body(self) -> None:
        """Hand the body on from now on."""

    def hold_body(self, *, hold: bool) -> None:
        """Stop handing the body on, or go on."""

    def begin(self, status: int, headers: Headers, length: int | None, *, bodiless: bool) -> None:
        """Take the answer's head."""

    def piece(self, piece: bytes) -> None:
        """Take a piece of its body."""

    def flush(self) -> None:
        """Let what was taken go: nothing follows it for now."""

    def take_back(self) -> bool:
        """Forget what began of the answer if nothing of it has left yet; say whether that is so."""
        ...

    def end(self) -> None:
        """Take its end."""

    def refuse(self, problem: ProblemError) -> None:
        """Take that there is no answer: it has not begun."""

    def break_off(self, problem: ProblemError) -> None:
        """Take that the answer breaks off: it has begun."""
