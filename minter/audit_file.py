"""A file of audit lines, open for appending: locked, in its place, and no longer than what counts.

``size`` is where the lines end that count. What stands behind it, because a write failed or another program wrote
there, is cut off before anything else is written; whoever appends is told, so that it is recorded.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from config.errors import ConfigurationError, Fault
from config.load import sync_directory
from minter import failpoints
from minter.audit_segments import name_of

_CHUNK: Final = 1 << 16
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
#: Without the times of the inode where the system can leave them out: the length is synced all the same.
sync_data: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)


class AuditUnavailable(Exception):  # noqa: N818 - the state of the log, as operators and the problem table call it
    """The events were not recorded, so nothing may be released. The message names the cause, no event."""


@dataclass(frozen=True, slots=True)
class Torn:
    """What was cut off a file's end: how many bytes, and their SHA-256 in hexadecimal."""

    bytes: int
    sha256: str


class NotAnewError(AuditUnavailable):
    """The log could not go on in a new file; it goes on in the one it has."""


class LogFile:
    """The file at ``path``, made when it is missing.

    ``write`` and ``sync`` are the system's own; a test puts a failing disk in their place.
    Errors: ``ConfigurationError`` when it is unsafe, in use or cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        *,
        write: Callable[[int, bytes], int] = os.write,
        sync: Callable[[int], None] = sync_data,
    ) -> None:
        self.path = path
        self.size = 0
        self._write = write
        self._sync = sync
        #: The finished file that this one goes on from, when that was given its name here.
        self.done: tuple[int, int] | None = None
        self.fd = _open(path)

    def append(self, data: bytes, anew: tuple[int, int] | None = None) -> Torn | None:
        """Write behind what counts and sync; it counts once :meth:`count` was told.

        ``anew``: first the log goes on in a new file, and what stands here are the lines with these numbers. When
        something had to be cut off, that is returned and nothing was written.
        Errors: :class:`AuditUnavailable`; the file may hold some of the data then, which does not count.
        """
        torn = self.settle()
        if torn is not None:
            return torn
        try:
            if anew is not None and anew != self.done:
                self.begin_anew(*anew)
            if self._write(self.fd, data) != len(data):
                raise OSError(errno.ENOSPC, "short write")  # noqa: TRY301 - one way out for every failure of the disk
            if os.lseek(self.fd, 0, os.SEEK_CUR) != self.size + len(data):
                # Behind what another program wrote a moment ago: it would be cut off together with that.
                raise AuditUnavailable("another program writes to the audit log")
            failpoints.reached("audit.written")
            self._sync(self.fd)
            failpoints.reached("audit.synced")
        except OSError as error:
            raise AuditUnavailable(f"the audit log cannot be written ({name_of_error(error)})") from None
        return None

    def count(self, size: int) -> None:
        """Take so many bytes behind the end for written."""
        self.size += size

    def settle(self) -> Torn | None:
        """Cut off what lies behind what counts: nobody was told that it stands. Errors: :class:`AuditUnavailable`."""
        try:
            status = os.fstat(self.fd)
            if not self._in_its_place(status):
                raise AuditUnavailable("the audit log was removed, moved or replaced: put it back where it was")
            if status.st_size < self.size:
                raise AuditUnavailable("the audit log was cut by another program")
            if status.st_size == self.size:
                return None
            torn = hashlib.sha256()
            for offset in range(self.size, status.st_size, _CHUNK):
                torn.update(os.pread(self.fd, _CHUNK, offset))
            os.ftruncate(self.fd, self.size)
        except OSError as error:
            raise AuditUnavailable(f"the audit log cannot be mended ({name_of_error(error)})") from None
        return Torn(status.st_size - self.size, torn.hexdigest())

    def begin_anew(self, first: int, last: int) -> None:
        """Give the file the name of a finished one and go on in an empty one.

        Errors: :class:`NotAnewError`; nothing changed.
        """
        try:
            self._begin_anew(first, last)
        except OSError as error:
            raise NotAnewError(f"the audit log cannot go on in a new file ({name_of_error(error)})") from None

    def _begin_anew(self, first: int, last: int) -> None:
        aside = name_of(self.path, first, last)
        if os.path.lexists(aside):
            raise OSError(errno.EEXIST, "the finished file's name is taken")
        coming = self.path.with_name(self.path.name + ".next")
        with contextlib.suppress(FileNotFoundError):
            coming.unlink()
        fd = os.open(coming, _FLAGS | os.O_EXCL, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            failpoints.reached("audit.next-made")
            self.path.rename(aside)
            failpoints.reached("audit.renamed")
            try:
                coming.rename(self.path)
            except OSError:
                aside.rename(self.path)
                raise
        except OSError:
            os.close(fd)
            raise
        failpoints.reached("audit.anew")
        os.close(self.fd)
        self.fd, self.size, self.done = fd, 0, (first, last)
        sync_directory(self.path.parent)

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes between two offsets. Errors: ``OSError``."""
        return os.pread(self.fd, end - start, start)

    def close(self) -> None:
        """Close the file and let go of its lock."""
        os.close(self.fd)

    def _in_its_place(self, status: os.stat_result) -> bool:
        """Say whether a reviewer who opens the log by its name sees this file."""
        try:
            named = self.path.lstat()
        except OSError:
            return False
        return os.path.samestat(status, named)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = not path.exists()
        fd = os.open(path, _FLAGS, 0o600)
    except OSError as error:
        raise ConfigurationError([Fault("audit", f"the log cannot be opened ({name_of_error(error)})")]) from None
    try:
        _check_safe(os.fstat(fd))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError([Fault("audit", "another process writes this log")]) from None
        if new:
            sync_directory(path.parent)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_safe(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ConfigurationError(
            [Fault("audit", "the log must be a file of the minter's user that others cannot open", "chmod 0600")]
        )


def name_of_error(error: OSError) -> str:
    """Return the error's name, such as ``ENOSPC``: never its text, which may quote a path."""
    return errno.errorcode.get(error.errno or 0, type(error).__name__)
