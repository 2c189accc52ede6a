"""An issuer in memory for the lease machine: its own time, its own account, and ways to fail."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from config.clock import FakeClock
from config.problems import ProblemError
from config.secret import Secret
from minter import kinds
from minter.kinds import Ending, Minted, RevocationError

NAME = "played"


@dataclass
class Token:
    lease_id: str
    value: str
    ends: float


@dataclass
class PlayedIssuer:
    """``mint_fails``: ``down`` made nothing, ``lost`` made it and nobody was told. ``revoke_fails``: ``down``,
    ``refused`` for ever, ``lost`` deleted it and nobody was told. Its time is the time that has truly passed.
    """

    clock: FakeClock
    mint_fails: str = ""
    revoke_fails: str = ""
    passed: float = 0.0
    tokens: dict[str, Token] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def alive(self) -> list[Token]:
        return [token for token in self.tokens.values() if token.ends > self.passed]

    def make(self, request: kinds.MintRequest) -> Minted:
        if self.mint_fails == "down":
            raise ProblemError("not-ready", retry_after=1)
        value = f"remote-{next(self.numbers)}"
        life_s = min(request.not_after - request.now, 3600.0)
        self.tokens[value] = Token(request.lease_id, value, self.passed + life_s)
        self.made.append(request.lease_id)
        if self.mint_fails == "lost":
            raise ConnectionError
        return Minted(
            credential={"value": Secret(value)},
            expires_at=request.now + life_s,
            fingerprint=Secret(value).fingerprint(),
            key_versions=(),
            how_ends="upstream_deleted",
        )

    def delete(self, lease_id: str) -> bool:
        """Delete what was made for a lease; say whether there was any."""
        if self.revoke_fails in ("down", "refused"):
            raise RevocationError(permanent=self.revoke_fails == "refused")
        found = [token.value for token in self.tokens.values() if token.lease_id == lease_id]
        for value in found:
            del self.tokens[value]
        if self.revoke_fails == "lost":
            raise ConnectionError
        return bool(found)


def kind_at(issuer: PlayedIssuer) -> type:
    """Return the kind whose tokens ``issuer`` makes."""

    class Played:
        """A kind of the tests."""

        name = NAME
        local = False
        example: Mapping[str, Any] = {"type": NAME}

        @classmethod
        def build(cls, _token, _custody, _where):
            return cls()

        async def mint(self, request):
            return issuer.make(request)

        async def revoke(self, lease, _credential):
            # By the lease's name: a value may be lost.
            issuer.delete(lease.id)
            return Ending("upstream_deleted")

        async def end_orphan(self, lease):
            return Ending("upstream_deleted") if issuer.delete(lease.id) else None

    return Played


@contextmanager
def installed(issuer: PlayedIssuer) -> Iterator[None]:
    """Have ``kinds`` find the played kind where the settings name it."""
    real = kinds._classes
    played = kind_at(issuer)

    def classes(third_party: tuple[str, ...]) -> Mapping[str, type]:
        others = tuple(name for name in third_party if name != NAME)
        return {**real(others), **({NAME: played} if NAME in third_party else {})}

    kinds._classes = classes
    try:
        yield
    finally:
        kinds._classes = real
