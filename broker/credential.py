"""The broker's own credential to the minter, read once at the start.

``file:PATH``: a regular file that nobody else can read. ``credential:NAME``: systemd's ``$CREDENTIALS_DIRECTORY``.
``fd:N``: an inherited pipe, read to its end and closed. No fault repeats what was read.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from config import tokens
from config.errors import ConfigurationError, Fault
from config.secret import Secret

_WHERE: Final = "minter_credential"
_MAX: Final = 4096
_STANDARD: Final = 3  # descriptors below are stdin, stdout and stderr


def read_credential(reference: str) -> Secret:
    """Return the ``mbk_`` token that ``reference`` leads to.

    Errors: ``ConfigurationError``.
    """
    scheme, _, place = reference.partition(":")
    if scheme == "file" and place:
        data = _from_file(Path(place), reference, private=True)
    elif scheme == "credential" and place:
        data = _from_file(_credentials_directory() / _name(place), reference, private=False)
    elif scheme == "fd" and place.isascii() and place.isdigit() and int(place) >= _STANDARD:
        data = _from_descriptor(int(place))
    else:
        raise _fault("expected file:PATH, credential:NAME or fd:N")
    text = data.decode("ascii", "replace").removesuffix("\n").removesuffix("\r")
    if not text:
        raise _fault(f"{reference} is empty", "minter brokers create prints the credential")
    if tokens.digest(text, tokens.BROKER) is None:
        raise _fault(f"{reference} holds no broker credential (mbk_...)", "minter brokers create prints one")
    return Secret(text)


def _from_file(path: Path, reference: str, *, private: bool) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise _fault(f"{reference} cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _fault(f"{reference} is not a regular file")
        if private and status.st_mode & 0o077:
            raise _fault(f"{reference} can be read by others ({stat.S_IMODE(status.st_mode):04o})", "chmod 600")
        if private and status.st_uid not in (os.geteuid(), 0):
            raise _fault(f"{reference} belongs to another user")
        return os.read(descriptor, _MAX)
    finally:
        os.close(descriptor)


def _from_descriptor(number: int) -> bytes:
    try:
        with os.fdopen(number, "rb") as pipe:
            return pipe.read(_MAX)
    except OSError as error:
        raise _fault(f"fd:{number} cannot be read: {error.strerror}") from None


def _credentials_directory() -> Path:
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        raise _fault("credential: needs $CREDENTIALS_DIRECTORY, which systemd sets", "LoadCredential= in the unit")
    return Path(directory)


def _name(name: str) -> str:
    if "/" in name or name in (".", ".."):
        raise _fault("credential: takes a name, not a path")
    return name


def _fault(what: str, hint: str = "") -> ConfigurationError:
    return ConfigurationError([Fault(_WHERE, what, hint)])
