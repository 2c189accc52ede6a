"""Root secrets whose issuer makes new ones: made, proved, switched, deleted; a kill between any two steps.

The issuer is a working one on the loopback (tests/worlds/issuer.py), the kind one of another distribution.
"""

import json
import sys

import pytest

from config.clock import rfc3339
from config.problems import ProblemError
from config.secret import Secret
from config.settings import AUDIT_SIGNER
from minter import key_rows
from minter.audit import AuditUnavailable
from minter.issuer_roots import IssuerRoots
from minter.key_ending import KeyEnding
from minter.rotation import ASK_AGAIN_S, Rotation
from minter.rotation_steps import FAILPOINTS
from minter.sources import SourceError
from tests.minter.vault import ORIGIN, Vault, grants_of, quick_directory
from tests.worlds.issuer import Issuer
from tests.worlds.killable import PLUGINS

NEW = "minter-abcdefabcdef-root-v2"


@pytest.fixture
def issuer():
    with Issuer() as issuer:
        yield issuer


@pytest.fixture
async def vault(clock, issuer):
    with quick_directory() as directory:
        made = Vault(directory, clock)
        made.put("root-key", issuer.root)
        made.put("plain-key", "value")
        made.key("root", "file:root-key", owner="you")
        made.key("plain", "file:plain-key")
        made.key("signer", "file:signer.pem", use="signing")
        made.grants = grants_of(
            {"type": "static", "key": "root"},
            {"type": "static", "key": "plain"},
            {"type": "jwt", "key": "signer", "audience": ORIGIN},
        )
        await made.start()
        yield made
        await made.stop()


class Killed(BaseException):
    """What a kill is to the code: nothing after it runs."""


@pytest.fixture
def kind(monkeypatch):
    monkeypatch.syspath_prepend(str(PLUGINS))
    yield __import__("issuer_double").KIND
    sys.modules.pop("issuer_double", None)


@pytest.fixture
def turning(vault, issuer, kind):
    def make(*, kill_at=None, offered=True, ended=None):
        def failpoint(name):
            assert name in FAILPOINTS
            if name == kill_at:
                raise Killed

        async def end(alias, version, reason):
            if ended is not None:
                ended.append((alias, version, reason))

        def kinds():
            return [kind(issuer.origin, "root", vault.custody)] if offered else []

        roots = IssuerRoots(vault.custody, kinds=kinds, installation="abcdefabcdef0123")
        return Rotation(vault.custody, vault.store, clock=vault.clock, failpoint=failpoint, roots=roots, end_leases=end)

    return make


def value_of(vault, alias="root"):
    return vault.custody.secret(alias, ORIGIN)[0].reveal()


async def problems(vault, alias="root"):
    return {row.version: row.problem for row in await vault.versions() if row.alias == alias and row.problem}


async def refused(awaitable, code):
    with pytest.raises(ProblemError) as error:
        await awaitable
    assert error.value.code == code
    assert "root-" not in str(error.value).replace("-root-v2", "")
    return error.value.detail


async def check(vault, issuer):
    """There is exactly one active version, it is the one in use, and the issuer takes it."""
    phases = await vault.phases("root")
    active = [version for version, phase in phases.items() if phase == "active"]
    assert len(active) == 1
    value, version = vault.custody.secret("root", ORIGIN)
    assert version == active[0]
    assert value.reveal() in issuer.roots.values()


# --- in order ---


async def test_a_root_is_made_proved_and_switched_and_the_old_one_is_deleted_after_the_overlap(vault, issuer, turning):
    rotation = turning()
    plan = await rotation.request("root", "start", dry_run=True)
    assert (plan["value_from"], [step["step"] for step in plan["steps"]]) == (
        "issuer",
        ["create", "prepare", "prove", "activate", "retire"],
    )
    assert issuer.seen == []
    plan = await rotation.request("root", "start", overlap_s=600)
    assert plan["state"] == "retiring"
    assert [seen.what for seen in issuer.seen] == ["make-root", "whoami"]
    assert issuer.roots == {"given": issuer.root, NEW: value_of(vault)}
    assert vault.files()["root-key.v2"] == issuer.roots[NEW]
    vault.clock.advance(600)
    await rotation.tick(vault.clock.now())
    assert set(issuer.roots) == {NEW}
    assert await vault.phases("root") == {1: "destroyed", 2: "active"}
    assert "root-key" not in vault.files()
    await vault.restart()
    assert value_of(vault) == issuer.roots[NEW]
    assert issuer.root.encode() not in vault.everything_written()


