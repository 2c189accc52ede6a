"""``env:NAME``: a variable of the minter's environment, for development and containers.

It is read once and removed, so that no child and no later look at ``os.environ`` has it. What the process was started
with stays readable in ``/proc/PID/environ`` for its own user: prefer another source in production.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

from config.secret import Secret
from minter.sources import Context, MissingError, SourceError

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class EnvSource:
    """The environment."""

    name: ClassVar[str] = "env"
    example: ClassVar[str] = "env:CLOUDFLARE_API_TOKEN"
    protection: ClassVar[str] = (
        "In the environment that the minter was started with: root, and whoever wrote the unit or script, can read it"
        " there; the minter removes its copy and hands it to no child."
    )
    hint: ClassVar[str] = "start the minter with the new value in the variable"

    def __init__(self, context: Context) -> None:
        self._environ = context.environ
        self._taken: dict[str, Secret] = {}

    def check(self, place: str) -> None:
        """Raise when ``place`` cannot be a variable's name."""
        if not _NAME.fullmatch(place):
            raise SourceError("is not the name of a variable")

    def read(self, place: str) -> Secret:
        """Return the variable's value; from the second time on, what the first reading kept."""
        if place in self._environ:
            value = self._environ.pop(place)
            if not value.isascii():
                # Python keeps undecodable bytes of the environment as lone surrogates: no text that can be sent.
                try:
                    value.encode()
                except UnicodeEncodeError:
                    raise SourceError("is not UTF-8 text") from None
            self._taken[place] = Secret(value)
        if place not in self._taken:
            raise MissingError("is not set")
        return self._taken[place]


SOURCE = EnvSource
