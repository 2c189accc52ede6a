"""Changes of the broker's schema over time. Imported only when there is something to migrate."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from config.errors import ConfigurationError, Fault


def upgrade(connection: Connection, version: str | None) -> None:
    """Bring the schema from ``version`` (None: an empty database) to the newest, in the transaction of ``connection``.

    Errors: ``ConfigurationError`` when a newer program wrote the database.
    """
    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).parent))
    settings.set_main_option("path_separator", "os")
    known = {script.revision for script in ScriptDirectory.from_config(settings).walk_revisions()}
    if version is not None and version not in known:
        raise ConfigurationError(
            [Fault("state", "a newer broker wrote this database", "run that version, or name another state")]
        )
    settings.attributes["connection"] = connection
    command.upgrade(settings, "head")
