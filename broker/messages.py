"""What callers send to the control API."""

from __future__ import annotations

from typing import Annotated

import msgspec

from config.problems import ProblemError

# The last group is for Python alone, whose "$" also matches before a line break at the end.
TraceId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._:/@+=-]{1,128}$(?!\n)")]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class OpenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/runs``: one ``profile``, or ``profiles``."""

    profile: Name | None = None
    profiles: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=32)] | None = None
    params: Annotated[dict[str, str], msgspec.Meta(max_length=64)] = {}
    ttl: float | str | None = None
    trace_id: TraceId | None = None

    def names(self) -> tuple[str, ...]:
        """Return the profiles asked for. Errors: ``ProblemError("body-malformed")``."""
        if (self.profile is None) == (self.profiles is None):
            raise ProblemError("body-malformed", "give profile, or profiles")
        names = (self.profile,) if self.profile is not None else tuple(self.profiles or ())
        if len(set(names)) != len(names):
            raise ProblemError("body-malformed", "a profile stands twice")
        return names


class ExtendRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``PATCH /v1/runs/{id}``: ``ttl`` counts from now."""

    ttl: float | str
