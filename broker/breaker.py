"""The pause that an API asked for, kept on behalf of code that would not keep it.

An answer of 429 or 503 opens the breaker of that run and profile for ``Retry-After``. While it is open calls are shed:
answered 503 by the broker, without a lease and without a word to the API. After a 503 the profile's ``health_check``
may be asked once a second whether the pause can end early; a 429 is waited out.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final

from config.clock import Clock
from config.problems import ProblemError

#: The shortest pause, and the pause when the answer names none that can be read.
SHORTEST_S: Final = 1.0

#: How often a health check may be sent at most.
PROBE_EVERY_S: Final = 1.0

_TOO_MANY: Final = int(HTTPStatus.TOO_MANY_REQUESTS)
_UNAVAILABLE: Final = int(HTTPStatus.SERVICE_UNAVAILABLE)
#: More digits than this are no number of seconds that anybody means; ``int`` need not look at them.
_MAX_DIGITS: Final = 12


class Breaker:
    """The breaker of one profile in one run. Instants are on the boot clock, which does not jump."""

    __slots__ = ("_closes_at", "_next_probe_at", "_status", "longest_s")

    def __init__(self, longest_s: float) -> None:
        """Take ``breaker_max``: no pause is longer."""
        self.longest_s = longest_s
        self._closes_at = 0.0
        self._next_probe_at = 0.0
        self._status = 0

    @property
    def quiet(self) -> bool:
        """Whether nothing has opened it since it was last closed: the usual case."""
        return not self._status

    def is_open(self, clock: Clock) -> bool:
        """Say whether calls are to be shed now."""
        return self._status != 0 and clock.boottime() < self._closes_at

    def check(self, clock: Clock) -> None:
        """Pass when calls may be made.

        Errors: ``ProblemError("breaker-open")`` with the seconds that are left.
        """
        if self._status:
            left = self._closes_at - clock.boottime()
            if left > 0:
                raise ProblemError("breaker-open", retry_after=left, upstream_status=self._status)
            self._status = 0

    def may_probe(self, clock: Clock) -> bool:
        """Say whether the health check may be sent now, and count it as sent if so."""
        now = clock.boottime()
        if self._status != _UNAVAILABLE or now < self._next_probe_at:
            return False
        self._next_probe_at = now + PROBE_EVERY_S
        return True

    def note(self, status: int, retry_after: bytes | None, clock: Clock) -> None:
        """Take note of an answer of the API."""
        if status not in (_TOO_MANY, _UNAVAILABLE):
            return
        now = clock.boottime()
        closes_at = now + self._clamp(_seconds(retry_after, clock.now()))
        if not self._status or closes_at > self._closes_at:
            self._closes_at = closes_at
        # A 429 among 503s decides: it may not be probed.
        self._status = _TOO_MANY if _TOO_MANY in (status, self._status) else _UNAVAILABLE
        self._next_probe_at = max(self._next_probe_at, now + PROBE_EVERY_S)

    def close(self) -> None:
        """End the pause: the health check was answered."""
        self._status = 0

    def _clamp(self, seconds: float) -> float:
        return max(SHORTEST_S, min(seconds, self.longest_s))


def _seconds(retry_after: bytes | None, now: float) -> float:
    """Read ``Retry-After``: seconds or an HTTP date (RFC 9110 section 10.2.3); what cannot be read counts as 0."""
    text = (retry_after or b"").decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return float(text[:_MAX_DIGITS])
    try:
        return parsedate_to_datetime(text).timestamp() - now
    except (ValueError, OverflowError, TypeError, IndexError):
        return 0.0
