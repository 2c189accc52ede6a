"""A live run: what the data path holds in memory of it.

``broker/runs.py`` opens, extends, restores and ends runs; this file says what one is while calls are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.breaker import Breaker
from broker.trace import Trace
from config.clock import Clock, Deadline, Moment, moment
from config.contract import LeaseRequest
from config.problems import ProblemError
from config.target import Target, split_target

if TYPE_CHECKING:
    from broker.budget import Budget
    from broker.call import Call
    from broker.heads import Prepared
    from broker.learned import Learned
    from broker.leases import Leases, LeaseSlot
    from config.grants import Profile
    from config.match import Matcher
    from config.profiles import RouteRule

#: Takes a route and the segments of a target that it granted; None while nothing may be learnt of them.
Learn = Callable[["RouteRule", Sequence[bytes] | None], None]
#: A call's target, split; its route as written; whether the credential is attached.
Granting = tuple[Target, str, bool]

#: How many targets of a run and profile are remembered as granted, and how long they may be.
_REMEMBERED: Final = 64
_REMEMBERED_BYTES: Final = 512
#: What ``scrub`` may be, the strictest last.
_STRICTNESS: Final = ("off", "mask", "refuse")


class RunProfile:
    """One profile of a run: the grant that it was opened with, and what the current grants leave of it.

    A run only gets narrower: a call must match both grants, and of every limit the smaller one holds. ``current`` is
    set at each reload; ``None`` means that the profile is gone, and no call is made.
    """

    __slots__ = (
        "_current",
        "breaker",
        "budget",
        "frozen",
        "frozen_matcher",
        "granting",
        "in_flight",
        "learn",
        "lease",
        "max_concurrent",
        "max_request",
        "max_response",
        "name",
        "params",
        "private_addresses",
        "request_headers",
        "response_headers",
        "scrub",
        "wire",
    )

    def __init__(self, frozen: Profile, frozen_matcher: Matcher, *, params: dict[str, str], budget: Budget) -> None:
        """Take the grant as it was when the run was opened, and of the run's params those that it declares."""
        self.name = frozen.name
        self.frozen = frozen
        self.frozen_matcher = frozen_matcher
        self.params = params
        self.budget = budget
        self.breaker = Breaker(frozen.breaker_max_s)
        self.lease: LeaseSlot | None = None
        self.in_flight = 0
        #: Takes every target that is granted for the first time, by the route that granted it (see broker/learned.py).
        self.learn: Learn | None = None
        #: What both grants said of calls that were made before, by method and target; emptied when a grant changes.
        self.granting: dict[tuple[str, bytes], Granting] = {}
        #: What is prepared once a run instead of once a call (see broker/heads.py).
        self.wire: Prepared | None = None
        self._current: tuple[Profile, Matcher] | None = None
        self.current = (frozen, frozen_matcher)

    @property
    def current(self) -> tuple[Profile, Matcher] | None:
        """The profile in the grants that are loaded now."""
        return self._current

    @current.setter
    def current(self, current: tuple[Profile, Matcher] | None) -> None:
        self._current = current
        frozen = self.frozen
        now = current[0] if current is not None else frozen
        self.max_concurrent = min(frozen.max_concurrent, now.max_concurrent)
        self.max_request = min(frozen.max_request, now.max_request)
        self.max_response = min(frozen.max_response, now.max_response)
        self.breaker.longest_s = min(frozen.breaker_max_s, now.breaker_max_s)
        self.request_headers = frozen.request_headers & now.request_headers
        self.response_headers = frozen.response_headers & now.response_headers
        self.scrub = max(frozen.scrub, now.scrub, key=_STRICTNESS.index)
        self.private_addresses = frozen.private_addresses and now.private_addresses
        self.wire = None
        self.granting = {}

    def match(self, method: str, raw: bytes) -> Granting:
        """Match a call against both grants; the credential is attached only if both say so.

        What is granted is remembered: the run's parameters do not change, and a reload begins anew.
        Errors: ``ProblemError`` of the first grant that does not take the call.
        """
        target = split_target(raw)
        if self._current is None:
            raise ProblemError("profile-not-granted")
        rule = self.frozen_matcher.match(method, target, self.params).rule
        credential, matcher = rule.credential, self._current[1]
        if matcher is not self.frozen_matcher:
            credential &= matcher.match(method, target, self.params).rule.credential
        granting = target, rule.text, credential
        if self.learn is not None:
            self.learn(rule, target.segments if self._current[0].learn else None)
        if len(raw) <= _REMEMBERED_BYTES:
            if len(self.granting) >= _REMEMBERED:
                self.granting.clear()
            self.granting[method, raw] = granting
        return granting

    @property
    def max_calls(self) -> int:
        """How many calls the run may make in all with this profile."""
        now = self._current[0] if self._current is not None else self.frozen
        return min(self.frozen.max_calls, now.max_calls)


@dataclass(slots=True, eq=False, kw_only=True)
class Run:
    """A run while it lives. ``ended`` is empty until it ends, then the reason.

    ``host_calls`` are the calls written as JSON whose body or answer lies in memory (see broker/envelope.py).
    """

    run_id: str
    caller: str
    trace_id: str | None
    params: dict[str, str]
    deadline: Deadline
    created_at: float
    profiles: dict[str, RunProfile] = field(default_factory=dict)
    ended: str | None = None
    trace: Trace = field(default_factory=Trace)
    open_calls: set[Call] = field(default_factory=set)
    host_calls: int = 0

    def grant(
        self, profile: Profile, matcher: Matcher, *, budget: Budget, leases: Leases, learned: Learned | None = None
    ) -> RunProfile:
        """Add a profile, which is how a run gets one when it is opened or restored."""
        params = {name: value for name, value in self.params.items() if name in profile.params}
        granted = RunProfile(profile, matcher, params=params, budget=budget)
        if profile.token is not None:
            granted.lease = leases.slot(self, granted)
        if profile.learn and learned is not None:
            granted.learn = partial(learned.note, self.run_id, profile.name)
        self.profiles[profile.name] = granted
        return granted

    def check(self, clock: Clock) -> None:
        """Pass while the run lives.

        Errors: ``ProblemError("run-token-invalid")`` when it has ended or its time is over: to the code an ended run
        and an unknown token look the same.
        """
        self.check_at(moment(clock))

    def check_at(self, at: Moment) -> None:
        """Do the same at a moment that was read before."""
        if self.ended is not None or self.deadline.ended_at(at):
            raise ProblemError("run-token-invalid")

    def end(self, reason: str) -> None:
        """End the run here and cut its open calls; the store and the minter are told by ``broker/runs.py``."""
        if self.ended is None:
            self.ended = reason
            for call in tuple(self.open_calls):
                call.cut("run-token-invalid")
            for granted in self.profiles.values():
                if granted.lease is not None:
                    granted.lease.close()

    def lease_request(self, granted: RunProfile, clock: Clock) -> LeaseRequest:
        """Return what the minter is asked for on behalf of one profile of this run.

        Errors: ``ProblemError("profile-not-granted")`` when the profile is gone from the current grants.
        """
        if granted.current is None:
            raise ProblemError("profile-not-granted")
        profile = granted.current[0]
        return LeaseRequest(
            run_id=self.run_id,
            caller=self.caller,
            profile=granted.name,
            params=granted.params,
            ttl_s=self.deadline.remaining(clock),
            origin=profile.base_url,
            grant_digest=profile.digest,
            trace_id=self.trace_id,
        )
