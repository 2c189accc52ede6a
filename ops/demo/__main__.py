"""``make demo``: the main job on real input. Exits with status 1 when a claim does not hold.

--sabotage makes a claim false on purpose, to see that the demo notices: key-in-client leaves the key in the client that
the code gets, way-to-minter opens the minter's socket to everybody and leaves a broker's credential in a file that
everybody can read.
"""

from __future__ import annotations

import argparse
import signal
import sys
from typing import Final, NoReturn

from config.process import harden
from ops.demo import DemoError
from ops.demo.claims import Claim, count, story, totals
from ops.demo.plays import five_runs, sixth_run
from ops.demo.report import Report
from ops.demo.runs import PYTHON
from ops.demo.world import KEY_IN_CLIENT, WAY_TO_MINTER, World

_INTERRUPTED: Final = 130


def main() -> int:
    """Run the demo and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m ops.demo", description=__doc__)
    parser.add_argument("--sabotage", choices=[KEY_IN_CLIENT, WAY_TO_MINTER], default="", help="break a claim")
    sabotage = parser.parse_args().sabotage
    # The demo holds the caller's token, with which runs are opened: the code must not read it here.
    harden()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    report = Report()
    report.title()
    try:
        claims = _play(report, sabotage)
    except DemoError as error:
        report.line()
        for line in str(error).splitlines():
            report.line(line, "red")
        return 1
    except KeyboardInterrupt:
        report.line()
        report.line("interrupted; nothing is left running", "red")
        return _INTERRUPTED
    report.verdict(claims)
    return 0 if all(claim.holds for claim in claims) else 1


def _play(report: Report, sabotage: str) -> list[Claim]:
    with World(report.progress, sabotage=sabotage) as world:
        report.grant()
        claims = []
        five = []
        for ran in five_runs(world, PYTHON):
            five.append(ran)
            report.run(ran)
            claims.append(story(ran))
            if not claims[-1].holds:
                report.claim(claims[-1])
        counted = totals(count(world, five))
        report.totals(counted)
        sixth = sixth_run(world)
        report.run(sixth.ran)
        report.line("its token in other hands", "dim", indent=2)
        for claim in sixth.claims if not sixth.claims[0].holds else sixth.claims[1:]:
            report.claim(claim)
        return [*claims, *counted, *sixth.claims]


def _interrupt(number: int, _frame: object) -> NoReturn:
    del number
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
