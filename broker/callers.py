"""Who is asking: caller tokens, checked against ``callers.json``, and what a wrong token costs.

The file is read at start, on SIGHUP and when it was replaced (looked at once a second); a file that does not load
leaves the callers as they were. Tokens that are malformed, unknown or past their overlap look the same from outside.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from config import tokenfiles
from config.clock import Clock
from config.errors import ConfigurationError
from config.load import read_token_file
from config.problems import ProblemError
from config.tokens import CALLER

log = structlog.get_logger("broker.callers")

Scope = Mapping[str, Any]

_SCHEME: Final = b"bearer "


def bearer(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the token of the one ``Authorization: Bearer`` header, None when there is none.

    Errors: ``ProblemError("request-malformed")`` for two of them: which one counts would be anybody's guess.
    """
    found = [value for name, value in headers if name.lower() == b"authorization"]
    if len(found) > 1:
        raise ProblemError("request-malformed", "there is more than one Authorization header")
    if not found or found[0][: len(_SCHEME)].lower() != _SCHEME:
        return None
    return found[0][len(_SCHEME) :].decode("latin-1").strip(" ")


class Failures:
    """Slows down whoever presents wrong tokens, and never whoever presents a right one.

    A right token is not looked up here at all, so nobody can lock a caller out. A wrong one takes from its peer's
    bucket and from everybody's: once one is empty the answer is 429, and nothing is logged any more.
    """

    PEER: Final = (20.0, 1.0)
    ALL: Final = (200.0, 20.0)
    _PEERS: Final = 4096

    def __init__(self, clock: Clock, count: Callable[[str], None] = lambda _code: None) -> None:
        """Take who counts the failures, by code."""
        self._clock = clock
        self._count = count
        self._all = (self.ALL[0], clock.boottime())
        self._peers: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def failed(self, scope: Scope, code: str) -> ProblemError:
        """Count a failure and return what to answer: ``code`` with 401, or ``too-many-requests``."""
        self._count(code)
        peer = _peer(scope)
        now = self._clock.boottime()
        mine = _refilled(self._peers.pop(peer, (self.PEER[0], now)), self.PEER, now)
        everybody = _refilled(self._all, self.ALL, now)
        if mine[0] < 1 or everybody[0] < 1:
            self._keep(peer, mine)
            self._all = everybody
            return ProblemError("too-many-requests", "too many wrong tokens", retry_after=1)
        self._keep(peer, (mine[0] - 1, now))
        self._all = (everybody[0] - 1, now)
        log.warning("authentication-failed", code=code, peer=peer)
        return ProblemError(code)

    def _keep(self, peer: str, bucket: tuple[float, float]) -> None:
        self._peers[peer] = bucket
        if len(self._peers) > self._PEERS:
            self._peers.popitem(last=False)


def _refilled(bucket: tuple[float, float], shape: tuple[float, float], now: float) -> tuple[float, float]:
    size, rate = shape
    return min(size, bucket[0] + max(0.0, now - bucket[1]) * rate), now


def _peer(scope: Scope) -> str:
    peer = scope.get("peer")
    if peer is not None:
        return f"uid:{peer.uid}"
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


#: What tells one state of a file from another; None when there is no file.
Stamp = tuple[int, int, int] | None


class Read(NamedTuple):
    """A callers file as it was read, and the stamp it had just before."""

    stamp: Stamp
    file: tokenfiles.TokenFile


class Callers:
    """The callers that ``callers.json`` lists, as of the last time it loaded."""

    def __init__(self, path: Path, clock: Clock, failures: Failures) -> None:
        """Read the file. Errors: ``ConfigurationError``."""
        self._path = path
        self._clock = clock
        self._failures = failures
        self.take(self.read())

    def authenticate(self, scope: Scope) -> str:
        """Return the id of the caller whose token the request presents.

        Errors: ``ProblemError``: ``caller-token-invalid``, ``too-many-requests``, ``request-malformed``.
        """
        token = bearer(scope["headers"])
        principal = token and tokenfiles.find(self._known, token, CALLER, now=self._clock.now())
        if not principal:
            raise self._failures.failed(scope, "caller-token-invalid")
        return principal.id

    @property
    def ids(self) -> frozenset[str]:
        """The ids that the file lists, with or without a valid token."""
        return self._ids

    def read(self) -> Read:
        """Read and check the file, and change nothing. Errors: ``ConfigurationError``."""
        # The stamp is from before: a change in between is then seen at the next look.
        stamp = self._stamp()
        return Read(stamp, read_token_file(self._path))

    def take(self, read: Read) -> None:
        """Go by what was read from now on."""
        self._seen = read.stamp
        self._known = tokenfiles.index(read.file)
        self._ids = frozenset(principal.id for principal in read.file.principals())

    def refresh(self) -> bool:
        """Read the file when it was replaced since it was last looked at; say whether the callers changed.

        A file that does not load is logged once, and the callers stay as they were.
        """
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        try:
            self.take(self.read())
        except ConfigurationError as error:
            self._seen = stamp
            log.error("callers-not-read", faults=[str(fault) for fault in error.faults])  # noqa: TRY400 - the faults say it all
            return False
        log.info("callers-read", callers=len(self._ids))
        return True

    def _stamp(self) -> Stamp:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size
