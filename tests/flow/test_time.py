"""Served processes under clocks that jump: a loan may end early, never late."""

from __future__ import annotations

import json

import pytest

from tests.flow.test_main_job import profile

pytestmark = pytest.mark.flow


class Clocks:
    """The test-clock file of both programs."""

    def __init__(self, path):
        self.path = path
        self.set()

    def set(self, *, wall=0.0, boot=0.0, boot_id=""):
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps({"wall": wall, "boot": boot, "boot_id": boot_id}))
        fresh.rename(self.path)


@pytest.fixture
def clocks(service, tmp_path):
    made = Clocks(tmp_path / "clock.json")
    service.environ = {"MINTER_TEST_CLOCK": str(made.path), "BROKER_TEST_CLOCK": str(made.path)}
    return made


@pytest.fixture
def started(service, api, clocks):
    api.on("GET", "/v1/items")
    service.prepare({"api": profile(api, ttl="1h")})
    service.start()
    return service


def test_a_served_program_says_loudly_that_a_test_clock_moves_it(started):
    assert "test" in started.log("minter").lower()
    assert "clock" in started.log("broker").lower()


def test_a_run_ends_at_its_end_and_its_lease_with_it(started, clocks):
    run = started.open_run(ttl="10m")
    assert started.call(run, "GET", "/v1/items").status == 200
    clocks.set(wall=598, boot=598)
    assert started.call(run, "GET", "/v1/items").status == 200
    clocks.set(wall=600, boot=600)
    assert started.call(run, "GET", "/v1/items").status == 401
    started.until(
        lambda: started.audited("lease.expired") or started.audited("lease.revoked"), "the scheduler ends the lease"
    )


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_wall_clock_that_jumps_a_day_never_prolongs_a_run(started, clocks, jump):
    run = started.open_run(ttl="10m")
    assert started.call(run, "GET", "/v1/items").status == 200
    clocks.set(wall=jump)
    early = started.call(run, "GET", "/v1/items").status
    assert early == (401 if jump > 0 else 200)
    clocks.set(wall=jump + 600, boot=600)
    assert started.call(run, "GET", "/v1/items").status == 401
    # Whatever the clock did, a new run works.
    assert started.call(started.open_run(ttl="10m"), "GET", "/v1/items").status == 200


def test_after_a_reboot_a_run_goes_on_by_the_wall_clock_with_a_new_lease(started, clocks, api):
    run = started.open_run(ttl="10m")
    assert started.call(run, "GET", "/v1/items").status == 200
    for program in ("broker", "minter"):
        started.stop(program)
    clocks.set(wall=60, boot=-1_000_000, boot_id="after-the-reboot")
    started.start()
    started.until(lambda: started.call(run, "GET", "/v1/items").status == 200, "the run goes on")
    clocks.set(wall=601, boot=-1_000_000, boot_id="after-the-reboot")
    assert started.call(run, "GET", "/v1/items").status == 401


def test_a_clock_set_back_across_a_reboot_brings_no_run_to_life(started, clocks):
    run = started.open_run(ttl="10m")
    assert started.call(run, "GET", "/v1/items").status == 200
    clocks.set(wall=700, boot=700)
    assert started.call(run, "GET", "/v1/items").status == 401
    for program in ("broker", "minter"):
        started.stop(program)
    clocks.set(wall=0, boot=-1_000_000, boot_id="after-the-reboot")
    started.start()
    assert started.call(run, "GET", "/v1/items").status == 401
