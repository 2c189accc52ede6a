"""Changes of the minter's schema, in order (alembic). Imported only when there is one to make.

Each change is one transaction: killed in the middle it has not happened. Before a state that holds anything is
changed, a copy is put beside it.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from config.errors import ConfigurationError, Fault


def upgrade(engine: Engine, path: Path, version: str | None) -> None:
    """Bring the state at ``path`` from ``version`` (None: empty) to the newest schema.

    Errors: ``ConfigurationError`` when the state was made by a newer program.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    if version is not None:
        if version not in {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}:
            raise ConfigurationError(
                [Fault("state", "was made by a newer version of this program", "upgrade, or restore a backup")]
            )
        _copy(path, path.with_name(f"{path.name}.before-{version}"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _copy(path: Path, to: Path) -> None:
    source, target = sqlite3.connect(path), sqlite3.connect(to)
    try:
        source.backup(target)
    finally:
        source.close()
        target.close()
    to.chmod(0o600)
