"""Forgetting a lease whose credential nobody here can end: an operator's decision, with a reason, in the audit log.

It is no revocation: what was lent may still be good at its issuer. So only leases that are ``irrevocable`` or
``orphan_suspect``, or whose row is damaged, can be forgotten. The row becomes ``revoked`` with ``how`` ``forgotten``,
and is forgotten with those that are over; a damaged one is deleted.
"""

from __future__ import annotations

import re
from typing import Final

from config.clock import Clock
from config.problems import ProblemError
from minter import failpoints, lease_rows
from minter.audit_events import Event, Value
from minter.lease_events import facts
from minter.revocation import Endings
from minter.store import Connection, Store

FORGOTTEN: Final = "forgotten"
_FORGETTABLE: Final = ("irrevocable", "orphan_suspect")
_WORDS: Final = re.compile(r"[\x20-\x7e]{3,200}", re.ASCII)


class Forgetting:
    """Forgets one lease at a time."""

    def __init__(self, store: Store, endings: Endings, *, clock: Clock) -> None:
        self._store = store
        self._endings = endings
        self._clock = clock

    async def forget(self, lease_id: str, words: str, *, uid: int) -> None:
        """Forget a lease.

        Errors: ``body-malformed`` without a reason; ``lease-not-found``; ``lease-not-forgettable`` for one that can be
        revoked, and while its revocation is being tried.
        """
        if not _WORDS.fullmatch(words.strip()):
            raise ProblemError("body-malformed", "the reason is 3 to 200 printable ASCII characters")
        if self._endings.works_on(lease_id):
            raise ProblemError("lease-not-forgettable", "it is live, or its revocation is being tried just now")
        now = self._clock.now()
        await self._store.write(lambda connection: _forget(connection, lease_id, words.strip(), uid=uid, now=now))
        failpoints.reached("forget.written")


def _forget(connection: Connection, lease_id: str, words: str, *, uid: int, now: float) -> tuple[None, list[Event]]:
    said: dict[str, Value] = {"uid": uid, "words": words}
    row = lease_rows.get(connection, lease_id)
    if row is not None and row.end_reason != lease_rows.DAMAGED:
        if row.state not in _FORGETTABLE:
            raise ProblemError("lease-not-forgettable", f"it is {row.state}")
        event = Event("lease.forgotten", {**facts(row), "reason": row.end_reason, **said})
        row.state, row.how, row.ended_at, row.next_attempt_at = "revoked", FORGOTTEN, now, None
        lease_rows.update(connection, [row])
        return None, [event]
    if not lease_rows.delete(connection, lease_id):
        raise ProblemError("lease-not-found")
    return None, [Event("lease.forgotten", {"lease_id": lease_id, "reason": lease_rows.DAMAGED, **said})]
