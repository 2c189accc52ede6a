"""Ends of leases by a real minter at a real issuer: through kills, an issuer that is away, and a disk in trouble."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.worlds.issuer import Issuer
from tests.worlds.killable import BIN, Killable, Received


@pytest.fixture
def issuer():
    with Issuer() as issuer:
        yield issuer


@pytest.fixture
def killable(tmp_path, issuer):
    killable = Killable(tmp_path, issuer)
    killable.settings_more = "[lease_limits]\nrevocation_rate = 10\n"
    killable.prepare()
    yield killable
    killable.end()


def lent(killable, count, profile="issued"):
    runs = [killable.run_id() for _ in range(count)]
    for run_id in runs:
        assert isinstance(killable.lease(profile, run_id), Received)
    return runs


def died(killable):
    assert killable.process.wait(20) == -signal.SIGKILL


def states(killable):
    found = {}
    for lease in killable.admin("GET", "/v1/leases").json["leases"]:
        found[lease["state"]] = found.get(lease["state"], 0) + 1
    return found


def attempts(killable):
    return [lease["attempts"] for lease in killable.admin("GET", "/v1/leases").json["leases"]]


def test_revocations_that_an_issuer_did_not_take_survive_a_kill(killable, issuer):
    assert killable.start()
    runs = lent(killable, 6)
    issuer.fail("down", "delete")
    for run_id in runs:
        killable.end_run(run_id)
    assert states(killable) == {"revoking": 6}
    killable.until(lambda: attempts(killable) == [1] * 6, "each was tried once")
    killable.kill()
    killable.pass_time(60)
    assert killable.start()
    # Else a try that is under way when the issuer comes back fails all the same, and its next turn is later.
    killable.until(lambda: attempts(killable) == [2] * 6, "each was tried again")
    issuer.mend()
    killable.pass_time(120)
    killable.until(lambda: not issuer.alive(), "the issuer has no token any more")
    killable.until(lambda: set(states(killable)) <= {"revoked", "expired"}, "the minter knows it")


def test_a_mass_revocation_that_is_killed_in_the_middle_goes_on_after_the_restart(killable, issuer):
    assert killable.start()
    lent(killable, 150)
    answer = killable.admin("DELETE", "/v1/leases?kind=issuer-double", timeout=60).json
    assert len(answer["leases"]) == 150
    killable.kill()
    left = len(issuer.alive())
    assert left > 0, "it was killed too late to tell"
    assert {row[1] for row in killable.query("SELECT id, state FROM leases")} <= {"revoking", "revoked"}
    assert killable.start()
    killable.until(lambda: not issuer.alive(), "all are revoked")
    deleted = [seen.name for seen in issuer.seen if seen.what == "delete" and seen.done]
    assert len(set(deleted)) == 150


@pytest.mark.parametrize(
    "point", ["revoke.stopped", "revoke.row-written", "revoke.attempted", "revoke.outcome-written"]
)
def test_an_end_that_is_killed_at_any_step_is_ended_after_the_restart(killable, issuer, point):
    assert killable.start(point)
    [run_id] = lent(killable, 1)
    with pytest.raises(Exception):  # noqa: B017 - whatever the dead minter's end of the line looks like
        killable.end_run(run_id)
    died(killable)
    assert killable.start()
    if point == "revoke.stopped":
        # Nothing was written: whoever asked was not answered, and asks again.
        killable.end_run(run_id)
    killable.until(lambda: not issuer.alive(), "the token is gone")
    killable.until(lambda: states(killable) == {"revoked": 1}, "the minter knows it")
    assert [event.get("code") for event in killable.audit()].count("lease.revoked") == 1


@pytest.mark.parametrize("point", ["orphan.looked", "orphan.outcome-written"])
def test_a_search_for_an_orphan_that_is_killed_is_done_again(killable, issuer, point):
    assert killable.start("mint.made")
    with pytest.raises(Exception):  # noqa: B017
        killable.lease("issued", killable.run_id())
    died(killable)
    assert len(issuer.alive()) == 1
    killable.start(point, wait=False)
    died(killable)
    assert killable.start()
    killable.until(lambda: not issuer.alive(), "what was left is deleted")
    if point == "orphan.looked":
        # Deleted, and not known: nothing is found now, and that is believed at the second look.
        killable.until(lambda: sum(seen.what == "list" for seen in issuer.seen) == 2, "it is looked for again")
        killable.until(lambda: killable.query("SELECT how FROM leases") == [("not-found",)], "it is written down")
        killable.pass_time(61)
    killable.until(lambda: states(killable) == {"revoked": 1}, "the minter knows it")


def fill(path):
    """Write until there is no room for another byte."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass


class SmallDisk(Killable):
    """Its state is on a disk of four megabytes, in a mount namespace of its own."""

    def start(self, failpoint="", *, wait=True, options="size=4m"):
        script = f'mount -t tmpfs -o {options},mode=0700 tmpfs {self.root / "state"} && exec "$@"'
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
        with (self.root / "minter.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*argv, str(BIN / "minter"), "serve", "--config", "minter.toml"],
                cwd=self.root,
                env=self.env(failpoint),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self.listens() if wait else True

    @property
    def disk(self):
        return f"/proc/{self.process.pid}/root{self.root / 'state'}"


@pytest.fixture
def small(tmp_path, issuer):
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("a small disk takes the right to mount one")
    small = SmallDisk(tmp_path, issuer)
    small.prepare()
    yield small
    small.end()


def test_on_a_disk_that_is_really_full_nothing_is_lent_and_what_was_lent_is_ended(small, issuer):
    assert small.start()
    [run_id, kept] = lent(small, 2)
    of = {one.run_id: one.lease_id for one in small.received}
    fill(Path(f"{small.disk}/filler"))
    # What is left of the last pages is used up first.
    small.until(lambda: not isinstance(small.lease("issued", small.run_id()), Received), "a mint is refused")
    made = len(issuer.alive())
    codes = set()
    for _ in range(3):
        for profile in ("issued", "static", "jwt"):
            reply = small.lease(profile, small.run_id())
            assert not isinstance(reply, Received)
            codes.add(reply.json["code"])
            assert reply.status == 503
    assert codes <= {"state-unavailable", "audit-unavailable"}
    assert len(issuer.alive()) <= made
    small.end_run(run_id)
    small.until(lambda: not issuer.alive(f"mb-{of[run_id]}"), "the issuer has deleted the token")
    assert small.admin("GET", "/livez").status == 200
    ready = small.admin("GET", "/readyz?verbose")
    assert ready.status == 503
    assert "cannot be written" in ready.json["detail"]
    assert small.admin("GET", "/v1/leases").status == 200
    Path(f"{small.disk}/filler").unlink()
    small.until(lambda: small.admin("GET", "/readyz").status == 200, "it is ready again")
    assert isinstance(small.lease("issued", kept), Received)
    found = {lease["run_id"]: lease["state"] for lease in small.admin("GET", "/v1/leases").json["leases"]}
    assert (found[run_id], found[kept]) == ("revoked", "active")


def test_a_state_on_a_read_only_disk_is_a_fault_that_is_named_at_the_start(small):
    assert not small.start(options="size=4m,ro")
    assert small.process.returncode == 3
    assert "state: its lock cannot be opened: Read-only file system" in small.log()
