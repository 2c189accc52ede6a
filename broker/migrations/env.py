"""What alembic runs: our own connection, which is in a transaction already."""

from __future__ import annotations

from alembic import context

from broker.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
