"""A call written as JSON, for code that has no HTTP client, only a way to hand JSON to its host.

``{"profile"?, "method", "path", "body"?, "content_type"?, "headers"?}`` becomes a call of the data path, with all its
rules (of ``headers`` those pass that would pass there), and the answer is always 200 with ``{"status",
"content_type", "body"}``. A refusal stands inside as the problem+json that the data path would have answered. A
``body`` that is text is sent as it is, anything else as JSON. An answer that is not UTF-8 comes back in base64 and
says so: ``"encoding": "base64"``.

Here a body and its answer lie in memory as a whole, so a run has no more of them than calls that it may make at once:
counted from before the body is read until the answer is gone. The calls of all runs together hold no more bytes than
``max_host_call_bytes``: a body as it comes in, then what is sent of it and what has come back, at last the envelope.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import unquote

import msgspec
from starlette.responses import Response

from broker.call import GONE
from broker.run import Run, RunProfile
from config.asgi import Message, Receive, Scope, Send, json_response
from config.contract import decode
from config.problems import MEDIA_TYPE, REFUSED_BY, ProblemError

if TYPE_CHECKING:
    from broker.call import Call, Calls
    from broker.heads import Headers

#: As on the data path, one that was cut is one too: what is missing could be guessed.
_TOKEN: Final = re.compile(r"(?:brk|clr|mbk)_[0-9A-Za-z]{20,}", re.ASCII)
#: Headers that the envelope itself says.
_DESCRIBING: Final = frozenset({"content-type", "content-length", "content-encoding", "transfer-encoding"})
#: An answer is handed over in pieces of this size, each when the code has taken those before it.
_PIECE: Final = 65_536

_FOR_THE_BODY: Final = "host calls hold as much memory as they may"
_FOR_THE_ANSWER: Final = (
    "the call was made, but host calls hold as much memory as they may: there is none for its answer"
)


# The last group is for Python alone, whose "$" also matches before a line break at the end.
MediaType = Annotated[str, msgspec.Meta(max_length=256, pattern=r"^[\x21-\x7e][\x20-\x7e]*$(?!\n)")]

HeaderName = Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$(?!\n)")]
HeaderValue = Annotated[str, msgspec.Meta(max_length=4096, pattern=r"^[\x20-\x7e]*$(?!\n)")]


class HostCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/call``."""

    method: Annotated[str, msgspec.Meta(min_length=1, max_length=16)]
    path: Annotated[str, msgspec.Meta(min_length=1)]
    profile: str | None = None
    body: Any = None
    content_type: MediaType | None = None
    headers: Annotated[dict[HeaderName, HeaderValue], msgspec.Meta(max_length=32)] = {}


