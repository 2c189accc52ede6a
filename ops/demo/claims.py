"""The demo's claims, counted from what happened: the traces, the API's record, the audit log, the search."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from config.console import terminal
from ops.demo import settings
from ops.demo.needle import KEY, Needles
from ops.demo.runs import Ran, until
from ops.demo.world import World
from ops.fakes.memory_record import Received

_REFUSED: Final = r"the client refused: not allowed, nothing was sent: .+\nthe broker answered: 403 route-[a-z-]+"
#: What each run's code must have printed for its story to be true, and how many of its calls were refused.
_STORIES: Final = {
    1: (r"stored \w{26}\nrecalled: The customer wants (.+)\nread back by id: The customer wants \1", 0),
    2: (r"left over from the first run: nothing\n1 memory found: The customer wants replies in Spanish\.", 0),
    3: (_REFUSED, 1),
    4: (_REFUSED, 1),
    # The two languages search different things; each ends with what it found.
    5: (r"(?s)(environment: .+\nways to obtain it: ?|the client: .+\nthe key was found in: ).+", 0),
    6: (r"recalled: The customer wants replies in Spanish\.", 0),
}
_MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence of the totals and whether it is what it should be. ``why`` says more when it is not."""

    text: str
    holds: bool
    why: Sequence[str] = ()


def story(ran: Ran) -> Claim:
    """Say whether a run went as its title says."""
    pattern, denied = _STORIES[ran.number]
    told = re.fullmatch(pattern, ran.printed) is not None
    holds = told and ran.status == 0 and ran.denied == denied
    return Claim(
        f"run {ran.number} went as told",
        holds,
        [f"status {ran.status}, {ran.denied} calls refused; output as above"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What the first five runs come to. ``places`` are where the key was, ``ways`` are how it could be obtained.

    ``past`` is how many requests reached the API though no trace has them, or on no granted route.
    """

    runs: int
    requests: int
    with_key: int
    refused: int
    past: int
    places: list[str]
    ways: list[str]
    leases: Claim


def count(world: World, ran: Sequence[Ran]) -> Counted:
    """Count the first five runs."""
    received = [request for run in ran for request in run.received]
    delivered = sum(row["delivered"] for run in ran for row in run.rows)
    outside = [request for request in received if not _is_granted(request)]
    places, ways = _search(world, ran)
    return Counted(
        runs=len(ran),
        requests=len(received),
        with_key=sum(request.authenticated == "key" for request in received),
        refused=sum(run.denied for run in ran),
        past=max(len(outside), len(received) - delivered),
        places=places,
        ways=ways,
        leases=_leases(world, sum(1 for run in ran if run.rows)),
    )


def totals(counted: Counted) -> list[Claim]:
    """Say what was counted and whether it is what it should be."""
    granted, listed = len(settings.ALLOW), len(settings.CATALOG)
    past = f"{counted.past} reached the API" if counted.past else "none reached the API"
    return [
        Claim(f"{granted} of {listed} routes granted", (granted, listed) == (3, 14)),
        Claim(f"{counted.runs} runs", counted.runs == 5),
        Claim(
            f"{counted.with_key} of {counted.requests} requests at the API carried the key",
            counted.with_key == counted.requests == 4,
        ),
        Claim(f"{counted.refused} calls refused by the broker; {past}", counted.refused == 2 and not counted.past),
        Claim(f"key found in {terminal.count(len(counted.places), 'place')}", not counted.places, counted.places),
        Claim(f"{terminal.count(len(counted.ways), 'way')} to obtain the key", not counted.ways, counted.ways),
        counted.leases,
    ]


def _is_granted(request: Received) -> bool:
    routes = (re.escape(route).replace(r"\*", "[^/?]+") for route in settings.ALLOW)
    return any(re.fullmatch(route, f"{request.method} {request.target}") for route in routes)


def _leases(world: World, expected: int) -> Claim:
    """Count leases in the audit log, which may be a moment behind the end of a run."""
    until(lambda: len(_events(world, "lease.minted")) <= len(_ended(world)))
    minted, ended = len(_events(world, "lease.minted")), _ended(world)
    how = ", ".join(
        word if count == len(ended) else f"{count} {word}" for word, count in Counter(e["how"] for e in ended).items()
    )
    text = f"{minted} leases minted, {len(ended)} ended ({how or 'none'})"
    return Claim(text, minted == len(ended) == expected, [f"{expected} runs made calls that were granted"])


def _events(world: World, *codes: str) -> list[dict[str, Any]]:
    return [line for line in world.audited() if line["code"] in codes]


def _ended(world: World) -> list[dict[str, Any]]:
    return _events(world, "lease.revoked", "lease.expired")


def _search(world: World, ran: Sequence[Ran]) -> tuple[list[str], list[str]]:
    """Return where the key was and how it can be obtained: what the code found, and what the demo finds afterwards."""
    needles = Needles(world.needles)
    places: list[str] = []
    ways: list[str] = []
    for run in ran:
        if run.result is not None:
            places += run.result["places"]
            ways += run.result["ways"]
    for where, content in _said(world, ran):
        for name in needles.found_in(content):
            if name == KEY:
                places.append(where)
            else:
                ways.append(f"{name} lies in {where}")
    return list(dict.fromkeys(places)), list(dict.fromkeys(ways))


def _said(world: World, ran: Sequence[Ran]) -> Iterator[tuple[str, bytes]]:
    """Return everything that was said and written: output, traces, logs, audit, databases, the API's record."""
    for run in ran:
        yield f"what run {run.number} printed", run.printed.encode()
        yield f"the trace of run {run.number}", repr(run.trace).encode()
    for folder in ("logs", "minter", "broker", "api", "run"):
        for path in sorted((world.folder / folder).rglob("*")):
            # The token that the thief of run 6 has is in a file of the API's on purpose; it is not the key.
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    yield f"the file {path}", file.read(_MOST_BYTES)
