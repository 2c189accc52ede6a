"""Runs as the API shows them. No view has a field for a token, a path, a query or a body of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from broker.records import RunRow
from broker.run import Run, RunProfile
from broker.trace import Row, Snapshot, Trace
from config.clock import Clock, rfc3339
from config.contract import RevokedLease
from config.secret import Secret

JSON = dict[str, Any]


def opened(run: Run, token: Secret, base_url: str) -> JSON:
    """Return the answer to ``POST /v1/runs``: the only one that holds a run token."""
    value = token.reveal()
    return {
        "run_id": run.run_id,
        "run_token": value,
        "expires_at": rfc3339(run.deadline.expires_at),
        "profiles": {name: _opened_profile(granted, value, base_url) for name, granted in run.profiles.items()},
    }


def _opened_profile(granted: RunProfile, token: str, base_url: str) -> JSON:
    profile = granted.frozen
    url = profile_url(base_url, granted.name)
    shown: JSON = {
        "base_url": url,
        "allow": routes(granted),
        "max_calls": granted.max_calls,
        "max_concurrent": granted.max_concurrent,
    }
    key = profile.run_token_prefix + token
    if profile.run_token_prefix:
        shown["api_key"] = key
    if profile.env:
        shown["env"] = {
            name: value.replace("{base_url}", url).replace("{run_token}", key) for name, value in profile.env.items()
        }
    return shown


def profile_url(base_url: str, profile: str) -> str:
    """Return the base URL that stands in for the API's own."""
    return f"{base_url}/p/{profile}"


def routes(granted: RunProfile) -> list[str]:
    """Return the granted routes as written, less those that the current grants do not list any more."""
    if granted.current is None:
        return []
    now = {rule.text for rule in granted.current[0].allow}
    return [rule.text for rule in granted.frozen.allow if rule.text in now]


def entries(granted: RunProfile) -> list[str | JSON]:
    """Return the granted routes as :func:`routes` does, with all that the grants file says of each."""
    listed = set(routes(granted))
    written = msgspec.json.decode(granted.frozen.source).get("allow", [])
    return [entry for entry in written if (entry if isinstance(entry, str) else entry["route"]) in listed]


def told_to_client(granted: RunProfile) -> JSON:
    """Return what a client that specgen made is filled in with: nothing that the run may not know."""
    return {"profile": granted.name, "routes": entries(granted), "params": granted.params}


def oneself(run: Run, clock: Clock, base_url: str) -> JSON:
    """Return what the code is told of its own run."""
    return {
        "run_id": run.run_id,
        "expires_at": rfc3339(run.deadline.expires_at),
        "expires_in_s": round(max(0.0, run.deadline.remaining(clock)), 3),
        "params": run.params,
        "profiles": {
            name: {
                "base_url": profile_url(base_url, name),
                "allow": routes(granted),
                "routes": entries(granted),
                "queries": _queries(granted),
                **_limits(granted),
            }
            for name, granted in run.profiles.items()
        },
    }


def live(run: Run, clock: Clock, *, rows: bool) -> JSON:
    """Return a live run as its caller and operators see it."""
    return {
        "run_id": run.run_id,
        "caller": run.caller,
        "state": "ended" if run.ended else "live",
        "end_reason": run.ended,
        "trace_id": run.trace_id,
        "params": run.params,
        "created_at": rfc3339(run.created_at),
        "expires_at": rfc3339(run.deadline.expires_at),
        "expires_in_s": round(max(0.0, run.deadline.remaining(clock)), 3),
        "open_calls": len(run.open_calls),
        "profiles": {name: _limits(granted) for name, granted in run.profiles.items()},
        "trace": trace(run.trace.kept, rows=rows),
    }


def ended(row: RunRow, *, rows: bool) -> JSON:
    """Return a run that has ended, from what the store kept. ``leases`` is null until the minter has answered."""
    kept = Trace.load(row.trace).kept if row.trace is not None else Snapshot()
    return {
        "run_id": row.run_id,
        "caller": row.caller,
        "state": "ended",
        "end_reason": row.end_reason,
        "trace_id": row.trace_id,
        "params": msgspec.json.decode(row.params),
        "created_at": rfc3339(row.created_at),
        "expires_at": rfc3339(row.expires_at),
        "ended_at": rfc3339(row.ended_at or row.expires_at),
        "profiles": {profile.profile: {} for profile in row.profiles},
        "leases": None if row.leases is None else msgspec.json.decode(row.leases),
        "trace": trace(kept, rows=rows),
    }


def end(run: Run, ended_at: float, leases: list[RevokedLease] | None) -> JSON:
    """Return the answer to whoever ended a run. ``leases`` is null when the minter has not said how they ended."""
    return {
        "run_id": run.run_id,
        "caller": run.caller,
        "state": "ended",
        "end_reason": run.ended,
        "ended_at": rfc3339(ended_at),
        "leases": msgspec.to_builtins(leases),
        "trace": trace(run.trace.kept, rows=False),
    }


def trace(kept: Snapshot, *, rows: bool) -> JSON:
    """Return a trace; ``rows`` adds the row of each call to the counters."""
    shown: JSON = {
        "total": kept.total,
        "denied": kept.denied,
        "shed": kept.shed,
        "dropped": kept.dropped,
        "calls": _counts(kept.calls, "profile", "route"),
        "denied_by": _counts(kept.denied_by, "code", "template"),
    }
    if rows:
        shown["rows"] = [
            dict(zip(Row.__struct_fields__, msgspec.structs.astuple(row), strict=True)) for row in kept.rows
        ]
    return shown


def _counts(counts: Mapping[str, Mapping[str, int]], outer: str, inner: str) -> list[JSON]:
    return [
        {outer: first, inner: second or None, "count": count}
        for first, by_second in counts.items()
        for second, count in by_second.items()
    ]


def _limits(granted: RunProfile) -> JSON:
    return {
        "granted": granted.current is not None,
        "max_calls": granted.max_calls,
        "calls_left": granted.budget.left if granted.current is not None else 0,
        "max_concurrent": granted.max_concurrent,
        "in_flight": granted.in_flight,
        "max_request": granted.max_request,
        "max_response": granted.max_response,
    }


def _queries(granted: RunProfile) -> JSON:
    """Return the query rules of the granted routes as the grants file has them."""
    return {
        entry["route"]: entry["query"] for entry in entries(granted) if isinstance(entry, dict) and "query" in entry
    }
