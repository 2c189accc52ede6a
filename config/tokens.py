"""Our own opaque tokens: ``brk_`` (run), ``clr_`` (caller), ``mbk_`` (broker to minter).

Form: prefix, 43 base62 characters (256 bit of the system's generator), 6 base62 characters of CRC-32 over what
stands before them. The checksum lets a typo or a random guess be refused before any look-up, and lets secret
scanners find real tokens (:data:`PATTERN`). Only SHA-256 digests are stored; a 256-bit random value needs no salt.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import zlib
from typing import Final, Literal

from config.secret import Secret

Prefix = Literal["brk_", "clr_", "mbk_"]

RUN: Final[Prefix] = "brk_"
CALLER: Final[Prefix] = "clr_"
BROKER: Final[Prefix] = "mbk_"

BODY_LENGTH: Final = 43
CHECKSUM_LENGTH: Final = 6
LENGTH: Final = 4 + BODY_LENGTH + CHECKSUM_LENGTH

#: What a secret scanner may look for.
PATTERN: Final = r"(?:brk|clr|mbk)_[0-9A-Za-z]{49}"

_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]
_SHAPE: Final = re.compile(PATTERN, re.ASCII)


def generate(prefix: Prefix) -> Secret:
    """Return a new token."""
    number = secrets.randbits(256)
    digits = []
    for _ in range(BODY_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    body = "".join(reversed(digits))
    return Secret(prefix + body + checksum(prefix + body))


def checksum(text: str) -> str:
    """Return the six base62 characters of CRC-32 over ``text``."""
    # Two digits at a time from a table: every call of the data path comes by here.
    rest, low = divmod(zlib.crc32(text.encode()), len(_PAIRS))
    high, middle = divmod(rest, len(_PAIRS))
    return _PAIRS[high] + _PAIRS[middle] + _PAIRS[low]


def digest(token: str, prefix: Prefix) -> bytes | None:
    """Return the SHA-256 digest to look a token up by, or None when it cannot be one of ours.

    The look-up by digest needs no comparison in constant time: whoever can choose digests freely would have to
    invert SHA-256 to gain from its timing.
    """
    if len(token) != LENGTH or not token.startswith(prefix) or not _SHAPE.fullmatch(token):
        return None
    if checksum(token[:-CHECKSUM_LENGTH]) != token[-CHECKSUM_LENGTH:]:
        return None
    return hashlib.sha256(token.encode()).digest()
