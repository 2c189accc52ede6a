"""A parameter as the document declares it: its name and place, and where it stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.specgen.model import Level, Note
from broker.specgen.texts import quoted

_HARMLESS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", re.ASCII)


class LostError(Exception):
    """A parameter that cannot be carried: why, and what to do about it."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Declared:
    """A Parameter Object. ``place`` is its ``in`` as it is written; a path's parameter is always ``required``."""

    node: Mapping[str, Any]
    pointer: str
    name: str
    place: str
    required: bool

    @property
    def key(self) -> tuple[str, str]:
        """What tells parameters of one operation apart; names of headers have no case."""
        return self.place, self.name.lower() if self.place == "header" else self.name

    def option(self, flag: str) -> str:
        """Return an option with the parameter's name, unless a shell could read something else in it."""
        return flag + (self.name if _HARMLESS.fullmatch(self.name) else "NAME")

    def note(self, level: Level, reason: str, remedy: str = "") -> Note:
        """Return a note that names the parameter."""
        return Note(level, self.pointer, f"{self.place} parameter {quoted(self.name, 80)}: {reason}", remedy)

    def lost(self, reason: str, remedy: str = "") -> Note:
        """Return the note for a parameter that is not carried: without a required one its operation is not either."""
        if self.required:
            return self.note("stop", reason + "; it is required", remedy)
        return self.note("limit", reason, remedy)
