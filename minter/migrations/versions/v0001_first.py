"""The first schema: leases, custody keys and their versions, small facts, the audit log's last known line.

Written out, not taken from ``minter/tables.py``: what this step made must not change when the tables do. A test
compares the two ends.
"""

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
        "audit_head",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
    op.create_table(
        "custody_keys",
        sa.Column("alias", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), server_default="", nullable=False),
        sa.Column("owner", sa.Text(), server_default="", nullable=False),
        sa.Column("origins", sa.Text(), server_default="[]", nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("last_used_at", sa.Float(), nullable=True),
        sa.Column("last_rotated_at", sa.Float(), nullable=True),
        sa.Column("uses", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("alias", name=op.f("pk_custody_keys")),
    )
    op.create_table(
        "leases",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("broker", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("params_digest", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("grant_digest", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("how", sa.Text(), server_default="", nullable=False),
        sa.Column("fingerprint", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("boot_expires_at", sa.Float(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("run_ends_at", sa.Float(), nullable=False),
        sa.Column("credential_ends_at", sa.Float(), nullable=True),
        sa.Column("key_alias", sa.Text(), nullable=True),
        sa.Column("key_version", sa.Integer(), nullable=True),
        sa.Column("key_versions", sa.Text(), server_default="[]", nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_attempt_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("end_reason", sa.Text(), server_default="", nullable=False),
        sa.Column("trace_id", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leases")),
    )
    op.create_index(
        "ix_leases_boot",
        "leases",
        ["boot_id", "boot_expires_at"],
        unique=False,
        sqlite_where=sa.text("state = 'active'"),
        postgresql_where=sa.text("state = 'active'"),
    )
    op.create_index("ix_leases_key", "leases", ["key_alias", "key_version", "state"], unique=False)
    op.create_index(
        "ix_leases_next_attempt_at",
        "leases",
        ["next_attempt_at"],
        unique=False,
        sqlite_where=sa.text("next_attempt_at IS NOT NULL"),
        postgresql_where=sa.text("next_attempt_at IS NOT NULL"),
    )
    op.create_index("ix_leases_run", "leases", ["run_id"], unique=False)
    op.create_index("ix_leases_state_expires_at", "leases", ["state", "expires_at"], unique=False)
    op.create_index(
        "uq_leases_live",
        "leases",
        ["broker", "run_id", "profile"],
        unique=True,
        sqlite_where=sa.text("state IN ('intent', 'active')"),
        postgresql_where=sa.text("state IN ('intent', 'active')"),
    )
    op.create_table(
        "meta",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_meta")),
    )
    op.create_table(
        "key_versions",
        sa.Column("alias", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("source_ref", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("algorithm", sa.Text(), server_default="", nullable=False),
        sa.Column("public_jwk", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("published_at", sa.Float(), nullable=True),
        sa.Column("activated_at", sa.Float(), nullable=True),
        sa.Column("retire_at", sa.Float(), nullable=True),
        sa.Column("destroyed_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["alias"], ["custody_keys.alias"], name=op.f("fk_key_versions_alias")),
        sa.PrimaryKeyConstraint("alias", "version", name=op.f("pk_key_versions")),
    )
    op.create_index(
        "uq_key_versions_active",
        "key_versions",
        ["alias"],
        unique=True,
        sqlite_where=sa.text("phase = 'active'"),
        postgresql_where=sa.text("phase = 'active'"),
    )
    op.create_index(
        "uq_key_versions_prepared",
        "key_versions",
        ["alias"],
        unique=True,
        sqlite_where=sa.text("phase = 'prepared'"),
        postgresql_where=sa.text("phase = 'prepared'"),
    )
