"""The lease state machine against a model: mint, ask again, end, fail, restart, crash, jump, reboot, in any order."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from config.clock import FakeClock
from config.problems import ProblemError
from minter.audit_verify import verify
from minter.kinds import RevocationError
from minter.lease_rows import STATES
from tests.minter.lease_world import World

PROFILES = st.sampled_from(["static", "jwt", "remote"])
RUNS = st.integers(0, 3)
#: Credentials of these states may still be good upstream.
OPEN = ("intent", "active", "revoking", "orphan_suspect", "irrevocable")


class LeaseMachine(RuleBasedStateMachine):
    """What must hold after every step stands in the invariants; each rule checks its own answer."""

    @initialize()
    def start(self):
        self.loop = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = FakeClock()
        self.world = World(self.folder / "minter", self.clock)
        self.run(self.world.start())
        self.run_ids = [self.world.run_id() for _ in range(4)]
        #: run id -> (wall end, boot end, boot): no credential of the run may be lent beyond either.
        self.ends = {}
        self.renew(range(4))
        #: lease id -> what was lent first, and the leases that are known to have ended.
        self.lent = {}
        self.over = set()
        self.values = {}

    def run(self, coroutine):
        return self.loop.run(coroutine)

    def renew(self, numbers):
        for number in numbers:
            self.ends[number] = (self.clock.now() + 1000, self.clock.boottime() + 1000, self.clock.boot_id())

    def left(self, number):
        wall, boot, boot_id = self.ends[number]
        left = wall - self.clock.now()
        return min(left, boot - self.clock.boottime()) if boot_id == self.clock.boot_id() else left

    # --- what may happen ---

    @rule(number=RUNS, profile=PROFILES)
    def ask(self, number, profile):
        ttl_s = self.left(number)
        live = self.run(self.lease(profile, self.run_ids[number], ttl_s))
        if live is None:
            # A clock that was set back makes the run seem longer than a profile allows; the minter refuses that.
            assert ttl_s <= 1 or ttl_s > 86_400
            return
        row = live.row
        left_s = live.live.remaining(self.clock, highest_wall=self.world.minter.store.highest_wall)
        assert row.id not in self.over, "a lease that had ended was lent again"
        assert 0 < left_s <= ttl_s + 1e-6, "lent beyond the run's end, or after its own"
        value = live.credential["value"].reveal()
        assert self.lent.setdefault(row.id, (number, profile, value)) == (number, profile, value)
        if profile == "remote":
            assert value in self.world.remote.live, "lent what its issuer no longer takes"
            self.values[value] = row.id

    @rule(number=RUNS)
    def end(self, number):
        for one in self.run(self.world.minter.service.end_run("b1", self.run_ids[number])):
            assert one.state in ("revoked", "revoking", "irrevocable", "expired")
            self.over.add(one.lease_id)
        assert self.world.minter.book.of_run("b1", self.run_ids[number]) == []
        self.run_ids[number] = self.world.run_id()
        self.renew([number])

    @rule(seconds=st.sampled_from([1.0, 29.0, 31.0, 300.0, 599.0, 600.0, 3600.0]))
    def pass_time(self, seconds):
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-86_400.0, -600.0, 600.0, 86_400.0]))
    def jump(self, seconds):
        self.clock.wall += seconds

    @rule()
    def tick(self):
        self.run(self.settle())
        highest = self.world.minter.store.highest_wall
        for live in self.world.minter.book:
            assert live.remaining(self.clock, highest_wall=highest) > 0, "swept, and still there after its end"

    @rule(permanent=st.booleans())
    def refuse(self, permanent):
        self.world.remote.refuse = [RevocationError(permanent=permanent)]

    @rule(how=st.sampled_from(["restart", "crash", "reboot"]))
    def start_again(self, how):
        if how == "restart":
            self.run(self.world.restart())
        elif how == "crash":
            self.run(self.world.crash())
        else:
            self.run(self.world.stop())
            self.clock.boot, self.clock.boot_name = 5.0, self.clock.boot_name + "x"
            self.run(self.world.start())

    @rule()
    def operator_ends_all(self):
        for one in self.run(self.world.minter.service.end(lambda _live: True, "operator", uid=0)):
            self.over.add(one.lease_id)
        assert len(self.world.minter.book) == 0

    async def lease(self, profile, run_id, ttl_s):
        try:
            return await self.world.lease(profile=profile, run_id=run_id, ttl_s=ttl_s)
        except ProblemError as error:
            if error.code not in ("run-over", "ttl-invalid"):
                raise
            return None

    async def settle(self):
        await self.world.minter.expiry.tick()
        await self.world.minter.endings.drain(5)

    # --- what must hold ---

    @invariant()
    def the_table_and_the_book_say_the_same(self):
        rows = self.run(self.rows())
        assert {state for _, state, _ in rows} <= set(STATES)
        current = {id_ for id_, state, _ in rows if state == "active"}
        book = {live.row.id for live in self.world.minter.book if live.row.state == "active"}
        replaced = {id_ for id_, state, reason in rows if state == "revoking" and reason == "replaced"}
        assert book - replaced == current

    @invariant()
    def no_credential_is_good_upstream_that_the_table_calls_revoked(self):
        states = {id_: (state, reason) for id_, state, reason in self.run(self.rows())}
        for value in self.world.remote.live & self.values.keys():
            state, _ = states[self.values[value]]
            # What ended by itself is not deleted upstream; the played issuer does not watch the clock.
            assert state in (*OPEN, "expired"), f"{state}, and its issuer still takes it"

    @invariant()
    def what_has_ended_stays_ended(self):
        for live in self.world.minter.book:
            assert live.row.id not in self.over

    async def rows(self):
        query = "SELECT id, state, end_reason FROM leases"
        return await self.world.minter.store.read(lambda found: found.exec_driver_sql(query).all())

    def teardown(self):
        if not hasattr(self, "world"):
            return
        try:
            self.run(self.world.stop())
            minted = [event["lease_id"] for event in self.world.audit() if event["code"] == "lease.minted"]
            assert len(minted) == len(set(minted)), "minted twice"
            assert set(self.lent) <= set(minted), "lent without a record"
            with (self.world.folder / "state" / "audit.jsonl").open("rb") as log:
                assert verify(log).bad is None
        finally:
            self.loop.close()
            shutil.rmtree(self.folder)


LeaseMachine.TestCase.settings = settings(
    max_examples=10, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLeaseMachine = LeaseMachine.TestCase
