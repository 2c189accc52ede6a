"""``make example``: from the document to clients, the five runs with them, and a page of what really happened.

Each run is made twice, with the generated Python client in a fresh process and with the generated JavaScript client in
a fresh engine; each language has a world of its own: a new key, an empty API, both programs started anew.

--check writes nothing and fails when a file is not what it would be now. --sabotage leaves the key in the clients, to
see that the example notices. With a claim that does not hold no page is written.
"""

from __future__ import annotations

import argparse
import difflib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from config.load import write_atomic
from config.process import harden
from ops.demo import DemoError, generated
from ops.demo.claims import count, story, totals
from ops.demo.page import Played, render
from ops.demo.plays import five_runs, sixth_run
from ops.demo.report import Report
from ops.demo.runs import JAVASCRIPT, PYTHON
from ops.demo.users import ROOT
from ops.demo.world import KEY_IN_CLIENT, World

PAGE: Final = Path(__file__).parent / "agent-memory.html"
_MODE: Final = 0o644
_SHOWN_LINES: Final = 20
_INTERRUPTED: Final = 130


def main() -> int:
    """Make the example and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m ops.demo.example", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail unless everything is current")
    parser.add_argument("--sabotage", choices=[KEY_IN_CLIENT], default="", help="break a claim")
    arguments = parser.parse_args()
    harden()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    report = Report()
    try:
        return _make(report, check=arguments.check, sabotage=arguments.sabotage)
    except DemoError as error:
        for line in str(error).splitlines():
            report.line(line, "red")
        return 1
    except KeyboardInterrupt:
        report.line("interrupted; nothing is left running", "red")
        return _INTERRUPTED


def _make(report: Report, *, check: bool, sabotage: str) -> int:
    for line in generated.generate(check=check).splitlines():
        report.progress(line)
    python, javascript = (_play(report, suffix, sabotage) for suffix in (PYTHON, JAVASCRIPT))
    claims = [claim for played in (python, javascript) for claim in played.claims]
    if not all(claim.holds for claim in claims):
        report.line("no page was written: what it would say is not so", "bold red")
        return 1
    return _publish(report, render(python, javascript), check=check)


def _play(report: Report, suffix: str, sabotage: str) -> Played:
    with World(report.progress, sabotage=sabotage, still=True) as world:
        ran = []
        for each in five_runs(world, suffix):
            ran.append(each)
            report.progress(f"run {each.number}: {each.source.name}")
            if not story(each).holds:
                for line in each.printed.splitlines():
                    report.line(line, indent=4)
        counted = count(world, ran)
        sixth = sixth_run(world) if suffix == PYTHON else None
    claims = [*map(story, ran), *totals(counted), *(sixth.claims if sixth else [])]
    for claim in claims:
        report.claim(claim)
    return Played(ran, counted, claims, sixth)


def _publish(report: Report, page: str, *, check: bool) -> int:
    there = PAGE.read_text() if PAGE.exists() else ""
    name = str(PAGE.relative_to(ROOT))
    if there == page:
        report.line(f"{name} is current", "bold green")
    elif not check:
        write_atomic(PAGE, page.encode(), mode=_MODE)
        report.line(f"wrote {name}", "bold green")
    else:
        report.line(f"{name} is stale; make example writes it", "bold red")
        for line in list(_changes(there, page))[:_SHOWN_LINES]:
            report.line(line, indent=2)
        return 1
    return 0


def _changes(there: str, page: str) -> Iterator[str]:
    for line in difflib.unified_diff(there.splitlines(), page.splitlines(), "there", "now", lineterm="", n=0):
        yield line[:200]


def _interrupt(number: int, _frame: object) -> NoReturn:
    del number
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
