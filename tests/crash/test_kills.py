"""SIGKILL at every failpoint: the minter is started again, and what must hold holds.

The points are those of the registry: a new one is tested without a change here, and one that no scenario reaches
fails. Several minters are killed at a time: they have nothing in common. ``make test`` kills at the first time that a
point is reached, ``make crash`` at the next few times, too: another lease, another key, another transaction.
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minter.failpoints import POINTS
from tests.crash import invariants, scenarios
from tests.worlds.issuer import Issuer
from tests.worlds.killable import GoneError, Killable

pytestmark = [pytest.mark.flow, pytest.mark.timeout(900)]

AT_ONCE = 4
#: How many times of each point are tested: the first ones.
TIMES = int(os.environ.get("CRASH_TIMES", "1"))


@pytest.fixture(scope="module")
def kills(request):
    """Return the outcome of each point that this session is to test; all are worked on already."""
    mine = [item for item in request.session.items if item.module is request.module]
    points = [item.callspec.params["point"] for item in mine if "point" in item.callspec.params]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {point: pool.submit(killed_at, point) for point in points}


@pytest.mark.parametrize("point", [f"{point}:{n}" for n in range(1, TIMES + 1) for point in POINTS])
def test_killed_there_it_leaves_no_orphan_and_no_ghost(kills, point):
    if not kills[point].result():
        assert not point.endswith(":1"), f"no scenario reaches {point}"
        pytest.skip("no scenario comes there so often")


def killed_at(point: str) -> bool:
    """Drive a minter to a point, see it die there, start it again and check; try one scenario after the other.

    ``point`` is a name and which time it is reached, as the minter takes it. Return whether any scenario reached it.
    """
    for scenario in scenarios.order(point):
        with tempfile.TemporaryDirectory() as folder, Issuer() as issuer:
            world = Killable(Path(folder), issuer)
            try:
                if reaches(world, scenario, point):
                    assert world.start(), f"it does not start again: {world.log()[-3000:]}"
                    invariants.check(world)
                    assert world.stop() == 0
                    return True
            finally:
                world.end()
    return False


def reaches(world: Killable, scenario: scenarios.Scenario, point: str) -> bool:
    world.prepare()
    scenario.prepare(world)
    world.failpoint = point
    try:
        if scenario.serves and not world.start(point):
            assert world.killed(), f"it ended otherwise: {world.log()[-3000:]}"
            return True
        scenario.drive(world)
    except GoneError:
        if scenario.serves:
            world.died()
            assert world.killed(), f"it ended otherwise: {world.log()[-3000:]}"
        return True
    finally:
        world.issuer.mend()
    return False
