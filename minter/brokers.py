"""Who asks: a broker by its ``mbk_`` token and the user that its process runs as.

A correct token costs one look-up and is never slowed down by others' wrong ones. Wrong ones are counted for each
peer user: beyond a few a second they are answered 429.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from config import tokenfiles
from config.clock import Clock
from config.problems import ProblemError
from config.tokenfiles import Principal, TokenFile
from config.tokens import BROKER
from minter.denials import Denials
from minter.limits import Rate

_FAILURES_PER_S: Final = 5.0
_FAILURES_AT_ONCE: Final = 20.0


class Brokers:
    """The brokers of ``brokers.json``; :meth:`swap` changes them all at once."""

    def __init__(self, file: TokenFile, *, clock: Clock, denials: Denials) -> None:
        self._clock = clock
        self._denials = denials
        self._failures = Rate(clock, per_s=_FAILURES_PER_S, burst=_FAILURES_AT_ONCE)
        self.swap(file)

    def swap(self, file: TokenFile) -> None:
        """Go by another file from now on."""
        self._known = tokenfiles.index(file)
        self.principals = {principal.id: principal for principal in file.brokers}

    def authenticate(self, scope: Mapping[str, Any], *, operation: str, by_token: bool = False) -> Principal:
        """Return the broker that sent this request.

        ``by_token``: the token is enough where no user is known or named, because only a token's state is told.

        Errors: ``broker-token-invalid``, whatever was wrong; ``too-many-requests`` after many of those.
        """
        peer = scope.get("peer")
        uid = peer.uid if peer is not None else None
        token = _bearer(scope["headers"])
        principal = tokenfiles.find(self._known, token, BROKER, now=self._clock.now()) if token else None
        if principal is None:
            self._deny(uid, operation, None)
        if principal.profiles == [] and not by_token:
            self._deny(uid, operation, principal.id)
        if not (_known_peer(principal, uid, scope) or (by_token and None in (uid, principal.uid))):
            self._deny(uid, operation, principal.id)
        return principal

    def _deny(self, uid: int | None, operation: str, principal: str | None) -> NoReturn:
        self._denials.note("broker-token-invalid", uid=uid, operation=operation, principal=principal)
        wait_s = self._failures.wait_s(uid)
        if wait_s:
            raise ProblemError("too-many-requests", retry_after=wait_s)
        raise ProblemError("broker-token-invalid")


def _known_peer(principal: Principal, uid: int | None, scope: Mapping[str, Any]) -> bool:
    """Say whether the peer is who the file says.

    On a Unix socket the kernel tells the user, and a token that was copied is of no use to another. On TCP a client
    certificate has been verified before the request came here.
    """
    return bool(scope.get("tls_subject")) if uid is None else principal.uid == uid


def _bearer(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the token of the one Authorization header; two of them are none."""
    found = [value for name, value in headers if name == b"authorization"]
    if len(found) != 1 or not found[0].startswith(b"Bearer "):
        return None
    return found[0][7:].decode("latin-1")
