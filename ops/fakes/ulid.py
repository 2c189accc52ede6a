"""ULIDs: 26 characters of Crockford's base32 that sort by the time they were made."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BITS: Final = 80
_LENGTH: Final = 26


class UlidSource:
    """Makes ULIDs that strictly increase, also within one millisecond and when the clock is set back.

    >>> source = UlidSource(lambda: 0.001)
    >>> first, second = source.new(), source.new()
    >>> len(first), first < second
    (26, True)
    """

    def __init__(self, now: Callable[[], float], randbits: Callable[[int], int] = secrets.randbits) -> None:
        """Read time, in epoch seconds, from ``now``, and the rest from ``randbits``."""
        self._now = now
        self._randbits = randbits
        self._last = 0

    def new(self) -> str:
        """Return the next identifier."""
        fresh = (int(self._now() * 1000) << _RANDOM_BITS) | self._randbits(_RANDOM_BITS)
        self._last = max(fresh, self._last + 1)
        return encode(self._last)


def encode(number: int) -> str:
    """Write a 128-bit number as 26 characters."""
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(5 * (_LENGTH - 1), -1, -5))
