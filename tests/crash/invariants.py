"""What must hold of a minter that was killed at any instant and started again."""

from __future__ import annotations

from collections import Counter, defaultdict

from minter import audit_verify
from minter.audit_segments import lines_of
from tests.worlds.killable import STATIC, Killable, Received

#: A credential that is alive upstream has a lease in one of these.
NOT_OVER = ("active", "revoking", "irrevocable", "orphan_suspect")
PREFIX = "mb-"


def check(world: Killable) -> None:
    """Check a minter that has just been started again, then end everything and check what is left."""
    world.until(lambda: world.admin("GET", "/readyz").status in (200, 503), "it answers")
    the_state_is_believed(world)
    confirm(world)
    world.until(lambda: world.admin("GET", "/readyz").status == 200, "it is ready again")
    one_active_version(world)
    no_lease_without_an_intent(world)
    nothing_released_without_its_lines(world)
    nothing_alive_upstream_is_forgotten(world)
    orphans_are_found_and_deleted(world)
    at_most_one_live_lease_of_a_run_and_profile(world)
    rotations_go_on(world)
    a_new_run_is_served(world)
    ended_runs_are_over(world)
    nothing_released_without_its_lines(world)
    ended_leases_keep_no_value(world)
    the_log_verifies(world)
    nothing_is_written_in_the_clear(world)


def the_state_is_believed(world: Killable) -> None:
    """A kill does not look like an older state that somebody put in this one's place."""
    assert not [line for line in world.audit() if line["code"] == "state.older"]


def confirm(world: Killable) -> None:
    """Lift a quarantine that the kill left in force."""
    if world.query("SELECT 1 FROM meta WHERE name = 'quarantine'"):
        assert world.admin("DELETE", "/v1/quarantine").status == 200


def one_active_version(world: Killable) -> None:
    phases = world.query("SELECT alias, phase FROM key_versions")
    active = Counter(alias for alias, phase in phases if phase == "active")
    for (alias,) in world.query("SELECT alias FROM custody_keys WHERE retired_at IS NULL"):
        assert active[alias] == 1, f"{active[alias]} active versions of {alias}"
    assert max(Counter(alias for alias, phase in phases if phase == "prepared").values(), default=0) <= 1


def codes(world: Killable) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for line in world.audit():
        if "lease_id" in line:
            found[line["lease_id"]][line["code"]] += 1
    return found


def no_lease_without_an_intent(world: Killable) -> None:
    told = codes(world)
    for id_, kind, state in world.query("SELECT id, kind, state FROM leases"):
        if id_ not in world.inherited:
            needed = "lease.intent" if kind == "issuer-double" else "lease.requested"
            assert told[id_][needed], f"{kind} lease in state {state} without {needed}: {dict(told[id_])}"
    for name in world.issuer.done("make"):
        id_ = name.removeprefix(PREFIX)
        assert told[id_]["lease.intent"], "made upstream without an intent"


def nothing_released_without_its_lines(world: Killable) -> None:
    told = codes(world)
    given = Counter(received.lease_id for received in world.received)
    for received in world.received:
        lines = told[received.lease_id]
        assert lines["lease.requested"], received.profile
        assert lines["lease.minted"] == 1, (received.profile, dict(lines))
        assert lines["lease.minted"] + lines["lease.reissued"] >= given[received.lease_id], (received.profile, lines)
    fingerprints = {line["lease_id"]: line["fingerprint"] for line in world.audit() if line["code"] == "lease.minted"}
    assert all(fingerprints[received.lease_id] == received.fingerprint for received in world.received)
    for name in world.issuer.done("use"):
        assert told[name.removeprefix(PREFIX)]["lease.minted"], "used without a record of its mint"


def nothing_alive_upstream_is_forgotten(world: Killable) -> None:
    for name in world.issuer.alive():
        state, how, expires_at = world.state_of(name.removeprefix(PREFIX))
        # One that was deleted between the two looks is no orphan; one that an operator gave up is in the log.
        known = state in NOT_OVER or how == "forgotten" or name not in world.issuer.alive()
        assert known, f"alive at the issuer, {state} here"
        assert expires_at > world.now() - 5 or state != "orphan_suspect", "a suspect without the time it dies"
        assert name.removeprefix(PREFIX) not in world.told_deleted, "said to be deleted, and alive"


