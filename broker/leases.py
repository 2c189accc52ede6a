"""The credentials on loan: one slot for each run and profile, and the stream that says which loans have ended.

A slot is filled by the first matched call and used until a margin before its end, by whichever clock is first. A
hundred first calls are one request to the minter; one of them giving up does not take the others along. What ends early
comes over the minter's stream within a second. When the stream has been silent for too long, or was away, a slot asks
the minter again before it is used: the same lease comes back, or the refusal.
"""

from __future__ import annotations

import asyncio
import random
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from config.clock import Clock, Deadline, Moment, moment, parse_rfc3339
from config.contract import WATCH_STALE_S, LeaseReply
from config.problems import ProblemError
from config.secret import Secret

if TYPE_CHECKING:
    from broker.minter_link import MinterLink
    from broker.run import Run, RunProfile

log = structlog.get_logger("broker.leases")

#: With less left than this, or than this part of its life, a lease is asked for again.
MARGIN_S: Final = 30.0
MARGIN_PART: Final = 0.1

#: Waiting before the stream is opened again: doubles from the first to the last.
_BACKOFF_S: Final = (0.1, 2.0)
#: How many ended leases are remembered, for a reply that the stream overtook.
_REMEMBERED: Final = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """A credential on loan.

    ``use_until`` is its end less the margin. ``stream`` is how often the watch had been opened when it was checked.
    """

    lease_id: str
    credential: dict[str, Secret]
    ends: Deadline
    use_until: Deadline
    stream: int


class LeaseSlot:
    """The lease of one run and profile, or the place for it."""

    __slots__ = ("__weakref__", "_closed", "_fetching", "_granted", "_leases", "_paused", "_run", "lease")

    def __init__(self, leases: Leases, run: Run, granted: RunProfile) -> None:
        """Take whose slot it is; see :meth:`Leases.slot`."""
        self.lease: Lease | None = None
        self._leases = leases
        self._run = run
        self._granted = granted
        self._fetching: asyncio.Task[Lease] | None = None
        self._closed = False
        #: Until when (boot clock) the minter asked not to be asked, and what it said.
        self._paused: tuple[float, ProblemError] | None = None

    def ready(self, at: Moment) -> Lease | None:
        """Return the lease if it can be used as it is: not near its end, and the stream vouches for it."""
        lease = self.lease
        if lease is None or not self._leases.vouches(lease, at[1]) or lease.use_until.ended_at(at):
            return None
        return lease

    async def obtain(self, clock: Clock) -> Lease:
        """Return a lease that can be used now, from here or from the minter.

        Errors: ``ProblemError``: ``minter-unavailable``, ``mint-failed``, ``lease-refused``, ``profile-not-granted``.
        """
        lease = self.ready(moment(clock))
        if lease is not None:
            return lease
        if self._closed:
            raise ProblemError("run-token-invalid")
        if self._paused is not None:
            until, error = self._paused
            left = until - clock.boottime()
            if left > 0:
                raise ProblemError(error.code, error.detail, retry_after=left, **error.members)
            self._paused = None
        fetching = self._fetching
        if fetching is None:
            fetching = self._fetching = asyncio.create_task(self._fetch(clock))
            fetching.add_done_callback(self._fetched)
        # The task is nobody's own: a call that is cancelled here leaves it to the others.
        return await asyncio.shield(fetching)

    def drop(self, lease_id: str) -> None:
        """Forget the lease, if it is this one, and cut the calls that are open on it."""
        lease = self.lease
        if lease is None or lease.lease_id != lease_id:
            return
        self._forget()
        for call in tuple(self._run.open_calls):
            if call.lease is not None and call.lease.lease_id == lease_id:
                call.cut("lease-refused")

    def close(self) -> None:
        """Forget the credential for good: the run is over."""
        self._closed = True
        self._forget()

    def _forget(self) -> None:
        self.lease = None
        # The head of a call that is prepared with it goes, too.
        self._granted.wire = None

    @property
    def fetching(self) -> asyncio.Task[Lease] | None:
        """The request to the minter that is under way, if one is: it may still bring a lease that nobody wants."""
        return self._fetching

    def _fetched(self, task: asyncio.Task[Lease]) -> None:
        self._fetching = None
        if not task.cancelled():
            task.exception()  # every waiter may be gone: then nobody else takes note of it

    async def _fetch(self, clock: Clock) -> Lease:
        stream = self._leases.stream
        # The end on the boot clock counts from before the minter was asked: early by the time that took, never late.
        asked_at = clock.boottime()
        try:
            reply = await self._leases.link.lease(self._run.lease_request(self._granted, clock))
        except ProblemError as error:
            return self._without_reply(error, clock)
        if self._closed:
            raise ProblemError("run-token-invalid")
        if self._leases.has_ended(reply.lease_id):
            raise ProblemError("mint-failed", retry_after=1)
        lease = _lease(reply, clock, asked_at=asked_at, stream=stream)
        if lease.ends.ended(clock):
            raise ProblemError("mint-failed", retry_after=1)
        old = self.lease
        if (
            old is not None
            and old.lease_id != lease.lease_id
            and not old.use_until.ended(clock)
            and not self._leases.vouches(old)
        ):
            # The minter has replaced it before its time: it ended while the stream was away.
            self.drop(old.lease_id)
        self.lease = lease
        self._leases.register(self)
        return lease

    def _without_reply(self, error: ProblemError, clock: Clock) -> Lease:
        """Use what is left of the lease when the minter does not answer, but only while the stream vouches for it."""
        lease = self.lease
        if error.code == "lease-refused":
            if lease is not None:
                self.drop(lease.lease_id)
            raise error
        if lease is not None and self._leases.vouches(lease) and not lease.ends.ended(clock):
            return lease
        if error.code == "mint-failed" and error.retry_after is not None:
            self._paused = (clock.boottime() + error.retry_after, error)
        raise error


