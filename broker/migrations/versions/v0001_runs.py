"""The first schema: runs, their profiles and grants, idempotency keys, and what the minter is still to be told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "meta",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_meta"),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("trace_id", sa.Text()),
        sa.Column("params", sa.LargeBinary(), nullable=False),
        sa.Column("token_digest", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("boot_expires_at", sa.Float(), nullable=False),
        sa.Column("ceiling_at", sa.Float(), nullable=False),
        sa.Column("boot_ceiling_at", sa.Float(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.Float()),
        sa.Column("end_reason", sa.Text()),
        sa.Column("trace", sa.LargeBinary()),
        sa.Column("leases", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("run_id", name="pk_runs"),
        sa.UniqueConstraint("token_digest", name="uq_runs_token_digest"),
    )
    op.create_index("ix_runs_ended_at", "runs", ["ended_at"])
    op.create_index("ix_runs_caller", "runs", ["caller", "created_at"])
    op.create_index("ix_runs_live", "runs", ["caller"], sqlite_where=sa.text("ended_at IS NULL"))
    op.create_table(
        "run_profiles",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("grant_digest", sa.Text(), nullable=False),
        sa.Column("reserved", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "profile", name="pk_run_profiles"),
    )
    op.create_index("ix_run_profiles_grant_digest", "run_profiles", ["grant_digest"])
    op.create_table(
        "grants",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("source", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_grants"),
    )
    op.create_table(
        "idempotency",
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("key_digest", sa.LargeBinary(), nullable=False),
        sa.Column("body_digest", sa.LargeBinary(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("caller", "key_digest", name="pk_idempotency"),
    )
    op.create_index("ix_idempotency_run_id", "idempotency", ["run_id"])
    op.create_table(
        "outbox",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "kind", name="pk_outbox"),
    )


def downgrade() -> None:
    """Remove the tables."""
    for table in ("outbox", "idempotency", "grants", "run_profiles", "runs", "meta"):
        op.drop_table(table)
