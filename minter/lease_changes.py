"""What becomes of a lease that ends: the row as it is to be, and what the audit log is told of it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from minter import lease_rows
from minter.audit_events import Event
from minter.kinds import Kind
from minter.lease_events import over
from minter.lease_rows import LeaseRow
from minter.store import Connection

#: Reasons that are no revocation: the lease was over in its own time.
_ENDED_IN_TIME: Final = ("expired", "replaced")


@dataclass(frozen=True, slots=True)
class Change:
    """A row as it is to be and what the audit log is told; ``attempt``: its end upstream is to be tried at once."""

    row: LeaseRow
    events: tuple[Event, ...] = ()
    attempt: bool = False

    @property
    def begun(self) -> bool:
        """Say whether it is an end that has begun, not an outcome: of that the log is told."""
        return self.row.state == "revoking" and not self.events


def apply(changes: Sequence[Change], connection: Connection) -> tuple[None, list[Event]]:
    """Write changes; return what the audit log is told."""
    lease_rows.update(connection, [change.row for change in changes])
    return None, [event for change in changes for event in change.events]


def ended(row: LeaseRow, how: str, *, uid: int | None = None) -> Change:
    """Return the end of a lease whose credential ended."""
    return Change(row, (over(row, how, expired=row.end_reason in _ENDED_IN_TIME, uid=uid),))


async def ended_here(row: LeaseRow, kind: Kind | None, *, now: float, uid: int | None = None) -> Change | None:
    """Return the end of a lease that needs nothing upstream: of a local kind, or ended by itself; else None."""
    if kind is not None and kind.local:
        # A kind that fails here is tried again like an upstream; the lease is out of use already.
        with contextlib.suppress(Exception):
            return ended(row, (await kind.revoke(row, None)).how, uid=uid)
    if row.credential_ends_at is not None and row.credential_ends_at <= now:
        return Change(row, (over(row, "expired_only", expired=True),))
    return None