class Leases:
    """All slots of this broker, and the watch over them."""

    def __init__(self, link: MinterLink, clock: Clock) -> None:
        """Take the link that asks the minter."""
        self.link = link
        #: How often the stream of ended leases has been opened: what was checked before the last time is checked again.
        self.stream = 0
        self._clock = clock
        self._heard_at: float | None = None
        self._slots: weakref.WeakValueDictionary[str, LeaseSlot] = weakref.WeakValueDictionary()
        self._ended: OrderedDict[str, None] = OrderedDict()

    def slot(self, run: Run, granted: RunProfile) -> LeaseSlot:
        """Return an empty slot for a profile of a run."""
        return LeaseSlot(self, run, granted)

    def vouches(self, lease: Lease, boot: float | None = None) -> bool:
        """Say whether the stream would have told by now if the lease had ended; ``boot`` is now on the boot clock."""
        heard_at = self._heard_at
        if heard_at is None or lease.stream != self.stream:
            return False
        return (self._clock.boottime() if boot is None else boot) - heard_at < WATCH_STALE_S

    @property
    def watching(self) -> bool:
        """Whether the stream is there, for readiness."""
        return self._heard_at is not None and self._clock.boottime() - self._heard_at < WATCH_STALE_S

    def has_ended(self, lease_id: str) -> bool:
        """Say whether the stream has named a lease."""
        return lease_id in self._ended

    def register(self, slot: LeaseSlot) -> None:
        """Let the stream find a slot by the lease in it."""
        if slot.lease is not None:
            self._slots[slot.lease.lease_id] = slot

    async def watch(self) -> None:
        """Follow the minter's stream of ended leases for ever, opening it again whenever it is lost."""
        delay_s, longest_s = _BACKOFF_S
        told = False
        while True:
            try:
                first = True
                async for ended in self.link.watch():
                    if first:
                        first = False
                        self.stream += 1
                        delay_s, told = _BACKOFF_S[0], False
                        log.info("watching-leases")
                    self._heard_at = self._clock.boottime()
                    if ended.lease_id:
                        self.end(ended.lease_id)
            except ProblemError as error:
                if not told:  # once for each outage
                    log.warning("lease-watch-lost", code=error.code, reason=error.detail)
                told = True
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads brokers, guards nothing
            delay_s = min(delay_s * 2, longest_s)

    def end(self, lease_id: str) -> None:
        """Take note that a lease has ended."""
        self._ended[lease_id] = None
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        slot = self._slots.pop(lease_id, None)
        if slot is not None:
            slot.drop(lease_id)


def _lease(reply: LeaseReply, clock: Clock, *, asked_at: float, stream: int) -> Lease:
    try:
        expires_at = parse_rfc3339(reply.expires_at)
    except ValueError:
        raise ProblemError("mint-failed", retry_after=1) from None
    ends = Deadline(expires_at, asked_at + reply.expires_in_s, clock.boot_id())
    margin = min(MARGIN_S, MARGIN_PART * max(0.0, ends.remaining(clock)))
    return Lease(
        lease_id=reply.lease_id,
        credential={field: Secret(value) for field, value in reply.credential.items()},
        ends=ends,
        use_until=Deadline(ends.expires_at - margin, ends.boot_expires_at - margin, ends.boot_id),
        stream=stream,
    )
