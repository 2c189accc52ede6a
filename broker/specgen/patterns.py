"""Whether a pattern of the document plainly allows only characters that a ``*`` takes without more."""

from __future__ import annotations

import re
from typing import Final

_MAX_LENGTH: Final = 512
#: Escapes that stand for plain characters, in every dialect that documents use.
_ESCAPED: Final = r"\\[dw.\-_~@+=]"
#: A part of a pattern that matches plain characters only, or nothing. Whatever else is in a pattern, it is not plain.
_PART: Final = re.compile(
    r"(?:"
    r"\[-?(?:[A-Z]-[A-Z]|[a-z]-[a-z]|[0-9]-[0-9]|" + _ESCAPED + r"|[A-Za-z0-9_.~@+=])+-?\]"
    r"|" + _ESCAPED + r"|[A-Za-z0-9_~@=-]"
    r"|[*+?]|\{[0-9]{1,9}(?:,[0-9]{0,9})?\}"
    r")"
)
_GROUP: Final = re.compile(r"\((?:\?:|(?!\?))")


def only_plain(pattern: str) -> bool:
    r"""Say whether every text that the pattern matches is made of plain characters, for sure.

    >>> [only_plain(text) for text in (r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", r"^\d+$", "[a-z]+", "^.+$", "^a|b$")]
    [True, True, False, False, False]
    """
    if not (len(pattern) <= _MAX_LENGTH and pattern.startswith("^") and pattern.endswith("$")):
        return False
    place, end, depth = 1, len(pattern) - 1, 0
    while place < end:
        if (group := _GROUP.match(pattern, place, end)) is not None:
            depth += 1
            place = group.end()
        elif pattern[place] == ")":
            depth -= 1
            place += 1
        elif pattern[place] == "|" and depth > 0:
            # Outside of a group it would stand between the anchors.
            place += 1
        elif (part := _PART.match(pattern, place, end)) is not None:
            place = part.end()
        else:
            return False
        if depth < 0:
            return False
    return depth == 0
