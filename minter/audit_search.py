"""Finding lines of the audit log: by what happened, to what, by whom and when. A page looks at so many lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from config.clock import parse_rfc3339
from minter.audit_segments import last_seq, read_from

#: Lines that one page looks at, whether they fit or not.
LOOKED_AT: Final = 20_000

#: What may be asked for, and the field of an event that it is compared with.
FIELDS: Final = {"code": "code", "run": "run_id", "lease": "lease_id", "caller": "caller", "broker": "broker"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """``wanted``: names of :data:`FIELDS` and their values. ``key`` is an alias, ``since`` and ``until`` instants."""

    wanted: tuple[tuple[str, str], ...] = ()
    key: str | None = None
    uid: int | None = None
    since: float | None = None
    until: float | None = None

    def fits(self, event: dict[str, Any]) -> bool:
        """Say whether an event is one of those."""
        if any(event.get(FIELDS[name]) != value for name, value in self.wanted):
            return False
        if self.uid is not None and event.get("uid") != self.uid:
            return False
        if self.key is not None and not self._of_key(event, self.key):
            return False
        if self.since is None and self.until is None:
            return True
        at = parse_rfc3339(event["at"])
        return (self.since is None or at >= self.since) and (self.until is None or at < self.until)

    @staticmethod
    def _of_key(event: dict[str, Any], alias: str) -> bool:
        if alias in (event.get("alias"), event.get("key_alias")):
            return True
        versions = event.get("key_versions")
        return isinstance(versions, list) and any(str(one).startswith(f"{alias}@") for one in versions)


@dataclass(frozen=True, slots=True)
class Page:
    """The events that fit; ``more_after`` is where to go on, None at the end of the log."""

    events: list[dict[str, Any]]
    more_after: int | None


def search(path: Path, query: Query, *, after: int, limit: int) -> Page:
    """Look through the log at ``path`` behind a number. Errors: ``OSError``."""
    events: list[dict[str, Any]] = []
    for looked, event in enumerate(read_from(path, after), start=1):
        if query.fits(event):
            events.append(event)
        if looked == LOOKED_AT or len(events) >= limit:
            return Page(events, event["seq"])
    return Page(events, None)


def before_the_last(path: Path, count: int) -> int:
    """Return the number behind which the last ``count`` lines stand."""
    return max(0, last_seq(path) - count)
