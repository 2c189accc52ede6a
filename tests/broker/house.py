"""A broker's registry with its real store, grants and leases, and a minter that notes what it was told."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from broker.current import Current
from broker.leases import Leases
from broker.metrics import Metrics
from broker.opening import Opening
from broker.outbox import Outbox
from broker.runs import Registry
from broker.store import Store
from config.clock import FakeClock
from config.contract import LeaseReply, Revoked, RevokedLease
from config.grants import parse_grants
from config.problems import ProblemError

ENDED = [RevokedLease(lease_id="lse_1", profile="memory", kind="static", state="revoked", how="key_still_valid")]


def profile(**changes: Any) -> dict[str, Any]:
    return {
        "base_url": "https://api.example.com",
        "allowed_callers": ["orchestrator"],
        "token": {"type": "static", "key": "api"},
        "allow": ["GET /v1/items", "GET /v1/items/*", "POST /v1/items"],
        **changes,
    }


def current(**profiles: Any) -> Current:
    return Current(parse_grants(json.dumps({"profiles": profiles or {"memory": profile()}}).encode(), name="grants"))


@dataclass
class Minter:
    """What the minter was told, in order; ``down`` makes it unreachable."""

    down: bool = False
    told: list[Any] = field(default_factory=list)
    may_lend: asyncio.Event = field(default_factory=asyncio.Event)

    async def end_run(self, run_id: str) -> Revoked:
        self._there()
        self.told.append(("revoke", run_id))
        return Revoked(leases=ENDED)

    async def record(self, run_id: str, record: Any) -> None:
        self._there()
        self.told.append(("record", run_id, record))

    async def lease(self, request: Any) -> Any:
        """Lend a credential, once ``may_lend`` is set."""
        self._there()
        await self.may_lend.wait()
        self.told.append(("lease", request.run_id))
        return LeaseReply(
            lease_id="lse_1",
            credential={"value": "sekret"},
            expires_at="2040-01-01T00:00:00Z",
            expires_in_s=900.0,
            kind="static",
            fingerprint="0",
        )

    def _there(self) -> None:
        if self.down:
            raise ProblemError("minter-unavailable", retry_after=1)


@dataclass
class House:
    reference: str
    clock: FakeClock = field(default_factory=FakeClock)
    minter: Minter = field(default_factory=Minter)
    metrics: Metrics = field(default_factory=Metrics)
    max_runs: int = 100

    async def start(self, now: Current | None = None) -> House:
        """Start as the broker does; again after :meth:`stop` or :meth:`crash` is a restart."""
        self.store = Store.open(self.reference)
        self.outbox = Outbox(self.store, self.minter, self.clock)
        self.registry = Registry(
            store=self.store,
            leases=Leases(self.minter, self.clock),
            outbox=self.outbox,
            clock=self.clock,
            current=now or current(),
            max_runs=self.max_runs,
            metrics=self.metrics,
        )
        await self.outbox.load()
        await self.registry.restore()
        return self

    def stop(self) -> None:
        self.store.close()

    async def restart(self, now: Current | None = None) -> Registry:
        self.stop()
        await self.start(now)
        return self.registry

    async def open(self, *profiles: str, key: Any = None, **changes: Any) -> Any:
        opening = Opening(
            **{"caller": "orchestrator", "profiles": profiles or ("memory",), "params": {}, "trace_id": "chat-7"}
            | changes
        )
        return await self.registry.open(opening, key)
