"""What the audit log is told about a lease: who has it, for what, what was made, how it ended."""

from __future__ import annotations

import msgspec

from minter.audit_events import Event, Value
from minter.lease_rows import LeaseRow


def facts(row: LeaseRow) -> dict[str, Value]:
    """Return what every event of a lease says about it."""
    found: dict[str, Value] = {
        "lease_id": row.id,
        "broker": row.broker,
        "run_id": row.run_id,
        "caller": row.caller,
        "profile": row.profile,
        "kind": row.kind,
    }
    if row.trace_id is not None:
        found["trace_id"] = row.trace_id
    return found


def over(row: LeaseRow, how: str, *, expired: bool, uid: int | None = None) -> Event:
    """Mark the row as over; return the event."""
    row.state = "expired" if expired else "revoked"
    row.how, row.next_attempt_at = how, None
    fields = {**facts(row), "how": how, "reason": row.end_reason, "fingerprint": row.fingerprint}
    if not expired:
        fields |= {"attempts": row.attempts} | ({} if uid is None else {"uid": uid})
    return Event("lease.expired" if expired else "lease.revoked", fields)


def asked(row: LeaseRow) -> dict[str, Value]:
    """Return what was asked for."""
    return {
        **facts(row),
        "params_digest": row.params_digest,
        "origin": row.origin,
        "grant_digest": row.grant_digest,
    }


def made(row: LeaseRow) -> dict[str, Value]:
    """Return what was made."""
    found: dict[str, Value] = {**asked(row), "fingerprint": row.fingerprint, "expires_at": row.expires_at}
    if row.key_alias is not None:
        found["key_alias"], found["key_version"] = row.key_alias, row.key_version
        if "," in row.key_versions:
            found["key_versions"] = msgspec.json.decode(row.key_versions, type=list[str])
    return found