async def test_a_second_rotation_deletes_by_name_what_the_first_one_made(vault, issuer, turning):
    for _ in range(2):
        await turning().request("root", "start")
        await turning().request("root", "finish")
    assert set(issuer.roots) == {"minter-abcdefabcdef-root-v3"}
    await check(vault, issuer)


async def test_a_value_that_a_person_gives_is_proved_and_the_old_one_is_not_deleted_at_the_issuer(
    vault, issuer, turning
):
    issuer.roots["by hand"] = "root-by-hand"
    await turning().request("root", "start", value=Secret("root-by-hand"))
    await turning().request("root", "finish")
    assert value_of(vault) == "root-by-hand"
    assert [seen.what for seen in issuer.seen] == ["whoami"]
    assert set(issuer.roots) == {"given", "by hand"}


async def test_a_key_whose_kind_offers_nothing_needs_a_value(vault, issuer, turning):
    assert "missing" in await refused(turning().request("plain", "start"), "body-malformed")
    assert "missing" in await refused(turning(offered=False).request("root", "start"), "body-malformed")
    assert issuer.seen == []


async def test_a_root_goes_only_to_an_issuer_that_its_pins_allow(vault, issuer, turning):
    await vault.custody.rebind(vault.store, "root", ["https://elsewhere.example.com"])
    await refused(turning().request("root", "start"), "origin-not-pinned")
    assert issuer.seen == []


# --- an issuer that fails ---


async def test_a_value_that_the_issuer_does_not_take_stays_prepared_and_is_never_active(vault, issuer, turning):
    await refused(turning().request("root", "start", value=Secret("wrong")), "issuer-failed")
    assert await vault.phases("root") == {1: "active", 2: "prepared"}
    assert await problems(vault) == {2: "not-accepted"}
    for _ in range(3):
        vault.clock.advance(ASK_AGAIN_S)
        await turning().tick(vault.clock.now())
        await vault.restart()
    assert value_of(vault) == issuer.root
    assert await vault.phases("root") == {1: "active", 2: "prepared"}
    assert len(vault.events("key.prove-failed")) == 1
    assert [seen.what for seen in issuer.seen] == ["whoami"], "a person is waited for, not the issuer"
    await refused(turning().request("root", "finish"), "issuer-failed")
    await turning().request("root", "abort")
    assert await vault.phases("root") == {1: "active", 2: "destroyed"}


async def test_a_new_root_that_the_issuer_refuses_is_never_active(vault, issuer, turning):
    issuer.fail("refuse", "whoami")
    await refused(turning().request("root", "start"), "issuer-failed")
    vault.clock.advance(ASK_AGAIN_S)
    await turning().tick(vault.clock.now())
    assert await vault.phases("root") == {1: "active", 2: "prepared"}
    assert value_of(vault) == issuer.root
    issuer.mend()
    await turning().request("root", "start")
    assert value_of(vault) == issuer.roots[NEW]
    assert await problems(vault) == {}


async def test_a_proof_that_could_not_be_made_is_made_later_and_not_at_every_tick(vault, issuer, turning):
    issuer.fail("down", "whoami")
    rotation = turning()
    await refused(rotation.request("root", "start"), "issuer-failed")
    for _ in range(5):
        await rotation.tick(vault.clock.now())
    assert [seen.what for seen in issuer.seen] == ["make-root", "whoami", "whoami"]
    issuer.mend()
    vault.clock.advance(ASK_AGAIN_S)
    await rotation.tick(vault.clock.now())
    assert value_of(vault) == issuer.roots[NEW]