class Envelope:
    """The host-call envelope."""

    def __init__(
        self,
        calls: Calls,
        refused: Callable[[str, str], None],
        *,
        max_target_bytes: int = 8192,
        max_bytes: int = 128 * 1024 * 1024,
    ) -> None:
        """Take the data path, and who counts a refusal that does not reach it, by profile and code.

        ``max_target_bytes`` is what a request on the data path is held to before it gets there; ``max_bytes`` is what
        all calls together may hold in memory.
        """
        self._calls = calls
        self._refused = refused
        self._max_target_bytes = max_target_bytes
        self.memory = Memory(max_bytes)

    async def answer(self, run: Run, body: Callable[[Receive], Awaitable[bytes]], receive: Receive) -> Response:
        """Make the call that ``body`` reads, if the run has not too many of them in memory, and return the answer.

        Errors: whatever ``body`` raises, but when there is no memory for what it reads.
        """
        if run.host_calls >= sum(granted.max_concurrent for granted in run.profiles.values()):
            return json_response(self._refuse(run, ProblemError("too-many-concurrent", retry_after=1)))
        share = _Share(self.memory, run)
        try:
            return _Held(share, await self._answer(run, body, receive, share))
        except BaseException:
            share.release()
            raise

    async def _answer(
        self, run: Run, body: Callable[[Receive], Awaitable[bytes]], receive: Receive, share: _Share
    ) -> Response:
        try:
            response = json_response(await self.carry(run, await body(share.counting(receive)), receive, share))
            share.hold(len(response.body), _FOR_THE_ANSWER)
        except _NoMemoryError as problem:
            share.hold(0)
            return json_response(self._refuse(run, problem))
        return response

    async def carry(self, run: Run, body: bytes, receive: Receive, share: _Share) -> dict[str, Any]:
        """Make the call that ``body`` describes and return the envelope of its answer.

        ``receive`` is the request's, whose body has been read: it tells when the code goes away.

        Errors: ``_NoMemoryError``.
        """
        try:
            call = decode(HostCall, body)
            # Whatever is not ASCII stays so and is refused with everything else that no target may hold.
            target = call.path.encode("utf-8", "surrogatepass")
            if len(target) > self._max_target_bytes:
                raise ProblemError("target-too-long", limit=self._max_target_bytes)  # noqa: TRY301 - as the others
            granted = _granted(run, call)
        except ProblemError as problem:
            return self._refuse(run, problem)
        sent, headers = _content(call)
        method = call.method
        # Only what is sent stays in memory while the call is made.
        del body, call
        share.hold(len(sent or b""))
        asking = _HostAsking(share, method, target, headers, sent)
        self._calls.carry(run, granted, asking, target)
        why_not = await asking.answered(receive)
        if share.refused is not None:
            # The data path says only that the answer broke off.
            raise share.refused
        return asking.envelope() if why_not is None else _refusal(why_not)

    def _refuse(self, run: Run, problem: ProblemError) -> dict[str, Any]:
        run.trace.denied(problem.code)
        self._refused("", problem.code)
        return _refusal(problem)


class Memory:
    """The bytes that the host calls of all runs hold, and may hold, at once."""

    def __init__(self, limit: int) -> None:
        """Begin with none."""
        self.limit = limit
        self.held = 0


class _NoMemoryError(ProblemError):
    """The host calls hold as many bytes as they may."""

    def __init__(self, detail: str) -> None:
        super().__init__("too-many-requests", detail, retry_after=1)


class _Share:
    """What one host call counts for, until it is released: one of its run's calls, and the bytes that it holds."""

    def __init__(self, memory: Memory, run: Run) -> None:
        self._memory = memory
        self._run = run
        self._held = 0
        self.refused: _NoMemoryError | None = None
        run.host_calls += 1

    def hold(self, size: int, detail: str = _FOR_THE_BODY) -> None:
        """Hold so many bytes from now on. Errors: ``_NoMemoryError``; it holds what it held then."""
        more = size - self._held
        if more > 0 and self._memory.held + more > self._memory.limit:
            self.refused = _NoMemoryError(detail)
            raise self.refused
        self._memory.held += more
        self._held = size

    def more(self, size: int, detail: str = _FOR_THE_BODY) -> None:
        """Hold so many bytes more. Errors: as :meth:`hold`."""
        self.hold(self._held + size, detail)

    def counting(self, receive: Receive) -> Receive:
        """Return an ASGI ``receive`` that counts the body which it gives."""

        async def counted() -> Message:
            message = await receive()
            self.more(len(message.get("body", b"")))
            return message

        return counted

    def release(self) -> None:
        """Hold nothing, and be none of the run's calls any more."""
        self.hold(0)
        self._run.host_calls -= 1


class _Held(Response):
    """An answer that has its share until the code has taken it, or is gone."""

    def __init__(self, share: _Share, answer: Response) -> None:
        super().__init__()
        self.body = answer.body
        self.raw_headers = answer.raw_headers
        self._share = share

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for begin in range(0, len(self.body), _PIECE):
                piece = bytes(self.body[begin : begin + _PIECE])
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._share.release()


