"""The heads of a call and of its answer: which headers pass, and what frames the body.

Both are built anew from an allow list; what the code or the API sent besides does not pass. Header values pass as the
bytes they are, or the call is refused.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from config.problems import REFUSED_BY, ProblemError

if TYPE_CHECKING:
    from broker.egress import Answer, Egress, Origin
    from broker.placements import Placement, Registry
    from broker.run import OpenCall, RunProfile
    from config.asgi import Receive

Headers = list[tuple[bytes, bytes]]

#: Some APIs refuse calls that do not name their client. The code's own is dropped unless ``request_headers`` lists it.
_USER_AGENT: Final = (b"user-agent", b"minter-broker")
_BY_UPSTREAM: Final = (REFUSED_BY.encode(), b"upstream")
_UNSENDABLE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
#: A body that is here as a whole is sent in one piece, up to this size.
_ONE_PIECE: Final = 256 * 1024
_NOT_MODIFIED: Final = 304
_REFUSALS: Final = frozenset({401, 403})
_MAX_LENGTH_DIGITS: Final = 18


class Prepared:
    """What is the same for every call of a run with one profile, until the grants are reloaded.

    ``fixed`` are headers that every call gets; ``prefix`` is the profile's ``run_token_prefix``; ``health`` the target
    of its health check.
    """

    __slots__ = ("answers_pass", "fixed", "health", "origin", "passes", "placement", "prefix")

    def __init__(self, granted: RunProfile, origin: Origin, placement: Placement) -> None:
        """Take the profile and where its calls go."""
        frozen = granted.frozen
        self.origin = origin
        self.placement = placement
        self.prefix = frozen.run_token_prefix.encode("ascii")
        self.fixed: Headers = list(frozen.fixed_headers)
        names = {name for name, _ in self.fixed}
        self.passes = granted.request_headers - names
        if _USER_AGENT[0] not in self.passes | names:
            self.fixed.append(_USER_AGENT)
        # The length frames the answer, whoever lists it.
        self.answers_pass = granted.response_headers - {b"content-length"}
        health, now = frozen.health_check, granted.current
        # As with a route: both grants must name it.
        named = health is not None and now is not None and now[0].health_check == health
        self.health = health.text.partition(" ")[2].encode("ascii") if health is not None and named else None


def prepare(granted: RunProfile, egress: Egress, placements: Registry) -> Prepared:
    """Prepare a run's profile for its calls, and keep that until the next reload."""
    frozen = granted.frozen
    origin = egress.origin(frozen.base_url, frozen.host, private=granted.private_addresses)
    prepared = granted.wire = Prepared(granted, origin, placements.build(frozen.placement))
    return prepared


def call_headers(prepared: Prepared, headers: Headers, max_request: int) -> tuple[Headers, int | None]:
    """Return the headers of a call that pass, and the length of its body: None when only its end will tell.

    Errors: ``ProblemError``: ``header-malformed``, ``request-too-large``.
    """
    passed: Headers = []
    length: int | None = 0
    passes = prepared.passes
    for header in headers:
        name, value = header
        if name in passes:
            if _UNSENDABLE.search(value) or not (value.isascii() or _is_utf8(value)):
                raise ProblemError("header-malformed")
            passed.append(header)
        elif name == b"transfer-encoding":
            length = None
        elif name == b"content-length" and length is not None:
            length = int(value)
            if length:
                passed.append((name, b"%d" % length))  # however it was written, it can be read in one way only
    if length is not None and length > max_request:
        raise ProblemError("request-too-large", limit=max_request)
    return passed, length


async def read_body(call: OpenCall, length: int | None) -> bytes | AsyncIterator[bytes] | None:
    """Return the body of a call: what is here already, or the pieces as they come. No piece waits for the next.

    Errors: ``ProblemError``: ``request-too-large``; ``request-malformed`` when the code went away.
    """
    if length == 0:
        return None
    piece, more = await _receive(call.receive)
    if more or len(piece) > _ONE_PIECE:
        return _pieces(call, piece, more=more)
    call.uploaded = True
    call.bytes_sent = len(piece)
    if len(piece) > call.granted.max_request:
        raise ProblemError("request-too-large", limit=call.granted.max_request)
    return piece or None


async def _pieces(call: OpenCall, piece: bytes, *, more: bool) -> AsyncIterator[bytes]:
    while True:
        call.bytes_sent += len(piece)
        if call.bytes_sent > call.granted.max_request:
            # Cut before the piece is handed over: the API never sees the end of this body.
            call.cut("request-too-large")
            raise ProblemError("request-too-large")
        if piece:
            yield piece
        if not more:
            call.uploaded = True
            return
        try:
            piece, more = await _receive(call.receive)
        except ProblemError as problem:
            call.cut(problem.code)
            raise


async def _receive(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] != "http.request":
        raise ProblemError("request-malformed", "the body broke off")
    return message.get("body", b""), message.get("more_body", False)


def answer_headers(call: OpenCall, prepared: Prepared, answer: Answer) -> tuple[Headers, bytes | None]:
    """Return the headers of an answer that pass, and its ``Retry-After``.

    Errors: ``ProblemError``: ``upstream-malformed``, ``response-too-large``.
    """
    passed: Headers = []
    length = retry_after = None
    for raw_name, value in answer.headers:
        name = raw_name.lower()
        if name in prepared.answers_pass:
            if _UNSENDABLE.search(value):
                raise ProblemError("upstream-malformed", "a header holds a control character")
            passed.append((name, value))
        elif name == b"content-length":
            length = value
        elif name == b"transfer-encoding" and value.lower() != b"chunked":
            raise ProblemError("upstream-malformed", "the body is coded in a way that nobody asked for")
        if name == b"retry-after":
            retry_after = value
    if length is not None:  # one at most, and none beside chunks: such answers are not well-formed
        passed.append((b"content-length", b"%d" % _checked_length(call, answer.status, length)))
    if answer.status in _REFUSALS and call.lease is not None:
        passed.append(_BY_UPSTREAM)
    return passed, retry_after


def _checked_length(call: OpenCall, status: int, length: bytes) -> int:
    if not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS:
        raise ProblemError("upstream-malformed", "the length is no number")
    has_body = call.method != "HEAD" and status != _NOT_MODIFIED
    if has_body and int(length) > call.granted.max_response:
        raise ProblemError("response-too-large", limit=call.granted.max_response)
    return int(length)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
