"""What a start makes of the lease table: live leases, suspects, and rows that are damaged.

Nothing here can stop a start: a row that cannot be read is set aside, where it is seen and counted.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

import structlog

from config.clock import Clock
from minter import lease_rows
from minter.audit_events import Event
from minter.book import Book, Live
from minter.lease_events import facts
from minter.lease_rows import LeaseRow
from minter.store import Connection, Store

_PAGE: Final = 2000

_log = structlog.get_logger()


@dataclass(slots=True)
class Recovered:
    """How many leases were found: live, made suspects, and set aside."""

    live: int = 0
    suspects: int = 0
    damaged: int = 0


async def recover(store: Store, book: Book, *, now: float) -> Recovered:
    """Fill the book from the table; what was being made when the minter stopped becomes ``orphan_suspect``."""
    found = Recovered()
    after = ""
    while True:
        rows, last = await store.write(lambda connection, after=after: _page(connection, after, now, found))  # type: ignore[misc]
        for row in rows:
            book.add(Live(row))
        if last is None:
            return found
        after = last


def of_another_time(book: Book, clock: Clock, *, highest_wall: float) -> list[Live]:
    """Return the live leases of an earlier boot that begin later than now: the clock was wrong that their ends go by.

    Their boot's own clock is gone, so nothing says how long they have left. Those that are known to have ended are not
    among them.
    """
    now, boot_id = clock.now(), clock.boot_id()
    return [
        live
        for live in book
        if live.row.boot_id != boot_id
        and live.row.created_at > now
        and live.remaining(clock, highest_wall=highest_wall) > 0
    ]


def _page(
    connection: Connection, after: str, now: float, found: Recovered
) -> tuple[tuple[list[LeaseRow], str | None], list[Event]]:
    live: list[LeaseRow] = []
    suspects: list[LeaseRow] = []
    raws = lease_rows.unsettled(connection, after=after, limit=_PAGE)
    for raw in raws:
        try:
            row = lease_rows.parse(raw)
        except (ValueError, TypeError):
            found.damaged += 1
            _log.error("lease-row-damaged")
            lease_rows.quarantine(connection, raw[0], now=now)
            continue
        if row.state == "intent":
            suspects.append(dataclasses.replace(row, state="orphan_suspect", end_reason="restart"))
        else:
            live.append(row)
    lease_rows.update(connection, suspects)
    found.live += len(live)
    found.suspects += len(suspects)
    events = [Event("lease.orphaned", {**facts(row), "reason": "restart"}) for row in suspects]
    return (live, _last_id(raws)), events


def _last_id(raws: list[tuple[Any, ...]]) -> str | None:
    """Return where the next page begins; None after the last one."""
    ids = [raw[0] for raw in raws if isinstance(raw[0], str)]
    return ids[-1] if len(raws) == _PAGE and ids else None
