"""Durations in settings and grants: seconds as a number, or a text such as ``30s``, ``15m``, ``24h``, ``90d``."""

from __future__ import annotations

import re
from typing import Final

_TEXT: Final = re.compile(r"([0-9]{1,9})(s|m|h|d)", re.ASCII)
_LONGEST_S: Final = 1e10  # some 300 years: what is longer is a mistake
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(value: str | float) -> float:
    """Return the duration in seconds.

    Errors: ``ValueError`` for anything else, for NaN and infinity, and for less than nothing.
    """
    if isinstance(value, bool):
        raise ValueError("a duration is seconds, or a text such as 15m")  # noqa: TRY004 - one kind of error
    if isinstance(value, int | float):
        if not 0 <= value < _LONGEST_S:
            raise ValueError("a duration is zero or more seconds")
        return float(value)
    match = _TEXT.fullmatch(value)
    if match is None:
        raise ValueError("a duration is seconds, or a whole number with s, m, h or d, such as 15m")
    return float(int(match[1]) * _UNIT_S[match[2]])
