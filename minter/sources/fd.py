"""``fd:N``: a pipe that the parent process gave, read to its end once and closed.

The value is in no file, no argument and no environment; a restart needs a parent that gives it again.
"""

from __future__ import annotations

import errno
import os
import select
import time
from typing import ClassVar, Final

from config.secret import Secret
from minter.sources import MAX_BYTES, Context, MissingError, SourceError, _files

#: A parent that never closes its end must not hold the start up.
_TIMEOUT_S: Final = 5.0
_FIRST: Final = 3


class FdSource:
    """An inherited pipe."""

    name: ClassVar[str] = "fd"
    example: ClassVar[str] = "fd:3"
    protection: ClassVar[str] = (
        "In no place that the minter knows: it came through an inherited pipe and is in memory only; whoever started"
        " the minter keeps it."
    )
    hint: ClassVar[str] = "start the minter with a pipe that gives the new value"

    def __init__(self, context: Context) -> None:
        del context
        self._taken: dict[str, Secret] = {}

    def check(self, place: str) -> None:
        """Raise when ``place`` cannot be an inherited descriptor."""
        if not (place.isascii() and place.isdigit() and len(place) <= 4 and int(place) >= _FIRST):  # noqa: PLR2004
            raise SourceError("is not the number of an inherited descriptor", "use 3 or above")

    def read(self, place: str) -> Secret:
        """Return what the pipe gave; from the second time on, what the first reading kept."""
        if place not in self._taken:
            self._taken[place] = _files.text_of(_drain(int(place)))
        return self._taken[place]


def _drain(fd: int) -> bytes:
    data = b""
    deadline = time.monotonic() + _TIMEOUT_S
    try:
        os.fstat(fd)
        waiting = select.poll()
        waiting.register(fd, select.POLLIN | select.POLLHUP)
        while len(data) <= MAX_BYTES + 1:
            if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise SourceError("gave no end of data", "the parent must close its end of the pipe")
            chunk = os.read(fd, MAX_BYTES)
            if not chunk:
                break
            data += chunk
        os.close(fd)
    except OSError as error:
        if error.errno == errno.EBADF:
            raise MissingError("is not open") from None
        raise SourceError(f"cannot be read ({type(error).__name__})") from None
    return data


SOURCE = FdSource
