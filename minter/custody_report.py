"""The custody report: the whole answer to "where is every key, who may use it, who did, and what is still out there".

Order: the head, which says what the rest was computed from; open leases and what is doubtful about them; keys;
findings; what the report does not prove. It is metadata: names, places, instants and fingerprints. Two reports of the
same state for the same instant are equal, byte for byte; the chain head in it says which state that was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

from config.clock import rfc3339
from config.profiles import Grants
from config.tokenfiles import Principal
from minter import report_keys, report_leases
from minter.custody import Custody
from minter.held import OWN_KEYS
from minter.kinds import how_ends
from minter.kinds.static import StaticKind
from minter.quarantine import QUARANTINE
from minter.report_findings import findings
from minter.report_limits import does_not_prove
from minter.store import Connection, Store

#: Raised when a name in the report changes its meaning.
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ChainHead:
    """A line of the audit log: where ``minter audit verify`` ends when nothing was written since."""

    seq: int
    hash: str
    at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CustodyReport:
    """Makes the report of a running minter. ``head`` and ``checkpoint`` are asked on the store's thread."""

    custody: Custody
    store: Store
    grants: Callable[[], Grants]
    brokers: Callable[[], Mapping[str, Principal]]
    head: Callable[[], ChainHead]
    checkpoint: Callable[[], Mapping[str, Any] | None]
    third_party_kinds: tuple[str, ...] = ()

    async def make(self, *, now: float) -> dict[str, Any]:
        """Return the report as of an instant: what is due and what is over by then, of the state as it is.

        Under load a read may see rows whose lines are written right after it: ``seq_after`` is the last line that the
        state can be of. With nothing written meanwhile it is ``seq``.
        """
        made = await self.store.read(functools.partial(self._read, now))
        made["audit"]["seq_after"] = self.head().seq
        return made

    def _read(self, now: float, connection: Connection) -> dict[str, Any]:
        profiles = self.grants().profiles
        ends = functools.partial(how_ends, third_party=self.third_party_kinds)
        leases, held = report_leases.leases(connection, how_ends=ends, now=now)
        keys = report_keys.keys(self.custody, connection, profiles=profiles, held=held, now=now)
        keyless = report_keys.keyless(profiles, keys)
        return {
            **self._about(connection, now=now),
            "leases": leases,
            "valid_until_rotated": _valid_until_rotated(keys),
            "keys": keys,
            "without_key": keyless,
            "broker_tokens": report_keys.broker_tokens(self.brokers()),
            "findings": findings(keys, keyless, now=now),
            "does_not_prove": does_not_prove(),
        }

    def _about(self, connection: Connection, *, now: float) -> dict[str, Any]:
        head = self.head()
        meta = dict(
            tuple(row)
            for row in connection.exec_driver_sql(
                "SELECT name, value FROM meta WHERE name IN ('installation', ?)", (QUARANTINE,)
            )
        )
        return {
            "version": VERSION,
            "generated_at": rfc3339(now),
            "program": f"minter {version('minter-broker')}",
            "installation": meta.get("installation", ""),
            "quarantined_since": _instant_of(meta.get(QUARANTINE)),
            "grants_digest": self.grants().digest,
            "audit": {"seq": head.seq, "hash": head.hash, "at": head.at, "checkpoint": self.checkpoint()},
        }


def _valid_until_rotated(keys: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the keys that were lent as they are: whoever had one may still have it, also when it was retired here.

    A key by whose right others make credentials is not lent. Of one that no profile refers to any more nobody knows.
    """
    return [
        {
            "alias": key["alias"],
            "phase": key["phase"],
            "versions": [one["version"] for one in key["versions"] if one["phase"] in ("active", "retiring")],
            "uses": key["uses"],
            "last_used_at": key["last_used_at"],
            "live_leases": key["live_leases"],
        }
        for key in keys
        if key["uses"]
        and not key["algorithm"]
        and key["alias"] not in OWN_KEYS
        and (not key["who_may"] or any(one["kind"] == StaticKind.name for one in key["who_may"]))
    ]


def _instant_of(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return rfc3339(float(text))
    except (ValueError, OverflowError, OSError):
        return rfc3339(0.0)
