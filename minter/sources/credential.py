"""``credential:NAME``: a systemd credential (``LoadCredential=``, ``LoadCredentialEncrypted=``).

systemd keeps it in memory that is never swapped, under ``$CREDENTIALS_DIRECTORY``, for the service alone. It stays as
it was while the service runs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import ClassVar, Final

from config.secret import Secret
from minter.sources import Context, MissingError, SourceError, _files

_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}", re.ASCII)


class CredentialSource:
    """The service manager's credentials."""

    name: ClassVar[str] = "credential"
    example: ClassVar[str] = "credential:cf-parent"
    protection: ClassVar[str] = (
        "Given by systemd to this service alone, in memory that is not swapped; on disk it is encrypted only if the"
        " unit says LoadCredentialEncrypted=."
    )
    hint: ClassVar[str] = "give systemd the new value (systemd-creds encrypt, LoadCredential=) and restart the minter"

    def __init__(self, context: Context) -> None:
        self._directory = context.environ.get("CREDENTIALS_DIRECTORY", "")

    def check(self, place: str) -> None:
        """Raise when ``place`` cannot be a credential's name."""
        if not _NAME.fullmatch(place):
            raise SourceError("is not the name of a credential")

    def path(self, place: str) -> Path:
        """Return the file in which the service manager keeps it."""
        return Path(self._directory) / place

    def read(self, place: str) -> Secret:
        """Return the credential's text."""
        if not Path(self._directory).is_absolute():
            raise MissingError("cannot be found: the service manager gave no credentials", "see LoadCredential=")
        return _files.read(Path(self._directory) / place, _check)


def _check(status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise SourceError("belongs to another user")
    # The group's read bit is how an access control list that systemd sets for the service's user shows up.
    if status.st_mode & 0o037:
        raise SourceError("can be opened by others")


SOURCE = CredentialSource
