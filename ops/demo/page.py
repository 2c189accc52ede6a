"""The page of the example: what happened in its runs, as HTML that is the same whenever the same happened.

Nothing here knows what should have happened: every figure and every table is read from the runs, the traces, the API's
record, and specgen's files. What differs from machine to machine is left off, and the page says so: milliseconds,
ports, ids of runs, and the counts that the search of run 5 prints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jinja2

from broker.specgen.stamp import tool_version
from ops.demo import generated, settings
from ops.demo.claims import Claim, Counted
from ops.demo.plays import Sixth
from ops.demo.runs import Ran, code_of
from ops.demo.values import where_values_went
from ops.fakes.memory_record import Received

_HERE: Final = Path(__file__).parent
#: What every route of the document begins with: its table leaves it out.
PREFIX: Final = "/client/v4/accounts/"
#: What every path of the runs begins with: it is written as … there.
OWN: Final = f"{PREFIX}{settings.ACCOUNT}/agent-memory/namespaces/{settings.NAMESPACE}"
_PRESENTED: Final = {"key": "the broker's key", "jwt": "a token of the run", "refused": "not accepted", "none": "none"}
_FIGURES: Final = re.compile(r"(?m)^(?!environment)([a-z ]+): .*$")


@dataclass(frozen=True, slots=True)
class Played:
    """The five runs of one language, what they come to, and the sixth run where it was made."""

    ran: Sequence[Ran]
    counted: Counted
    claims: Sequence[Claim]
    sixth: Sixth | None


def render(python: Played, javascript: Played) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["short"] = _shortened
    api = generated.read()
    granted = generated.granted(api)
    assert python.sixth is not None
    return environment.get_template("page.html.j2").render(
        api=api,
        operations=[(operation, operation.identifier in granted) for operation in api.operations],
        queries={operation.identifier: _query(operation.route) for operation in api.operations},
        granted_routes=len(settings.ALLOW),
        told=generated.report(),
        version=tool_version(),
        command=" ".join(generated.COMMAND),
        prefix=PREFIX,
        own=OWN,
        grants=settings.GRANTS.read_text(),
        python=python.counted,
        javascript=javascript.counted,
        runs=[_run(one, other) for one, other in zip(python.ran, javascript.ran, strict=True)],
        values=where_values_went(python.ran, python.counted.places),
        saw=_alike(_saw(python.ran), _saw(javascript.ran)),
        sixth=python.sixth,
        sixth_run=_run(python.sixth.ran, None),
    )


def _run(python: Ran, javascript: Ran | None) -> dict[str, Any]:
    """Return what the page shows of a run that was made in both languages, or in Python alone."""
    other = javascript or python
    return {
        "number": python.number,
        "title": python.title,
        "python": code_of(python.source),
        "javascript": code_of(other.source) if javascript else "",
        "printed": _alike(_printed(python), _printed(other)),
        "trace": _alike(_trace(python), _trace(other)),
        "received": _alike(_received(python.received), _received(other.received)),
    }


def _alike(python: Any, javascript: Any) -> list[tuple[str, Any]]:
    """Return what was the same in both languages once, and what was not for each, under its name."""
    return [("", python)] if python == javascript else [("Python", python), ("JavaScript", javascript)]


def _printed(ran: Ran) -> str:
    # The search counts files, processes and megabytes: what it looked at is told, how many there were is not.
    if ran.result is None or ran.source.suffix != ".py":
        return ran.printed
    looked, found, rest = ran.printed.partition("the key was found in:")
    lines = [line for line in looked.splitlines() if not line.startswith("note:")]
    return _FIGURES.sub(r"\1: …", "\n".join(lines)) + "\n" + found + rest


def _trace(ran: Ran) -> dict[str, Any]:
    names = ("n", "status", "bytes_sent", "bytes_back")
    rows = [
        {name: row[name] for name in names} | dict(zip(("method", "route"), row["route"].split(" ", 1), strict=True))
        for row in ran.rows
    ]
    return {"rows": rows, "denied": [dict(refusal) for refusal in ran.trace["trace"]["denied_by"]]}


def _received(received: Sequence[Received]) -> list[dict[str, Any]]:
    return [
        {
            "method": request.method,
            "target": request.target,
            "presented": _PRESENTED[request.authenticated],
            "status": request.status,
        }
        for request in received
    ]


def _saw(ran: Sequence[Ran]) -> list[dict[str, Any]]:
    return [{"run": run.number} | request for run in ran for request in _received(run.received)]


def _query(route: str | dict[str, Any]) -> dict[str, str]:
    """Return the rules of a route's query, as the grants file writes them."""
    rules = route.get("query", {}) if isinstance(route, dict) else {}
    return {name: rule if isinstance(rule, str) else json.dumps(rule) for name, rule in rules.items()}


def _shortened(text: str) -> str:
    return text.replace(OWN, "…")
