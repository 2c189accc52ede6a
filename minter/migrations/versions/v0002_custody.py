"""The custody schema: sealed values and the keys that seal them, who used a key, keys that operators declared.

What 0001 kept in the clear (``fingerprint_key`` and ``params_key`` in ``meta``) is sealed at the first start after
this step, when the sealing key is known: see minter/data_keys.py.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and tables."""
    op.add_column("leases", sa.Column("data_key", sa.Integer(), nullable=True))
    op.add_column("leases", sa.Column("sealed", sa.LargeBinary(), nullable=True))
    op.create_index(
        "ix_leases_data_key",
        "leases",
        ["data_key"],
        sqlite_where=sa.text("data_key IS NOT NULL"),
        postgresql_where=sa.text("data_key IS NOT NULL"),
    )
    op.create_index(
        "ix_leases_turns",
        "leases",
        ["kind", "profile", "next_attempt_at"],
        sqlite_where=sa.text("next_attempt_at IS NOT NULL"),
        postgresql_where=sa.text("next_attempt_at IS NOT NULL"),
    )
    replaced = "state = 'revoking' AND end_reason = 'replaced' AND ended_at IS NULL"
    op.create_index(
        "ix_leases_replaced",
        "leases",
        ["expires_at"],
        sqlite_where=sa.text(replaced),
        postgresql_where=sa.text(replaced),
    )
    op.add_column("custody_keys", sa.Column("settings", sa.Text(), server_default="", nullable=False))
    op.add_column("custody_keys", sa.Column("retired_at", sa.Float(), nullable=True))
    op.add_column("key_versions", sa.Column("problem", sa.Text(), server_default="", nullable=False))
    op.add_column("key_versions", sa.Column("made_by", sa.Text(), server_default="", nullable=False))
    op.create_table(
        "key_users",
        sa.Column("alias", sa.Text(), nullable=False),
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("broker", sa.Text(), nullable=False),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.Column("first_used_at", sa.Float(), nullable=False),
        sa.Column("last_used_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["alias"], ["custody_keys.alias"], name=op.f("fk_key_users_alias")),
        sa.PrimaryKeyConstraint("alias", "caller", "broker", name=op.f("pk_key_users")),
    )
    op.create_table(
        "data_keys",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("sealing_version", sa.Integer(), nullable=False),
        sa.Column("wrapped", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_data_keys")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "uq_data_keys_active",
        "data_keys",
        ["phase"],
        unique=True,
        sqlite_where=sa.text("phase = 'active'"),
        postgresql_where=sa.text("phase = 'active'"),
    )
    op.create_table(
        "sealed_values",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("data_key", sa.Integer(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", "version", name=op.f("pk_sealed_values")),
    )
    op.create_table(
        "owed_events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("events", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_owed_events")),
    )
