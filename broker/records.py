"""What the broker keeps of runs, as rows: each function is one piece of work for :meth:`broker.store.Store.write`.

Nothing here decides: ``broker/runs.py`` does, and hands over what to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from broker.tables import (
    Connection,
    Select,
    bindparam,
    func,
    grants,
    idempotency,
    meta,
    outbox,
    run_profiles,
    runs,
    select,
    upsert,
)
from config.clock import Deadline
from config.problems import ProblemError

NoticeKind = Literal["revoke", "record"]
KINDS: Final[tuple[NoticeKind, ...]] = ("revoke", "record")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRow:
    """One profile of a run: the grant it was opened with, and how much of the budget was reserved."""

    profile: str
    grant_digest: str
    source: bytes
    reserved: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run as it is kept. ``params``, ``trace`` and ``leases`` are JSON."""

    run_id: str
    caller: str
    trace_id: str | None
    params: bytes
    token_digest: bytes
    created_at: float
    expires_at: float
    boot_expires_at: float
    ceiling_at: float
    boot_ceiling_at: float
    boot_id: str
    profiles: tuple[ProfileRow, ...] = field(default=())
    ended_at: float | None = None
    end_reason: str | None = None
    trace: bytes | None = None
    leases: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something the minter has still to be told about a run that ended."""

    run_id: str
    kind: NoticeKind
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotency:
    """An ``Idempotency-Key`` and the body it came with, both as SHA-256 digests."""

    key_digest: bytes
    body_digest: bytes


_COLUMNS: Final = tuple(field_.name for field_ in fields(RunRow) if field_.name != "profiles")


def open_run(db: Connection, row: RunRow, key: Idempotency | None, *, max_runs: int) -> str:
    """Keep a new run and return its id; when ``key`` opened one before, give that one the new token instead.

    Errors: ``ProblemError``: ``idempotency-key-reused`` for another body, ``run-ended`` when that run is over,
    ``too-many-runs`` when the caller has ``max_runs`` already.
    """
    if key is not None:
        earlier = db.execute(
            select(idempotency.c.run_id, idempotency.c.body_digest, runs.c.ended_at)
            .join(runs, runs.c.run_id == idempotency.c.run_id)
            .where(idempotency.c.caller == row.caller, idempotency.c.key_digest == key.key_digest)
        ).one_or_none()
        if earlier is not None:
            if earlier.body_digest != key.body_digest:
                raise ProblemError("idempotency-key-reused")
            if earlier.ended_at is not None:
                raise ProblemError("run-ended", "the run that this Idempotency-Key opened has ended")
            db.execute(runs.update().where(runs.c.run_id == earlier.run_id).values(token_digest=row.token_digest))
            return str(earlier.run_id)
    live = select(func.count()).select_from(runs).where(runs.c.caller == row.caller, runs.c.ended_at.is_(None))
    if db.execute(live).scalar_one() >= max_runs:
        raise ProblemError("too-many-runs", max_runs=max_runs)
    if key is not None:
        db.execute(
            idempotency.insert(),
            {
                "caller": row.caller,
                "key_digest": key.key_digest,
                "body_digest": key.body_digest,
                "run_id": row.run_id,
            },
        )
    db.execute(runs.insert(), {name: getattr(row, name) for name in _COLUMNS})
    for position, profile in enumerate(row.profiles):
        db.execute(upsert(grants).on_conflict_do_nothing(), {"digest": profile.grant_digest, "source": profile.source})
        db.execute(
            run_profiles.insert(),
            {
                "run_id": row.run_id,
                "position": position,
                "profile": profile.profile,
                "grant_digest": profile.grant_digest,
                "reserved": profile.reserved,
            },
        )
    return row.run_id


def move_end(db: Connection, run_id: str, *, deadline: Deadline, ceiling: Deadline) -> None:
    """Keep another end of a run. Both deadlines are on the clocks of the same boot."""
    db.execute(
        runs.update()
        .where(runs.c.run_id == run_id)
        .values(
            expires_at=deadline.expires_at,
            boot_expires_at=deadline.boot_expires_at,
            ceiling_at=ceiling.expires_at,
            boot_ceiling_at=ceiling.boot_expires_at,
            boot_id=deadline.boot_id,
        )
    )


def reserve(db: Connection, run_id: str, profile: str, *, wanted: int, limit: int) -> int:
    """Reserve up to ``wanted`` further calls of the budget and return how many: fewer, or none, at its end."""
    where = (run_profiles.c.run_id == run_id, run_profiles.c.profile == profile)
    reserved = db.execute(select(run_profiles.c.reserved).where(*where)).scalar_one()
    granted: int = max(0, min(wanted, limit - reserved))
    if granted:
        db.execute(run_profiles.update().where(*where).values(reserved=reserved + granted))
    return granted


def end_run(db: Connection, run_id: str, *, ended_at: float, reason: str, trace: bytes) -> None:
    """Keep that a run ended, and that the minter is to be told so and to get its counts."""
    changed = db.execute(
        runs.update()
        .where(runs.c.run_id == run_id, runs.c.ended_at.is_(None))
        .values(ended_at=ended_at, end_reason=reason, trace=trace)
    )
    if changed.rowcount:
        for kind in KINDS:
            notify(db, Notice(run_id=run_id, kind=kind, created_at=ended_at))


def notify(db: Connection, notice: Notice) -> None:
    """Keep that the minter is to be told something."""
    values = {"run_id": notice.run_id, "kind": notice.kind, "created_at": notice.created_at}
    db.execute(upsert(outbox).on_conflict_do_nothing(), values)


def save_traces(db: Connection, traces: Sequence[tuple[str, bytes]], *, highest_wall: float) -> None:
    """Keep the traces as they are now, by run id, and the wall time."""
    if traces:
        db.execute(
            runs.update().where(runs.c.run_id == bindparam("id")).values(trace=bindparam("json")),
            [{"id": run_id, "json": trace} for run_id, trace in traces],
        )
    statement = upsert(meta).values(name="highest_wall", value=repr(highest_wall))
    db.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"value": statement.excluded.value}))


def highest_wall(db: Connection) -> float:
    """Return the highest wall time that was kept, 0 when there is none."""
    value = db.execute(select(meta.c.value).where(meta.c.name == "highest_wall")).scalar_one_or_none()
    return float(value) if value is not None else 0.0


def live_runs(db: Connection) -> list[RunRow]:
    """Return the runs that have not been ended, with their profiles: what a restart takes up again."""
    profiles = _profiles(db, select(runs.c.run_id).where(runs.c.ended_at.is_(None)))
    return [_run(row, profiles) for row in db.execute(runs.select().where(runs.c.ended_at.is_(None)))]


def find_run(db: Connection, run_id: str) -> RunRow | None:
    """Return one run, ended or not."""
    row = db.execute(runs.select().where(runs.c.run_id == run_id)).one_or_none()
    return None if row is None else _run(row, _profiles(db, [run_id]))


def ended_runs(db: Connection, caller: str, *, limit: int) -> list[RunRow]:
    """Return the caller's ended runs that are still kept, the newest first."""
    query = runs.select().where(runs.c.caller == caller, runs.c.ended_at.is_not(None))
    rows = db.execute(query.order_by(runs.c.created_at.desc()).limit(limit)).all()
    profiles = _profiles(db, [row.run_id for row in rows])
    return [_run(row, profiles) for row in rows]


