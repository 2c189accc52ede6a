"""What it takes to open a run: what a caller asks for, the checks on it, and the row that is kept."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.records import ProfileRow, RunRow
from broker.run import Run
from config import tokens
from config.clock import Deadline
from config.params import check_params, refuse_unknown
from config.problems import ProblemError
from config.profiles import Profile
from config.secret import Secret

_ALPHABET: Final = string.digits + string.ascii_letters
_SHORTEST_TTL_S: Final = 1.0
_TOKEN: Final = re.compile(tokens.PATTERN, re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a caller asks for. ``ttl_s`` None means what the profiles say."""

    caller: str
    profiles: tuple[str, ...]
    params: Mapping[str, str]
    ttl_s: float | None = None
    trace_id: str | None = None


def new_run_id() -> str:
    """Return an id for a run: random, and no secret."""
    return "run_" + "".join(secrets.choice(_ALPHABET) for _ in range(22))


def checked_params(profiles: Sequence[Profile], given: Mapping[str, str]) -> dict[str, str]:
    """Return the params of a run: each profile takes the names that it declares, and none may be left over.

    Errors: ``ProblemError("params-invalid")``.
    """
    refuse_unknown(profiles, given)
    checked: dict[str, str] = {}
    for profile in profiles:
        checked |= check_params(profile, given)
    for name, value in checked.items():
        # It would be kept as it is, and be told to the run's code.
        if _TOKEN.search(value):
            raise ProblemError("params-invalid", f"the parameter {name} holds a token", param=name)
    return checked


def checked_ttl(profiles: Sequence[Profile], wanted: float | None) -> float:
    """Return how long a run lasts, in seconds: what was asked for, or the shortest that a profile says.

    Errors: ``ProblemError("ttl-invalid")``.
    """
    longest = min(profile.max_ttl_s for profile in profiles)
    if wanted is None:
        return min(longest, *(profile.ttl_s for profile in profiles))
    if not _SHORTEST_TTL_S <= wanted <= longest:
        raise ProblemError(
            "ttl-invalid", "the lifetime is shorter than a second or longer than the profile allows", longest_s=longest
        )
    return wanted


def token_digest(token: Secret) -> bytes:
    """Return the digest that a new run token is known by."""
    digest = tokens.digest(token.reveal(), tokens.RUN)
    if digest is None:
        raise AssertionError("a token that was just made has the form of one")
    return digest


def run_row(run: Run, digest: bytes, ceiling: Deadline, profiles: Sequence[Profile]) -> RunRow:
    """Return a new run as it is kept."""
    return RunRow(
        run_id=run.run_id,
        caller=run.caller,
        trace_id=run.trace_id,
        params=msgspec.json.encode(run.params),
        token_digest=digest,
        created_at=run.created_at,
        expires_at=run.deadline.expires_at,
        boot_expires_at=run.deadline.boot_expires_at,
        ceiling_at=ceiling.expires_at,
        boot_ceiling_at=ceiling.boot_expires_at,
        boot_id=run.deadline.boot_id,
        profiles=tuple(
            ProfileRow(profile=profile.name, grant_digest=profile.digest, source=profile.source) for profile in profiles
        ),
    )