async def test_an_issuer_that_makes_nothing_leaves_the_old_one_in_force_and_is_asked_again(vault, issuer, turning):
    issuer.fail("down", "make-root")
    await refused(turning().request("root", "start"), "issuer-failed")
    assert value_of(vault) == issuer.root
    issuer.mend()
    await turning().tick(vault.clock.now())
    await check(vault, issuer)
    assert value_of(vault) == issuer.roots[NEW]


async def test_an_issuer_that_refuses_for_good_ends_the_rotation(vault, issuer, turning):
    issuer.fail("forbid", "make-root")
    await refused(turning().request("root", "start"), "issuer-failed")
    assert await vault.phases("root") == {1: "active", 2: "destroyed"}
    assert set(issuer.roots) == {"given"}


async def test_an_answer_that_was_lost_leaves_no_second_root(vault, issuer, turning):
    issuer.fail("drop", "make-root", times=1)
    await refused(turning().request("root", "start"), "issuer-failed")
    assert set(issuer.roots) == {"given", NEW}
    await turning().request("root", "start")
    await check(vault, issuer)
    assert issuer.done("make-root") == [NEW, NEW]
    assert set(issuer.roots) == {"given", NEW}


async def test_an_orphan_that_the_issuer_does_not_delete_stays_listed_until_it_does(vault, issuer, turning):
    issuer.fail("drop", "make-root", times=1)
    await refused(turning().request("root", "start"), "issuer-failed")
    issuer.fail("down", "delete-root")
    detail = await refused(turning().request("root", "abort"), "issuer-failed")
    assert NEW in detail
    assert await problems(vault) == {2: "destroy-failed"}
    issuer.mend()
    await turning().tick(vault.clock.now())
    assert set(issuer.roots) == {"given"}
    assert await vault.phases("root") == {1: "active", 2: "destroyed"}


async def test_an_old_root_that_the_issuer_does_not_delete_is_out_of_use_marked_and_tried_again(vault, issuer, turning):
    await turning().request("root", "start")
    issuer.fail("down", "delete-root")
    await refused(turning().request("root", "finish"), "issuer-failed")
    await check(vault, issuer)
    assert value_of(vault) == issuer.roots[NEW]
    assert await problems(vault) == {1: "destroy-failed"}
    assert vault.events("key.destroy-failed")[0]["reason"] == "issuer-failed"
    issuer.mend()
    vault.clock.advance(3600)
    await turning().tick(vault.clock.now())
    assert set(issuer.roots) == {NEW}
    assert await problems(vault) == {}


async def test_a_hook_that_raises_what_it_should_not_is_an_issuer_that_failed(vault, turning, kind, monkeypatch):
    async def broken(self, current, name):
        raise ValueError(current.reveal())

    monkeypatch.setattr(kind, "create_root", broken)
    await refused(turning().request("root", "start"), "issuer-failed")


# --- a kill between any two steps ---

UNTIL_ACTIVE = FAILPOINTS[: FAILPOINTS.index("rotate.retiring")]
AFTER = FAILPOINTS[FAILPOINTS.index("rotate.retiring") :]


@pytest.mark.parametrize("kill_at", [name for name in UNTIL_ACTIVE if name != "rotate.published"])
@pytest.mark.parametrize("again", ["tick", "start", "abort"])
async def test_a_killed_rotation_of_a_root_leaves_no_orphan_and_one_active(vault, issuer, turning, kill_at, again):
    with pytest.raises(Killed):
        await turning(kill_at=kill_at).request("root", "start")
    await vault.restart()
    await check(vault, issuer)
    done = kill_at == "rotate.activated"
    if again == "tick":
        await turning().tick(vault.clock.now())
        done = True
    elif not done:
        await turning().request("root", again)
        done = again == "start"
    await check(vault, issuer)
    assert set(issuer.roots) == ({"given", NEW} if done else {"given"})
    assert value_of(vault) == (issuer.roots[NEW] if done else issuer.root)
    if done:
        await turning().request("root", "finish")
        assert set(issuer.roots) == {NEW}
        assert await vault.phases("root") == {1: "destroyed", 2: "active"}


