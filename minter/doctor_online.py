"""The part of ``minter doctor --online`` that asks the profiles' origins for their time.

A clock that is wrong makes credentials that issuers refuse, or that live longer than was said. The request carries no
credential and no name of a resource.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Final

from config.clock import Clock
from config.console import doctor
from config.console.doctor import Finding
from config.errors import ConfigurationError
from config.settings import MinterSettings
from minter import egress
from minter.doctor_keys import load_grants

#: From here on a difference is worth a warning, and from here on it is a fault.
WARN_S: Final = 30.0
FAULT_S: Final = 300.0
_TIMEOUT_S: Final = 10.0


def check_online(settings: MinterSettings, environ: Mapping[str, str], clock: Clock) -> Iterator[Finding]:
    """Compare the clock with that of every origin that a profile names."""
    try:
        profiles = load_grants(settings, environ).profiles.values()
    except ConfigurationError:
        return
    for origin in sorted({profile.base_url for profile in profiles}):
        yield asyncio.run(_skew(origin, clock))


async def _skew(origin: str, clock: Clock) -> Finding:
    before = clock.now()
    try:
        answer = await egress.call(origin, "HEAD", "/", timeout_s=_TIMEOUT_S)
    except egress.EgressError as error:
        return Finding("note", "clock", origin, f"could not be asked: {error.reason}")
    try:
        theirs = parsedate_to_datetime(answer.date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return Finding("note", "clock", origin, "does not say what time it is")
    return judge(origin, before=before, after=clock.now(), theirs=theirs)


def judge(origin: str, *, before: float, after: float, theirs: float) -> Finding:
    """Judge a time that was read between two of our own. A ``Date`` is cut to whole seconds.

    >>> judge("https://api.example.com", before=100.0, after=100.2, theirs=60.0).level
    'warning'
    """
    off_s = 0.0
    if theirs > after:
        off_s = theirs - after
    elif theirs + 1 < before:
        off_s = theirs + 1 - before
    size = abs(off_s)
    level: doctor.Level = "fault" if size > FAULT_S else "warning" if size > WARN_S else "ok"
    side = "behind" if off_s > 0 else "ahead of"
    what = f"this clock is {size:.0f} s {side} its" if size >= 1 else "agrees with this clock"
    return Finding(level, "clock", origin, what, "set the clock: chronyc, timedatectl" if level != "ok" else "")
