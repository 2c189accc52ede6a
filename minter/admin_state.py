"""Operators' and auditors' calls about the service itself: its process, backups of its state, a restored state."""

from __future__ import annotations

import asyncio
import functools
import os
from dataclasses import asdict, dataclass
from typing import Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from config.asgi import json_response, query_of, read_body
from config.clock import Clock
from config.contract import decode
from config.problems import ProblemError
from config.settings import MinterSettings
from minter import process_facts
from minter.audit_events import Event
from minter.quarantine import Quarantine
from minter.sources.keyring import OVERRIDE
from minter.store import Connection, Store

_MAX_BODY: Final = 1024
#: In ``meta``: when the last backup was written, in seconds since the epoch.
LAST_BACKUP: Final = "last_backup"


class BackupRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/backup``: what ``minter backup``, which reads the files itself, has done by now."""

    step: Literal["copied", "written"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCalls:
    """Answers the calls about the service itself."""

    settings: MinterSettings
    store: Store
    quarantine: Quarantine
    clock: Clock

    async def process(self, request: Request, uid: int) -> Response:
        """Say what this process is: hardening, user, keyring backend, database."""
        query_of(request)
        references = await self.store.read(_references)
        answer = process_facts.of_this_process(references)
        answer["keyring"] = await asyncio.to_thread(process_facts.keyring, self.settings, references)
        answer["database"] = await self.store.read(process_facts.database)
        answer["keyring_override"] = OVERRIDE in os.environ
        answer["peer_uid"] = uid
        return json_response(answer)

    async def backup(self, request: Request, uid: int) -> Response:
        """Answer a backup.

        After its copy of the database: once the log has the lines of all that is in it. When it is written: record it.
        """
        query_of(request)
        wanted = decode(BackupRequest, await read_body(request.receive, _MAX_BODY, request.scope))
        if wanted.step == "written":
            now = self.clock.now()
            await self.store.write(functools.partial(_remember, now, uid))
        else:
            # Behind all that was written before: the log has it by then, or owes it.
            await self.store.read(lambda _found: None)
            if self.store.owed:
                raise ProblemError("audit-unavailable", retry_after=5)
        return json_response({"step": wanted.step})

    async def restored(self, request: Request, _uid: int) -> Response:
        """Say what confirming a restored state would do."""
        query_of(request)
        return json_response(asdict(await self.quarantine.summary()))

    async def confirm(self, request: Request, uid: int) -> Response:
        """Lift the quarantine of a restored state."""
        query_of(request)
        return json_response(asdict(await self.quarantine.confirm(uid=uid)))


def _references(connection: Connection) -> list[str]:
    return list(connection.exec_driver_sql("SELECT source_ref FROM key_versions WHERE phase != 'destroyed'").scalars())


def _remember(now: float, uid: int, connection: Connection) -> tuple[None, list[Event]]:
    connection.exec_driver_sql("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (LAST_BACKUP, repr(now)))
    return None, [Event("backup.written", {"uid": uid})]
