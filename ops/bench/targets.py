"""Targets: what is to be reached, what was measured, whether it held."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """One target and what came of it. ``measured`` is not a number where nothing was."""

    what: str
    limit: float
    measured: float
    at_least: bool
    note: str = ""

    @property
    def verdict(self) -> str:
        """Whether the target held; it does not when the note says what went wrong."""
        if math.isnan(self.measured):
            return "not measured"
        inside = self.measured >= self.limit if self.at_least else self.measured <= self.limit
        return "held" if inside and not self.note else "NOT HELD"


def summary(outcomes: Sequence[Outcome]) -> None:
    """Print one table of all targets, if there are any."""
    if not outcomes:
        return
    width = max(len(outcome.what) for outcome in outcomes)
    print(f"\n{'target':{width}} {'to reach':>16} {'measured':>10}")
    for outcome in outcomes:
        limit = f"at {'least' if outcome.at_least else 'most'} {outcome.limit:g}"
        measured = "-" if math.isnan(outcome.measured) else f"{outcome.measured:.3g}"
        note = f" ({outcome.note})" if outcome.note else ""
        print(f"{outcome.what:{width}} {limit:>16} {measured:>10}  {outcome.verdict}{note}")
