"""``broker explain``: the way of one call through a grants file, as a run of the profile would go it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from config.console.commands import CommandError
from config.errors import ExitCode
from config.explain import Explanation, explain
from config.grants import Grants
from config.match import Matcher
from config.params import check_params, refuse_unknown


def explained(grants: Grants, profile: str, method: str, target: str, params: Mapping[str, str]) -> Explanation:
    """Explain a call.

    Errors: ``CommandError`` (usage) for a profile that there is not; ``ProblemError`` for run parameters that a run
    could not be opened with.
    """
    found = grants.profiles.get(profile)
    if found is None:
        there = ", ".join(sorted(grants.profiles)) or "none"
        raise CommandError(ExitCode.USAGE, f"there is no profile {profile}; there are: {there}")
    refuse_unknown([found], params)
    checked = check_params(found, params)
    # The bytes that were typed, also where they are no text.
    return explain(Matcher(found), method, os.fsencode(target), checked)


def parameters(given: Iterable[str]) -> dict[str, str]:
    """Read ``name=value`` texts. Errors: ``CommandError`` (usage)."""
    params: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name or name in params:
            raise CommandError(ExitCode.USAGE, f"--param {name}: write NAME=VALUE, each name once")
        params[name] = value
    return params
