"""The runs in their order: the seed's five, and the one that the seed did not have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ops.demo import settings
from ops.demo.claims import Claim, story
from ops.demo.programs import call
from ops.demo.runs import CODE, Ran, make_run, until
from ops.demo.world import World

_FIVE: Final = 5


@dataclass(frozen=True, slots=True)
class Sixth:
    """The run with a token of its own, and what the API answered to that token in other hands."""

    ran: Ran
    during: int
    after: int

    @property
    def claims(self) -> list[Claim]:
        """Say whether the token counted while the run lived, and not after it."""
        received = self.ran.received
        with_token = sum(request.authenticated == "jwt" and request.status == 200 for request in received)
        return [
            story(self.ran),
            Claim(
                f"during the run the API took its token through the broker {with_token} time, and directly with status "
                f"{self.during}",
                with_token == len(received) == 1 and self.during == 200,
            ),
            Claim(
                f"after it the API answered {self.after} to the same token, presented by somebody who got hold of it",
                self.after == 401,
            ),
        ]


def five_runs(world: World, suffix: str) -> Iterator[Ran]:
    """Make the five runs with the code of one language (the suffix of its files), one after the other."""
    for source in sorted(CODE.glob(f"[0-9]_*{suffix}"))[:_FIVE]:
        yield make_run(world, source)


def sixth_run(world: World) -> Sixth:
    """Make the run that the seed did not have: its token counts while it lives, whoever presents it, and not after."""
    during: list[int] = []
    [source] = CODE.glob("6_*.py")
    ran = make_run(world, source, profile=settings.JWT_PROFILE, before_end=lambda: during.append(_thief(world)))
    after: list[int] = []

    def refused() -> bool:
        after.append(_thief(world))
        return after[-1] == 401

    until(refused)
    return Sixth(ran, during[0], after[-1])


def _thief(world: World) -> int:
    """Present the run's token directly to the API, without the broker."""
    route = settings.ALLOW[1].partition(" ")[2]
    return call("POST", world.api_url + route, token=world.thief_token(), body=b'{"query": "Spanish"}')[0]
