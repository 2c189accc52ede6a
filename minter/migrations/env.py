"""How alembic runs here: on the connection and in the transaction that :func:`minter.migrations.upgrade` gives."""

from __future__ import annotations

from alembic import context

from minter.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
