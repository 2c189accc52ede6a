"""An opaque holder for a value that must not appear anywhere by accident.

The one way out is :meth:`Secret.reveal`; ``tests/test_architecture.py`` lists the files that may call it.
Python strings cannot be wiped from memory: this type promises not to print, not to erase.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, NoReturn, final

#: A credential of fewer bytes stands in many an answer by chance, so answers are not scrubbed of it.
SHORTEST_SCRUBBED: Final = 8


@final
class Secret:
    """A secret text value.

    ``str``, ``repr``, ``format`` and ``%`` show ``<secret>``; pickling and copying raise; ``==`` compares
    identity only, so that a comparison which would leak its timing cannot be written by mistake.

    >>> print(Secret("hunter2"))
    <secret>
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value itself. Call it only where the value is placed, stored or digested."""
        return self._value

    def matches(self, other: Secret) -> bool:
        """Compare two secrets in a time that does not depend on where they differ."""
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def fingerprint(self) -> str:
        """Return the first 16 hexadecimal digits of SHA-256: for *minted, random* values only.

        A secret that a person may have chosen could be guessed from it; use a keyed digest there.
        """
        return hashlib.sha256(self._value.encode()).hexdigest()[:16]

    def __len__(self) -> int:
        """Return the number of characters, which length limits need."""
        return len(self._value)

    def __repr__(self) -> str:
        return "<secret>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format("<secret>", spec)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Secret cannot be pickled or copied")

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other
