"""Operators' and auditors' calls about the audit log: read it, sign a checkpoint now, go on in a new file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from config.asgi import json_response, query_of
from config.clock import parse_rfc3339
from config.problems import ProblemError
from minter import audit_search
from minter.audit import AuditLog
from minter.audit_checkpoints import Checkpoints, NoCheckpointError
from minter.audit_events import EVENTS, Event
from minter.audit_search import FIELDS, Query
from minter.limits import Rate
from minter.store import Connection, Store

#: No answer lists more lines of the log.
MAX_EVENTS: Final = 1_000
_CHECKPOINT_S: Final = 10.0
#: Checkpoints that one user may ask for at once, and then a second.
CHECKPOINTS_AT_ONCE: Final = 10.0
CHECKPOINTS_PER_S: Final = 0.2
#: Read by ``minter/audit_state.py``.
_KEEP: Final = "INSERT OR REPLACE INTO meta (name, value) VALUES ('audit_checkpoint', ?)"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCalls:
    """Answers the calls about the log at ``path``."""

    path: Path
    log: AuditLog
    checkpoints: Checkpoints
    store: Store
    rate: Rate
    _kept: list[int] = field(default_factory=list)

    async def read(self, request: Request, _uid: int) -> Response:
        """Return lines behind a number, all or those that fit; ``last``: the last so many.

        ``more_after`` says where to go on: a page looks at a bounded number of lines.
        """
        given = query_of(request, {"after", "limit", "last", "key", "uid", "since", "until", *FIELDS})
        query = Query(
            wanted=tuple((name, given[name]) for name in FIELDS if name in given),
            key=given.get("key"),
            uid=_number(given["uid"]) if "uid" in given else None,
            since=_instant(given.get("since")),
            until=_instant(given.get("until")),
        )
        if given.get("code", "audit.opened") not in EVENTS:
            raise ProblemError("parameter-unknown", "there is no event with that code: see minter audit events")
        limit = min(_number(given.get("limit", str(MAX_EVENTS))), MAX_EVENTS)
        after = _number(given.get("after", "0"))
        if "last" in given:
            after = await asyncio.to_thread(audit_search.before_the_last, self.path, _number(given["last"]))
        page = await asyncio.to_thread(audit_search.search, self.path, query, after=after, limit=limit)
        return json_response({"events": page.events, "more_after": page.more_after})

    async def checkpoint(self, request: Request, uid: int) -> Response:
        """Sign a checkpoint of the last line now and return it, for a place of the reader's own.

        It is the one thing that an auditor makes the minter write, so at a rate that fills no disk.
        """
        query_of(request)
        if wait_s := self.rate.wait_s(uid):
            raise ProblemError("too-many-requests", retry_after=wait_s)
        try:
            made = await asyncio.wait_for(asyncio.wrap_future(self.checkpoints.make()), _CHECKPOINT_S)
        except (NoCheckpointError, TimeoutError) as error:
            raise ProblemError("checkpoint-unavailable", str(error) or "it takes too long") from None
        return json_response({"checkpoint": made.line.decode("ascii"), "seq": made.seq, "hash": made.hash})

    async def rotate(self, request: Request, uid: int) -> Response:
        """Go on in a new file."""
        query_of(request)
        await self.go_on_anew(uid)
        return json_response({"rotated": True})

    async def go_on_anew(self, uid: int | None = None) -> None:
        """Go on in a new file; the line that says who asked is in it. Errors: ``ProblemError``."""
        self.log.rotate()
        fields = {} if uid is None else {"uid": uid}
        await self.store.write(lambda _connection: (None, [Event("audit.rotation-asked", fields)]))

    async def keep_checkpoint(self) -> None:
        """Keep the last checkpoint in the state as well."""
        last = self.checkpoints.last
        if last is None or self._kept == [last.seq]:
            return

        def keep(connection: Connection) -> tuple[None, Sequence[Event]]:
            connection.exec_driver_sql(_KEEP, (last.line.decode("ascii"),))
            return None, ()

        # A state that cannot be written shows elsewhere; the next sweep tries again.
        with contextlib.suppress(ProblemError):
            await self.store.write(keep)
            self._kept[:] = [last.seq]


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:  # noqa: PLR2004 - more lines than any log has
        raise ProblemError("parameter-unknown", "expected a whole number")
    return int(text)


def _instant(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse_rfc3339(text)
    except ValueError:
        wanted = "since and until are instants with a zone, such as 2026-11-30T12:00:00Z"
        raise ProblemError("parameter-unknown", wanted) from None
