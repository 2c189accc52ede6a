"""How configuration says what is wrong with it: every fault at once, each with its place.

``ConfigurationError`` ends a command with exit status 3; a running service that reloads keeps what it has.
Refusals of requests are :class:`config.problems.ProblemError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    ``where`` is a path such as ``grants.json: profiles.mem.allow[3]``; ``what`` says what was found and what was
    expected, never the value of a secret; ``hint`` says what to do, when that is not plain.
    """

    where: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f" ({self.hint})" if self.hint else "")


class ConfigurationError(Exception):
    """Grants or settings that do not load."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class ExitCode:
    """The exit statuses of both programs (DESIGN section 8)."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    CONFIGURATION = 3
    UPSTREAM = 4
    REFUSED = 5
    CONFLICT = 6
    AUDIT = 7
    DOCTOR = 8
    TRY_AGAIN = 75
