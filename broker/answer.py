"""The way back of a call: what the API answers, as the code gets to see it.

Of the head the listed headers pass, no others. While the profile's answers are scrubbed, the credential is masked in
the headers and the body, whatever the borders of its pieces are, and a compressed body is opened for it. The limit on
an answer counts what is handed on, opened, and is looked at before anything is: of what is beyond it nothing passes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from broker.heads import SENDABLE
from broker.scrub import Decoder, Needles, Stream, decoder_for
from config.problems import REFUSED_BY, ProblemError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.call import Call
    from broker.heads import Headers
    from broker.wire.upstream import AnswerHead

_BY_UPSTREAM: Final = (REFUSED_BY.encode(), b"upstream")
_REFUSALS: Final = frozenset({401, 403})
_CODING: Final = b"content-encoding"


class Passage(Protocol):
    """What stands between an API's body and the code when it cannot be handed on as it comes."""

    def feed(self, call: Call, piece: bytes) -> None:
        """Take a piece and hand on what may go. Errors: ``ProblemError``."""

    def end(self, call: Call) -> None:
        """Take the end of the body, and end the call when all is handed on. Errors: ``ProblemError``."""

    def go_on(self, call: Call) -> None:
        """Hand on what waited while the code did not keep up, as far as it does now. Errors: ``ProblemError``."""


class PlainPassage:
    """A body as it is."""

    __slots__ = ("_length", "_stream")

    def __init__(self, stream: Stream, length: int | None) -> None:
        """Take what masks it, and how long it is where that is known."""
        self._stream = stream
        self._length = length

    def feed(self, call: Call, piece: bytes) -> None:
        """Hand on what may go."""
        size = len(piece)
        call.count_back(size)
        # A piece as long as the body is all of it: nothing can follow that a match could go on in.
        call.hand_on(self._stream.only(piece) if size == self._length else self._stream.feed(piece))

    def end(self, call: Call) -> None:
        """Hand on the rest."""
        call.hand_on(self._stream.finish())
        call.finish()

    def go_on(self, call: Call) -> None:
        """Do nothing: what came was handed on."""


class OpenedPassage:
    """A body that is compressed: of what comes out no more is made than the code takes."""

    __slots__ = ("_decoder", "_ended", "_opening", "_stream", "_waiting")

    def __init__(self, stream: Stream, decoder: Decoder) -> None:
        """Take what masks it, and what opens it."""
        self._stream = stream
        self._decoder = decoder
        #: Pieces as they came, while the code does not keep up with what comes out of those before.
        self._waiting: deque[bytes] = deque()
        self._opening: Iterator[bytes] | None = None
        self._ended = False

    def feed(self, call: Call, piece: bytes) -> None:
        """Take a piece, and go on."""
        self._waiting.append(piece)
        self.go_on(call)

    def end(self, call: Call) -> None:
        """Take the end, and go on."""
        self._ended = True
        self.go_on(call)

    def go_on(self, call: Call) -> None:
        """Open what waits."""
        while not call.held and not call.over:
            if self._opening is None:
                if not self._waiting:
                    break
                self._opening = self._decoder.feed(self._waiting.popleft())
            opened = next(self._opening, None)
            if opened is None:
                self._opening = None
                continue
            call.count_back(len(opened))
            call.hand_on(self._stream.feed(opened))
        if self._ended and not call.over and self._opening is None and not self._waiting:
            self._decoder.finish()
            call.hand_on(self._stream.finish())
            call.finish()


def answer_headers(call: Call, answer: AnswerHead) -> tuple[Headers, bytes | None]:
    """Return the headers of an answer that pass, and its ``Retry-After``. The list is not changed by anybody.

    What passes of the same head is the same for every call of a run's profile, until its grant changes.
    Errors: ``ProblemError``: ``upstream-malformed``, ``response-too-large``.
    """
    length = answer.length
    if length is not None and not answer.bodiless and length > call.granted.max_response:
        raise ProblemError("response-too-large", limit=call.granted.max_response)
    # By the names that pass, not by who prepared them: a credential must not be kept by it.
    if answer.passed is not None and answer.passed[0] is call.prepared.answers_pass:
        return answer.passed[1:]
    passed: Headers = []
    retry_after = None
    passes = call.prepared.answers_pass
    for header in answer.headers:
        name, value = header
        if name in passes:
            if value.translate(None, SENDABLE):
                raise ProblemError("upstream-malformed", "a header holds a control character")
            passed.append(header)
        if name == b"retry-after":
            retry_after = value
    if answer.status in _REFUSALS:
        if call.lease is not None:
            passed.append(_BY_UPSTREAM)
    else:
        answer.passed = passes, passed, retry_after
    return passed, retry_after


def scrubbed(
    headers: Headers, answer: AnswerHead, needles: Needles, *, refuse: bool
) -> tuple[Headers, int | None, Passage | None]:
    """Return headers, length and passage of an answer whose credential must not come back.

    Errors: ``ProblemError``: ``credential-reflected``, ``upstream-coding-unsupported``.
    """
    masked = needles.mask_headers(headers)
    if refuse and masked is not headers:
        raise ProblemError("credential-reflected")
    length = answer.length
    codings = [value for name, value in answer.headers if name == _CODING]
    decoder = decoder_for(b",".join(codings)) if codings else None
    if decoder is not None:
        # An answer to HEAD, too, is described as the body would be that a GET brings.
        masked, length = [header for header in masked if header[0] != _CODING], None
    if answer.bodiless:
        return masked, length, None
    stream = Stream(needles, refuse=refuse)
    return masked, length, PlainPassage(stream, length) if decoder is None else OpenedPassage(stream, decoder)
