"""A call, from the code to the API and back.

The run token is found, its run and profile are looked up, the budget is charged, the target is split and matched
against the grant that the run was opened with and the current one, the breaker is asked, the lease is fetched or used
again, the credential is placed, the call is sent, the answer is streamed back, the trace is written. What is refused
before the match causes no request to the minter, and none to the API.

Who asks is an ``Asking`` (``broker/asking.py``): a request on the code's connection (``broker/wire/exchange.py``), or
one written as JSON (``broker/envelope.py``). A call that has all at hand is sent within the callback that brought
it, and the rest of it happens in the callbacks of its two connections; only where it has to wait it becomes a task.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from broker.answer import answer_headers, scrubbed
from broker.eager import begin, cancel
from broker.heads import passed_headers, prepare
from broker.identify import Found, Seen, find
from broker.wire.upstream import CHUNKED, LENGTH, NO_BODY
from broker.wire.whole import fetch
from config.asgi import describe
from config.clock import moment
from config.problems import ProblemError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine
    from typing import Any

    from broker.answer import Passage
    from broker.asking import Asking
    from broker.egress import Egress
    from broker.heads import Headers, Prepared
    from broker.leases import Lease
    from broker.open_calls import OpenCalls
    from broker.placements import Registry
    from broker.run import Run, RunProfile
    from broker.scrub import Needles
    from broker.trace import Recorder
    from broker.wire.upstream import AnswerHead, UpstreamConnection
    from config.clock import Clock
    from config.target import Target

log = structlog.get_logger("broker.call")

#: Calls have targets of the form ``/p/{profile}/<target>``.
PREFIX: Final = b"/p/"
#: What a call whose client went away is cut by: the problem goes nowhere.
GONE: Final = "request-malformed"

_ENDING: Final = "shutting-down"
_WELL: Final = range(200, 300)
#: A health check that takes longer is no sign of health.
_PROBE_TIMEOUT_S: Final = 2.0
_PROBE_BYTES: Final = 1024 * 1024
#: A body on these methods may be overlooked by an API and taken for the next request: the connection is not used again.
_BODY_UNUSUAL: Final = frozenset({"GET", "HEAD", "DELETE"})
#: What may be sent once more, without a body, when a connection turns out to have been dead.
_REPEATABLE: Final = frozenset({"GET", "HEAD"})


class Runs(Protocol):
    """Where runs are looked up; ``broker/runs.py`` keeps them."""

    def by_digest(self, digest: bytes) -> Run | None:
        """Return the run whose token has this SHA-256 digest."""
        ...


class Calls:
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
        self.runs = runs
        self.egress = egress
        self.clock = clock
        self.placements = placements
        self.recorder = recorder
        self.open = open_calls

    def ask(self, asking: Asking, seen: Seen) -> None:
        """Make the call ``/p/{profile}/<target>`` of whoever's run token stands in it.

        ``seen`` belongs to the connection that it came over.
        """
        try:
            if asking.headers is seen.headers and asking.target is seen.target and seen.found is not None:
                # The very request that the connection brought before.
                name, target, token = seen.profile, seen.rest, seen.found
            else:
                name, target = _split(asking.target)
                token = find(target, asking.headers)
                seen.headers, seen.target = asking.headers, asking.target
                seen.profile, seen.rest, seen.found = name, target, token
            run, granted = self._identify(name, token, seen)
        except ProblemError as problem:
            self.recorder.refused("", problem.code)
            asking.refuse(problem)
            return
        self.carry(run, granted, asking, target, token)

    def carry(self, run: Run, granted: RunProfile, asking: Asking, target: bytes, token: Found | None = None) -> None:
        """Make a call of a run that is known; ``token`` is the run token where it stands in the call itself."""
        Call(self, run, granted, asking).start(target, token)

    def _identify(self, name: str, token: Found, seen: Seen) -> tuple[Run, RunProfile]:
        """Return whose call it is.

        Errors: ``ProblemError``: ``run-token-invalid``, ``profile-not-granted``.
        """
        run = token.run(self.runs.by_digest, seen)
        granted = run.profiles.get(name)
        if granted is None:
            run.check(self.clock)
            run.trace.denied("profile-not-granted")
            raise ProblemError("profile-not-granted")
        return run, granted


class Call:
    """One call: what a reload, an end and the sweeper look at. Nothing of it outlives it.

    ``started_at`` and ``moved_at`` are on the boot clock; the latter is when something last came from the API or went
    there, as far as the sweeper saw, and 0 while nothing is on its way. ``credential`` says that one is attached;
    ``delivered`` that the call may have reached the API;
    ``answered`` that its answer is being handed on; ``held`` that the code does not keep up with it.
    """

    # Written only where it becomes otherwise: a call is made often, and most of this never happens to it.
    prepared: Prepared
    target: Target
    route = ""
    credential = False
    started_at = 0.0
    moved_at = 0.0
    moved = 0
    lease: Lease | None = None
    opened = False
    delivered = False
    answered = False
    repeated = False
    held = False
    waited = False
    over = False
    status = 0
    bytes_sent = 0
    bytes_back = 0
    cut_by = ""
    head = b""
    upstream: UpstreamConnection | None = None
    waiting: asyncio.Task[None] | None = None
    needles: Needles | None = None
    passage: Passage | None = None

    def __init__(self, calls: Calls, run: Run, granted: RunProfile, asking: Asking) -> None:
        """Take whose call it is."""
        self.calls = calls
        self.run = run
        self.granted = granted
        self.asking = asking
        self.method = asking.method
        asking.call = self

    def start(self, target: bytes, token: Found | None) -> None:
        """Begin; ``target`` is the profile's, with the run token if that stands in it."""
        self.granted.in_flight += 1
        self._go(self._make(target, token))

    # --- there ---

    async def _make(self, target: bytes, token: Found | None) -> None:
        calls, run, granted = self.calls, self.run, self.granted
        at = moment(calls.clock)
        run.check_at(at)
        if granted.in_flight > granted.max_concurrent:
            raise ProblemError("too-many-concurrent", retry_after=1)
        if not granted.budget.spend_in_hand():
            await granted.budget.spend()
            at = moment(calls.clock)
            run.check_at(at)  # it may have ended while the budget was reserved
        # Not before: the grants may have been reloaded meanwhile. From here to the open call nothing is awaited.
        passed = self._admit(target, token)
        self._open(at[1])
        if not granted.breaker.quiet:
            await self._pass_breaker()
        if self.asking.length is None and await self.asking.body_begun() > granted.max_request:
            raise ProblemError("request-too-large", limit=granted.max_request)
        if self.waited:
            at = moment(calls.clock)
        slot = granted.lease
        if slot is not None and self.credential:
            # A call that needs its credential is not made without.
            self.lease = slot.ready(at) or await slot.obtain(calls.clock)
        dressed = self.prepared.dressed(self.lease)
        self.head = dressed.head(self.method, self.target.raw, passed, self.asking.length)
        self.needles = dressed.needles
        self._send(self.prepared.origin.idle() or await self._connection())

    def _admit(self, target: bytes, token: Found | None) -> Headers:
        """Pass both grants; return the code's headers that pass.

        Errors: ``ProblemError`` of whatever refuses first.
        """
        granted, asking = self.granted, self.asking
        prepared = self.prepared = granted.wire or prepare(granted, self.calls.egress, self.calls.placements)
        if token is not None:
            target = token.take_out(target, prepared.placement, prepared.prefix)
        found = granted.granting.get((self.method, target))
        self.target, self.route, self.credential = found or granted.match(self.method, target)
        passed = passed_headers(prepared.passes, asking.headers)
        if asking.length is not None and asking.length > granted.max_request:
            raise ProblemError("request-too-large", limit=granted.max_request)
        return passed

    def _open(self, boottime: float) -> None:
        """Count as an open call: from here on it stands in the trace, whatever becomes of it."""
        self.opened = True
        self.started_at = boottime
        self.calls.open.add(self)

    async def _pass_breaker(self) -> None:
        """Pass while the API has not asked for a pause, or when its health check says that it is over.

        Errors: ``ProblemError("breaker-open")``.
        """
        clock, breaker, health = self.calls.clock, self.granted.breaker, self.prepared.health
        if breaker.is_open(clock) and health is not None and breaker.may_probe(clock):
            if self.granted.lease is not None and self.credential:
                self.lease = await self.granted.lease.obtain(clock)
            head = self.prepared.dressed(self.lease).head("GET", health, [], 0)
            probe = fetch(self.prepared.origin, head, limit=_PROBE_BYTES, within_s=_PROBE_TIMEOUT_S)
            try:
                # The time limit needs a task, and this may not be one. (wait_for would swallow a cut that comes with
                # the answer.)
                answer = await asyncio.create_task(probe)
            except (ProblemError, TimeoutError):
                pass  # not well
            else:
                if answer.status in _WELL:
                    breaker.close()
        breaker.check(clock)

    async def _connection(self, *, fresh: bool = False) -> UpstreamConnection:
        """Wait for a connection. Errors: ``ProblemError``."""
        origin = self.prepared.origin
        connecting = asyncio.create_task(origin.connect(fresh=fresh))
        try:
            return await connecting
        except asyncio.CancelledError:
            if connecting.done() and not connecting.cancelled() and connecting.exception() is None:
                origin.release(connecting.result())  # it came in the moment that nobody wanted it any more
            raise

    def _send(self, connection: UpstreamConnection) -> None:
        """Send the call. From here on nothing is awaited: what happens next is in the callbacks below."""
        self.waiting = None
        length = self.asking.length
        self.upstream = connection
        self.delivered = True
        self.moved_at = self.calls.clock.boottime() if self.waited else self.started_at
        body = NO_BODY if length == 0 else CHUNKED if length is None else LENGTH
        connection.send(self, self.head, head_only=self.method == "HEAD", body=body)
        if length != 0:
            if self.method in _BODY_UNUSUAL:
                connection.once()
            self.asking.want_body()

    async def _send_again(self) -> None:
        """Send the call once more: the connection had been dead, and not one byte of an answer came."""
        self._send(await self._connection(fresh=True))

    # --- the body, as the code sends it ---

    def body_piece(self, piece: bytes) -> None:
        """Send a piece on. What comes after the call is over is nobody's."""
        if self.over:
            return
        self.bytes_sent += len(piece)
        if self.bytes_sent > self.granted.max_request:
            # Before the piece is handed over: the API never sees the end of this body.
            self._fail(ProblemError("request-too-large", limit=self.granted.max_request))
        elif self.upstream is not None:
            self.upstream.send_piece(piece)

    def body_end(self) -> None:
        """End the body."""
        if self.upstream is not None:
            self.upstream.end_upload()

    def upload_may_go_on(self, may: bool) -> None:  # noqa: FBT001 - the receiver's
        """Hold the code's body while the API does not keep up with it."""
        self.asking.hold_body(hold=not may)

    # --- back: what the API's connection says ---

    def answer_begins(self, answer: AnswerHead) -> None:
        """Hand the head on."""
        try:
            headers, retry_after = answer_headers(self, answer)
            self.granted.breaker.note(answer.status, retry_after, self.calls.clock)
            length = answer.length
            if self.needles is not None:
                refuse = self.prepared.scrub == "refuse"
                headers, length, self.passage = scrubbed(headers, answer, self.needles, refuse=refuse)
        except ProblemError as problem:
            self._fail(problem)
            return
        self.status = answer.status
        self.answered = True
        self.asking.begin(answer.status, headers, length, bodiless=answer.bodiless)

    def answer_piece(self, piece: bytes) -> None:
        """Hand a piece on, or what may go of it."""
        try:
            if self.passage is not None:
                self.passage.feed(self, piece)
            else:
                self.count_back(len(piece))
                self.asking.piece(piece)
        except ProblemError as problem:
            self._fail(problem)

    def answer_pauses(self) -> None:
        """Let the code have what came so far."""
        self.asking.flush()

    def answer_complete(self) -> None:
        """End the answer, or let what waits of it go first."""
        self.upstream = None
        if self.passage is None:
            self.finish()
            return
        try:
            self.passage.end(self)
        except ProblemError as problem:
            self._fail(problem)

    def answer_failed(self, problem: ProblemError, *, stale: bool) -> None:
        """Give up, or begin anew where nothing can have happened."""
        self.upstream = None
        if stale and not self.repeated and self.method in _REPEATABLE and self.asking.length == 0:
            self.repeated = True
            self._go(self._send_again())
        else:
            self._fail(problem)

    def client_reads(self, *, reads: bool) -> None:
        """Stop reading the answer while the code does not keep up with it."""
        self.held = not reads
        if self.held:
            if self.upstream is not None:
                self.upstream.pause()
            return
        if self.passage is not None:
            try:
                self.passage.go_on(self)
            except ProblemError as problem:
                self._fail(problem)
            if not self.over:
                self.asking.flush()
        if not self.held and self.upstream is not None:
            self.upstream.resume()

    def count_back(self, size: int) -> None:
        """Count what comes back. Errors: ``ProblemError("response-too-large")``."""
        self.bytes_back += size
        if self.bytes_back > self.granted.max_response:
            raise ProblemError("response-too-large", limit=self.granted.max_response)

    def hand_on(self, piece: bytes) -> None:
        """Hand on a piece that may go as it is."""
        if piece and not self.over:
            self.asking.piece(piece)

    # --- how it ends ---

    def finish(self) -> None:
        """End well."""
        if not self.over:
            self._close(self.status)
            self.asking.end()

    def cut(self, code: str) -> None:
        """Stop the call. ``code`` is the problem that the code gets, if its answer has not begun."""
        if self.over or self.cut_by:
            return
        self.cut_by = code
        if self.waiting is not None:
            cancel(self.waiting)
        else:
            self._fail(ProblemError(code, retry_after=1 if code == _ENDING else None))

    def _go(self, story: Coroutine[Any, Any, None]) -> None:
        """Let the story run until it waits; what goes wrong before it is sent is how the call ends."""
        try:
            rest = begin(story)
        except ProblemError as problem:
            self._fail(problem)
        except Exception as error:  # noqa: BLE001 - whatever it is, the code gets an answer and the place is free again
            self._fail(describe(error, log))
        else:
            if rest is not None:
                self.waited = True
                self.waiting = asyncio.get_running_loop().create_task(self._go_on(rest))

    async def _go_on(self, rest: Awaitable[None]) -> None:
        try:
            await rest
        except asyncio.CancelledError:
            if self.over:
                return
            code = self.cut_by or _ENDING
            self._fail(ProblemError(code, retry_after=1 if code == _ENDING else None))
            if not self.cut_by:
                raise  # the loop ends
        except ProblemError as problem:
            self._fail(problem)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(describe(error, log))

    def _fail(self, problem: ProblemError) -> None:
        if self.over:
            return
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.abandon()
        gone = self.cut_by == GONE
        if self.answered and self.asking.take_back():
            self.answered = False
        if self.opened:
            status = self.status if self.answered else 0 if gone else problem.status
            self._close(status, shed=problem.code == "breaker-open")
        else:
            self._refused(problem, gone=gone)
        if problem.code == "credential-reflected":
            # Of an answer that has begun the code sees only that it breaks off: nobody else could say why.
            log.warning(problem.code, run_id=self.run.run_id, profile=self.granted.name, route=self.route)
        if self.answered:
            self.asking.break_off(problem)
        else:
            self.asking.refuse(problem)

    def _refused(self, problem: ProblemError, *, gone: bool) -> None:
        self.over = True
        self.granted.in_flight -= 1
        if gone:
            return
        self.calls.recorder.refused(self.granted.name, problem.code)
        if problem.code != "run-token-invalid":  # the trace of a run that is over is closed
            template = getattr(problem, "denied_template", None)
            self.run.trace.denied(problem.code, template, profile=self.granted.name)

    def _close(self, status: int, *, shed: bool = False) -> None:
        """Free the call's place and write its trace."""
        self.over = True
        granted, calls = self.granted, self.calls
        granted.in_flight -= 1
        calls.open.discard(self)
        if shed:
            self.run.trace.shed()
            calls.recorder.refused(granted.name, "breaker-open")
            return
        seconds = calls.clock.boottime() - self.started_at
        calls.recorder.call(granted.name, status, seconds)
        self.run.trace.record(
            granted.name,
            self.method,
            self.route,
            status=status,
            delivered=self.delivered,
            bytes_sent=self.bytes_sent,
            bytes_back=self.bytes_back,
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
