"""Taking up a run that an earlier process left: from its row to a live run, on the clocks of this boot."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from broker.budget import Budget
from broker.current import Current, narrow
from broker.learned import Learned
from broker.leases import Leases
from broker.records import RunRow
from broker.run import Run
from broker.trace import Trace
from config.clock import Clock, Deadline
from config.errors import ConfigurationError
from config.profiles import Profile

log = structlog.get_logger("broker.runs")

#: Makes the budget of a profile, of which so many calls are spent or forfeited.
MakeBudget = Callable[[Run, Profile, int], Budget]


def restored(
    row: RunRow,
    *,
    current: Current,
    leases: Leases,
    clock: Clock,
    highest_wall: float,
    budget: MakeBudget,
    learned: Learned,
) -> tuple[Run, Deadline, str | None]:
    """Return the run, how far its end can be moved, and why it must end at once, if it must."""
    run = Run(
        run_id=row.run_id,
        caller=row.caller,
        trace_id=row.trace_id,
        params=msgspec.json.decode(row.params, type=dict[str, str]),
        deadline=_on_this_boot(Deadline(row.expires_at, row.boot_expires_at, row.boot_id), clock, highest_wall),
        created_at=row.created_at,
        trace=Trace() if row.trace is None else Trace.load(row.trace),
    )
    ceiling = _on_this_boot(Deadline(row.ceiling_at, row.boot_ceiling_at, row.boot_id), clock, highest_wall)
    try:
        for kept in row.profiles:
            profile, matcher = current.thawed(kept.profile, kept.grant_digest, kept.source)
            run.grant(profile, matcher, budget=budget(run, profile, kept.reserved), leases=leases, learned=learned)
    except ConfigurationError as error:
        log.error("grant-unreadable", run_id=run.run_id, faults=[str(fault) for fault in error.faults])  # noqa: TRY400 - the faults say it all
        return run, ceiling, "grant-unreadable"
    if run.deadline.ended(clock):
        return run, ceiling, "expired"
    return run, ceiling, narrow(run, current)


def _on_this_boot(deadline: Deadline, clock: Clock, highest_wall: float) -> Deadline:
    """Return the same end on the boot clock of this boot.

    After a reboot only the wall clock knows how much is left; from then on both clocks count again.
    """
    if deadline.boot_id == clock.boot_id():
        return deadline
    left = deadline.remaining(clock, highest_wall=highest_wall)
    return Deadline(min(deadline.expires_at, clock.now() + left), clock.boottime() + left, clock.boot_id())
