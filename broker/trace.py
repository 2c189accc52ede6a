"""What the broker keeps of a run's calls: the operator's own words, and numbers.

There is no field for a path, a query, a body or a credential, so none can be kept by mistake: a route is the entry of
the grants file as it is written there.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

#: Rows are kept for the first so many calls; counters go on.
MAX_ROWS: Final = 256


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One call. ``delivered`` is false when surely nothing of it reached the API."""

    n: int
    profile: str
    method: str
    route: str
    status: int
    delivered: bool
    bytes_sent: int
    bytes_back: int
    milliseconds: float


class Snapshot(msgspec.Struct, kw_only=True):
    """A trace at one moment, as it is stored and shown.

    ``calls`` counts by profile and route; ``denied_by`` by code and then by the catalog's route that matched, under
    ``""`` when none did; ``denied_of`` the same by profile before, under ``""`` when the run has none of the name that
    was asked for; ``shed`` are calls that the breaker kept back; ``dropped`` are calls that have no row.
    """

    rows: list[Row] = []
    calls: dict[str, dict[str, int]] = {}
    denied_by: dict[str, dict[str, int]] = {}
    denied_of: dict[str, dict[str, dict[str, int]]] = {}
    total: int = 0
    denied: int = 0
    shed: int = 0
    dropped: int = 0


class Recorder(Protocol):
    """What ``broker/call.py`` tells about a call; ``broker/metrics.py`` counts it. Labels are bounded sets."""

    def call(self, profile: str, status: int, seconds: float) -> None:
        """Count a call that matched, with the status that the code got."""
        ...

    def refused(self, profile: str, code: str) -> None:
        """Count a refusal by its problem code; ``profile`` is empty when no run was identified."""
        ...


class Trace:
    """The trace of one run. ``dirty`` says that it changed since the writer last looked."""

    __slots__ = ("_kept", "dirty")

    def __init__(self, kept: Snapshot | None = None) -> None:
        """Begin an empty trace, or go on with one that was kept."""
        self._kept = kept or Snapshot()
        self.dirty = False

    def record(
        self,
        profile: str,
        method: str,
        route: str,
        *,
        status: int,
        delivered: bool,
        bytes_sent: int,
        bytes_back: int,
        milliseconds: float,
    ) -> None:
        """Keep a call that matched ``route`` and is over."""
        kept = self._kept
        kept.total += 1
        by_route = kept.calls.setdefault(profile, {})
        by_route[route] = by_route.get(route, 0) + 1
        if len(kept.rows) < MAX_ROWS:
            kept.rows.append(
                Row(
                    kept.total,
                    profile,
                    method,
                    route,
                    status,
                    delivered,
                    bytes_sent,
                    bytes_back,
                    round(milliseconds, 3),
                )
            )
        else:
            kept.dropped += 1
        self.dirty = True

    def denied(self, code: str, template: str | None = None, *, profile: str = "") -> None:
        """Count a refusal; ``template`` is the catalog's route that the call matched, if one did.

        ``profile`` is one of the run's, never a name that the code made up.
        """
        for by_code in (self._kept.denied_by, self._kept.denied_of.setdefault(profile, {})):
            by_template = by_code.setdefault(code, {})
            by_template[template or ""] = by_template.get(template or "", 0) + 1
        self._kept.denied += 1
        self.dirty = True

    def shed(self) -> None:
        """Count a call that the breaker kept back."""
        self._kept.shed += 1
        self.dirty = True

    @property
    def kept(self) -> Snapshot:
        """The counters as they are now, for reading on the spot."""
        return self._kept

    def snapshot(self) -> dict[str, Any]:
        """Return the trace as plain JSON types, rows with names: what the log line of a run's end carries."""
        shown: dict[str, Any] = msgspec.to_builtins(self._kept)
        shown["rows"] = [dict(zip(Row.__struct_fields__, row, strict=True)) for row in shown["rows"]]
        return shown

    def dump(self) -> bytes:
        """Return the trace as JSON for the store, and count it as written."""
        self.dirty = False
        return msgspec.json.encode(self._kept)

    @classmethod
    def load(cls, data: bytes) -> Trace:
        """Go on with what :meth:`dump` wrote."""
        return cls(msgspec.json.decode(data, type=Snapshot))
