"""Whether the broker is ready, and under which address runs are told to call it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.leases import Leases
from broker.store import Store
from config.listeners import Listener
from config.server import Bound

_ANY_ADDRESS = ("0.0.0.0", "::")


@dataclass(slots=True, eq=False)
class Status:
    """What ``/readyz`` answers by.

    The minter is no part of it: while it is away, runs that hold a lease go on, and a balancer that took the broker
    out would stop those too. Operators are shown whether its stream of ended leases is there.
    """

    store: Store
    leases: Leases
    base_url: str = ""
    serving: bool = False

    def parts(self) -> dict[str, bool]:
        """Return each part and whether it is well."""
        return {"serving": self.serving, "state": not self.store.failing}

    def minter_stream(self) -> bool:
        """Say whether the minter's stream of ended leases is there."""
        return self.leases.watching

    def ready(self) -> bool:
        """Say whether runs can be opened and calls made."""
        return all(self.parts().values())


def base_url(public_url: str, bound: Sequence[Bound]) -> str:
    """Return what the base URLs of runs begin with: ``public_url``, else the first listener that TCP reaches."""
    if public_url:
        return public_url.rstrip("/")
    for one in bound:
        if one.listener.kind != "unix":
            return _url(one.listener)
    return "http://localhost"


def _url(listener: Listener) -> str:
    host = "127.0.0.1" if listener.host in _ANY_ADDRESS else listener.host_name
    return f"{'https' if listener.kind == 'tls' else 'http'}://{host}:{listener.port}"
