"""What a person is told when specgen has written its files: the counts, what is missing, what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from broker.specgen.model import Api, Status
from broker.specgen.report import HEADINGS, counts, label, questions
from broker.specgen.texts import one_line

_NAMED = 5
_REASON = 200


def summary(api: Api) -> Iterator[str]:
    """Yield a line for the counts, one for each question, and a few for what is not carried."""
    found = counts(api)
    told = [f"{found[status]} {heading}" for status, heading in reversed(HEADINGS.items()) if found[status]]
    yield f"{len(api.told)} operations: {', '.join(told)}"
    for status in ("not-carried", "limited"):
        yield from _named(api, status)
    for field, question in questions(api):
        yield f"question: {field}: {question}"


def next_steps(api: Api, grants: str, *, kept: bool) -> str:
    """Return the lines that say what the operator does now; ``grants`` is the file as it is called on this machine."""
    steps = [f"answer in {grants}: {field}" for field, _ in questions(api)]
    if not kept:
        steps += [
            f"list in {grants} which callers may use it, and in allow what their code may call",
            "put the key into custody under the name that token says, or choose a kind that makes short-lived ones",
        ]
    steps.append(f"broker check {grants}")
    return "Next:\n" + "\n".join(f"  {step}" for step in steps)


def _named(api: Api, status: Status) -> Iterator[str]:
    """Name the first few operations with their first reason; the report has them all."""
    told = [one for one in api.told if one.status == status]
    for one in told[:_NAMED]:
        worst = next((note for note in one.notes if note.level != "warn"), None)
        yield f"{HEADINGS[status]}: {label(one)}" + (f": {one_line(worst.reason, _REASON)}" if worst else "")
    if len(told) > _NAMED:
        yield f"{HEADINGS[status]}: {len(told) - _NAMED} more, each in report.txt"
