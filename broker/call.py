"""A call, from the code to the API and back.

The run token is found, its run and profile are looked up, the budget is charged, the target is split and matched
against the grant that the run was opened with and the current one, the breaker is asked, the lease is fetched or used
again, the credential is placed, the call is sent, the answer is streamed back, the trace is written. What is refused
before the match causes no request to the minter, and none to the API.

A raw ASGI endpoint: beyond ASGI it needs what ``config/server.py`` puts into the scope, the exact target.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from broker.heads import Headers, Prepared, answer_headers, call_headers, prepare, read_body
from broker.identify import Found, find
from broker.open_calls import GONE, OpenCalls
from broker.run import OpenCall, Run, RunProfile
from config.asgi import send_problem
from config.problems import ProblemError
from config.routes import METHODS
from config.target import Target, split_target

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from broker.egress import Answer, Egress
    from broker.leases import Lease
    from broker.placements import Registry
    from broker.trace import Recorder
    from config.asgi import Receive, Scope, Send
    from config.clock import Clock

#: Calls have targets of the form ``/p/{profile}/<target>``.
PREFIX: Final = b"/p/"

_ALLOW: Final = (b"allow", ", ".join(METHODS).encode())
_ERROR: Final = 500
_SHUTTING_DOWN: Final = 503
_WELL: Final = range(200, 300)
#: A health check that takes longer is no sign of health.
_PROBE_TIMEOUT_S: Final = 2.0


class Runs(Protocol):
    """Where runs are looked up; ``broker/runs.py`` keeps them."""

    def by_digest(self, digest: bytes) -> Run | None:
        """Return the run whose token has this SHA-256 digest."""
        ...


class BrokenOffError(ProblemError):
    """Something went wrong after the answer had begun. Whoever serves it cuts it, so that the code notices."""


class CallEndpoint:
    """The data path. ``open_calls`` must be swept while it serves."""

    def __init__(
        self,
        *,
        runs: Runs,
        egress: Egress,
        clock: Clock,
        placements: Registry,
        recorder: Recorder,
        open_calls: OpenCalls,
    ) -> None:
        """Take what a call passes on its way."""
        self._runs = runs
        self._egress = egress
        self._clock = clock
        self._placements = placements
        self._recorder = recorder
        self._open = open_calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve ``/p/{profile}/<target>``."""
        try:
            name, target = _split(scope["target"])
            run, granted, token = self._identify(name, target, scope["headers"])
            await self.carry(run, granted, scope["method"], target, scope["headers"], receive, send, token=token)
        except BrokenOffError:
            raise
        except ProblemError as problem:
            extra = (_ALLOW,) if problem.code == "method-not-supported" else ()
            await send_problem(send, problem, "broker", extra=extra)

    async def carry(  # noqa: PLR0917 - the parts of a call, in the order of the wire
        self,
        run: Run,
        granted: RunProfile,
        method: str,
        target: bytes,
        headers: Headers,
        receive: Receive,
        send: Send,
        *,
        token: Found | None = None,
    ) -> None:
        """Carry one call of a run that is known; ``token`` is the run token where it stands in the call itself.

        ``receive`` and ``send`` are ASGI's: after the body, ``receive`` waits until the client is gone.
        Errors: ``ProblemError``, counted already; :class:`BrokenOffError` when the answer had begun.
        """
        granted.in_flight += 1
        try:
            run.check(self._clock)
            if granted.in_flight > granted.max_concurrent:
                raise ProblemError("too-many-concurrent", retry_after=1)  # noqa: TRY301 - refusals are counted below
            await granted.budget.spend()
            if run.ended is not None:
                raise ProblemError("run-token-invalid")  # noqa: TRY301 - it ended while the budget was reserved
            # Not before: the grants may have been reloaded meanwhile. From here to the open call nothing is awaited.
            prepared = granted.wire or prepare(granted, self._egress, self._placements)
            if token is not None:
                target = token.take_out(target, prepared.placement, prepared.prefix)
            wire_target = split_target(target)
            route, credential = self._match(granted, method, wire_target)
            passed, length = call_headers(prepared, headers, granted.max_request)
        except BaseException as refused:
            granted.in_flight -= 1
            if isinstance(refused, ProblemError):
                self._recorder.refused(granted.name, refused.code)
                if refused.code != "run-token-invalid":  # the trace of a run that is over is closed
                    run.trace.denied(refused.code, getattr(refused, "denied_template", None), profile=granted.name)
            raise
        call = OpenCall(
            run, granted, method, wire_target, route, credential, receive, _this_task(), self._clock.boottime()
        )
        await self._make(call, prepared, passed, length, send)

    def _identify(self, name: str, target: bytes, headers: Headers) -> tuple[Run, RunProfile, Found]:
        """Return whose call it is, and the run token as it stands in it.

        Errors: ``ProblemError``: ``run-token-...``, ``profile-not-granted``.
        """
        try:
            token = find(target, headers)
            run = token.run(self._runs.by_digest)
            granted = run.profiles.get(name)
            if granted is None:
                run.check(self._clock)
                run.trace.denied("profile-not-granted")
                raise ProblemError("profile-not-granted")  # noqa: TRY301 - refusals are counted below
        except ProblemError as problem:
            self._recorder.refused("", problem.code)
            raise
        return run, granted, token

    def _match(self, granted: RunProfile, method: str, target: Target) -> tuple[str, bool]:
        """Return the route that both grants match, and whether both attach the credential there.

        Errors: ``ProblemError`` of the first grant that does not take the call.
        """
        if granted.current is None:
            raise ProblemError("profile-not-granted")
        rule = granted.frozen_matcher.match(method, target, granted.params).rule
        matcher = granted.current[1]
        if matcher is granted.frozen_matcher:
            return rule.text, rule.credential
        return rule.text, rule.credential and matcher.match(method, target, granted.params).rule.credential

    async def _make(self, call: OpenCall, prepared: Prepared, headers: Headers, length: int | None, send: Send) -> None:
        """Make a call that matched; whatever becomes of it stands in the trace."""
        status, shed = _ERROR, False
        call.uploaded = length == 0
        self._open.add(call)
        try:
            await self._pass_breaker(call, prepared)
            call.lease = await self._lease(call)
            body = await read_body(call, length)
            answer = await self._send(call, prepared, headers, body)
            try:
                await self._stream_back(call, prepared, answer, send)
            finally:
                answer.close()
        except asyncio.CancelledError:
            if not call.cut_by:
                status = _SHUTTING_DOWN
                raise  # the server ends
            call.task.uncancel()
            problem = ProblemError(call.cut_by)
            status = 0 if call.cut_by == GONE else problem.status
            raise _as_seen(call, problem) from None
        except ProblemError as problem:
            status, shed = problem.status, problem.code == "breaker-open"
            raise _as_seen(call, problem) from None
        finally:
            self._open.discard(call)
            call.granted.in_flight -= 1
            self._record(call, call.status if call.answered else status, shed=shed)

    async def _pass_breaker(self, call: OpenCall, prepared: Prepared) -> None:
        """Pass while the API has not asked for a pause, or when its health check says that it is over.

        Errors: ``ProblemError("breaker-open")``.
        """
        breaker = call.granted.breaker
        if breaker.is_open(self._clock) and prepared.health is not None and breaker.may_probe(self._clock):
            call.lease = await self._lease(call)
            try:
                async with asyncio.timeout(_PROBE_TIMEOUT_S):
                    answer = await self._send(call, prepared, [], None, probe=prepared.health)
            except (ProblemError, TimeoutError):
                pass  # not well
            else:
                answer.close()
                if answer.status in _WELL:
                    breaker.close()
            call.moved_at = 0.0
        breaker.check(self._clock)

    async def _lease(self, call: OpenCall) -> Lease | None:
        """Return the lease to attach, or None where nothing is attached.

        Errors: ``ProblemError``; a call that needs its credential is not made without.
        """
        slot = call.granted.lease
        if slot is None or not call.credential:
            return None
        return slot.ready(self._clock) or await slot.obtain(self._clock)

    async def _send(
        self,
        call: OpenCall,
        prepared: Prepared,
        headers: Headers,
        body: bytes | AsyncIterator[bytes] | None,
        *,
        probe: bytes | None = None,
    ) -> Answer:
        """Place the credential, send the call, and return the answer once its head has arrived."""
        method, target = ("GET", probe) if probe else (call.method, call.target.raw)
        headers = headers + prepared.fixed
        if call.lease is not None:
            headers, target = prepared.placement.place(headers, target, call.lease.credential)
        sending = await prepared.origin.connect(method, target, headers, body)
        call.moved_at = self._clock.boottime()
        call.delivered = not probe
        return await sending.send()

    async def _stream_back(self, call: OpenCall, prepared: Prepared, answer: Answer, send: Send) -> None:
        """Hand the answer on as it comes."""
        headers, retry_after = answer_headers(call, prepared, answer)
        call.granted.breaker.note(answer.status, retry_after, self._clock)
        call.status = answer.status
        call.answered = True
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        while True:
            piece = b"" if answer.complete() else await answer.read()
            call.bytes_back += len(piece)
            if call.bytes_back > call.granted.max_response:
                raise ProblemError("response-too-large")
            more = not answer.complete()
            await send({"type": "http.response.body", "body": piece, "more_body": more})
            if not more:
                return

    def _record(self, call: OpenCall, status: int, *, shed: bool) -> None:
        if shed:
            call.run.trace.shed()
            self._recorder.refused(call.granted.name, "breaker-open")
            return
        seconds = self._clock.boottime() - call.started_at
        self._recorder.call(call.granted.name, status, seconds)
        call.run.trace.record(
            call.granted.name,
            call.method,
            call.route,
            status=status,
            delivered=call.delivered,
            bytes_sent=call.bytes_sent,
            bytes_back=call.bytes_back,
            milliseconds=seconds * 1000,
        )


def _split(target: bytes) -> tuple[str, bytes]:
    """Split ``/p/{profile}/<target>``.

    Errors: ``ProblemError("target-malformed")``.
    """
    name, slash, rest = target.removeprefix(PREFIX).partition(b"/")
    if not slash or not target.startswith(PREFIX):
        raise ProblemError("target-malformed", "expected /p/, a profile and the target")
    return name.decode("latin-1"), slash + rest


def _as_seen(call: OpenCall, problem: ProblemError) -> ProblemError:
    """Return what the code gets to see of ``problem``: once the answer has begun, only that it breaks off."""
    return BrokenOffError(problem.code) if call.answered else problem


def _this_task() -> asyncio.Task[Any]:
    return cast("asyncio.Task[Any]", asyncio.current_task())
