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
POINTS: Final[dict[str, str]] = {
    # A mint. Of a local kind there is no intent: its points are those of one transaction.
    "mint.requested": "a lease was asked for and admitted; nothing is written",
    "mint.intent-written": "the intent is committed and audited; the issuer has not been asked",
    "mint.made": "the issuer has made a credential; nothing says so here",
    "mint.committed": "the lease is committed and audited; nobody has its credential",
    "mint.answered": "the broker has been given the credential",
    "mint.reissued": "a live lease is about to be handed out again, and the log says so",
    "mint.failed": "the issuer did not make a credential, or did not say so; the intent stands",
    # A transaction of the store, whatever is in it.
    "store.begun": "a transaction has begun; nothing is in it",
    "store.work-done": "the rows are written; the transaction is not committed",
    "store.committed": "the transaction is committed; the audit log knows nothing of it",
    "store.told": "the audit log has its lines, synced; nobody knows the outcome",
    # A reload.
    "reload.read": "grants, brokers and secrets are read and checked; the old ones are in force",
    "reload.adopted": "the state knows the new keys; the old grants are in force",
    "reload.swapped": "the new grants are in force; what may not go on still lives",
    "reload.ended": "what may not go on has ended; streams of brokers that lost something are open",
}

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
        raise ValueError(f"there is no failpoint {name!r}")
    _armed, _left = name, int(count or "1")
    return name


def reached(name: str) -> None:
    """Die here, when a test asked for it: no cleanup, no flush, no other thread gets to do anything more."""
    global _left  # noqa: PLW0603
    if name == _armed:
        _left -= 1
        if _left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
