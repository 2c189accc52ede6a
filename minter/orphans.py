"""Suspects: a credential that a mint may have left at its issuer when the minter, or the issuer's answer, was lost.

A kind that can find it there by the lease's id ends it (:class:`minter.kinds.FindsOrphans`). When it finds nothing it
is asked a second time, later than any mint can take: what was still on its way has arrived by then. Suspects of other
kinds stay in sight until their worst-case end.
"""

from __future__ import annotations

from typing import Final

from minter.audit_events import Event, Value
from minter.kinds import FindsOrphans, Kind
from minter.lease_changes import Change
from minter.lease_events import facts
from minter.lease_queue import NEVER_SEEN
from minter.lease_rows import LeaseRow
from minter.minting import MINT_S

#: What ``how`` says of a suspect after the first look that found nothing, and of one that was nothing.
NOT_FOUND: Final = "not-found"
NEVER_MADE: Final = "never_made"


def finder(row: LeaseRow, kind: Kind | None) -> FindsOrphans | None:
    """Return the kind, when the lease's credential was never seen here and the kind can look for it."""
    return kind if row.end_reason in NEVER_SEEN and isinstance(kind, FindsOrphans) else None


async def look(row: LeaseRow, kind: FindsOrphans, *, now: float) -> Change:
    """Have a kind find and end what a mint may have left. Errors: what the kind raises."""
    ending = await kind.end_orphan(row)
    if ending is None and row.how != NOT_FOUND:
        row.how, row.attempts, row.next_attempt_at = NOT_FOUND, 0, now + MINT_S
        return Change(row)
    row.state, row.next_attempt_at, row.ended_at = "revoked", None, now
    row.how = NEVER_MADE if ending is None else ending.how
    return Change(row, (Event("lease.orphan-ended", {**facts(row), "how": row.how, "reason": row.end_reason}),))


def unseen_to_the_end(row: LeaseRow, *, now: float) -> Change:
    """Return what becomes of a suspect whose issuer could not be asked until its worst-case end: it is sought on.

    Nobody knows whether what was made ends by itself.
    """
    row.state, row.next_attempt_at, row.ended_at = "irrevocable", now, now
    fields: dict[str, Value] = {"reason": row.end_reason, "attempts": row.attempts, "next_attempt_at": now}
    return Change(row, (Event("lease.irrevocable", {**facts(row), **fields}),))
