"""Numbers for operators, in Prometheus's text format.

On the data path a call costs two look-ups in dictionaries; everything else happens when somebody asks. Labels are
bounded: profiles of the grants file, codes of the problem table, statuses, reasons. No id is one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

#: Upper bounds of the duration's buckets, in seconds.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(slots=True)
class _Durations:
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0


class Metrics(Collector):
    """The broker's counters, and what is read from elsewhere when somebody asks (:meth:`gauge`)."""

    def __init__(self) -> None:
        """Start at zero."""
        self._calls: dict[tuple[str, int], int] = {}
        self._durations: dict[str, _Durations] = {}
        self._refusals: dict[tuple[str, str], int] = {}
        self._counters: dict[str, tuple[str, str, Counter[str]]] = {
            "broker_requests_refused": ("Requests refused before they reached the program.", "code", Counter()),
            "broker_authentication_failures": ("Wrong tokens at the control API.", "code", Counter()),
            "broker_runs_opened": ("Runs opened.", "", Counter()),
            "broker_runs_ended": ("Runs ended.", "reason", Counter()),
            "broker_reloads": ("Reloads of grants and callers.", "result", Counter()),
        }
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    # --- counting ---

    def call(self, profile: str, status: int, seconds: float) -> None:
        """Count a call that matched, with the status that the code got."""
        key = (profile, status)
        self._calls[key] = self._calls.get(key, 0) + 1
        durations = self._durations.get(profile)
        if durations is None:
            durations = self._durations[profile] = _Durations()
        durations.buckets[bisect_left(BUCKETS, seconds)] += 1
        durations.total += seconds

    def refused(self, profile: str, code: str) -> None:
        """Count a refusal by its problem code; ``profile`` is empty when no run was identified."""
        key = (profile, code)
        self._refusals[key] = self._refusals.get(key, 0) + 1

    def request_refused(self, code: str) -> None:
        """Count a request that never reached the program."""
        self._counters["broker_requests_refused"][2][code] += 1

    def authentication_failed(self, code: str) -> None:
        """Count a wrong token at the control API."""
        self._counters["broker_authentication_failures"][2][code] += 1

    def run_opened(self) -> None:
        """Count a run that was opened."""
        self._counters["broker_runs_opened"][2][""] += 1

    def run_ended(self, reason: str) -> None:
        """Count a run that ended."""
        self._counters["broker_runs_ended"][2][reason] += 1

    def reloaded(self, result: str) -> None:
        """Count a reload: ``ok`` or ``refused``."""
        self._counters["broker_reloads"][2][result] += 1

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Let ``read`` say the value of a gauge whenever somebody asks."""
        self._gauges[name] = (text, read)

    # --- telling ---

    def collect(self) -> Iterator[Metric]:
        """Yield everything; prometheus-client calls it."""
        calls = CounterMetricFamily("broker_calls", "Calls that matched a route.", labels=["profile", "status"])
        for (profile, status), count in self._calls.items():
            calls.add_metric([profile, str(status)], count)
        yield calls
        refusals = CounterMetricFamily("broker_refusals", "Calls refused by the broker.", labels=["profile", "code"])
        for (profile, code), count in self._refusals.items():
            refusals.add_metric([profile, code], count)
        yield refusals
        seconds = HistogramMetricFamily("broker_call_duration_seconds", "Time of matched calls.", labels=["profile"])
        for profile, durations in self._durations.items():
            seconds.add_metric([profile], _cumulated(durations.buckets), durations.total)
        yield seconds
        for name, (text, label, counter) in self._counters.items():
            family = CounterMetricFamily(name, text, labels=[label] if label else [])
            for value, count in counter.items():
                family.add_metric([value] if label else [], count)
            yield family
        for name, (text, read) in self._gauges.items():
            yield GaugeMetricFamily(name, text, value=read())
        yield InfoMetricFamily("broker_build", "This program.", value={"version": version("minter-broker")})

    def exposition(self) -> bytes:
        """Return everything in Prometheus's text format."""
        return generate_latest(self._registry)


def _cumulated(buckets: list[int]) -> list[tuple[str, float]]:
    total = 0
    shown: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), buckets, strict=True):
        total += count
        shown.append((bound, total))
    return shown