class _HostAsking:
    """A call whose body and answer lie in memory. The data path bounds the latter by the profile's ``max_response``."""

    call: Call | None = None

    def __init__(self, share: _Share, method: str, target: bytes, headers: Headers, body: bytes | None) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.length: int | None = len(body or b"")
        self._body = body
        self._share = share
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._over: asyncio.Future[ProblemError | None] = asyncio.get_running_loop().create_future()

    async def answered(self, receive: Receive) -> ProblemError | None:
        """Wait for the answer's end, or for that of the code; return why there is none."""
        watching = asyncio.create_task(self._watch(receive))
        try:
            return await asyncio.shield(self._over)
        except asyncio.CancelledError:
            if self.call is not None:
                self.call.cut("shutting-down")
            raise
        finally:
            watching.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if self.call is not None:
            self.call.cut(GONE)

    # --- what the call says ---

    async def body_begun(self) -> int:
        return self.length or 0

    def want_body(self) -> None:
        if self.call is not None and self._body is not None:
            self.call.body_piece(self._body)
            self.call.body_end()

    def hold_body(self, *, hold: bool) -> None:
        """Do nothing: the body is here as a whole."""

    def begin(self, status: int, headers: Headers, length: int | None, *, bodiless: bool) -> None:  # noqa: ARG002
        self._status = status
        self._headers = dict(headers)

    def piece(self, piece: bytes) -> None:
        try:
            self._share.more(len(piece), _FOR_THE_ANSWER)
        except _NoMemoryError as problem:
            if self.call is not None:
                self.call.cut(problem.code)
            return
        self._pieces.append(piece)

    def flush(self) -> None:
        """Do nothing: the answer is kept as a whole."""

    def take_back(self) -> bool:
        return True  # nothing leaves before the end

    def end(self) -> None:
        self._done(None)

    def refuse(self, problem: ProblemError) -> None:
        self._done(problem)

    def break_off(self, problem: ProblemError) -> None:
        self._done(problem)

    def _done(self, problem: ProblemError | None) -> None:
        self.call = None
        if not self._over.done():
            self._over.set_result(problem)

    def envelope(self) -> dict[str, Any]:
        content_type = self._headers.get(b"content-type", b"").decode("latin-1")
        shown: dict[str, Any] = {"status": self._status, "content_type": content_type}
        refused_by = self._headers.get(REFUSED_BY.encode())
        if refused_by is not None:
            shown["refused_by"] = refused_by.decode("latin-1")
        body = b"".join(self._pieces)
        if b"content-encoding" in self._headers:
            shown["content_encoding"] = self._headers[b"content-encoding"].decode("latin-1")
        try:
            return {**shown, "body": body.decode()}
        except UnicodeDecodeError:
            return {**shown, "body": b64encode(body).decode(), "encoding": "base64"}


def _refusal(problem: ProblemError) -> dict[str, Any]:
    return {
        "status": problem.status,
        "content_type": MEDIA_TYPE,
        "refused_by": "broker",
        "body": problem.body("broker").decode(),
    }


def _granted(run: Run, call: HostCall) -> RunProfile:
    # Both reach the API; a body may say what it likes.
    texts = (call.path, unquote(call.path), call.content_type or "", *call.headers, *call.headers.values())
    if any(_TOKEN.search(text) for text in texts):
        raise ProblemError("run-token-misplaced")
    if call.profile is None and len(run.profiles) != 1:
        raise ProblemError("profile-not-granted", "the run has several profiles: say which")
    granted = run.profiles.get(call.profile if call.profile is not None else next(iter(run.profiles)))
    if granted is None:
        raise ProblemError("profile-not-granted")
    return granted


def _content(call: HostCall) -> tuple[bytes | None, Headers]:
    """Return the bytes of the body, None when there is none, and the headers: those given, those that describe it."""
    given = [
        (name.lower().encode("ascii"), value.strip(" ").encode("ascii"))
        for name, value in call.headers.items()
        if name.lower() not in _DESCRIBING
    ]
    if call.body is None:
        return None, given
    if isinstance(call.body, str):
        sent, content_type = call.body.encode("utf-8", "surrogatepass"), "text/plain; charset=utf-8"
    else:
        sent, content_type = msgspec.json.encode(call.body), "application/json"
    headers = [
        *given,
        (b"content-type", (call.content_type or content_type).encode("ascii")),
        (b"content-length", b"%d" % len(sent)),
    ]
    return sent, headers
