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
from ops.demo import DemoError, settings
from ops.demo.claims import Claim, story, totals
from ops.demo.programs import call
from ops.demo.report import Report
from ops.demo.runs import CODE, Ran, make_run, until
from ops.demo.world import KEY_IN_CLIENT, WAY_TO_MINTER, World

_FIVE: Final = 5
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
        for source in sorted(CODE.glob("[0-9]_*.py"))[:_FIVE]:
            ran = make_run(world, source)
            five.append(ran)
            report.run(ran)
            claims.append(story(ran))
            if not claims[-1].holds:
                report.claim(claims[-1])
        counted = totals(world, five)
        report.totals(counted)
        return claims + counted + _sixth(report, world)


def _sixth(report: Report, world: World) -> list[Claim]:
    """Make the run that the seed did not have: its token counts while it lives, whoever presents it, and not after."""
    during: list[int] = []
    [source] = CODE.glob("6_*.py")
    ran = make_run(world, source, profile=settings.JWT_PROFILE, before_end=lambda: during.append(_thief(world)))
    after: list[int] = []

    def refused() -> bool:
        after.append(_thief(world))
        return after[-1] == 401

    until(refused)
    report.run(ran)
    claims = [
        story(ran),
        _accepted(ran, during[0]),
        Claim(
            f"after it the API answered {after[-1]} to the same token, presented by somebody who got hold of it",
            after[-1] == 401,
        ),
    ]
    report.line("its token in other hands", "dim", indent=2)
    for claim in claims if not claims[0].holds else claims[1:]:
        report.claim(claim)
    return claims


def _accepted(ran: Ran, during: int) -> Claim:
    with_token = sum(request.authenticated == "jwt" and request.status == 200 for request in ran.received)
    text = (
        f"during the run the API took its token through the broker {with_token} time, and directly with status {during}"
    )
    return Claim(text, with_token == len(ran.received) == 1 and during == 200)


def _thief(world: World) -> int:
    """Present the run's token directly to the API, without the broker."""
    route = settings.ALLOW[1].partition(" ")[2]
    return call("POST", world.api_url + route, token=world.thief_token(), body=b'{"query": "Spanish"}')[0]


def _interrupt(number: int, _frame: object) -> NoReturn:
    del number
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
