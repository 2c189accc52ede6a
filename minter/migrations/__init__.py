"""Changes of the minter's schema, in order (alembic). Imported only when there is one to make.

1. The change from one schema to the newest is one transaction: killed at any statement it has not happened, and the
   next start makes it again. One process at a time: whoever changes a state holds its lock (minter/state_lock.py).
2. Before a state that holds anything is changed, a whole copy of it stands beside it (minter/state_copies.py).
3. A step that was released is never edited. What made a state is recorded in it, and a program whose steps read
   otherwise refuses to go on from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, event

from config.errors import ConfigurationError, Fault
from minter import failpoints, state_copies

#: In ``meta``: the digest of each step that made the state, as it read then.
_STEP: Final = "migration/{}"


def upgrade(engine: Engine, path: Path, version: str | None) -> None:
    """Bring the state at ``path`` from ``version`` (None: empty) to the newest schema.

    Errors: ``ConfigurationError`` when the state was made by a newer program, or by steps that read otherwise.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    steps = {script.revision: _digest(script.path) for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None:
        if version not in steps:
            raise ConfigurationError(
                [Fault("state", "was made by a newer version of this program", "upgrade, or restore a backup")]
            )
        with engine.connect() as connection:
            _check(connection, steps)
        state_copies.make(path, version)
    event.listen(engine, "before_cursor_execute", _statement)
    with engine.begin() as connection:
        failpoints.reached("migrate.begun")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        made = (step for step in steps if version is None or step > version)
        _record(connection, made, steps)
        failpoints.reached("migrate.done")
    failpoints.reached("migrate.committed")


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _check(connection: Connection, steps: dict[str, str]) -> None:
    """Refuse to go on from a state that another edition of a step made. The first program recorded none."""
    for revision, digest in steps.items():
        name = _STEP.format(revision)
        known = connection.exec_driver_sql("SELECT value FROM meta WHERE name = ?", (name,)).scalar()
        if known not in (None, digest):
            what = f"schema step {revision} made this state and reads otherwise in this program"
            raise ConfigurationError([Fault("state", what, "use the release that made it, or one after that")])


def _record(connection: Connection, made: Iterable[str], steps: dict[str, str]) -> None:
    for revision in made:
        insert = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"
        connection.exec_driver_sql(insert, (_STEP.format(revision), steps[revision]))


def _statement(*_: Any) -> None:
    failpoints.reached("migrate.statement")
