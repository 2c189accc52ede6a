"""The messages between broker and minter: the only thing that the two programs share at run time.

Transport: HTTP/1.1 with JSON over the minter's Unix socket, ``Authorization: Bearer mbk_...``; refusals are
problem+json with codes of ``config/problems.py``. A field that is not listed here is refused.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

from config.problems import ProblemError

T = TypeVar("T")

_REPEATED: Final = re.compile(
    r"\A(Invalid enum value|Object contains unknown field(?! `[a-z_]{1,32}`(?: |\Z))) .*?( - at `\$[^`]*`)?\Z",
    re.DOTALL,
)

LEASES: str = "/v1/leases"
WATCH: str = "/v1/leases/watch"
#: Seconds between two lines of the stream of ended leases when nothing ends.
WATCH_BEAT_S: float = 1.0
#: After so many seconds without a line the broker revalidates a lease before it uses it.
WATCH_STALE_S: float = 5.0


class LeaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/leases``: the live lease of (broker, run, caller, profile, params, grant digest), or a new one.

    ``ttl_s`` is how long the run has still to live, in seconds; a lease ends no later. ``origin`` is the grant's
    ``base_url``; ``grant_digest`` is :attr:`config.grants.Profile.digest`: the minter refuses another.
    """

    run_id: str
    caller: str
    profile: str
    params: dict[str, str]
    ttl_s: float
    origin: str
    grant_digest: str
    trace_id: str | None = None


class LeaseReply(msgspec.Struct, frozen=True, kw_only=True):
    """The credential and its end. ``credential`` is text by field name; the only field of most kinds is ``value``.

    ``expires_at`` is RFC 3339; ``expires_in_s`` the same from the moment of sending: the broker goes by whichever
    is earlier on its own clocks. This message is the one place where a credential crosses between the programs;
    its ``repr`` therefore shows none.
    """

    lease_id: str
    credential: dict[str, str]
    expires_at: str
    expires_in_s: float
    kind: str
    fingerprint: str

    def __repr__(self) -> str:
        return f"LeaseReply(lease_id={self.lease_id!r}, kind={self.kind!r}, credential=<secret>)"


class EndedLease(msgspec.Struct, frozen=True, kw_only=True):
    """A line of ``GET /v1/leases/watch`` (JSON lines). A beat is a line with an empty ``lease_id``."""

    lease_id: str = ""
    run_id: str = ""
    profile: str = ""
    reason: str = ""


class RevokedLease(msgspec.Struct, frozen=True, kw_only=True):
    """How one lease ended, said honestly.

    ``state`` is a lease state of DESIGN section 7; ``how`` is ``upstream_deleted``, ``accepted_async``,
    ``expired_only``, ``key_still_valid`` or empty while a revocation is still being tried.
    """

    lease_id: str
    profile: str
    kind: str
    state: str
    how: str = ""


class Revoked(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to ``DELETE /v1/leases/{id}`` and ``DELETE /v1/runs/{id}``."""

    leases: list[RevokedLease]


class TemplateCount(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Calls of one granted route, written as in the grants file."""

    profile: str
    route: str
    calls: int


class DeniedCount(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Calls that were refused for one reason: a problem code.

    ``profile`` is empty when the run has none of the name that was asked for. ``route`` is the catalog's route that
    the calls matched, as written in the grants file; absent when none did.
    """

    code: str
    profile: str
    calls: int
    route: str | None = None


class RunRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/runs/{id}/record``: the counts of a run that ended, for the audit (``reported_by: broker``).

    ``grant_digests`` are by profile, of the grants that the run was opened with. A broker of an earlier version sends
    neither them nor ``denied_by``.
    """

    caller: str
    ended: str
    calls: int
    denied: int
    shed: int
    by_route: list[TemplateCount] = []
    denied_by: list[DeniedCount] = []
    grant_digests: dict[str, str] = {}
    trace_id: str | None = None


def _told(text: str) -> str:
    """Return what msgspec says without what it repeats: a value that is none of a list, a field that is no plain word.

    >>> _told("Invalid enum value 'begin' - at `$.step`")
    'Invalid enum value - at `$.step`'
    >>> _told("Object contains unknown field `colour` - at `$.lamp`")
    'Object contains unknown field `colour` - at `$.lamp`'
    """
    return _REPEATED.sub(r"\1\2", text)


def decode(type_: type[T], body: bytes) -> T:
    """Decode a message strictly; a fault is 400 ``body-malformed`` and names the field, never a value."""
    try:
        return msgspec.json.decode(body, type=type_, strict=True)
    except msgspec.ValidationError as error:
        # msgspec names types and the path; what it repeats of the message stands in quotes of either kind.
        raise ProblemError("body-malformed", _told(str(error))) from None
    except msgspec.DecodeError:
        raise ProblemError("body-malformed", "the body is not JSON") from None
    except RecursionError:
        raise ProblemError("body-malformed", "the body is nested too deep") from None
