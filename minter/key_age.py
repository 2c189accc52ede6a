"""How old each custody key is, against the period that was set for it: a warning from 80 %, an alarm at 100 %."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from config.settings import KeySettings
from minter import key_rows
from minter.key_rows import KeyRow, VersionRow
from minter.store import Connection

WARNING: Final = 0.8
ALARM: Final = 1.0

Level = Literal["", "ok", "warning", "alarm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAge:
    """The age of a key's active version. ``period_s`` is its ``rotate_every``; None: nobody set one.

    ``rotating``: another version is on its way in or out. ``problem``: a step of a version that failed.

    >>> KeyAge(alias="a", use="static", since_at=0.0, now=81.0, period_s=100.0).level
    'warning'
    """

    alias: str
    use: str
    since_at: float
    now: float
    period_s: float | None
    phases: tuple[str, ...] = ()
    problem: str = ""

    @property
    def age_s(self) -> float:
        """Seconds since it became active."""
        return max(0.0, self.now - self.since_at)

    @property
    def ratio(self) -> float | None:
        """How much of the period has passed; 1 is all of it."""
        return None if self.period_s is None else self.age_s / self.period_s

    @property
    def level(self) -> Level:
        """What its age calls for; nothing without a period."""
        if self.ratio is None:
            return ""
        if self.ratio >= ALARM:
            return "alarm"
        return "warning" if self.ratio >= WARNING else "ok"

    @property
    def due_at(self) -> float | None:
        """When it is to be rotated."""
        return None if self.period_s is None else self.since_at + self.period_s

    @property
    def rotating(self) -> bool:
        """Say whether another version is on its way in or out."""
        return "prepared" in self.phases or "retiring" in self.phases


def ages(connection: Connection, settings_of: Callable[[str], KeySettings | None], *, now: float) -> list[KeyAge]:
    """Return the age of every key that is in use. A query for the store."""
    keys = key_rows.keys(connection)
    versions: dict[str, list[VersionRow]] = {}
    for row in key_rows.versions(connection):
        versions.setdefault(row.alias, []).append(row)
    found = (_age(key, versions.get(alias, []), settings_of(alias), now=now) for alias, key in sorted(keys.items()))
    return [age for age in found if age is not None]


def _age(key: KeyRow, versions: list[VersionRow], settings: KeySettings | None, *, now: float) -> KeyAge | None:
    active = next((row for row in versions if row.phase == "active"), None)
    if active is None or key.retired_at is not None:
        return None
    period = settings.rotate_every if settings is not None else None
    return KeyAge(
        alias=key.alias,
        use=settings.use if settings is not None else "static",
        since_at=active.created_at if active.activated_at is None else active.activated_at,
        now=now,
        period_s=None if period is None else float(period),
        phases=tuple(row.phase for row in versions if row.phase != "destroyed"),
        problem=next((row.problem for row in versions if row.problem), ""),
    )