@pytest.mark.parametrize("kill_at", AFTER)
@pytest.mark.parametrize("again", ["tick", "finish"])
async def test_a_kill_while_the_old_root_goes_away_is_made_good(vault, issuer, turning, kill_at, again):
    await turning().request("root", "start")
    with pytest.raises(Killed):
        await turning(kill_at=kill_at).request("root", "finish")
    await vault.restart()
    await check(vault, issuer)
    if again == "tick":
        await turning().tick(vault.clock.now())
    elif kill_at != "rotate.destroyed":
        await turning().request("root", "finish")
    await check(vault, issuer)
    assert set(issuer.roots) == {NEW}
    assert await vault.phases("root") == {1: "destroyed", 2: "active"}


# --- compromised ---


async def test_a_compromised_root_is_replaced_and_deleted_at_once_with_all_that_was_made_with_it(
    vault, issuer, turning
):
    ended = []
    await turning().request("root", "start")
    plan = await turning(ended=ended).request("root", "start", compromised=True, uid=1000)
    assert set(issuer.roots) == {"minter-abcdefabcdef-root-v3"}
    assert await vault.phases("root") == {1: "destroyed", 2: "destroyed", 3: "active"}
    assert {(version, reason) for _, version, reason in ended} >= {(1, "key-compromised"), (2, "key-compromised")}
    assert not any("at its issuer: only that" in one for one in plan["to_do"])
    assert vault.events("key.compromised")[0]["uid"] == 1000


@pytest.mark.parametrize("kill_at", [name for name in UNTIL_ACTIVE if name != "rotate.published"])
async def test_a_compromise_is_remembered_when_the_minter_is_killed(vault, issuer, turning, kill_at):
    with pytest.raises(Killed):
        await turning(kill_at=kill_at).request("root", "start", compromised=True)
    await vault.restart()
    await check(vault, issuer)
    await turning().tick(vault.clock.now())
    await turning().tick(vault.clock.now())
    await check(vault, issuer)
    assert set(issuer.roots) == {NEW}
    assert await vault.phases("root") == {1: "destroyed", 2: "active"}
    assert await problems(vault) == {}


async def test_a_compromised_key_without_a_successor_is_a_fault_until_it_has_one(vault, turning):
    await refused(turning().request("plain", "start", compromised=True), "body-malformed")
    assert await problems(vault, "plain") == {1: "compromised"}
    assert value_of(vault, "plain") == "value"
    await turning().request("plain", "start", value=Secret("new"), overlap_s=3600)
    assert await vault.phases("plain") == {1: "retiring", 2: "active"}
    await turning().tick(vault.clock.now())
    assert await vault.phases("plain") == {1: "destroyed", 2: "active"}


async def test_a_compromised_value_that_cannot_be_deleted_is_said_with_what_is_left_to_do(vault, turning, monkeypatch):
    def fail(ref):
        raise SourceError("cannot be deleted (EIO)")

    with monkeypatch.context() as broken:
        broken.setattr(vault.custody.reader.sources, "delete", fail)
        plan = await turning().request("plain", "start", value=Secret("new"), compromised=True)
    assert plan["problems"] == {"1": "destroy-failed"}
    assert plan["to_do"]
    # Another rotation does not wait for it.
    await turning().request("plain", "start", value=Secret("third"))
    assert value_of(vault, "plain") == "third"
    vault.clock.advance(2 * 86400)
    await turning().tick(vault.clock.now())
    assert await vault.phases("plain") == {1: "destroyed", 2: "destroyed", 3: "active"}


async def test_what_was_prepared_beside_a_compromised_key_is_not_trusted(vault, issuer, turning):
    with pytest.raises(Killed):
        await turning(kill_at="rotate.prepared").request("root", "start")
    before = issuer.roots[NEW]
    await vault.restart()
    await turning().request("root", "start", compromised=True)
    assert before not in issuer.roots.values()
    assert await vault.phases("root") == {1: "destroyed", 2: "destroyed", 3: "active"}


