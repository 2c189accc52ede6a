"""Audit events that are committed with their rows and not known to be in the log: a crash in between loses none.

The store keeps the events of a transaction in it, and deletes them once the log has them. What a start finds here is
looked for in the log: the process may have died before the log had it, after it, or half-way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from minter.audit_events import Event

if TYPE_CHECKING:
    from minter.store import Connection

#: Lines of the log behind a number, so many at most.
Lines = Callable[[int, int], Iterable[Mapping[str, Any]]]

_KEEP: Final = "INSERT INTO owed_events (seq, events) VALUES (?, ?)"
#: What the log adds of its own may stand between the lines of a batch.
_MORE_LINES: Final = 1000

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[tuple[str, dict[str, Any]]]).decode


def keep(connection: Connection, events: Sequence[Event], *, seq: int) -> None:
    """Write down what the log is about to be told; ``seq`` is the number of its last line by now."""
    connection.exec_driver_sql(_KEEP, (seq, _encode([(event.code, event.fields) for event in events])))


def settle(connection: Connection) -> None:
    """Delete everything: the log has it."""
    connection.exec_driver_sql("DELETE FROM owed_events")


def left(connection: Connection, lines: Lines) -> list[Event] | None:
    """Return the events that the log lacks, in their order; None when nothing was kept.

    Errors: ``OSError`` when the log cannot be read, ``ValueError`` when what was kept cannot be.
    """
    rows = connection.exec_driver_sql("SELECT seq, events FROM owed_events ORDER BY id").all()
    if not rows:
        return None
    events = [Event(code, fields) for _, kept in rows for code, fields in _decode(kept)]
    first = min(row[0] for row in rows)
    found = Counter(_same(line["code"], line) for line in lines(first, len(events) + _MORE_LINES))
    missing = []
    for event in events:
        same = _same(event.code, event.fields)
        if found[same]:
            found[same] -= 1
        else:
            missing.append(event)
    return missing


def unknown_to(connection: Connection, lines: Lines, own: Collection[str]) -> tuple[int, int] | None:
    """Say whether the log has lines that this state cannot have caused: it is an older one, put back by somebody.

    Whatever is told to the log was committed here first, with the number of the log's last line by then. Return the
    last line that the state knows of and how many are unknown behind it (as far as was looked), or None. ``own``: the
    codes that the log writes by itself. Errors: like :func:`left`.
    """
    rows = connection.exec_driver_sql("SELECT seq, events FROM owed_events").all()
    head = connection.exec_driver_sql("SELECT seq FROM audit_head").scalar()
    if head is None and not rows:
        return None
    known = max(head or 0, *(row[0] for row in rows), 0)
    # By code alone: a long field stands shortened in the log.
    told = Counter(code for _, kept in rows for code, _ in _decode(kept))
    found = Counter(line["code"] for line in lines(known, told.total() + _MORE_LINES) if line["code"] not in own)
    unknown = (found - told).total()
    return (known, unknown) if unknown else None


#: The members that every line has beside its event's own.
_OF_A_LINE: Final = frozenset({"at", "code", "prev", "seq"})


def _same(code: str, fields: Mapping[str, Any]) -> bytes:
    """Return what an event and its line have in common. Instants are written in another form than they are given."""
    common = {
        name: value
        for name, value in fields.items()
        if name not in _OF_A_LINE and not name.endswith("_at") and value is not None
    }
    return code.encode() + msgspec.json.encode(common, order="sorted")
