"""Whether there is an open file left, said once when there is none, and once when there is one again.

Who has none cannot take a connection or make one, and the kernel refuses those of the code without a word to us:
without this line an operator sees clients that fail and a broker that has nothing to say.
"""

from __future__ import annotations

import errno
import os

import structlog

_log = structlog.get_logger("broker")


class OpenFiles:
    """Look once a second or so."""

    def __init__(self) -> None:
        """Begin with files at hand."""
        self._exhausted = False

    def look(self) -> None:
        """Try to open a file, and say what has changed."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            exhausted = error.errno in (errno.EMFILE, errno.ENFILE)
        else:
            exhausted = False
        if exhausted == self._exhausted:
            return
        self._exhausted = exhausted
        if exhausted:
            _log.error("no-open-files", hint="raise the limit (LimitNOFILE) or lower limits.max_connections")
        else:
            _log.info("open-files-again")
