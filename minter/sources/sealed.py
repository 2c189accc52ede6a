"""``sealed:NAME``: in the minter's own state, sealed (minter/sealing.py). Only a running minter can open it."""

from __future__ import annotations

import re
from typing import ClassVar, Final

from config.problems import ProblemError
from config.secret import Secret
from minter.sealed_values import ClosedError, SealedValues
from minter.sealing import SealError
from minter.sources import Context, MissingError, SourceError

#: A name, and the version that :func:`minter.sources.versioned` writes behind it.
_PLACE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,99}?)(?:\.v([2-9]|[1-9][0-9]{1,8}))?", re.ASCII)


class SealedSource:
    """The minter's state."""

    name: ClassVar[str] = "sealed"
    example: ClassVar[str] = "sealed:run-signer"
    protection: ClassVar[str] = (
        "Encrypted in the minter's state (AES-256-GCM), under a key that the sealing-key wraps: as well kept as the"
        " sealing-key is."
    )
    hint: ClassVar[str] = ""

    def __init__(self, context: Context) -> None:
        self._values: SealedValues = context.sealed

    def check(self, place: str) -> None:
        """Raise when ``place`` is not a name."""
        _parse(place)

    def read(self, place: str) -> Secret:
        """Return what is kept under the name."""
        try:
            value = self._values.read(*_parse(place))
        except SealError as error:
            raise SourceError(f"does not open: {error}", "see the runbook on restoring") from None
        except (ClosedError, ProblemError) as error:
            raise _unavailable(error) from None
        if value is None:
            raise MissingError("is not in the state", "minter keys import puts it there")
        return Secret(value.decode())

    def write(self, place: str, value: Secret) -> None:
        """Keep a value under the name."""
        try:
            self._values.write(*_parse(place), value.reveal().encode())
        except SealError as error:
            raise SourceError(f"cannot be sealed: {error}") from None
        except (ClosedError, ProblemError) as error:
            raise _unavailable(error) from None

    def delete(self, place: str) -> None:
        """Remove what is kept under the name."""
        try:
            self._values.delete(*_parse(place))
        except (ClosedError, ProblemError) as error:
            raise _unavailable(error) from None


def _parse(place: str) -> tuple[str, int]:
    match = _PLACE.fullmatch(place)
    if match is None:
        raise SourceError("is not a name", "letters, digits, '_', '.' and '-', at most 100")
    return match[1], int(match[2] or "1")


def _unavailable(error: Exception) -> SourceError:
    if isinstance(error, ClosedError):
        return SourceError("opens in the running minter only", "start it, then: minter keys list")
    return SourceError("cannot be reached: the state does not answer")


SOURCE = SealedSource
