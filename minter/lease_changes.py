"""What becomes of a lease that ends: the row as it is to be, and what the audit log is told of it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from config.clock import Clock
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


async def ended_here(row: LeaseRow, kind: Kind | None, *, clock: Clock, uid: int | None = None) -> Change | None:
    """Return the end of a lease that needs nothing upstream: of a local kind, or ended by itself; else None."""
    if kind is not None and kind.local:
        # A kind that fails here is tried again like an upstream; the lease is out of use already.
        with contextlib.suppress(Exception):
            return ended(row, (await kind.revoke(row, None)).how, uid=uid)
    left_s = ends_in_s(row, clock)
    if left_s is not None and left_s <= 0:
        return Change(row, (over(row, "expired_only", expired=True),))
    return None


def ends_in_s(row: LeaseRow, clock: Clock) -> float | None:
    """Return the seconds until the issuer's own expiry has ended a credential; None when nothing does.

    A wall clock that was set ahead ends its use, and says nothing of its issuer's clock: the clock of the boot that it
    was made in has to agree.
    """
    ends_at = row.credential_ends_at
    if ends_at is None:
        return None
    left_s = ends_at - clock.now()
    if clock.boot_id() == row.boot_id:
        left_s = max(left_s, row.boot_expires_at + ends_at - row.expires_at - clock.boottime())
    return left_s
