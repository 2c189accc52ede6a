"""What a start makes of the lease table: live leases, suspects, and rows that are damaged.

Nothing here can stop a start: a row that cannot be read is set aside, where it is seen and counted.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

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
    """What was found: how many leases are live, were made suspects and set aside, and those live without a value."""

    live: int = 0
    suspects: int = 0
    damaged: int = 0
    valueless: list[Live] = field(default_factory=list)


async def recover(store: Store, book: Book, *, now: float) -> Recovered:
    """Fill the book from the table; what was being made when the minter stopped becomes ``orphan_suspect``."""
    found = Recovered()
    places = await store.read(lease_rows.unsettled)
    for start in range(0, len(places), _PAGE):
        work = functools.partial(_page, places[start : start + _PAGE], now, found)
        for live in await store.write(work):
            book.add(live)
    _log.info(
        "recovered",
        live=found.live,
        suspects=found.suspects,
        damaged=found.damaged,
        valueless=len(found.valueless),
    )
    return found


def of_another_time(book: Book, clock: Clock, *, highest_wall: float) -> list[Live]:
    """Return the live leases of an earlier boot that begin later than now: the clock was wrong that their ends go by.

    Their boot's own clock is gone, so nothing says how long they have left. Those that are known to have ended are not
    among them.
    """
    now, boot_id = clock.now(), clock.boot_id()

    def is_one(live: Live) -> bool:
        row = live.row
        return row.boot_id != boot_id and row.created_at > now and live.remaining(clock, highest_wall=highest_wall) > 0

    return [live for live in book if is_one(live)]


def _page(
    places: Sequence[int], now: float, found: Recovered, connection: Connection
) -> tuple[list[Live], list[Event]]:
    live: list[Live] = []
    suspects: list[LeaseRow] = []
    for place, has_value, raw in lease_rows.at(connection, places):
        try:
            row = lease_rows.parse(raw)
        except (ValueError, TypeError):
            found.damaged += 1
            _log.error("lease-row-damaged")
            lease_rows.quarantine(connection, place, now=now)
            continue
        if row.state == "intent":
            suspects.append(dataclasses.replace(row, state="orphan_suspect", end_reason="restart"))
            continue
        live.append(Live(row))
        if not has_value:
            # An older program kept values in memory alone.
            found.valueless.append(live[-1])
    lease_rows.update(connection, suspects)
    found.live += len(live)
    found.suspects += len(suspects)
    return live, [Event("lease.orphaned", {**facts(row), "reason": "restart"}) for row in suspects]