def notices(db: Connection) -> list[Notice]:
    """Return what the minter has still to be told, the oldest first."""
    rows = db.execute(outbox.select().order_by(outbox.c.created_at, outbox.c.kind.desc()))
    return [Notice(run_id=row.run_id, kind=row.kind, created_at=row.created_at) for row in rows]


def delivered(db: Connection, notice: Notice, leases: bytes | None) -> None:
    """Forget a notice that the minter has taken, and keep how it says that the leases ended."""
    db.execute(outbox.delete().where(outbox.c.run_id == notice.run_id, outbox.c.kind == notice.kind))
    if leases is not None:
        db.execute(runs.update().where(runs.c.run_id == notice.run_id).values(leases=leases))


def purge(db: Connection, *, ended_before: float, limit: int = 1000) -> int:
    """Forget runs that ended long ago and of which the minter has been told; return how many."""
    told = runs.c.run_id.not_in(select(outbox.c.run_id))
    query = select(runs.c.run_id).where(runs.c.ended_at < ended_before, told).limit(limit)
    ids = list(db.execute(query).scalars())
    if ids:
        for table in (idempotency, run_profiles, runs):
            db.execute(table.delete().where(table.c.run_id.in_(ids)))
        db.execute(grants.delete().where(grants.c.digest.not_in(select(run_profiles.c.grant_digest))))
    return len(ids)


def known(db: Connection, run_ids: Sequence[str]) -> set[str]:
    """Return those of ``run_ids`` that are kept."""
    return set(db.execute(select(runs.c.run_id).where(runs.c.run_id.in_(run_ids))).scalars())


def _profiles(db: Connection, run_ids: Select[Any] | list[str]) -> dict[str, list[ProfileRow]]:
    query = select(run_profiles, grants.c.source).join(grants, grants.c.digest == run_profiles.c.grant_digest)
    found: dict[str, list[ProfileRow]] = {}
    for row in db.execute(query.where(run_profiles.c.run_id.in_(run_ids)).order_by(run_profiles.c.position)):
        profile = ProfileRow(
            profile=row.profile, grant_digest=row.grant_digest, source=row.source, reserved=row.reserved
        )
        found.setdefault(row.run_id, []).append(profile)
    return found


def _run(row: object, profiles: dict[str, list[ProfileRow]]) -> RunRow:
    values = {name: getattr(row, name) for name in _COLUMNS}
    return RunRow(**values, profiles=tuple(profiles.get(values["run_id"], ())))
