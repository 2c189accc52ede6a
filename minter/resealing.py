"""Moving values from a data key that goes away to the current one. Functions here run on the store's writer thread."""

from __future__ import annotations

from minter.audit_events import Event
from minter.lease_rows import PLACE
from minter.sealed_values import put
from minter.sealing import Place, Sealed, Sealer, SealError, key_place, lease_place
from minter.store import Connection


def leases(connection: Connection, sealer: Sealer, data_key: int, *, limit: int) -> tuple[int, list[Event]]:
    """Seal the credentials of up to ``limit`` leases anew; return how many there were, and what the log is told.

    One that does not open is erased: it could not be used, and its lease is over when it is asked for.
    """
    found = connection.exec_driver_sql(
        f"SELECT {', '.join(PLACE)}, sealed FROM leases WHERE data_key = ? LIMIT ?",  # noqa: S608 - our own names
        (data_key, limit),
    ).all()
    events, changes = [], []
    for lease_id, kind, *whose, blob in found:
        value = _again(sealer, lease_place(lease_id, kind, *whose), data_key, blob)
        if value is None:
            events.append(Event("seal.refused", {"lease_id": lease_id, "kind": kind, "reason": "value-lost"}))
        changes.append((value and value.data_key, value and value.blob, lease_id))
    if changes:
        connection.exec_driver_sql("UPDATE leases SET data_key = ?, sealed = ? WHERE id = ?", changes)
    return len(found), events


def keys(connection: Connection, sealer: Sealer, data_key: int) -> tuple[int, list[Event]]:
    """Seal what ``sealed_values`` keeps anew; return how many do not open, and what the log is told of them.

    Those stay as they are, and their data key with them: a person may bring back what they were.
    """
    found = connection.exec_driver_sql(
        "SELECT name, version, sealed FROM sealed_values WHERE data_key = ?", (data_key,)
    ).all()
    events = []
    for name, version, blob in found:
        value = _again(sealer, key_place(name, version), data_key, blob)
        if value is None:
            events.append(Event("seal.refused", {"alias": name, "version": version, "reason": "value-lost"}))
        else:
            put(connection, name, version, value)
    return len(events), events


def left(connection: Connection) -> int:
    """Return how many values are still sealed with old data keys."""
    old = "(SELECT id FROM data_keys WHERE phase = 'old')"
    counts = (
        connection.exec_driver_sql(f"SELECT count(*) FROM {table} WHERE data_key IN {old}").scalar_one()  # noqa: S608
        for table in ("leases", "sealed_values")
    )
    return sum(int(count) for count in counts)


def _again(sealer: Sealer, place: Place, data_key: int, blob: bytes) -> Sealed | None:
    try:
        return sealer.reseal(place, Sealed(data_key, blob))
    except SealError:
        return None
