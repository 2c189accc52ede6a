"""Caps: live leases and new leases per second for each broker and profile, and how often failures are recorded."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from config.clock import Clock
from config.problems import ProblemError
from config.settings import LeaseLimits

#: A cap on live leases is freed by a run that ends: there is no better guess than a short pause.
_FULL_RETRY_S = 10.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class Rate:
    """Token buckets by key, on the boot clock: a jump of the wall clock neither opens nor closes them.

    At most ``keys`` are kept; the longest unused is forgotten, which can only let through what a new key could.
    """

    def __init__(self, clock: Clock, *, per_s: float, burst: float, keys: int = 10_000) -> None:
        self._clock = clock
        self._per_s = per_s
        self._burst = burst
        self._keys = keys
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def wait_s(self, key: Hashable) -> float:
        """Take one token, and return 0; or take none, and return the seconds until there is one."""
        now = self._clock.boottime()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(self._burst, now)
            if len(self._buckets) > self._keys:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
            bucket.tokens = min(self._burst, bucket.tokens + max(0.0, now - bucket.at) * self._per_s)
            bucket.at = now
        if bucket.tokens < 1:
            return (1 - bucket.tokens) / self._per_s
        bucket.tokens -= 1
        return 0.0


class MintLimits:
    """What one broker may cost for one profile."""

    def __init__(self, settings: LeaseLimits, clock: Clock) -> None:
        self._max_live = settings.max_live
        self._rate = Rate(clock, per_s=settings.mint_rate, burst=settings.mint_burst)
        self._begun: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def one_more(self, broker: str, profile: str, *, live: int) -> Iterator[None]:
        """Let one more lease be made while the block runs.

        Errors: ``too-many-leases``, ``mint-rate-exceeded``.
        """
        key = (broker, profile)
        if live + self._begun[key] >= self._max_live:
            raise ProblemError("too-many-leases", retry_after=_FULL_RETRY_S, limit=self._max_live)
        wait_s = self._rate.wait_s(key)
        if wait_s:
            raise ProblemError("mint-rate-exceeded", retry_after=wait_s)
        self._begun[key] += 1
        try:
            yield
        finally:
            self._begun[key] -= 1
            if not self._begun[key]:
                del self._begun[key]
