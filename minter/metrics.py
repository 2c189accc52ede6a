"""Counters of the minter for Prometheus. Labels are from bounded sets: no ids, and no broker's choice of a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from minter.key_age import KeyAge
from minter.lease_rows import LeaseRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the gauges show."""

    leases: Mapping[tuple[str, str], int]
    sweep_lag_s: float
    audit_sequence: int
    audit_owed: int
    audit_checkpoint_age_s: float = 0.0
    audit_places_behind: int = 0
    checks: Mapping[str, bool]
    keys: Sequence[KeyAge] = ()


class Metrics:
    """What is counted, in a registry of its own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._leases = Gauge("minter_leases", "Leases that are not over", ["state", "kind"], registry=registry)
        self._mints = Counter("minter_mints", "Credentials asked for", ["kind", "result"], registry=registry)
        self._refused = Counter("minter_leases_refused", "Requests refused", ["code"], registry=registry)
        self._unread = Counter(
            "minter_requests_refused", "Requests refused before they reached the program", ["code"], registry=registry
        )
        self._ended = Counter("minter_leases_ended", "Leases ended", ["kind", "state", "reason"], registry=registry)
        self._failed = Counter(
            "minter_revocations_failed", "Attempts to revoke upstream that failed", ["kind", "class"], registry=registry
        )
        self._tried = Counter(
            "minter_revocation_attempts",
            "Attempts to end a credential upstream, by what came of them",
            ["kind", "result"],
            registry=registry,
        )
        self._denied = Counter("minter_access_denied", "Callers without the right to call", ["code"], registry=registry)
        self._lag = Gauge("minter_sweep_lag_seconds", "Seconds since the last complete sweep", registry=registry)
        self._sequence = Gauge("minter_audit_sequence", "Number of the audit log's last line", registry=registry)
        self._owed = Gauge("minter_audit_owed", "Events that the audit log has not taken yet", registry=registry)
        self._checkpoint_age = Gauge(
            "minter_audit_checkpoint_age_seconds", "For how long lines wait for a checkpoint", registry=registry
        )
        self._behind = Gauge("minter_audit_places_behind", "Places of the audit log that lack lines", registry=registry)
        self._up = Gauge("minter_ready", "1 when ready, by check", ["check"], registry=registry)
        self._key_age = Gauge("minter_key_age_seconds", "Age of a key's active version", ["key"], registry=registry)
        self._key_ratio = Gauge(
            "minter_key_age_ratio",
            "Its part of the period that was set: warn at 0.8, alarm at 1",
            ["key"],
            registry=registry,
        )
        self._key_state = Gauge(
            "minter_key_state", "1 for each phase that a version of the key is in", ["key", "phase"], registry=registry
        )
        self._key_problem = Gauge(
            "minter_key_problem", "1 when the last step of a version failed", ["key"], registry=registry
        )
        self._rotating = Gauge(
            "minter_rotation_in_progress", "Keys with a version on its way in or out", registry=registry
        )
        self._children: dict[tuple[str, str], Any] = {}

    def minted(self, kind: str) -> None:
        """Count a new credential."""
        self._child(kind, "minted").inc()

    def reissued(self, kind: str) -> None:
        """Count a live lease that was handed out again."""
        self._child(kind, "reissued").inc()

    def mint_failed(self, kind: str) -> None:
        """Count an issuer or source that failed."""
        self._child(kind, "failed").inc()

    def refused(self, code: str) -> None:
        """Count a request that was refused."""
        self._refused.labels(code).inc()

    def request_refused(self, code: str) -> None:
        """Count a request that never reached the program."""
        self._unread.labels(code).inc()

    def access_denied(self, code: str) -> None:
        """Count a caller without the right to call."""
        self._denied.labels(code).inc()

    def ended(self, row: LeaseRow) -> None:
        """Count a lease that is over."""
        self._ended.labels(row.kind, row.state, row.end_reason).inc()

    def revocation_failed(self, kind: str, *, permanent: bool) -> None:
        """Count an attempt that failed."""
        self._failed.labels(kind, "permanent" if permanent else "transient").inc()

    def revocation_tried(self, kind: str, result: str) -> None:
        """Count an attempt upstream: how the credential ended, or why it did not."""
        self._tried.labels(kind, result).inc()

    def _child(self, kind: str, result: str) -> Any:
        child = self._children.get((kind, result))
        if child is None:
            child = self._children[kind, result] = self._mints.labels(kind, result)
        return child

    def text(self, state: Snapshot) -> bytes:
        """Return everything in Prometheus' text format, with the gauges as they are now."""
        self._leases.clear()
        for (lease_state, kind), count in state.leases.items():
            self._leases.labels(lease_state, kind).set(count)
        self._lag.set(state.sweep_lag_s)
        self._sequence.set(state.audit_sequence)
        self._owed.set(state.audit_owed)
        self._checkpoint_age.set(state.audit_checkpoint_age_s)
        self._behind.set(state.audit_places_behind)
        for name, ready in state.checks.items():
            self._up.labels(name).set(1 if ready else 0)
        self._show_keys(state.keys)
        return generate_latest(self._registry)

    def _show_keys(self, keys: Sequence[KeyAge]) -> None:
        for gauge in (self._key_age, self._key_ratio, self._key_state, self._key_problem):
            gauge.clear()
        for key in keys:
            self._key_age.labels(key.alias).set(key.age_s)
            if key.ratio is not None:
                self._key_ratio.labels(key.alias).set(key.ratio)
            for phase in set(key.phases):
                self._key_state.labels(key.alias, phase).set(1)
            self._key_problem.labels(key.alias).set(1 if key.problem else 0)
        self._rotating.set(sum(key.rotating for key in keys))
