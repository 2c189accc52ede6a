"""Where each value of the first run went: into the code's output, to the API, into the trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ops.demo.runs import Ran

CONTENT: Final = "The customer wants replies in Spanish."
OTHER: Final = "customer-43"
_STORED: Final = "stored "


@dataclass(frozen=True, slots=True)
class Went:
    """One value, and what is known of each of three places."""

    value: str
    output: str
    api: str
    trace: str


def where_values_went(ran: Sequence[Ran], places: Sequence[str]) -> list[Went]:
    """Look for the values of the first run, and for the other customer of the third, where they may have gone.

    ``places`` are where the key itself was found.
    """
    first, third = ran[0], ran[2]
    memory = first.printed.splitlines()[0].removeprefix(_STORED)
    everything = json.dumps([run.trace for run in ran])
    targets = [request.target for run in ran for request in run.received]
    with_key = sum(request.authenticated == "key" for run in ran for request in run.received)
    with_memory = [n for n, request in enumerate(first.received, 1) if memory in request.target]
    return [
        Went(
            "the key",
            _yes(any(place.startswith("what run") for place in places)),
            f"on {with_key} of {len(targets)} requests",
            _yes(any(place.startswith("the trace") for place in places)),
        ),
        Went(
            f"the memory's content, “{CONTENT}”",
            _yes(CONTENT in first.printed),
            "stored, and recalled by the second run" if CONTENT in ran[1].printed else "no",
            f"{_yes(CONTENT in everything)}: {first.rows[0]['bytes_sent']} bytes sent",
        ),
        Went(
            f"the memory's id, {memory}",
            _yes(memory in first.printed),
            "in the path of request " + ", ".join(map(str, with_memory)),
            f"{_yes(memory in everything)}: {first.rows[-1]['route'].rsplit('/', 2)[1]}/*",
        ),
        Went(
            f"the other customer, {OTHER}",
            f"{_yes(OTHER in third.printed)}, in the client's refusal",
            _yes(any(OTHER in target for target in targets)) + ": it was never called",
            f"{_yes(OTHER in everything)}: {third.denied} refused call, counted",
        ),
    ]


def _yes(it_is: bool) -> str:  # noqa: FBT001 - a word for a truth
    return "yes" if it_is else "no"