async def test_what_a_person_must_still_do_is_listed_by_kind_and_place(vault, turning):
    plan = await turning().request("plain", "start", value=Secret("new"), compromised=True)
    assert any("delete the old value of plain at its issuer" in one for one in plan["to_do"])
    assert await vault.phases("plain") == {1: "destroyed", 2: "active"}
    assert "plain-key" not in vault.files()
    plan = await turning().request("signer", "start", compromised=True)
    assert any("until 2030-01-01T00:05:30" in one for one in plan["to_do"])


@pytest.mark.parametrize("kill_at", ["rotate.activated", "rotate.retiring", "rotate.ended", "rotate.deleted"])
async def test_a_compromised_signing_key_verifies_no_more_even_if_the_minter_is_killed(vault, turning, kill_at):
    await vault.lend("signer", 1, ends_in=9000)
    key, _ = vault.custody.signing_key("signer", ORIGIN)
    token = key.sign(b'{"exp":1893460000}').reveal()
    with pytest.raises(Killed):
        await turning(kill_at=kill_at).request("signer", "start", compromised=True)
    await vault.restart()
    assert (vault.custody.read_token(token), key.kid in vault.custody.jwks().decode()) == (None, False)
    await turning().tick(vault.clock.now())
    assert await vault.phases("signer") == {1: "destroyed", 2: "active"}
    assert "signer.pem" not in vault.files()


async def test_leases_of_a_compromised_key_end_though_no_new_value_can_be_had(vault, issuer, turning):
    ended = []
    issuer.fail("down")
    await refused(turning(ended=ended).request("root", "start", compromised=True), "issuer-failed")
    assert ("root", 1, "key-compromised") in ended
    vault.environ["THE_KEY"] = "value"
    vault.key("from-env", "env:THE_KEY")
    await vault.restart()
    await refused(turning(ended=ended).request("from-env", "start", compromised=True), "rotation-unsupported")
    assert ("from-env", 1, "key-compromised") in ended


async def test_leases_of_a_compromised_key_end_though_nothing_can_be_written_of_it(vault, turning, monkeypatch):
    ended = []

    def fails(_events, *, now):
        raise AuditUnavailable(f"the audit log cannot be written at {now}")

    monkeypatch.setattr(vault.audit, "append", fails)
    await refused(turning(ended=ended).request("root", "start", compromised=True), "audit-unavailable")
    assert ("root", 1, "key-compromised") in ended


async def test_a_dry_run_of_a_compromise_asks_nobody_and_changes_nothing(vault, issuer, turning):
    await turning().request("root", "status")
    before = vault.everything_written()
    plan = await turning().request("root", "start", compromised=True, dry_run=True)
    assert plan["to_do"]
    assert (vault.everything_written(), issuer.seen) == (before, [])


@pytest.mark.parametrize("alias", ["root", "plain", "signer", AUDIT_SIGNER])
async def test_the_plan_of_a_compromise_keeps_nothing_of_the_old_version(turning, alias, clock):
    plan = await turning().request(alias, "start", compromised=True, dry_run=True)
    told = " ".join(step["does"] for step in plan["steps"])
    assert not [kept for kept in ("goes on", "--finish", "beside", "has ended") if kept in told]
    assert {step["at"] for step in plan["steps"]} == {rfc3339(clock.now())}


async def test_who_reports_a_compromise_without_a_new_value_is_told_what_ended_and_what_is_still_lent(turning):
    detail = await refused(turning().request("plain", "start", compromised=True), "body-malformed")
    assert "what was made with it has ended" in detail
    assert "minter keys retire plain" in detail


# --- a root that is retired ---


async def test_a_retired_root_leaves_nothing_prepared_at_its_issuer(vault, issuer, turning):
    async def end_all(alias, uid):
        return []

    with pytest.raises(Killed):
        await turning(kill_at="rotate.prepared").request("root", "start")
    await vault.restart()
    ending = KeyEnding(vault.custody, vault.store, turning(), clock=vault.clock, end_all=end_all)
    await ending.retire("root", force=True)
    assert set(issuer.roots) == {"given"}
    assert await vault.phases("root") == {1: "active", 2: "destroyed"}


