"""Keeping a credential out of a body that comes in pieces.

1. A body stays as long as it is: each byte of a match becomes an asterisk.
2. What is held back depends on lengths and line breaks alone, never on a match: the code must not learn from when a
   piece arrives what is in it.
3. A line that is complete goes on at once, so that events flow: no credential has a line break.
4. However the body is cut into pieces, what goes on is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.scrub.needles import Needles, Span, masked
from config.problems import ProblemError


class Stream:
    """One body. Feed it every piece, then finish it.

    >>> stream = Stream(Needles([b"hunter2hunter2"]), refuse=False)
    >>> stream.feed(b"you sent hunter2") + stream.feed(b"hunter2, did you?") + stream.finish()
    b'you sent **************, did you?'
    """

    __slots__ = ("_needles", "_refuse", "_spans", "_tail")

    def __init__(self, needles: Needles, *, refuse: bool) -> None:
        """Take what must not pass; ``refuse``: the body ends where it would, instead of being masked."""
        self._needles = needles
        self._refuse = refuse
        #: What may be the beginning of a match, as it came: it is looked through again with what follows.
        self._tail = b""
        #: The matches of which some is in the tail.
        self._spans: Sequence[Span] = ()

    def feed(self, piece: bytes) -> bytes:
        """Return what may go on now, which may be nothing.

        Errors: ``ProblemError("credential-reflected")``; nothing of the match has gone on then.
        """
        data = self._tail + piece if self._tail else piece
        spans = self._needles.spans(data)
        if spans and self._refuse:
            raise ProblemError("credential-reflected")
        cut = max(0, len(data) - self._needles.hold)
        cut = max(cut, data.rfind(b"\n", cut) + 1, data.rfind(b"\r", cut) + 1)
        self._tail = data[cut:]
        spans += self._spans
        if not spans:
            return data[:cut]
        self._spans = [(start - cut, end - cut) for start, end in spans if end > cut]
        return masked(data[:cut], spans)

    def only(self, body: bytes) -> bytes:
        """Return a whole body as it may go on, nothing held back: it is the only piece there is.

        Errors: as :meth:`feed`.
        """
        spans = self._needles.spans(body)
        if spans and self._refuse:
            raise ProblemError("credential-reflected")
        return masked(body, spans) if spans else body

    def finish(self) -> bytes:
        """Return the rest."""
        return masked(self._tail, self._spans) if self._spans else self._tail
