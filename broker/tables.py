"""The broker's tables (SQLAlchemy Core), and the words that statements over them are written with.

The migrations under ``broker/migrations`` are written from the tables. Another database changes this file and
``broker/store.py``; ``broker/records.py`` knows neither library nor dialect but through here.

Instants are seconds since the epoch in ``*_at`` columns; JSON stands as bytes that msgspec wrote. No column holds a
secret: of run tokens and idempotency keys only SHA-256 digests, of grants only what the grants file says.
"""

from __future__ import annotations

from sqlalchemy import (
    Column,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Select,
    Table,
    Text,
    bindparam,
    func,
    select,
    text,
)
from sqlalchemy.dialects.sqlite import insert as upsert

__all__ = [
    "Connection",
    "Select",
    "bindparam",
    "func",
    "grants",
    "idempotency",
    "meta",
    "metadata",
    "outbox",
    "run_profiles",
    "runs",
    "select",
    "upsert",
]

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: Small facts about this installation, by name. ``highest_wall`` is the highest wall time seen.
meta = Table(
    "meta",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

#: A row for each run, kept for a while after its end. ``ceiling_at`` is the latest that its end can be moved to,
#: ``trace`` the trace as JSON, ``leases`` how the leases ended.
runs = Table(
    "runs",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("caller", Text, nullable=False),
    Column("trace_id", Text),
    Column("params", LargeBinary, nullable=False),
    Column("token_digest", LargeBinary, nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("boot_expires_at", Float, nullable=False),
    Column("ceiling_at", Float, nullable=False),
    Column("boot_ceiling_at", Float, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("ended_at", Float),
    Column("end_reason", Text),
    Column("trace", LargeBinary),
    Column("leases", LargeBinary),
    Index(None, "ended_at"),
    Index(None, "caller", "created_at"),
    Index("ix_runs_live", "caller", sqlite_where=text("ended_at IS NULL")),
)

#: The profiles of a run, in the order they were asked for. ``reserved`` is how much of the budget has been reserved:
#: what a crash left unspent of a block is forfeited.
run_profiles = Table(
    "run_profiles",
    metadata,
    Column("run_id", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("profile", Text, nullable=False),
    Column("grant_digest", Text, nullable=False),
    Column("reserved", Integer, nullable=False),
    PrimaryKeyConstraint("run_id", "profile"),
    Index(None, "grant_digest"),
)

#: Grants that runs were opened with, as written, by their digest.
grants = Table(
    "grants",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("source", LargeBinary, nullable=False),
)

#: Which run an ``Idempotency-Key`` of a caller opened, and from which body.
idempotency = Table(
    "idempotency",
    metadata,
    Column("caller", Text, nullable=False),
    Column("key_digest", LargeBinary, nullable=False),
    Column("body_digest", LargeBinary, nullable=False),
    Column("run_id", Text, nullable=False),
    PrimaryKeyConstraint("caller", "key_digest"),
    Index(None, "run_id"),
)

#: What the minter has still to be told about ended runs: ``kind`` is ``revoke`` or ``record``.
outbox = Table(
    "outbox",
    metadata,
    Column("run_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    PrimaryKeyConstraint("run_id", "kind"),
)
