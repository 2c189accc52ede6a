"""Named points at which a test kills the process, to see what a crash there leaves behind.

A point is a call of :func:`reached` between two steps that must survive a crash. In a program that nobody tests it does
nothing: it is armed by ``MINTER_TEST_FAILPOINT=NAME`` (or ``NAME:N`` for the N-th time) alone, which is removed from
the environment when it is read and named in the log.
"""

from __future__ import annotations

import os
import signal
from collections.abc import MutableMapping
from typing import Final

VARIABLE: Final = "MINTER_TEST_FAILPOINT"

#: Every point by name, with what has happened by then and what has not.
POINTS: Final[dict[str, str]] = {}

_armed: str | None = None
_left = 0


def arm(environ: MutableMapping[str, str]) -> str | None:
    """Arm the point that the environment names; return its name, or None.

    Errors: ``ValueError`` for a point that does not exist.
    """
    global _armed, _left
    given = environ.pop(VARIABLE, "")
    if not given:
        return None
    name, _, count = given.partition(":")
    if name not in POINTS:
        raise ValueError(f"{VARIABLE}: there is no failpoint {name!r}")
    _armed, _left = name, int(count or "1")
    return name


def reached(name: str) -> None:
    """Die here, when a test asked for it: no cleanup, no flush, no other thread gets to do anything more."""
    global _left  # noqa: PLW0603
    if name == _armed:
        _left -= 1
        if _left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