def orphans_are_found_and_deleted(world: Killable) -> None:
    world.until(
        lambda: "orphan_suspect" not in left_at_the_issuer(world), "what a mint may have left is found and deleted"
    )


def left_at_the_issuer(world: Killable) -> Counter[str]:
    """Return how many tokens are alive by the state of their lease, without those that an operator gave up."""
    states = [world.state_of(name.removeprefix(PREFIX))[:2] for name in world.issuer.alive()]
    return Counter(state for state, how in states if how != "forgotten")


def at_most_one_live_lease_of_a_run_and_profile(world: Killable) -> None:
    rows = world.query("SELECT broker, run_id, profile FROM leases WHERE state IN ('intent', 'active')")
    assert max(Counter(rows).values(), default=0) <= 1


def rotations_go_on(world: Killable) -> None:
    """What was prepared is completed or given up, and the issuer has no root key that nobody knows."""
    world.until(
        lambda: not world.query("SELECT 1 FROM key_versions WHERE phase = 'prepared' AND published_at IS NULL"),
        "the rotation is taken up",
    )
    one_active_version(world)
    known = world.query(
        "SELECT count(*) FROM key_versions WHERE alias = 'issuer-root' AND phase IN ('active', 'retiring')"
    )[0][0]
    world.until(lambda: len(world.issuer.roots) <= known, "a root key that nobody knows is deleted")


def a_new_run_is_served(world: Killable) -> None:
    run = world.run_id()
    for profile in world.grants.profiles:
        got = world.lease(profile, run)
        if not isinstance(got, Received):
            # The grants file was just written when it died: the next reload takes it.
            assert world.admin("POST", "/v1/reload").status == 200
            got = world.lease(profile, run)
        assert isinstance(got, Received), (profile, got)
        if profile == "issued":
            assert world.use(got.value) == 200


def ended_runs_are_over(world: Killable) -> None:
    """End every run: nothing of any is alive at the issuer, and in time every lease is over here."""
    runs = {row[0] for row in world.query("SELECT run_id FROM leases")}
    for run in runs:
        assert world.ask("minter", "DELETE", f"/v1/runs/{run}").status == 200
    if left_at_the_issuer(world):
        # What could not be deleted while the issuer was down is tried again after a while.
        world.pass_time(120)
    # What the issuer had said that it never will delete is listed as such, and tried again too late for it.
    world.until(lambda: left_at_the_issuer(world).keys() <= {"irrevocable"}, "what was ended is deleted")
    world.pass_time(700)
    world.until(
        lambda: not world.query("SELECT 1 FROM leases WHERE state NOT IN ('revoked', 'expired')"), "all is over"
    )
    assert world.issuer.alive() == []


def ended_leases_keep_no_value(world: Killable) -> None:
    world.until(
        lambda: not world.query("SELECT 1 FROM leases WHERE state IN ('revoked', 'expired') AND sealed IS NOT NULL"),
        "values of ended leases are erased",
    )


def the_log_verifies(world: Killable) -> None:
    report = audit_verify.verify(lines_of(world.logs()))
    assert report.bad is None, report
    if not world.failpoint.startswith(("mint", "rotate", "key", "reload", "revoke")):
        # Where the log itself may have suffered, by its checkpoints as well: a command, which takes its time to start.
        done = world.run("audit", "verify")
        assert done.returncode == 0, done.stderr


def nothing_is_written_in_the_clear(world: Killable) -> None:
    needles = [received.value.encode() for received in world.received]
    needles += [value.encode() for value in world.issuer.roots.values()]
    needles += [STATIC.encode(), world.issuer.root.encode()]
    for path in world.root.rglob("*"):
        if path.is_file() and path.parent.name != "secrets":
            data = path.read_bytes()
            assert not [True for needle in needles if needle in data], path.name
