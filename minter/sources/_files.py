"""Reading a file that holds a secret: what is shared by ``file`` and ``credential``."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from config.secret import Secret
from minter.sources import MAX_BYTES, MissingError, SourceError


def read(path: Path, check: Callable[[os.stat_result], None]) -> Secret:
    """Return the content of a file after ``check`` saw the open file's status; the last part is never a link.

    Errors: :class:`SourceError`, without the path.
    """
    try:
        # O_NONBLOCK: a FIFO in the file's place must not hold the start up; fstat then refuses it.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingError("does not exist") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise SourceError("is a link", "name the file itself") from None
        raise SourceError(f"cannot be opened ({_name(error)})") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise SourceError("is not a file")
        check(status)
        return text_of(_read(fd))
    finally:
        os.close(fd)


def _read(fd: int) -> bytes:
    data = b""
    try:
        while chunk := os.read(fd, MAX_BYTES + 2 - len(data)):
            data += chunk
    except OSError as error:
        raise SourceError(f"cannot be read ({_name(error)})") from None
    return data


def text_of(data: bytes) -> Secret:
    """Decode what was read; what is too long or no text is no secret."""
    if len(data) > MAX_BYTES + 1:
        raise SourceError(f"is longer than {MAX_BYTES} bytes")
    try:
        return Secret(data.decode())
    except UnicodeDecodeError:
        raise SourceError("is not UTF-8 text", "encode binary keys as base64 or PEM") from None


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, type(error).__name__)
