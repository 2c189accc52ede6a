"""``file:PATH``: a file of the minter's user that nobody else can open.

Refused: a file that group or others can open, of another owner than the minter's user or root, a link in the last
part of the path, anything but a regular file. Relative paths count from the folder of the file that names them: the
settings or the grants.
"""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import ClassVar

from config.load import sync_directory, write_atomic
from config.secret import Secret
from minter.sources import Context, SourceError, _files


class FileSource:
    """A file."""

    name: ClassVar[str] = "file"
    example: ClassVar[str] = "file:/etc/minter/cf-parent"
    protection: ClassVar[str] = (
        "In the clear in a file that only the minter's user and root can open: whoever has the disk, or a backup of it,"
        " has the key."
    )
    hint: ClassVar[str] = ""

    def __init__(self, context: Context) -> None:
        self._base = context.base

    def check(self, place: str) -> None:
        """Raise when ``place`` cannot be a path."""
        if "\0" in place or place.endswith("/"):
            raise SourceError("is not the path of a file")

    def path(self, place: str) -> Path:
        """Return the file."""
        return self._base / place

    def read(self, place: str) -> Secret:
        """Return the file's text."""
        return _files.read(self._base / place, _check)

    def write(self, place: str, value: Secret) -> None:
        """Replace the file atomically, mode 0600."""
        path = self._base / place
        try:
            _drop_unfinished(path)
            write_atomic(path, value.reveal().encode(), mode=0o600)
        except OSError as error:
            raise SourceError(f"cannot be written ({type(error).__name__})") from None

    def delete(self, place: str) -> None:
        """Remove the file, durably, and what a killed write of it left."""
        path = self._base / place
        try:
            _drop_unfinished(path)
            path.unlink(missing_ok=True)
            sync_directory(path.parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise SourceError(f"cannot be deleted ({type(error).__name__})") from None


def _drop_unfinished(path: Path) -> None:
    """Remove what killed writes of ``path`` left: it holds a secret, too."""
    for stale in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        stale.unlink(missing_ok=True)


def _check(status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise SourceError("belongs to another user", "chown it to the minter's user")
    if status.st_mode & 0o077:
        raise SourceError("can be opened by others", "chmod 0600")


SOURCE = FileSource
