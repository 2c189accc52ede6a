"""The grants that are loaded now, compiled, and what a change of them does to a run.

A run only ever gets narrower. Where its API is called, with which token and where that is placed may not change at
all: then it ends, because what the caller agreed to is no longer there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.run import Run, RunProfile
from config.grants import Grants, Profile, compile_profile
from config.match import Matcher
from config.params import check_params
from config.problems import ProblemError

if TYPE_CHECKING:
    from broker.call import Call


class Current:
    """The loaded grants with a matcher for each profile. It is never changed, only replaced."""

    def __init__(self, grants: Grants) -> None:
        """Compile the matchers."""
        self.grants = grants
        self._compiled = {name: (profile, Matcher(profile)) for name, profile in grants.profiles.items()}

    def __contains__(self, name: str) -> bool:
        """Say whether there is such a profile."""
        return name in self._compiled

    def __getitem__(self, name: str) -> tuple[Profile, Matcher]:
        """Return a profile and its matcher. Errors: ``KeyError``."""
        return self._compiled[name]

    def for_caller(self, name: str, caller: str) -> tuple[Profile, Matcher]:
        """Return a profile that ``caller`` may open runs with.

        Errors: ``ProblemError("profile-unknown")``, alike for one that does not exist and one of other callers.
        """
        found = self._compiled.get(name)
        if found is None or not found[0].allows_caller(caller):
            raise ProblemError("profile-unknown", profile=name)
        return found

    def thawed(self, name: str, digest: str, source: bytes) -> tuple[Profile, Matcher]:
        """Return the grant that a run was opened with, from what the store kept of it.

        Errors: ``ConfigurationError`` when this version of the program does not take it any more.
        """
        found = self._compiled.get(name)
        if found is not None and found[0].digest == digest:
            return found
        profile = compile_profile(name, source)
        return profile, Matcher(profile)


def narrow(run: Run, current: Current) -> str | None:
    """Go by ``current`` for ``run`` and its open calls from now on; return why the run must end, if it must."""
    for granted in run.profiles.values():
        frozen = granted.frozen
        try:
            now, _ = current[granted.name]
        except KeyError:
            continue
        if (now.base_url, now.token, now.placement) != (frozen.base_url, frozen.token, frozen.placement):
            return "grant-changed"
    for granted in run.profiles.values():
        _narrow_profile(run, granted, current)
    return None


def _narrow_profile(run: Run, granted: RunProfile, current: Current) -> None:
    private_before, scrub_before = granted.private_addresses, granted.scrub
    try:
        now = current.for_caller(granted.name, run.caller)
        if granted.current is not None and granted.current[0].digest == now[0].digest:
            return
        check_params(now[0], granted.params)
        granted.current = now
    except ProblemError:
        granted.current = None
    granted.budget.change(granted.max_calls)
    for call in tuple(run.open_calls):
        if call.granted is granted and (code := _refusal(call, private=private_before, scrub=scrub_before)):
            call.cut(code)


def _refusal(call: Call, *, private: bool, scrub: str) -> str:
    """Return the code that an open call is cut by now; ``private`` and ``scrub`` are as they were when it began."""
    granted = call.granted
    if granted.current is None:
        return "profile-not-granted"
    # Where a call goes and whether its answer is looked through was decided when it began.
    if private and not granted.private_addresses:
        return "upstream-address-refused"
    if call.credential and scrub == "off" != granted.scrub:
        return "profile-not-granted"
    try:
        rule = granted.current[1].match(call.method, call.target, granted.params).rule
    except ProblemError as refused:
        return refused.code
    return "route-not-granted" if call.credential and not rule.credential else ""
