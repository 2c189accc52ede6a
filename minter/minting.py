"""The small steps of a mint: the row before and after, what the audit log is told, and the kinds kept in check."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

import msgspec
import structlog

from config.clock import YEAR_10000, Clock, Deadline
from config.contract import RunRecord
from config.problems import ProblemError
from minter import lease_rows
from minter.admission import Asked
from minter.audit_events import Event, Value
from minter.book import Live
from minter.custody import Custody
from minter.kinds import Minted, MintRequest
from minter.lease_events import asked, facts, made
from minter.lease_rows import LeaseRow
from minter.lease_values import sealed
from minter.sealing import Sealer
from minter.store import Connection

#: However long a kind says that it may take, nobody waits longer.
MINT_S: Final = 60.0
#: A lease of a short life is replaced when a quarter of it is left, however large the margin.
_PART: Final = 0.25

_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

_log = structlog.get_logger()
_encode = msgspec.json.Encoder().encode

#: A write that returns nothing.
Write = Callable[[Connection], tuple[None, list[Event]]]


def objection(live: Live, asked: Asked, *, clock: Clock, highest_wall: float, margin_s: float) -> str | None:
    """Return why a live lease cannot be handed out again for ``asked``, or None when it can.

    Near its end a lease is replaced by one that lasts longer. Where none would, because the run itself is that near
    its end, the lease stays good: the last seconds of a run work.
    """
    row = live.row
    left_s = live.remaining(clock, highest_wall=highest_wall)
    if left_s <= 0:
        return "expired"
    if row.grant_digest != asked.profile.digest or row.token != asked.token:
        return "superseded"
    margin_s = min(margin_s, _PART * (row.expires_at - row.created_at))
    if left_s < margin_s and asked.life_s > left_s + 1:
        return "replaced"
    return None


def new_id() -> str:
    """Return a new lease id: random, so that none can be guessed, and not secret."""
    number = secrets.randbits(128)
    digits = []
    for _ in range(22):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "lse_" + "".join(digits)


def begun(asked: Asked, clock: Clock) -> LeaseRow:
    """Return the row of a lease that is about to be made, with its worst-case end."""
    broker, run_id, profile = asked.key
    deadline = Deadline.after(clock, asked.life_s)
    now = clock.now()
    return LeaseRow(
        id=new_id(),
        broker=broker,
        run_id=run_id,
        caller=asked.request.caller,
        profile=profile,
        params_digest=asked.params_digest,
        origin=asked.request.origin,
        grant_digest=asked.profile.digest,
        kind=asked.kind.name,
        state="intent",
        created_at=now,
        expires_at=deadline.expires_at,
        boot_expires_at=deadline.boot_expires_at,
        boot_id=deadline.boot_id,
        run_ends_at=now + asked.request.ttl_s,
        token=asked.token,
        trace_id=asked.request.trace_id,
    )


async def make(asked: Asked, row: LeaseRow, clock: Clock) -> Minted:
    """Ask the kind for a credential. Only ``ProblemError`` escapes, with no word of an upstream's."""
    request = MintRequest(
        lease_id=row.id,
        run_id=row.run_id,
        caller=row.caller,
        profile=row.profile,
        params=asked.params,
        origin=row.origin,
        routes=tuple(rule.text for rule in asked.profile.allow),
        scopes=asked.profile.scopes,
        now=clock.now(),
        not_after=row.expires_at,
        broker=row.broker,
    )
    try:
        # Nothing is waited for where nobody else is asked.
        async with asyncio.timeout(MINT_S) if not asked.kind.local else nullcontext():
            minted = await asked.kind.mint(request)
        if minted.expires_at is not None and not minted.expires_at < YEAR_10000:
            # No instant, or one that nothing can write: nobody knows of an end.
            minted = dataclasses.replace(minted, expires_at=None)
    except ProblemError:
        raise
    except Exception as error:  # noqa: BLE001 - a plug-in's own; its text stays out
        _log.error("mint-failed", kind=asked.kind.name, profile=row.profile, exc_info=error)
        raise ProblemError("issuer-failed", retry_after=5) from None
    if minted.expires_at is not None and minted.expires_at <= clock.now():
        raise ProblemError("issuer-failed", "the issuer gave a credential that has ended already", retry_after=5)
    return minted


