"""The whole life of leases against a small model: whatever happens, in any order.

Minted, asked for again, replaced near their end, ended; restarts, crashes, reboots; clocks that jump; an issuer that
is down or loses answers; a log that cannot be written; keys that rotate; grants that are reloaded.

``make properties`` runs many more of these than ``make test``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from config.clock import FakeClock
from config.problems import ProblemError
from config.secret import Secret
from minter.audit import AuditUnavailable
from minter.audit_verify import verify
from minter.lease_rows import STATES
from tests.minter.lease_world import World
from tests.minter.vault import _empty_state, quick_directory
from tests.properties.playing import NAME, PlayedIssuer, installed

PROFILES = st.sampled_from(["static", "jwt", "remote"])
RUNS = st.integers(0, 3)
#: Credentials of these states may still be good upstream.
NOT_OVER = ("intent", "active", "revoking", "orphan_suspect", "irrevocable")

#: What a grants file may look like, as changes of the whole one.
GRANTS = {
    "whole": {},
    "without remote": {"remote": None},
    "without static": {"static": None},
    "narrower": {"remote": {"allow": ["GET /v1/things"]}, "static": {"allow": ["GET /v1/things"]}},
    "another caller": {"static": {"allowed_callers": ["somebody-else"]}},
}

EXAMPLES = int(os.environ.get("LEASE_MACHINE_EXAMPLES", "40"))


class LeaseMachine(RuleBasedStateMachine):
    """What must hold after every step stands in the invariants; each rule checks its own answer."""

    @initialize()
    def start(self):
        self.loop = asyncio.Runner()
        self.undo = contextlib.ExitStack()
        self.folder = self.undo.enter_context(quick_directory())
        self.clock = FakeClock()
        self.issuer = PlayedIssuer(self.clock)
        self.undo.enter_context(installed(self.issuer))
        self.world = World(self.folder / "minter", self.clock, kinds=[NAME])
        (self.world.folder / "state").mkdir(mode=0o700)
        (self.world.folder / "state/minter.db").write_bytes(_empty_state())
        self.grants = "whole"
        self.write_grants()
        self.world.play_remote = lambda: None
        self.run(self.world.start())
        self.run_ids = [self.world.run_id() for _ in range(4)]
        #: run id -> (wall end, boot end, boot): no credential of the run may be lent beyond either.
        self.ends = {}
        self.renew(range(4))
        #: lease id -> what was lent first; how often; the leases that are known to have ended.
        self.lent = {}
        self.given = Counter()
        self.over = set()
        self.log_fails = False
        #: Whether the wall clock ever ran ahead of the time that has passed, and whether the machine was booted anew.
        self.was_ahead = self.rebooted = False
        self.rotations = 0

    def run(self, coroutine):
        return self.loop.run(coroutine)

    def attempt(self, coroutine):
        """Return what comes of it, or None and the code of the refusal."""
        try:
            return self.run(coroutine), ""
        except ProblemError as error:
            return None, error.code

    def renew(self, numbers):
        for number in numbers:
            self.ends[number] = (self.clock.now() + 1000, self.clock.boottime() + 1000, self.clock.boot_id())

    def left(self, number):
        wall, boot, boot_id = self.ends[number]
        left = wall - self.clock.now()
        return min(left, boot - self.clock.boottime()) if boot_id == self.clock.boot_id() else left

    def write_grants(self):
        changes = {name: change and dict(change) for name, change in GRANTS[self.grants].items()}
        if changes.get("remote", {}) is not None:
            changes["remote"] = {"token": {"type": NAME}, **changes.get("remote", {})}
        self.world.write_grants(**changes)

    # --- what may happen ---

    @rule(number=RUNS, profile=PROFILES)
    def ask(self, number, profile):
        ttl_s = self.left(number)
        lent, code = self.attempt(self.world.lease(profile=profile, run_id=self.run_ids[number], ttl_s=ttl_s))
        if lent is None:
            assert self.explains(code, profile, ttl_s), code
            return
        assert not self.log_fails, "lent without a record"
        assert not (profile == "remote" and self.issuer.mint_fails and lent.row.id not in self.lent)
        left_s = lent.live.remaining(self.clock, highest_wall=self.world.minter.store.highest_wall)
        assert lent.row.id not in self.over, "a lease that had ended was lent again"
        assert 0 < left_s <= ttl_s + 1e-6, "lent beyond the run's end, or after its own"
        value = lent.credential["value"].reveal()
        assert self.lent.setdefault(lent.row.id, (number, profile, value)) == (number, profile, value)
        self.given[lent.row.id] += 1
        if profile == "remote":
            assert value in self.issuer.tokens, "lent what its issuer no longer takes"

    def explains(self, code, profile, ttl_s):
        """Say whether the model knows why a request is refused with a code."""
        granted = self.world.minter.admission.policy.grants.profiles.get(profile)
        return {
            # A clock that was set back makes the run seem longer than a profile allows; the minter refuses that.
            "run-over": ttl_s <= 1,
            "ttl-invalid": ttl_s <= 1 or ttl_s > 86_400,
            "audit-unavailable": self.log_fails,
            "not-ready": profile == "remote" and self.issuer.mint_fails == "down",
            "issuer-failed": profile == "remote" and self.issuer.mint_fails == "lost",
            "profile-unknown": granted is None,
            "caller-not-allowed": granted is not None and "agent" not in granted.allowed_callers,
        }.get(code, False)

    @rule(number=RUNS)
    def end(self, number):
        for one in self.run(self.world.minter.service.end_run("b1", self.run_ids[number])):
            assert one.state in ("revoked", "revoking", "irrevocable", "expired")
            self.over.add(one.lease_id)
        assert self.world.minter.book.of_run("b1", self.run_ids[number]) == []
        self.run_ids[number] = self.world.run_id()
        self.renew([number])

    @rule(seconds=st.sampled_from([1.0, 29.0, 31.0, 300.0, 585.0, 599.0, 600.0, 3600.0]))
    def pass_time(self, seconds):
        self.wait_for_the_disk()
        self.clock.advance(seconds)
        self.issuer.passed += seconds

    def wait_for_the_disk(self):
        """A transaction under way would seem to hang for as long as the clock is moved on."""
        while self.world.minter.store._begun is not None:
            time.sleep(0.0005)

    @rule(seconds=st.sampled_from([-86_400.0, -600.0, 600.0, 86_400.0]))
    def jump(self, seconds):
        self.clock.wall += seconds
        self.was_ahead = self.was_ahead or seconds > 0

    @rule()
    def tick(self):
        self.run(self.settle())
        highest = self.world.minter.store.highest_wall
        for live in self.world.minter.book:
            assert live.remaining(self.clock, highest_wall=highest) > 0, "swept, and still there after its end"

    @rule(mint=st.sampled_from(["", "down", "lost"]), revoke=st.sampled_from(["", "down", "refused", "lost"]))
    def issuer_fails(self, mint, revoke):
        self.issuer.mint_fails, self.issuer.revoke_fails = mint, revoke

    @precondition(lambda self: self.issuer.mint_fails or self.issuer.revoke_fails)
    @rule()
    def issuer_is_mended(self):
        self.issuer.mint_fails = self.issuer.revoke_fails = ""

    @rule()
    def log_cannot_be_written(self):
        def full(*_events, **_now):
            raise AuditUnavailable("no space is left")

        self.world.minter.audit.append = full
        self.log_fails = True

    @precondition(lambda self: self.log_fails)
    @rule()
    def log_is_mended(self):
        del self.world.minter.audit.append
        self.log_fails = False

    @rule(how=st.sampled_from(["restart", "crash", "reboot"]))
    def start_again(self, how):
        # A fresh process finds a disk that can be written, or it would not start.
        if how == "restart":
            if self.log_fails:
                self.log_is_mended()
            self.run(self.world.restart())
        elif how == "crash":
            self.run(self.world.crash())
        else:
            if self.log_fails:
                self.log_is_mended()
            self.run(self.world.stop())
            self.rebooted = True
            self.clock.boot, self.clock.boot_name = 5.0, self.clock.boot_name + "x"
            self.run(self.world.start())
        self.log_fails = False

    @rule()
    def operator_ends_all(self):
        for one in self.run(self.world.minter.service.end(lambda _live: True, "operator", uid=0)):
            self.over.add(one.lease_id)
        assert len(self.world.minter.book) == 0

    @rule(grants=st.sampled_from(sorted(GRANTS)))
    def reload(self, grants):
        self.grants = grants
        self.write_grants()
        faults, code = self.attempt(self.world.minter.reloader.reload())
        if faults is None:
            # It did not happen: what is in force is what was.
            assert self.log_fails, code
            return
        assert faults == ()
        for live in self.world.minter.book:
            assert live.row.profile in self.world.minter.admission.policy.grants.profiles, "lives without a grant"

    @rule(
        alias=st.sampled_from(["api-key", "signer", "sealing-key", "audit-signer"]),
        step=st.sampled_from(["start", "start", "finish", "abort"]),
        how=st.sampled_from(["", "force", "compromised"]),
    )
    def rotate(self, alias, step, how):
        self.rotations += 1
        value = Secret(f"canary-rotated-{self.rotations}") if (alias, step) == ("api-key", "start") else None
        terms = {how: True} if how and not (how == "compromised" and step != "start") else {}
        done, code = self.attempt(self.world.minter.rotation.request(alias, step, value=value, **terms))
        allowed = {"rotation-running", "rotation-not-running", "rotation-unsupported", "body-malformed"}
        assert done is not None or code in allowed | ({"audit-unavailable"} if self.log_fails else set()), code
        if done is not None and terms.get("compromised"):
            version = self.world.minter.custody.version_in_use(alias)
            for live in self.world.minter.book:
                assert alias != "sealing-key", "sealed with a key that somebody else has"
                assert not live.row.made_with(alias) or live.row.made_with(alias, version), "made with a known key"

    async def settle(self):
        await self.world.minter.expiry.tick()
        await self.world.minter.endings.drain(5)

    # --- what must hold ---

    @invariant()
    def the_table_and_the_book_say_the_same(self):
        rows = self.run(self.rows("SELECT id, state, end_reason, profile FROM leases"))
        assert {row[1] for row in rows} <= set(STATES)
        live = {
            id_: profile
            for id_, state, reason, profile in rows
            if state == "active" or (state == "revoking" and reason == "replaced")
        }
        book = self.world.minter.book
        assert {one.row.id for one in book} - live.keys() == set(), "in the book, and the table calls it over"
        current = {id_ for id_, state, *_ in rows if state == "active"}
        assert current <= {one.row.id for one in book}, "live in the table alone"
        counted = Counter(one.row.profile for one in book)
        assert {name: book.count("b1", name) for name in counted} == counted

    @invariant()
    def nothing_alive_upstream_is_forgotten(self):
        states = dict(self.run(self.rows("SELECT id, state FROM leases")))
        for token in self.issuer.alive():
            state = states.get(token.lease_id, "none")
            # After a reboot only the wall clock says what has ended by itself, and one that is ahead says it too soon.
            misled = state == "expired" and self.was_ahead and self.rebooted
            assert state in NOT_OVER or misled, f"{state}, and its issuer takes it"

    @invariant()
    def at_most_one_live_lease_of_a_run_and_profile(self):
        rows = self.run(
            self.rows("SELECT broker, run_id, profile FROM leases WHERE state IN ('intent', 'active')"),
        )
        assert max(Counter(map(tuple, rows)).values(), default=0) <= 1

    @invariant()
    def what_has_ended_stays_ended(self):
        for live in self.world.minter.book:
            assert live.row.id not in self.over

    @invariant()
    def every_key_has_one_active_version(self):
        active = Counter(row[0] for row in self.run(self.rows("SELECT alias FROM key_versions WHERE phase = 'active'")))
        assert set(active.values()) == {1}
        assert set(self.world.minter.custody.aliases()) <= active.keys()

    @invariant()
    def what_is_over_keeps_no_value(self):
        query = "SELECT id FROM leases WHERE state IN ('revoked', 'expired') AND sealed IS NOT NULL"
        assert self.run(self.rows(query)) == []

    async def rows(self, query):
        return await self.world.minter.store.read(lambda found: found.exec_driver_sql(query).all())

    def teardown(self):
        if not hasattr(self, "world"):
            return
        try:
            if self.log_fails:
                self.log_is_mended()
            self.run(self.settle())
            self.run(self.world.stop())
            self.check_the_log()
        finally:
            self.undo.close()
            self.loop.close()

    def check_the_log(self):
        told = Counter((event.get("lease_id"), event["code"]) for event in self.world.audit())
        for id_, times in self.given.items():
            assert told[id_, "lease.requested"] == 1
            assert told[id_, "lease.minted"] == 1
            assert told[id_, "lease.reissued"] >= times - 1, "lent without a record"
        assert all(told[id_, "lease.intent"] == 1 for id_ in self.issuer.made), "made upstream without an intent"
        with (self.world.folder / "state" / "audit.jsonl").open("rb") as log:
            assert verify(log).bad is None


LeaseMachine.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLeaseMachine = LeaseMachine.TestCase
