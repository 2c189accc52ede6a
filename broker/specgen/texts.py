"""Untrusted text of a document, made fit to be shown to people and models.

What cannot be seen is taken out: controls, surrogates, private-use and unassigned characters, bidirectional and
zero-width ones, tags, variation selectors, fillers. The text is in NFC and bounded; where it was cut it ends in ``…``.
Markdown and HTML stay as they are: they are text here. Any value may be given; what is no text is an empty one.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

#: Ends a text that was cut.
CUT: Final = "\u2026"

#: Nothing is seen of these, though they are letters, marks or symbols: joiners, fillers, variation selectors, blanks.
_UNSEEN: Final = frozenset(
    map(
        chr,
        (
            0x034F,
            0x115F,
            0x1160,
            0x17B4,
            0x17B5,
            *range(0x180B, 0x1810),
            0x2800,
            0x3164,
            *range(0xFE00, 0xFE10),
            0xFFA0,
            *range(0xE0100, 0xE01F0),
        ),
    )
)
#: Quotation marks that pass for a double one.
_DOUBLES: Final = str.maketrans(
    dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u2036\u275d\u275e\u301d\u301e\uff02", '"')
)
#: So much of a text is looked at for each character that is shown: a megabyte of blanks costs nothing.
_LOOKED_AT: Final = 8
_BLANKS: Final = re.compile(r"[^\S\n]+")
_LINES: Final = re.compile(r" ?\n ?")
_GAPS: Final = re.compile(r"\n{3,}")


def one_line(text: object, limit: int) -> str:
    """Return the text in one line of at most ``limit`` characters."""
    return _bounded(text, limit, lines=False)


def paragraph(text: object, limit: int) -> str:
    """Return the text in at most ``limit`` characters, its line breaks kept: at most one empty line in a row."""
    return _bounded(text, limit, lines=True)


def quoted(text: object, limit: int) -> str:
    r"""Return the text in one line between double quotation marks, as data that someone else wrote.

    The quotation ends at the first ``"`` without a backslash before it: the text's own, and what looks like one, are
    written ``\"``, a backslash ``\\``. ``limit`` counts the text before that.
    """
    return _between_marks(one_line(text, limit))


def quoted_paragraph(text: object, limit: int) -> str:
    """Return the text between double quotation marks as :func:`quoted` does, its line breaks kept."""
    return _between_marks(paragraph(text, limit))


def _between_marks(text: str) -> str:
    shown = text.translate(_DOUBLES)
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _bounded(text: object, limit: int, *, lines: bool) -> str:
    return _cut(text, limit, lines) if isinstance(text, str) and limit > 0 else ""


# The same text is shown in several files, and in those of operations that share it.
@lru_cache(maxsize=1024)
def _cut(text: str, limit: int, lines: bool) -> str:  # noqa: FBT001 - of this file
    start = text[: limit * _LOOKED_AT]
    cleaned = _cleaned(start, lines=lines)
    if len(cleaned) <= limit and len(start) == len(text):
        return cleaned
    shown = cleaned[: limit - 1]
    if len(cleaned) >= limit:
        # Between two words, when that costs little.
        words = shown.rpartition(" ")[0]
        shown = words if len(words) > limit * 3 // 4 else shown
    return shown.rstrip() + CUT


def _cleaned(text: str, *, lines: bool) -> str:
    if not (text.isascii() and text.isprintable()):
        seen = "".join(_seen(character) for character in text.replace("\r\n", "\n"))
        text = unicodedata.normalize("NFC", seen)
    if not lines:
        return " ".join(text.split())
    return _GAPS.sub("\n\n", _LINES.sub("\n", _BLANKS.sub(" ", text))).strip()


def _seen(character: str) -> str:
    if character in "\n\r\v\f\x85\u2028\u2029":
        return "\n"
    if character.isspace():
        return " "
    return character if character.isprintable() and character not in _UNSEEN else ""
