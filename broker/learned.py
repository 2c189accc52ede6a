"""What the wildcards of a learning profile took: kept so that an operator can narrow the grant.

Only a profile with ``"learn": true`` is learnt from. Of each wildcard segment of a route the value is kept while there
is only one; at the second, different one it is dropped for good, and only "many" is known. The values are of calls'
paths: they stand in a file of their own, which only the broker's user can read, and in no log, trace, metric or error.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from config.errors import ConfigurationError
from config.load import read_file, write_atomic
from config.profiles import RouteRule
from config.routes import Glob, Star

log = structlog.get_logger("broker.learned")

#: The oldest runs are forgotten beyond so many; of one run and profile so many routes are kept.
MAX_RUNS: Final = 256
MAX_ROUTES: Final = 256
#: A value that is longer is not kept: it is no name of anything, and code could fill the broker's memory with it.
MAX_VALUE: Final = 256

#: Of each wildcard of a route, from the left: the one value that it took, or None for many.
Values = list[str | None]


class Learned:
    """What was learnt, in memory and in the file. Without a file nothing is kept beyond the process."""

    def __init__(self, path: Path | None = None) -> None:
        """Take the file, which need not be there, and go on with what it holds."""
        self._path = path
        self._runs: dict[str, dict[str, dict[str, Values]]] = {}
        self._dirty = False
        if path is not None and os.path.lexists(path):
            self._runs = _read(path)

    def note(self, run_id: str, profile: str, rule: RouteRule, segments: Sequence[bytes] | None) -> None:
        """Keep what the wildcards of ``rule`` took in a target that it granted.

        None: nothing may be kept of this one, so that it could be anything: many.
        """
        took: Values = [
            segments[position].decode("ascii")
            if segments is not None and len(segments[position]) <= MAX_VALUE
            else None
            for position, template in enumerate(rule.route.segments)
            if isinstance(template, Star | Glob)
        ]
        if not took:
            return
        if run_id not in self._runs and len(self._runs) >= MAX_RUNS:
            del self._runs[next(iter(self._runs))]
        routes = self._runs.setdefault(run_id, {}).setdefault(profile, {})
        known = routes.get(rule.text)
        if known is None:
            if len(routes) >= MAX_ROUTES:
                return
            routes[rule.text] = list(took)
        else:
            # A file may say of a route that it has other wildcards: what they took is not known then.
            before = known if len(known) == len(took) else [None] * len(took)
            now = [one if one == value else None for one, value in zip(before, took, strict=True)]
            if now == known:
                return
            routes[rule.text] = now
        self._dirty = True

    def of(self, run_id: str) -> dict[str, dict[str, Values]]:
        """Return what was learnt of a run: by profile and route."""
        return self._runs.get(run_id, {})

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of the runs of which something was learnt."""
        return iter(self._runs)

    def forget(self, run_ids: Iterable[str]) -> None:
        """Forget these runs."""
        for run_id in run_ids:
            self._dirty |= self._runs.pop(run_id, None) is not None

    async def write(self) -> None:
        """Write the file if something changed. What cannot be written is tried again with the next call."""
        if not self._dirty or self._path is None:
            return
        self._dirty = False
        data = msgspec.json.encode({"runs": self._runs})
        try:
            await asyncio.to_thread(write_atomic, self._path, data)
        except OSError as error:
            self._dirty = True
            log.warning("learned-not-written", path=str(self._path), reason=error.strerror)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    runs: dict[str, dict[str, dict[str, Values]]]


def _read(path: Path) -> dict[str, dict[str, dict[str, Values]]]:
    try:
        return msgspec.json.decode(read_file(path), type=_File).runs
    except (ConfigurationError, OSError, msgspec.DecodeError):
        # It only ever advises: a broker does not stay away for it.
        log.warning("learned-unreadable", path=str(path))
        return {}
