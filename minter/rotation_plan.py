"""What a rotation of a custody key will do and has done, for operators: pure functions of the versions' rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from config.clock import rfc3339
from minter.key_rows import User, VersionRow
from minter.sources import kind_of

#: Who makes the new value: the minter, the issuer at the minter's request, or the operator who gives it.
ValueFrom = Literal["minter", "issuer", "operator"]
State = Literal["idle", "preparing", "prepared", "published", "retiring"]

#: Verifiers whose clock is behind ours still accept a token so long after its end.
SKEW_S: Final = 60.0
_RUNS_NAMED: Final = 100
_PUBLISH: Final = "list its public key beside the old one, so that verifiers know it before it signs"
_PUBLISH_SHARED: Final = "time for you to give verifiers the new secret beside the old one; its source has it"


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of one key by phase. At most one is active and at most one prepared: the table sees to that."""

    active: VersionRow | None
    prepared: VersionRow | None
    retiring: tuple[VersionRow, ...]
    highest: int

    @classmethod
    def of(cls, rows: Sequence[VersionRow], alias: str) -> Versions:
        """Sort the rows of ``alias``."""
        own = [row for row in rows if row.alias == alias]
        return cls(
            active=next((row for row in own if row.phase == "active"), None),
            prepared=next((row for row in own if row.phase == "prepared"), None),
            retiring=tuple(row for row in own if row.phase == "retiring"),
            highest=max((row.version for row in own), default=0),
        )

    @property
    def state(self) -> State:
        """Where a rotation stands."""
        if self.prepared is not None:
            if not self.prepared.fingerprint:
                return "preparing"
            return "prepared" if self.prepared.published_at is None else "published"
        return "retiring" if self.retiring else "idle"


def describe(
    alias: str,
    use: str,
    versions: Versions,
    users: Sequence[User],
    *,
    cache_s: float,
    overlap_s: float,
    now: float,
    dry_run: bool,
    value_from: ValueFrom,
    at_once: bool = False,
) -> dict[str, Any]:
    """Return a rotation's plan and state as the admin API answers it. ``users`` have what the old version made.

    ``at_once``: nothing is waited for, and the old version is not kept.
    """
    if use == "signing":
        steps = _signing_steps(versions, 0.0 if at_once else cache_s, now, at_once=at_once)
    elif use == "checkpoints":
        steps = _signer_steps(versions, now)
    else:
        steps = _static_steps(versions, overlap_s, now, by_issuer=value_from == "issuer", at_once=at_once)
    coming = next((step for step in steps if not step["done"]), None) if versions.state != "idle" or dry_run else None
    return {
        "alias": alias,
        "use": use,
        "value_from": value_from,
        "dry_run": dry_run,
        "state": versions.state,
        "active_version": versions.active.version if versions.active else None,
        "new_version": versions.prepared.version if versions.prepared else None,
        "old_versions": [row.version for row in versions.retiring],
        "problems": {
            str(row.version): row.problem
            for row in (*versions.retiring, versions.active, versions.prepared)
            if row is not None and row.problem
        },
        "steps": steps,
        "next_step": coming["step"] if coming else None,
        "next_at": coming["at"] if coming else None,
        "affected": {
            "leases": sum(user.leases for user in users),
            "runs": sorted({user.run_id for user in users})[:_RUNS_NAMED],
            "callers": sorted({user.caller for user in users}),
            "brokers": sorted({user.broker for user in users}),
        },
    }


def _signing_steps(versions: Versions, cache_s: float, now: float, *, at_once: bool) -> list[dict[str, Any]]:
    new, old = versions.prepared, versions.retiring
    activated = bool(old) and new is None
    published_at = new.published_at if new and new.published_at else now
    ready_at = published_at + cache_s
    return [
        _step("prepare", now, "make a new key, keep it in its source and read it back", done=bool(new) or activated),
        _step(
            "publish",
            published_at,
            _published(versions, at_once=at_once),
            done=versions.state == "published" or activated,
        ),
        _step(
            "activate",
            ready_at,
            "sign with it; the old key verifies no more" if at_once else "sign with it; the old key goes on verifying",
            done=activated,
        ),
        _step(
            "retire",
            old[0].retire_at if activated else (now if at_once else None),
            "end what it signed and delete the old key from its source"
            if at_once
            else "when the last token of the old key has ended, delete the old key from its source",
            done=False,
        ),
    ]


def _published(versions: Versions, *, at_once: bool) -> str:
    active = versions.active
    if active and active.algorithm == "HS256" and kind_of(active.source_ref) == "sealed":
        return "nobody but the minter has it: verifiers ask the minter (introspection), before and after"
    if active and active.algorithm == "HS256":
        return (
            "nobody is waited for: give verifiers the new secret at once; its source has it"
            if at_once
            else _PUBLISH_SHARED
        )
    return "list its public key; nobody is waited for" if at_once else _PUBLISH


def _signer_steps(versions: Versions, now: float) -> list[dict[str, Any]]:
    new, old = versions.prepared, versions.retiring
    activated = bool(old) and new is None
    return [
        _step("prepare", now, "make a new key, keep it in its source and read it back", done=bool(new) or activated),
        _step("activate", now, "sign checkpoints with it; the log names it", done=activated),
        _step("retire", now, "delete the old key from its source: its public half stays in the log", done=False),
    ]


def _static_steps(
    versions: Versions, overlap_s: float, now: float, *, by_issuer: bool, at_once: bool
) -> list[dict[str, Any]]:
    new, old = versions.prepared, versions.retiring
    activated = bool(old) and new is None
    of_issuer = [
        _step("create", now, "have the issuer make a new one", done=bool(new and new.fingerprint) or activated)
    ]
    prove = [_step("prove", now, "prove with a harmless call that the issuer takes it", done=activated)]
    return [
        *(of_issuer if by_issuer else []),
        _step("prepare", now, "keep the new value in its source and read it back", done=bool(new) or activated),
        *(prove if by_issuer else []),
        _step(
            "activate",
            now,
            "lend the new value, and the old one no more"
            if at_once
            else "lend the new value; what was lent of the old one goes on",
            done=activated,
        ),
        _step(
            "retire",
            old[0].retire_at if activated else now + overlap_s,
            (
                "end what was lent of the old value, delete it at the issuer and from its source"
                if by_issuer
                else "end what was lent of the old value and delete it from its source"
            )
            + ("" if at_once else " (at once with --finish)"),
            done=False,
        ),
    ]


def _step(name: str, at: float | None, does: str, *, done: bool) -> dict[str, Any]:
    return {"step": name, "at": None if at is None else rfc3339(at), "does": does, "done": done}
