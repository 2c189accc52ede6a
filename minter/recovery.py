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

_PAGE: Final = 5000

_log = structlog.get_logger()


@dataclass(slots=True)
class Recovered:
    """What was found: how many leases are live, were made suspects and set aside.

    Of the live ones, ``valueless`` have no sealed value: an older program kept values in memory alone. ``misdated``
    are of an earlier boot and begin later than now: the clock was wrong that their ends go by, their boot's own clock
    is gone, and nothing says how long they have left. Those that are known to have ended are not among them.
    ``marked`` are those of a key whose value was changed in place.
    """

    live: int = 0
    suspects: int = 0
    damaged: int = 0
    valueless: list[Live] = field(default_factory=list)
    misdated: list[Live] = field(default_factory=list)
    marked: list[Live] = field(default_factory=list)


async def recover(store: Store, book: Book, *, clock: Clock) -> Recovered:
    """Fill the book from the table; what was being made when the minter stopped becomes ``orphan_suspect``."""
    found = Recovered()
    places = await store.read(lease_rows.unsettled)
    for start in range(0, len(places), _PAGE):
        work = functools.partial(_page, places[start : start + _PAGE], clock.now(), found)
        for row, has_value in await store.write(work):
            live = book.add(row)
            if not has_value:
                found.valueless.append(live)
            if row.end_reason:
                found.marked.append(live)
            if _is_misdated(row, live, clock, highest_wall=store.highest_wall):
                found.misdated.append(live)
    found.live = len(book)
    _log.info(
        "recovered",
        live=found.live,
        suspects=found.suspects,
        damaged=found.damaged,
        valueless=len(found.valueless),
        misdated=len(found.misdated),
        marked=len(found.marked),
    )
    return found


def _is_misdated(row: LeaseRow, live: Live, clock: Clock, *, highest_wall: float) -> bool:
    of_another_boot = row.boot_id != clock.boot_id() and row.created_at > clock.now()
    return of_another_boot and live.remaining(clock, highest_wall=highest_wall) > 0


def _page(
    places: Sequence[int], now: float, found: Recovered, connection: Connection
) -> tuple[list[tuple[LeaseRow, bool]], list[Event]]:
    """Return the live rows of a page, and whether each has a value; settle the others."""
    live: list[tuple[LeaseRow, bool]] = []
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
        else:
            live.append((row, has_value))
    lease_rows.update(connection, suspects)
    found.suspects += len(suspects)
    return live, [Event("lease.orphaned", {**facts(row), "reason": "restart"}) for row in suspects]
