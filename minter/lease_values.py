"""A lease's credential: sealed in the row of the lease, from its mint to its end, and nowhere else.

It is opened to be handed out again, and to be ended upstream. One that does not open (moved from another row, put back
from another time, its data key gone) is never used: the audit log says so, and its lease ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from config.problems import ProblemError
from config.secret import Secret
from minter import lease_rows
from minter.audit_events import Event
from minter.book import Live
from minter.lease_events import facts, made
from minter.lease_rows import LeaseRow
from minter.sealing import Sealed, Sealer, SealError
from minter.store import Connection, Store

Credential = Mapping[str, Secret]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Lent:
    """A live lease and its credential, on the way to the broker that asked."""

    live: Live
    credential: Credential

    @property
    def row(self) -> LeaseRow:
        """The row of the lease."""
        return self.live.row


def sealed(row: LeaseRow, credential: Credential, sealer: Sealer) -> Sealed:
    """Seal a lease's credential. On the store's thread, as data keys change there: not between this and its write."""
    return sealer.seal_credential(lease_rows.place(row), credential)


class LeaseValues:
    """Reads the credentials of leases that are in the state."""

    def __init__(self, store: Store, sealer: Sealer) -> None:
        self.sealer = sealer
        self._store = store
        self._held: dict[str, Credential] = {}

    def hold(self, lease_id: str, credential: Credential) -> None:
        """Hold a credential that could not be written, until its lease is over: it is to be ended upstream."""
        self._held[lease_id] = credential

    def let_go(self, lease_id: str) -> None:
        """Forget what was held of a lease that is over."""
        self._held.pop(lease_id, None)

    async def hand_out(self, row: LeaseRow) -> Credential | None:
        """Return the credential of a live lease, which the audit log was told; or None when it does not open.

        Errors: ``ProblemError`` when the audit log cannot be told.
        """
        return await self._store.write(lambda connection: self._hand_out(connection, row))

    async def to_revoke(self, row: LeaseRow) -> tuple[bool, Credential | None]:
        """Return the credential that is to be ended upstream, and whether that is known for good.

        It is None when it does not open, and for now when the state cannot be read: a kind may do without.
        """
        if row.id in self._held:
            return True, self._held[row.id]
        try:
            credential, refused = await self._store.read_beside(lambda connection: self._open(connection, row))
        except ProblemError as error:
            _log.warning("value-not-read", lease_id=row.id, code=error.code)
            return False, None
        if refused:
            with contextlib.suppress(ProblemError):
                await self._store.write(lambda _connection: (None, refused))
        return True, credential

    def _hand_out(self, connection: Connection, row: LeaseRow) -> tuple[Credential | None, list[Event]]:
        credential, events = self._open(connection, row)
        if credential is not None:
            events.append(Event("lease.reissued", made(row)))
        return credential, events

    def _open(self, connection: Connection, row: LeaseRow) -> tuple[Credential | None, list[Event]]:
        value = lease_rows.value_of(connection, row.id)
        if value is None:
            # One that an older program left without, or that ended meanwhile: nobody touched it.
            return None, []
        try:
            return self.sealer.open_credential(lease_rows.place(row), value), []
        except SealError:
            return None, [Event("seal.refused", {**facts(row), "reason": "value-lost"})]
