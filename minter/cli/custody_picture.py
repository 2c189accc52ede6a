"""The picture in the custody report: key → kind → profile → callers, laid out in rows so that no two lines cross.

Pure: numbers and texts, which the template draws. A key's row is as high as it has profiles; what does not fit into
the picture is left out with a note, because the tables have it all.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from config.console.terminal import plain
from minter.cli.custody_words import names

#: Rows that a page takes.
MAX_ROWS: Final = 32
#: Profiles of one key that are drawn.
MAX_PROFILES: Final = 8

ROW: Final = 34
BOX: Final = 26
_TOP: Final = 30
#: Left edge and width of each column.
COLUMNS: Final[Mapping[str, tuple[int, int]]] = {
    "key": (0, 236),
    "kind": (268, 124),
    "profile": (424, 236),
    "callers": (692, 268),
}
WIDTH: Final = 960
_CHAR: Final = 7.4
_PAD: Final = 10

Shape = Literal["box", "loose", "none"]


@dataclass(frozen=True, slots=True)
class Box:
    """A text in a frame (``box``), in a dashed one (``loose``: nothing refers to it) or in none."""

    column: str
    text: str
    full: str
    y: float
    shape: Shape = "box"

    @property
    def x(self) -> int:
        """The left edge."""
        return COLUMNS[self.column][0]

    @property
    def width(self) -> int:
        """The width of its column."""
        return COLUMNS[self.column][1]


@dataclass(frozen=True, slots=True)
class Line:
    """A curve from the right edge of one box to the left edge of another."""

    x1: int
    y1: float
    x2: int
    y2: float

    @property
    def path(self) -> str:
        """The curve, as SVG writes it."""
        middle = (self.x1 + self.x2) / 2
        return f"M{self.x1} {self.y1:g}C{middle:g} {self.y1:g} {middle:g} {self.y2:g} {self.x2} {self.y2:g}"


@dataclass(slots=True)
class Picture:
    """What is to be drawn. ``left_out`` says what is not, empty when all is there."""

    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    rows: int = 0
    left_out: str = ""

    @property
    def height(self) -> int:
        """The height, with the heads of the columns."""
        return _TOP + self.rows * ROW

    def _box(self, column: str, text: str, first: int, rows: int = 1, shape: Shape = "box") -> Box:
        y = _TOP + (first + rows / 2) * ROW
        # A text without a frame may run on: nothing stands beside it.
        room = ((COLUMNS[column][1] if shape != "none" else WIDTH / 2) - 2 * _PAD) / _CHAR
        shown = plain(text)
        box = Box(column, cut(shown, int(room)), shown, y, shape)
        self.boxes.append(box)
        return box

    def _line(self, one: Box, other: Box) -> None:
        self.lines.append(Line(one.x + one.width, one.y, other.x, other.y))

    def chain(self, alias: str, profiles: Sequence[Mapping[str, Any]], *, otherwise: str) -> None:
        """Add a key with its kinds, their profiles and who may use those."""
        first = self.rows
        rest = len(profiles) - MAX_PROFILES
        drawn = profiles[:MAX_PROFILES]
        self.rows += max(1, len(drawn)) + (rest > 0)
        key = self._box("key", alias, first, self.rows - first, "box" if profiles else "loose")
        if not profiles:
            self._box("kind", otherwise, first, shape="none")
            return
        row = first
        for kind, of_kind in _by_kind(drawn):
            kind_box = self._box("kind", kind or "no credential", row, len(of_kind))
            self._line(key, kind_box)
            for one in of_kind:
                profile = self._box("profile", one["profile"], row)
                callers = self._box("callers", names(one["callers"], none="nobody", shown=3), row)
                self._line(kind_box, profile)
                self._line(profile, callers)
                row += 1
        if rest > 0:
            self._box("profile", f"and {rest} more profile{'s' if rest > 1 else ''}", row, shape="none")


def picture(report: Mapping[str, Any]) -> Picture:
    """Lay out the keys of a report: those that profiles refer to first."""
    made = Picture()
    keys = [key for key in report["keys"] if key["phase"] == "active"]
    keys.sort(key=lambda key: (not key["who_may"], key["alias"]))
    chains = [(key["alias"], key["who_may"], _otherwise(key)) for key in keys]
    if report["without_key"]:
        chains.append(("no custody key", report["without_key"], ""))
    left_out = 0
    for alias, profiles, otherwise in chains:
        if left_out or made.rows + max(1, len(profiles[:MAX_PROFILES])) > MAX_ROWS:
            left_out += 1
        else:
            made.chain(alias, profiles, otherwise=otherwise)
    if left_out:
        shown = len(chains) - left_out
        made.left_out = f"The first {shown} of {len(chains)} are drawn; the tables below have all of them."
    return made


def _otherwise(key: Mapping[str, Any]) -> str:
    return {"sealing": "seals the state", "checkpoints": "signs the audit log"}.get(key["use"], "no profile")


def _by_kind(profiles: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    for kind in dict.fromkeys(one["kind"] for one in profiles):
        yield kind, [one for one in profiles if one["kind"] == kind]


def cut(text: str, room: int) -> str:
    """Shorten a text to so many columns of a fixed width; wide characters take two.

    >>> cut("cf-parent", 20), cut("a-very-long-alias", 8)
    ('cf-parent', 'a-very-…')
    """
    widths = [2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text]
    if sum(widths) <= room:
        return text
    kept, used = "", 0
    for char, width in zip(text, widths, strict=True):
        if used + width > room - 1:
            break
        kept, used = kept + char, used + width
    return kept + "…"