def done(row: LeaseRow, minted: Minted) -> None:
    """Note what was made. The lease ends at the earliest of the issuer's expiry, the grant's and the run's end."""
    row.state, row.fingerprint, row.credential_ends_at = "active", minted.fingerprint, minted.expires_at
    if minted.expires_at is not None and minted.expires_at < row.expires_at:
        row.boot_expires_at -= row.expires_at - minted.expires_at
        row.expires_at = minted.expires_at
    if minted.key_versions:
        row.key_alias, row.key_version = minted.key_versions[0]
        row.key_versions = msgspec.json.encode(
            [f"{alias}@{version}" for alias, version in minted.key_versions]
        ).decode()


# --- what is written ---


def intent(row: LeaseRow, replaced: Live | None) -> Write:
    """Return the write before a mint that leaves traces elsewhere."""

    def work(connection: Connection) -> tuple[None, list[Event]]:
        # One mint at a time for a key: an intent that is still there is of one whose outcome could not be written.
        left = lease_rows.orphan_intents(connection, broker=row.broker, run_id=row.run_id, profile=row.profile)
        _make_room(connection, replaced)
        lease_rows.insert(connection, row)
        orphaned = [Event("lease.orphaned", {**facts(one), "reason": "mint-failed"}) for one in left]
        return None, [*orphaned, Event("lease.requested", asked(row)), Event("lease.intent", asked(row))]

    return work


def withdrawn(row: LeaseRow) -> Write:
    """Return the write that takes an intent back before anything was made."""

    def work(connection: Connection) -> tuple[None, list[Event]]:
        lease_rows.delete(connection, row.id)
        return None, []

    return work


def outcome(row: LeaseRow, minted: Minted, custody: Custody, sealer: Sealer) -> Write:
    """Return the write after it."""

    def work(connection: Connection) -> tuple[None, list[Event]]:
        lease_rows.complete(connection, row, sealed(row, minted.credential, sealer))
        return None, [Event("lease.minted", made(row)), *_used(connection, row, minted, custody)]

    return work


def whole(row: LeaseRow, replaced: Live | None, minted: Minted, custody: Custody, sealer: Sealer) -> Write:
    """Return the one write of a mint that leaves no trace elsewhere."""

    def work(connection: Connection) -> tuple[None, list[Event]]:
        _make_room(connection, replaced)
        lease_rows.insert(connection, row, sealed(row, minted.credential, sealer))
        used = _used(connection, row, minted, custody)
        return None, [Event("lease.requested", asked(row)), Event("lease.minted", made(row)), *used]

    return work


def failure(row: LeaseRow, error: ProblemError, *, local: bool) -> Write:
    """Return the write after a mint that failed. An issuer that failed may have made something all the same."""
    made_nothing = error.code != "issuer-failed"

    def work(connection: Connection) -> tuple[None, list[Event]]:
        events = [Event("lease.mint-failed", {**asked(row), "problem": error.code})]
        if local:
            return None, [Event("lease.requested", asked(row)), *events]
        if made_nothing:
            lease_rows.delete(connection, row.id)
        else:
            lease_rows.update(connection, [dataclasses.replace(row, state="orphan_suspect", end_reason="mint-failed")])
            events.append(Event("lease.orphaned", {**facts(row), "reason": "mint-failed"}))
        return None, events

    return work


def recorded(broker: str, run_id: str, record: RunRecord) -> Write:
    """Return the write of a run's counts. They are the broker's word, and the event says so."""
    counts = [f"{count.profile} {count.route} {count.calls}" for count in record.by_route]
    denied = [f"{one.code} {one.profile or '-'} {one.route or '-'} {one.calls}" for one in record.denied_by]
    digests = [f"{profile} {digest}" for profile, digest in sorted(record.grant_digests.items())]
    fields: dict[str, Value] = {
        "run_id": run_id,
        "broker": broker,
        "caller": record.caller,
        "reported_by": "broker",
        "ended": record.ended,
        "calls": record.calls,
        "denied": record.denied,
        "shed": record.shed,
        "by_route": counts,
        "denied_by": denied,
        "grant_digests": digests,
    }
    if record.trace_id is not None:
        fields["trace_id"] = record.trace_id
    return _only(Event("run.recorded", fields))


def _only(event: Event) -> Write:
    return lambda _connection: (None, [event])


def _make_room(connection: Connection, replaced: Live | None) -> None:
    if replaced is not None:
        lease_rows.make_room(connection, replaced.id)


def _used(connection: Connection, row: LeaseRow, minted: Minted, custody: Custody) -> list[Event]:
    return custody.record_use(
        connection,
        minted.key_versions,
        origin=row.origin,
        caller=row.caller,
        broker=row.broker,
        now=row.created_at,
    )
