"""Who may be lent what: grants, kinds and brokers, swapped as a whole at a reload.

The broker has checked all this already. The minter does not take its word for it: a broker that was taken over gets
the credentials of its own profiles, and no other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from config.clock import Clock
from config.contract import LeaseRequest
from config.params import check_params
from config.problems import ProblemError
from config.profiles import Grants, Profile
from config.tokenfiles import Principal
from minter.book import Key
from minter.custody import Custody
from minter.forms import check_request
from minter.kinds import Kind
from minter.lease_rows import LeaseRow

#: How long, and how many, ended runs are remembered: a request that was overtaken by the end of its run is refused.
_ENDED_RUNS: Final = 100_000
_ENDED_S: Final = 600.0

Objection = Literal["broker-changed", "grant-changed"]
OBJECTIONS: Final[tuple[Objection, ...]] = get_args(Objection)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that may be granted. ``life_s``: by the run's end and by the grant no lease of it lasts longer."""

    key: Key
    request: LeaseRequest
    profile: Profile
    kind: Kind
    token: str
    params: Mapping[str, str]
    params_digest: str
    life_s: float

    @property
    def cap(self) -> tuple[str, str]:
        """What the caps count by: broker and profile."""
        return (self.key[0], self.key[2])

    def same_as(self, other: Asked | LeaseRow) -> None:
        """Refuse when a lease of the same run and profile is for something else: ``lease-conflict``."""
        mine = (self.request.caller, self.params_digest, self.request.origin)
        if isinstance(other, LeaseRow):
            theirs = (other.caller, other.params_digest, other.origin)
        else:
            theirs = (other.request.caller, other.params_digest, other.request.origin)
        if mine != theirs:
            raise ProblemError("lease-conflict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is in force.

    ``kinds``, ``tokens`` (the token object's JSON) and ``keys`` (the custody keys that it refers to) are of the
    profiles that have a token.
    """

    grants: Grants
    kinds: Mapping[str, Kind]
    tokens: Mapping[str, str]
    keys: Mapping[str, tuple[str, ...]]
    brokers: Mapping[str, Principal]

    def objection(self, row: LeaseRow) -> Objection | None:
        """Return why a live lease may not go on under this policy, or None."""
        broker = self.brokers.get(row.broker)
        if broker is None or not broker.may_ask_for(row.profile):
            return "broker-changed"
        profile = self.grants.profiles.get(row.profile)
        if (
            profile is None
            or profile.base_url != row.origin
            or self.tokens.get(row.profile) != row.token
            or not profile.allows_caller(row.caller)
        ):
            return "grant-changed"
        return None


class Admission:
    """Decides about requests under the policy in force, which a reload replaces by assigning :attr:`policy`."""

    def __init__(self, policy: Policy, *, custody: Custody, clock: Clock) -> None:
        self.policy = policy
        self._custody = custody
        self._clock = clock
        self._ended: OrderedDict[tuple[str, str], float] = OrderedDict()

    def admit(self, broker: Principal, request: LeaseRequest) -> Asked:
        """Return what may be lent, or refuse."""
        policy = self.policy
        check_request(request)
        # By the policy, not by who it was when it asked: a request may have waited while that changed.
        now = policy.brokers.get(broker.id)
        if now is None or not now.may_ask_for(request.profile):
            raise ProblemError("profile-not-allowed")
        profile = policy.grants.profiles.get(request.profile)
        if profile is None:
            raise ProblemError("profile-unknown")
        if not profile.allows_caller(request.caller):
            raise ProblemError("caller-not-allowed")
        if profile.token is None:
            raise ProblemError("no-token")
        if request.origin != profile.base_url:
            raise ProblemError("origin-mismatch")
        if request.grant_digest != profile.digest:
            raise ProblemError("grant-mismatch")
        if not request.ttl_s <= profile.max_ttl_s:
            raise ProblemError("ttl-invalid", "the run has longer to live than the profile's max_ttl")
        if request.ttl_s <= 0 or (broker.id, request.run_id) in self._ended:
            raise ProblemError("run-over")
        for alias in policy.keys[profile.name]:
            self._custody.secret(alias, profile.base_url)  # refuses a key that is pinned elsewhere
        params = check_params(profile, request.params)
        return Asked(
            key=(broker.id, request.run_id, request.profile),
            request=request,
            profile=profile,
            kind=policy.kinds[profile.name],
            token=policy.tokens[profile.name],
            params=params,
            params_digest=self._custody.param_digest(params),
            life_s=min(request.ttl_s, profile.ttl_s),
        )

    def run_ended(self, broker: str, run_id: str) -> None:
        """Remember that a run is over."""
        now = self._clock.boottime()
        self._ended[broker, run_id] = now
        while self._ended and (len(self._ended) > _ENDED_RUNS or next(iter(self._ended.values())) < now - _ENDED_S):
            self._ended.popitem(last=False)
