"""SIGKILL or SIGTERM at any instant while many brokers ask: what holds after a failpoint holds after these, too."""

from __future__ import annotations

import os
import random
import signal
import threading

import pytest

from tests.crash import invariants
from tests.worlds.killable import GoneError, Received

pytestmark = pytest.mark.flow

CLIENTS = 16
ROUNDS = 8
#: How long each of them may work before the kill, in seconds.
UNTIL_KILLED = (0.02, 0.6)


class Clients:
    """Threads that mint, ask again, use and end, until the minter is gone."""

    def __init__(self, world, seed):
        self.world = world
        self.unexpected = []
        self.asked = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._work, args=(f"{seed}/{n}",)) for n in range(CLIENTS)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        for thread in self._threads:
            thread.join()

    def _work(self, seed):
        choose = random.Random(seed)  # noqa: S311 - chooses what to try, guards nothing
        try:
            while True:
                run = self.world.run_id()
                for profile in choose.choices(("issued", "static", "jwt"), k=choose.randint(1, 4)):
                    got = self.world.lease(profile, run)
                    self.asked.release()
                    if not isinstance(got, Received):
                        self.unexpected.append((profile, got))
                    elif profile == "issued" and self.world.use(got.value) != 200:
                        self.unexpected.append((profile, "its issuer does not take it"))
                if choose.random() < 0.7:
                    self.world.end_run(run)
        except GoneError:
            return


def test_killed_again_and_again_under_load_it_forgets_nothing_and_releases_nothing_unrecorded(minter):
    choose = random.Random(20261130)  # noqa: S311 - chooses when to kill, guards nothing
    for round_ in range(ROUNDS):
        assert minter.start(), minter.log()[-3000:]
        with Clients(minter, round_) as clients:
            # The first answers are there: it is under way.
            for _ in range(4):
                assert clients.asked.acquire(timeout=20)
            threading.Event().wait(choose.uniform(*UNTIL_KILLED))
            minter.kill()
        assert clients.unexpected == []
    assert minter.start()
    assert len(minter.received) > ROUNDS * 4
    invariants.check(minter)
    assert minter.stop() == 0


def test_a_stop_under_load_while_the_log_goes_on_in_new_files_leaves_all_that_lives_alive(minter, issuer):
    assert minter.start()
    with Clients(minter, 0) as clients:
        for _ in range(10):
            for _ in range(8):
                assert clients.asked.acquire(timeout=20)
            os.kill(minter.process.pid, signal.SIGUSR1)
        os.kill(minter.process.pid, signal.SIGTERM)
        assert minter.process.wait(20) == 0
    assert clients.unexpected == []
    alive = {lease_id for (lease_id,) in minter.query("SELECT id FROM leases WHERE state = 'active'")}
    assert {name.removeprefix("mb-") for name in issuer.alive()} <= alive | revoking(minter)
    assert not minter.query("SELECT 1 FROM leases WHERE state IN ('intent', 'orphan_suspect')")
    assert len(minter.logs()) > 5
    assert minter.run("audit", "verify").returncode == 0
    assert minter.start()
    invariants.check(minter)
    assert minter.stop() == 0


def revoking(minter):
    return {
        lease_id for (lease_id,) in minter.query("SELECT id FROM leases WHERE state IN ('revoking', 'irrevocable')")
    }
