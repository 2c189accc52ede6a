"""``report.txt`` and ``report.json``: what became of each operation of the document, where it stands, why, what to do.

Every operation is told exactly once, so the four counts add up to the document's operations. Texts of the document are
cleaned for people (``texts.py``) and encoded for machines. Nothing here depends on the time or on a path.
"""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from broker.specgen.model import Api, Note, Status, Told
from broker.specgen.stamp import stamp, tool_version
from broker.specgen.texts import one_line
from config.console.terminal import count

#: The statuses as people read them.
HEADINGS: Final[dict[Status, str]] = {
    "carried": "carried",
    "limited": "carried with a limit",
    "left-out": "left out",
    "not-carried": "not carried",
}
#: Their order in the report: what needs a look first.
_ORDER: Final[tuple[Status, ...]] = ("not-carried", "limited", "left-out", "carried")

_WIDTH: Final = 116
_LABEL: Final = 200
_REASON: Final = 600


def counts(api: Api) -> dict[str, int]:
    """Return how many operations have each status; all four are there."""
    found = Counter(told.status for told in api.told)
    return {status: found[status] for status in HEADINGS}


def questions(api: Api) -> list[tuple[str, str]]:
    """Return what the document leaves open, as (the profile's field, the question), cleaned."""
    return [("placement", one_line(api.security.question, _REASON))] if api.security.question else []


def label(told: Told) -> str:
    """Return how an operation is called in a list for people, cleaned."""
    name = one_line(told.label, _LABEL)
    return f"{name} ({one_line(told.id, _LABEL)})" if told.id else name


def report_json(api: Api) -> bytes:
    """Return ``report.json``: the names of its members are stable."""
    report = {
        "specgen": stamp(api),
        "title": api.title,
        "origin": api.origin,
        "counts": {"operations": len(api.told), **counts(api), "routes": len(api.catalog)},
        "questions": [{"field": field, "question": question} for field, question in questions(api)],
        "placement": dict(api.security.placement) if api.security.placement is not None else None,
        "scopes": list(api.security.scopes),
        "notes": [_note(note) for note in (*api.notes, *api.security.notes)],
        "operations": [
            {
                "operation": told.label,
                "id": told.id,
                "pointer": told.pointer,
                "status": told.status,
                "notes": [_note(note) for note in told.notes],
            }
            for told in api.told
        ],
    }
    return (json.dumps(report, indent=1) + "\n").encode("ascii")


def report_text(api: Api) -> bytes:
    """Return ``report.txt``."""
    return ("\n".join(_lines(api)) + "\n").encode()


def _note(note: Note) -> dict[str, str]:
    return {"level": note.level, "pointer": note.pointer, "reason": note.reason, "remedy": note.remedy}


def _lines(api: Api) -> Iterator[str]:
    found = counts(api)
    yield one_line(api.title, _LABEL) or "(no title)"
    yield f"{one_line(api.source, _LABEL)}, OpenAPI {one_line(api.version, 20)}, sha256 {api.sha256}"
    yield f"specgen {tool_version()}, for {one_line(api.origin, _LABEL)}"
    yield ""
    yield f"{count(len(api.told), 'operation')}: " + ", ".join(
        f"{found[status]} {heading}" for status, heading in HEADINGS.items()
    )
    yield f"{count(len(api.catalog), 'route')} in the catalog"
    if api.security.scopes:
        yield from _wrapped("scopes that the document names: " + one_line(", ".join(api.security.scopes), _REASON), "")
    open_questions = questions(api)
    if open_questions:
        yield from _heading("Questions that the document leaves open")
        for field, question in open_questions:
            yield from _wrapped(f"{field}: {question}", "  ")
    notes = (*api.notes, *api.security.notes)
    if notes:
        yield from _heading("The document as a whole")
        yield from _notes(notes, "  ")
    for status in _ORDER:
        if found[status]:
            yield from _heading(f"{HEADINGS[status].capitalize()}: {found[status]}")
            for told in api.told:
                if told.status == status:
                    yield from _told(told)


def _heading(text: str) -> tuple[str, ...]:
    return "", text, "-" * len(text)


def _told(told: Told) -> Iterator[str]:
    yield "  " + label(told)
    yield "    " + one_line(told.pointer, _REASON)
    yield from _notes(told.notes, "    ", within=told.pointer)


def _notes(notes: Sequence[Note], indent: str, *, within: str = "") -> Iterator[str]:
    """Write notes. Of a pointer only that is written which stands behind ``within``: the reader has just read that."""
    for note in notes:
        where = "" if note.pointer == within else note.pointer
        if within and where.startswith(within + "/"):
            where = "..." + where.removeprefix(within)
        where = one_line(where, _REASON)
        yield from _wrapped(f"{note.level}: {where + ': ' if where else ''}{one_line(note.reason, _REASON)}", indent)
        if note.remedy:
            yield from _wrapped(f"remedy: {one_line(note.remedy, _REASON)}", indent + "  ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
