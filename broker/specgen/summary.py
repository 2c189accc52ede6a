"""What a person is told when specgen has written its files: the counts, what is missing, what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from broker.specgen.model import Api
from broker.specgen.report import HEADINGS, counts, label, questions
from broker.specgen.texts import one_line
from config.console.terminal import count

#: What an empty list in the profile still needs.
_EMPTY: Final = {
    "allowed_callers": "who may open runs with it (or --caller)",
    "allow": "what their code may call, of the routes in catalog (or --allow)",
}
_NAMED: Final = 5
_REASON: Final = 200


def summary(api: Api) -> Iterator[str]:
    """Yield a line for the counts, a few for what is not carried, and one for each question."""
    found = counts(api)
    told = [f"{found[status]} {heading}" for status, heading in HEADINGS.items() if found[status]]
    yield f"{count(len(api.told), 'operation')}: {', '.join(told)}"
    yield from _not_carried(api)
    for field, question in questions(api):
        yield f"question: {field}: {question}"


def next_steps(api: Api, directory: str, profile: Mapping[str, Any]) -> str:
    """Return the lines that say what the operator does now.

    ``directory`` is as it is called on this machine, ``profile`` what stands in its ``grants.json``; of one that was
    kept nothing is known, and it is empty.
    """
    grants = f"{directory}/grants.json"
    steps = []
    if any(told.status in ("limited", "not-carried") for told in api.told):
        steps.append(f"read {directory}/report.txt: what is limited or not carried, and what to do about it")
    steps += [f"answer in {grants}, or by an option: {field}" for field, _ in questions(api)]
    steps += [f"fill {field} in {grants}: {what}" for field, what in _EMPTY.items() if profile.get(field) == []]
    if "token" in profile:
        key = profile["token"]["key"]
        steps.append(f"put the API's key into custody as {key}, or change token to a kind that lives shorter")
    steps.append(f"broker check {grants}")
    return "Next:\n" + "\n".join(f"  {step}" for step in steps)


def _not_carried(api: Api) -> Iterator[str]:
    """Name the first few operations with their first reason; the report has them all."""
    told = [one for one in api.told if one.status == "not-carried"]
    for one in told[:_NAMED]:
        worst = next((note for note in one.notes if note.level == "stop"), None)
        yield f"not carried: {label(one)}" + (f": {one_line(worst.reason, _REASON)}" if worst else "")
    if len(told) > _NAMED:
        yield f"not carried: {len(told) - _NAMED} more, each in report.txt"
