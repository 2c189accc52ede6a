"""What the minter is told of a run that ended: its counts, and no more of them than one message holds.

The code of a run decides how many routes it calls and tries. It must not be able to make the record of that too long to
be taken: the routes that were called most are named, and the rest are counted together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from broker import records
from broker.trace import Trace
from config.contract import DeniedCount, RunRecord, TemplateCount

#: Counts of each list that are named, and the bytes that their names may take together.
MAX_COUNTS: Final = 500
MAX_BYTES: Final = 64 * 1024
#: The route under which the others are counted. No template looks like this.
OTHERS: Final = "(others)"

C = TypeVar("C", TemplateCount, DeniedCount)


def run_record(row: records.RunRow) -> RunRecord:
    """Return the counts of an ended run, from what the store kept."""
    trace = (Trace.load(row.trace) if row.trace is not None else Trace()).kept
    calls = (
        TemplateCount(profile=profile, route=route, calls=calls)
        for profile, routes in trace.calls.items()
        for route, calls in routes.items()
    )
    denied = (
        DeniedCount(code=code, profile=profile, route=route or None, calls=calls)
        for profile, codes in trace.denied_of.items()
        for code, routes in codes.items()
        for route, calls in routes.items()
    )
    return RunRecord(
        caller=row.caller,
        ended=row.end_reason or "",
        calls=trace.total,
        denied=trace.denied,
        shed=trace.shed,
        by_route=_most(calls, lambda one: (one.profile,), _other_calls),
        denied_by=_most(denied, lambda one: (one.code, one.profile), _other_denied),
        grant_digests={profile.profile: profile.grant_digest for profile in row.profiles},
        trace_id=row.trace_id,
    )


def _most(
    counts: Iterable[C], name: Callable[[C], tuple[str, ...]], others: Callable[[tuple[str, ...], int], C]
) -> list[C]:
    """Return the counts of what was called most, and of the rest one for each name that they share."""
    ordered = sorted(counts, key=lambda one: -one.calls)
    named: list[C] = []
    size = 0
    for one in ordered:
        size += sum(map(len, name(one))) + len(one.route or "")
        if len(named) == MAX_COUNTS or size > MAX_BYTES:
            break
        named.append(one)
    rest: Counter[tuple[str, ...]] = Counter()
    for one in ordered[len(named) :]:
        rest[name(one)] += one.calls
    named += [others(key, calls) for key, calls in rest.items()]
    return named


def _other_calls(name: tuple[str, ...], calls: int) -> TemplateCount:
    (profile,) = name
    return TemplateCount(profile=profile, route=OTHERS, calls=calls)


def _other_denied(name: tuple[str, ...], calls: int) -> DeniedCount:
    code, profile = name
    return DeniedCount(code=code, profile=profile, route=OTHERS, calls=calls)
