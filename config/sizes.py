"""Sizes in grants: bytes as a number, or a text such as ``64KiB``, ``1MiB``, ``2GiB``."""

from __future__ import annotations

import re
from typing import Final

_TEXT: Final = re.compile(r"([0-9]{1,9}) ?(B|KiB|MiB|GiB)", re.ASCII)
_UNIT: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def parse_size(value: str | int) -> int:
    """Return the size in bytes.

    Errors: ``ValueError`` for anything else and for less than nothing.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError("a size is zero or more bytes")
        return value
    match = _TEXT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("a size is bytes, or a whole number with B, KiB, MiB or GiB, such as 1MiB")
    return int(match[1]) * _UNIT[match[2]]