async def test_what_an_issuer_made_is_named_when_its_key_is_destroyed(vault, issuer, turning):
    async def end_all(alias, uid):
        return []

    await turning().request("root", "start")
    ending = KeyEnding(vault.custody, vault.store, turning(), clock=vault.clock, end_all=end_all)
    await ending.retire("root", force=True)
    assert any(NEW in one for one in (await ending.destroy("root"))["to_do"])


# --- the log's signer, and what is stale ---


async def test_the_logs_signer_is_replaced_at_once_and_the_old_one_destroyed(vault, turning):
    before = vault.custody.checkpoint_signer()
    plan = await turning().request(AUDIT_SIGNER, "start")
    after = vault.custody.checkpoint_signer()
    assert (plan["state"], plan["active_version"], plan["value_from"]) == ("idle", 2, "minter")
    assert after.kid != before.kid
    assert await vault.phases(AUDIT_SIGNER) == {1: "destroyed", 2: "active"}
    assert after.kid not in vault.custody.jwks().decode()
    await vault.restart()
    assert vault.custody.checkpoint_signer().kid == after.kid


@pytest.mark.parametrize(
    "kill_at",
    [name for name in FAILPOINTS if name.split(".")[1] not in {"made", "proved", "published", "deleted-upstream"}],
)
async def test_a_killed_rotation_of_the_logs_signer_goes_on(vault, turning, kill_at):
    before = vault.custody.checkpoint_signer()
    with pytest.raises(Killed):
        await turning(kill_at=kill_at).request(AUDIT_SIGNER, "start")
    await vault.restart()
    assert vault.custody.checkpoint_signer() is not None
    if kill_at in ("rotate.activated", "rotate.retiring", "rotate.ended"):
        # It vouches for the new one in the log before it goes.
        assert vault.custody.checkpoint_signer_before(before.kid).kid == before.kid
        assert vault.custody.checkpoint_signer().kid != before.kid
    await turning().tick(vault.clock.now())
    assert await vault.phases(AUDIT_SIGNER) == {1: "destroyed", 2: "active"}


@pytest.mark.parametrize("by", ["tick", "start", "finish"])
async def test_a_stale_intent_does_not_take_over(vault, turning, by):
    """A preparation from before the active version was put in force: of a state that was put back, for example."""
    await turning().request("signer", "start", force=True)
    await turning().request("signer", "finish", force=True)
    await turning().request("signer", "start")
    vault.clock.advance(86400)
    active = next(row for row in await vault.versions() if (row.alias, row.phase) == ("signer", "active"))

    def later(connection):
        from dataclasses import replace

        key_rows.put_version(connection, replace(active, activated_at=vault.clock.now() - 1))
        return None, ()

    await vault.store.write(later)
    if by == "tick":
        await turning().tick(vault.clock.now())
    elif by == "start":
        await turning().request("signer", "start")
    else:
        await refused(turning().request("signer", "finish"), "rotation-not-running")
    phases = await vault.phases("signer")
    assert (phases[2], phases[3]) == ("active", "destroyed")
    assert vault.events("key.rotation-aborted")[0]["reason"] == "stale"
    assert ("prepared" in phases.values()) is (by == "start")


async def test_a_key_that_the_grants_name_inline_is_moved_first(vault, turning):
    vault.environ["API_TOKEN"] = "value"
    vault.grants = grants_of({"type": "static", "env": "API_TOKEN"}, {"type": "static", "file": "plain-key"})
    await vault.restart()
    for alias, own in (("env:API_TOKEN", "api-token"), ("file:plain-key", "plain-key")):
        with pytest.raises(ProblemError) as error:
            await turning().request(alias, "start", value=Secret("new"))
        assert error.value.code == "rotation-unsupported"
        assert error.value.members["move"]["minter_toml"] == [f"[keys.{own}]", f'source = "{alias}"']
        said = json.dumps(error.value.members["faults"])
        assert f'\\"key\\": \\"{own}\\"' in said
        assert "profiles.p" in said
