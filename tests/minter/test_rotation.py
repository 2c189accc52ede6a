"""Rotation of custody keys: the order of its steps, a kill between any two of them, and what it refuses."""

import asyncio
import hashlib
import json
from dataclasses import replace

import jwt
import pytest
from sqlalchemy.exc import IntegrityError

from config.problems import ProblemError
from config.secret import Secret
from minter import key_rows, signing
from minter.audit import AuditUnavailable
from minter.rotation import Rotation
from minter.rotation_steps import FAILPOINTS as POINTS
from minter.sources import SourceError
from tests.minter.vault import CANARY, ORIGIN, Vault, grants_of, quick_directory

#: What an issuer makes and deletes has points of its own: see tests/minter/test_roots.py.
OF_ISSUERS = ("made", "proved", "deleted-upstream")
FAILPOINTS = [name for point in POINTS if (name := point.removeprefix("rotate.")) not in OF_ISSUERS]
OLD, NEW = f"{CANARY}-old", f"{CANARY}-new"


@pytest.fixture
async def vault(clock):
    with quick_directory() as directory:
        made = Vault(directory, clock)
        made.put("api-key", OLD + "\n")
        made.key("api", "file:api-key", owner="you")
        made.key("signer", "file:signer.pem", use="signing")
        made.grants = grants_of(
            {"type": "static", "key": "api"}, {"type": "jwt", "key": "signer", "audience": "https://api.example.com"}
        )
        await made.start()
        yield made
        await made.stop()


class Killed(BaseException):
    """What a kill is to the code: nothing after it runs."""


def rotation(vault, *, kill_at=None, **options):
    def failpoint(name):
        assert name in POINTS
        if name == f"rotate.{kill_at}":
            raise Killed

    return Rotation(vault.custody, vault.store, clock=vault.clock, failpoint=failpoint, **options)


def value_of(vault, alias="api"):
    return vault.custody.secret(alias, ORIGIN)[0].reveal()


def kids(vault):
    return {key["kid"] for key in json.loads(vault.custody.jwks())["keys"]}


def sign(vault):
    key, version = vault.custody.signing_key("signer", ORIGIN)
    return key.sign(b'{"exp":1893460000}').reveal(), key.kid, version


def accepted(vault, token):
    """Judge like a verifier that fetches the key set now."""
    keys = {key["kid"]: key for key in json.loads(vault.custody.jwks())["keys"]}
    jwk = keys.get(jwt.get_unverified_header(token)["kid"])
    if jwk is None:
        return False
    jwt.decode(token, jwt.PyJWK(jwk).key, algorithms=["EdDSA"], options={"verify_exp": False})
    return True


# --- a static secret ---


@pytest.mark.parametrize("value", ["two\nlines", "a\ttab", "ümlaut", "nul\0"])
async def test_a_value_that_no_call_can_carry_does_not_replace_one_that_works(vault, value):
    with pytest.raises(ProblemError) as refused:
        await rotation(vault).request("api", "start", value=Secret(value))
    assert refused.value.code == "body-malformed"
    assert "one line of printable ASCII" in refused.value.detail or "without NUL" in refused.value.detail
    assert value not in str(refused.value)
    assert (value_of(vault), sorted(vault.files())) == (OLD, ["api-key", "signer.pem"])
    assert (await rotation(vault).request("api", "status"))["state"] == "idle"


async def test_a_static_secret_gets_its_new_value_at_once_and_keeps_the_old_one_until_it_is_finished(vault):
    ended = []

    async def end(alias, version, reason):
        ended.append((alias, version, reason))

    turning = rotation(vault, end_leases=end)
    state = await turning.request("api", "start", value=Secret(NEW + "\n"), overlap_s=3600)
    assert value_of(vault) == NEW
    assert vault.files()["api-key"].strip() == OLD
    assert vault.files()["api-key.v2"] == NEW
    assert state["state"] == "retiring"
    assert state["active_version"] == 2
    assert state["next_step"] == "retire"
    assert await vault.phases("api") == {1: "retiring", 2: "active"}
    await vault.restart()
    assert value_of(vault) == NEW
    turning = rotation(vault, end_leases=end)
    state = await turning.request("api", "finish")
    assert state["state"] == "idle"
    assert "api-key" not in vault.files()
    assert ended == [("api", 1, "key-retired")]
    assert await vault.phases("api") == {1: "destroyed", 2: "active"}
    await vault.restart()
    assert value_of(vault) == NEW
    assert [code for code in vault.codes() if code.startswith("key.")] == [
        "key.created",
        "key.created",
        "key.rotation-begun",
        "key.rotation-prepared",
        "key.rotation-activated",
        "key.retired",
        "key.destroyed",
    ]


async def test_the_old_value_goes_at_its_deadline_and_not_before(vault):
    turning = rotation(vault)
    await turning.request("api", "start", value=Secret(NEW), overlap_s=600)
    vault.clock.advance(599)
    await turning.tick(vault.clock.now())
    assert await vault.phases("api") == {1: "retiring", 2: "active"}
    vault.clock.advance(1)
    await turning.tick(vault.clock.now())
    assert await vault.phases("api") == {1: "destroyed", 2: "active"}
    assert set(vault.files()) == {"api-key.v2", "signer.pem"}


async def test_a_tick_with_nothing_to_bring_forward_asks_nothing_of_the_store(vault, monkeypatch):
    turning = rotation(vault)
    await turning.tick(vault.clock.now())

    async def never(query):
        raise AssertionError

    monkeypatch.setattr(vault.store, "read", never)
    await turning.tick(vault.clock.now())


async def test_a_log_that_cannot_be_written_leaves_a_rotation_that_a_tick_makes_good(vault, monkeypatch):
    turning = rotation(vault)
    append = vault.audit.append

    def full(events, *, now):
        if any(event.code == "key.rotation-activated" for event in events):
            raise AuditUnavailable("full")
        append(events, now=now)

    with monkeypatch.context() as broken:
        broken.setattr(vault.audit, "append", full)
        with pytest.raises(ProblemError) as refused:
            await turning.request("api", "start", value=Secret(NEW))
    assert refused.value.code == "audit-unavailable"
    await turning.tick(vault.clock.now())
    assert value_of(vault) == NEW
    await vault.store.write(lambda _connection: (None, ()))
    assert len(vault.events("key.rotation-activated")) == 1


async def test_a_third_value_follows_a_second(vault):
    turning = rotation(vault)
    for number, value in ((2, NEW), (3, "third")):
        await turning.request("api", "start", value=Secret(value))
        await turning.request("api", "finish")
        assert await vault.phases("api") == dict.fromkeys(range(1, number), "destroyed") | {number: "active"}
        assert value_of(vault) == value
    await vault.restart()
    assert value_of(vault) == "third"


async def test_a_second_start_while_the_old_value_is_kept_is_refused(vault):
    turning = rotation(vault)
    await turning.request("api", "start", value=Secret(NEW))
    with pytest.raises(ProblemError) as refused:
        await turning.request("api", "start", value=Secret("third"))
    assert refused.value.code == "rotation-running"
    assert value_of(vault) == NEW


async def test_two_starts_at_once_are_one_rotation(vault):
    turning = rotation(vault)
    results = await asyncio.gather(
        *(turning.request("api", "start", value=Secret(f"value-{n}")) for n in range(4)), return_exceptions=True
    )
    refused = [result for result in results if isinstance(result, ProblemError)]
    assert [error.code for error in refused] == ["rotation-running"] * 3
    assert await vault.phases("api") == {1: "retiring", 2: "active"}


@pytest.mark.parametrize("value", [None, "", "\n", OLD, OLD + "\n"])
async def test_a_missing_empty_or_unchanged_value_is_refused_before_anything_is_written(vault, value):
    with pytest.raises(ProblemError) as refused:
        await rotation(vault).request("api", "start", value=None if value is None else Secret(value))
    assert refused.value.code == "body-malformed"
    assert CANARY not in str(refused.value)
    assert await vault.phases("api") == {1: "active"}
    assert set(vault.files()) == {"api-key", "signer.pem"}


@pytest.mark.parametrize("overlap_s", [-1.0, float("nan"), float("inf")])
async def test_an_overlap_that_is_none_is_refused(vault, overlap_s):
    with pytest.raises(ProblemError, match="overlap_s"):
        await rotation(vault).request("api", "start", value=Secret(NEW), overlap_s=overlap_s)


async def test_an_aborted_rotation_leaves_no_value_and_its_number_is_spent(vault):
    with pytest.raises(Killed):
        await rotation(vault, kill_at="prepared").request("api", "start", value=Secret(NEW))
    state = await rotation(vault).request("api", "abort")
    assert state["state"] == "idle"
    assert set(vault.files()) == {"api-key", "signer.pem"}
    await rotation(vault).request("api", "start", value=Secret(NEW))
    assert await vault.phases("api") == {1: "retiring", 2: "destroyed", 3: "active"}


@pytest.mark.parametrize("step", ["finish", "abort"])
async def test_there_is_nothing_to_finish_or_abort_when_no_rotation_runs(vault, step):
    with pytest.raises(ProblemError) as refused:
        await rotation(vault).request("api", step)
    assert refused.value.code == "rotation-not-running"


async def test_a_version_that_is_in_use_cannot_be_aborted(vault):
    await rotation(vault).request("api", "start", value=Secret(NEW))
    with pytest.raises(ProblemError) as refused:
        await rotation(vault).request("api", "abort")
    assert refused.value.code == "rotation-not-running"
    assert value_of(vault) == NEW


async def test_nobody_is_sent_for_a_shared_secret_to_where_it_cannot_be_taken_out(vault):
    vault.key("shared", "sealed:shared", use="signing", algorithm="HS256")
    await vault.restart()
    for compromised in (False, True):
        plan = await rotation(vault).request("shared", "start", dry_run=True, compromised=compromised)
        told = " ".join([*(step["does"] for step in plan["steps"]), *plan.get("to_do", ())])
        assert "give verifiers" not in told
        assert "give every verifier" not in told
        assert "introspection" in told


async def test_the_plan_of_a_compromise_begins_anew_wherever_a_rotation_stands(vault):
    turning = rotation(vault)
    await turning.request("signer", "start", force=True)
    plan = await turning.request("signer", "start", dry_run=True, compromised=True)
    assert not [step for step in plan["steps"] if step["done"]]
    assert "before the new version goes the same way" in plan["to_do"][-1]
    assert len((await turning.request("signer", "status"))["old_versions"]) == 1


async def test_an_unknown_key_is_not_found(vault):
    with pytest.raises(ProblemError) as refused:
        await rotation(vault).request("nobody", "status")
    assert refused.value.code == "key-not-found"


async def test_a_key_in_a_place_that_the_minter_cannot_write_is_refused_with_what_to_do(vault):
    vault.environ["THE_KEY"] = OLD
    vault.key("from-env", "env:THE_KEY")
    await vault.restart()
    for dry_run in (True, False):
        with pytest.raises(ProblemError) as refused:
            await rotation(vault).request("from-env", "start", value=Secret(NEW), dry_run=dry_run)
        assert refused.value.code == "rotation-unsupported"
        assert "start the minter with the new value" in refused.value.detail


async def test_a_source_that_cannot_be_written_leaves_the_old_value_in_force_and_nothing_prepared(vault, monkeypatch):
    def fail(ref, value):
        raise SourceError("cannot be written (EIO)")

    monkeypatch.setattr(vault.custody.reader.sources, "write", fail)
    with pytest.raises(ProblemError) as refused:
        await rotation(vault).request("api", "start", value=Secret(NEW))
    assert refused.value.code == "secret-unavailable"
    assert CANARY not in str(refused.value)
    assert await vault.phases("api") == {1: "active", 2: "destroyed"}
    assert value_of(vault) == OLD
    assert vault.events("key.rotation-aborted")[0]["reason"] == "source-failed"


async def test_an_old_value_that_cannot_be_deleted_is_out_of_use_marked_and_tried_again(vault, monkeypatch):
    turning = rotation(vault)
    await turning.request("api", "start", value=Secret(NEW))
    with monkeypatch.context() as broken:

        def fail(ref):
            raise SourceError("cannot be deleted (EIO)")

        broken.setattr(vault.custody.reader.sources, "delete", fail)
        with pytest.raises(ProblemError, match="out of use"):
            await turning.request("api", "finish")
    assert value_of(vault) == NEW
    assert await vault.phases("api") == {1: "retiring", 2: "active"}
    assert len(vault.events("key.destroy-failed")) == 1
    vault.clock.advance(3600)
    await turning.tick(vault.clock.now())
    assert await vault.phases("api") == {1: "destroyed", 2: "active"}


async def test_a_dry_run_says_who_is_affected_and_changes_nothing(vault):
    await vault.lend("api", 1, run="run_a")
    await vault.lend("api", 1, run="run_b")
    await vault.lend("api", 1, run="run_over", ends_in=-1)
    await vault.lend("signer", 1, run="run_other")

    def digest():
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in vault.directory.iterdir()
            if path.is_file()
        }

    await rotation(vault).request("api", "status")
    before = digest()
    plan = await rotation(vault).request("api", "start", dry_run=True, overlap_s=600)
    assert digest() == before
    assert plan["dry_run"] is True
    assert plan["affected"] == {"leases": 2, "runs": ["run_a", "run_b"], "callers": ["agent"], "brokers": ["b1"]}
    assert [(step["step"], step["done"]) for step in plan["steps"]] == [
        ("prepare", False),
        ("activate", False),
        ("retire", False),
    ]
    assert plan["steps"][2]["at"] == "2030-01-01T00:10:00.000Z"
    plan = await rotation(vault).request("signer", "start", dry_run=True)
    assert [step["step"] for step in plan["steps"]] == ["prepare", "publish", "activate", "retire"]
    assert plan["steps"][2]["at"] == "2030-01-01T00:05:30.000Z"
    assert plan["affected"]["runs"] == ["run_other"]
    assert digest() == before


# --- a signing key ---


async def test_a_signing_key_is_published_before_it_signs_and_verifies_until_its_last_token_ended(vault):
    turning = rotation(vault)
    old_token, old_kid, _ = sign(vault)
    await vault.lend("signer", 1, ends_in=4000)
    state = await turning.request("signer", "start")
    assert state["state"] == "published"
    assert state["next_step"] == "activate"
    assert state["next_at"] == "2030-01-01T00:05:30.000Z"
    assert len(kids(vault)) == 2
    assert sign(vault)[1] == old_kid

    vault.clock.advance(329)
    await turning.tick(vault.clock.now())
    assert sign(vault)[1] == old_kid
    vault.clock.advance(1)
    await turning.tick(vault.clock.now())
    new_token, new_kid, version = sign(vault)
    assert (version, new_kid != old_kid) == (2, True)
    assert await vault.phases("signer") == {1: "retiring", 2: "active"}
    assert accepted(vault, old_token)
    assert accepted(vault, new_token)

    vault.clock.advance(4000 + 60 - 330 - 1)
    await turning.tick(vault.clock.now())
    assert accepted(vault, old_token)
    vault.clock.advance(1)
    await turning.tick(vault.clock.now())
    assert not accepted(vault, old_token)
    assert accepted(vault, new_token)
    assert set(vault.files()) == {"api-key", "signer.pem.v2"}
    await vault.restart()
    assert kids(vault) == {new_kid}
    assert sign(vault)[1] == new_kid


async def test_a_token_signed_while_the_new_key_took_over_keeps_the_old_key_longer(vault):
    turning = rotation(vault)
    await turning.request("signer", "start", force=True)
    old_until = vault.clock.now() + 60
    await vault.lend("signer", 1, run="run_late", ends_in=900)
    vault.clock.wall = old_until
    await turning.tick(vault.clock.now())
    assert await vault.phases("signer") == {1: "retiring", 2: "active"}
    vault.clock.advance(900)
    await turning.tick(vault.clock.now())
    assert await vault.phases("signer") == {1: "destroyed", 2: "active"}


async def test_a_second_start_during_publication_is_refused_and_says_how_long_it_takes(vault):
    turning = rotation(vault)
    await turning.request("signer", "start")
    vault.clock.advance(30)
    with pytest.raises(ProblemError) as refused:
        await turning.request("signer", "start")
    assert refused.value.code == "rotation-running"
    assert refused.value.retry_after == 300
    with pytest.raises(ProblemError, match="signs from"):
        await turning.request("signer", "finish")


async def test_force_activates_without_the_wait_and_says_so_in_the_log(vault):
    turning = rotation(vault)
    await turning.request("signer", "start")
    await turning.request("signer", "start", force=True, uid=1000)
    assert await vault.phases("signer") == {1: "retiring", 2: "active"}
    event = vault.events("key.rotation-activated")[0]
    assert (event["forced"], event["uid"]) == (True, 1000)


async def test_the_old_signing_key_is_dropped_early_only_by_force(vault):
    await vault.lend("signer", 1, ends_in=900)
    turning = rotation(vault)
    token, *_ = sign(vault)
    await turning.request("signer", "start", force=True)
    with pytest.raises(ProblemError) as refused:
        await turning.request("signer", "finish")
    assert refused.value.code == "rotation-running"
    assert accepted(vault, token)
    await turning.request("signer", "finish", force=True)
    assert not accepted(vault, token)
    assert vault.custody.read_token(token) is None


async def test_a_published_key_that_is_aborted_is_published_no_more(vault):
    turning = rotation(vault)
    before = kids(vault)
    await turning.request("signer", "start")
    await turning.request("signer", "abort")
    assert kids(vault) == before
    vault.clock.advance(1000)
    await turning.tick(vault.clock.now())
    assert await vault.phases("signer") == {1: "active", 2: "destroyed"}


async def test_nobody_gives_the_minter_a_signing_key(vault):
    assert (await rotation(vault).request("signer", "status"))["state"] == "idle"
    with pytest.raises(ProblemError, match="makes signing keys itself"):
        await rotation(vault).request("signer", "start", value=Secret(NEW))


async def test_a_prepared_key_that_was_swapped_in_its_source_does_not_become_active(vault):
    turning = rotation(vault)
    await turning.request("signer", "start")
    vault.put("signer.pem.v2", signing.generate("EdDSA").reveal())
    vault.clock.advance(330)
    await turning.tick(vault.clock.now())
    assert await vault.phases("signer") == {1: "active", 2: "prepared"}


async def test_the_plan_for_a_shared_secret_says_that_verifiers_must_be_given_it(vault):
    vault.key("shared", "file:shared", use="signing", algorithm="HS256")
    await vault.restart()
    plan = await rotation(vault).request("shared", "start", dry_run=True)
    assert "give verifiers the new secret" in plan["steps"][1]["does"]
    before, kid_before = vault.custody.signing_key("shared", ORIGIN)[0], kids(vault)
    await rotation(vault).request("shared", "start", force=True)
    assert vault.custody.signing_key("shared", ORIGIN)[0].kid != before.kid
    assert kids(vault) == kid_before


@pytest.mark.parametrize("again", ["running", "restarted", "reloaded", "killed"])
async def test_what_a_shared_secret_signed_is_verified_until_it_is_destroyed(vault, again):
    vault.key("shared", "file:shared", use="signing", algorithm="HS256")
    await vault.restart()
    key, version = vault.custody.signing_key("shared", ORIGIN)
    token = key.sign(b'{"exp":1893460000}').reveal()
    if again == "killed":
        with pytest.raises(Killed):
            await rotation(vault, kill_at="activated").request("shared", "start", force=True)
        await vault.custody.load(vault.store, vault.grants)
    else:
        await rotation(vault).request("shared", "start", force=True)
    if again == "restarted":
        await vault.restart()
    elif again == "reloaded":
        await vault.custody.load(vault.store, vault.grants)
    assert await vault.phases("shared") == {version: "retiring", version + 1: "active"}
    assert vault.custody.read_token(token) == {"exp": 1893460000}
    assert key.kid not in kids(vault)
    await rotation(vault).request("shared", "finish", force=True)
    assert vault.custody.read_token(token) is None
    await vault.restart()
    assert vault.custody.read_token(token) is None


@pytest.mark.parametrize("value", [None, "another-secret-of-more-than-32-bytes", "short"])
async def test_a_retiring_shared_secret_that_its_source_no_longer_has_stops_no_start(vault, value):
    vault.key("shared", "file:shared", use="signing", algorithm="HS256")
    await vault.restart()
    token = vault.custody.signing_key("shared", ORIGIN)[0].sign(b'{"exp":1893460000}').reveal()
    await rotation(vault).request("shared", "start", force=True)
    (vault.directory / "shared").unlink()
    if value is not None:
        vault.put("shared", value)
    await vault.restart()
    assert vault.custody.read_token(token) is None


# --- a kill between any two steps ---


async def check(vault, alias):
    """There is exactly one active version, it is the one in use, and its source has it."""
    phases = await vault.phases(alias)
    active = [version for version, phase in phases.items() if phase == "active"]
    assert len(active) == 1
    assert list(phases.values()).count("prepared") <= 1
    if alias == "api":
        value, version = vault.custody.secret(alias, ORIGIN)
        assert value.reveal() == {1: OLD}.get(version, NEW)
    else:
        token, _, version = sign(vault)
        assert accepted(vault, token)
    assert version == active[0]


BEFORE_FINISH = FAILPOINTS[: FAILPOINTS.index("retiring")]
FINISHING = FAILPOINTS[FAILPOINTS.index("retiring") :]


@pytest.mark.parametrize("kill_at", [name for name in BEFORE_FINISH if name != "published"])
@pytest.mark.parametrize("again", ["with the value", "without it", "a tick"])
async def test_a_killed_rotation_of_a_secret_is_completed_or_rolled_back(vault, kill_at, again):
    with pytest.raises(Killed):
        await rotation(vault, kill_at=kill_at).request("api", "start", value=Secret(NEW))
    await check(vault, "api") if kill_at != "activated" else None
    await vault.restart()
    await check(vault, "api")
    turning = rotation(vault)
    if again == "a tick":
        await turning.tick(vault.clock.now())
        done = kill_at in ("prepared", "activating", "activated")
    else:
        value = Secret(NEW) if again == "with the value" else None
        lost = value is None and kill_at == "begun"
        if kill_at == "activated" or lost:
            with pytest.raises(ProblemError) as refused:
                await turning.request("api", "start", value=value)
            assert refused.value.code == ("body-malformed" if lost else "rotation-running")
            if lost:
                await turning.request("api", "abort")
        else:
            await turning.request("api", "start", value=value)
        done = not lost
    await check(vault, "api")
    assert value_of(vault) == (NEW if done else OLD)
    if done:
        await turning.request("api", "finish")
        assert set(vault.files()) == {"api-key.v2", "signer.pem"}
    else:
        assert set(vault.files()) == {"api-key", "signer.pem"}
    assert "prepared" not in (await vault.phases("api")).values()


@pytest.mark.parametrize("kill_at", FINISHING)
@pytest.mark.parametrize("alias", ["api", "signer"])
@pytest.mark.parametrize("again", ["finish", "tick"])
async def test_a_kill_while_the_old_version_goes_away_is_made_good(vault, kill_at, alias, again):
    turning = rotation(vault, kill_at=kill_at)
    await turning.request(alias, "start", value=Secret(NEW) if alias == "api" else None, force=True)
    with pytest.raises(Killed):
        await turning.request(alias, "finish", force=True)
    await vault.restart()
    await check(vault, alias)
    turning = rotation(vault)
    if again == "tick":
        await turning.tick(vault.clock.now())
    elif kill_at != "destroyed":
        await turning.request(alias, "finish", force=True)
    await check(vault, alias)
    assert await vault.phases(alias) == {1: "destroyed", 2: "active"}
    assert ("api-key" if alias == "api" else "signer.pem") not in vault.files()


@pytest.mark.parametrize("kill_at", BEFORE_FINISH)
@pytest.mark.parametrize("again", ["start", "tick"])
async def test_a_killed_rotation_of_a_signing_key_goes_on(vault, kill_at, again):
    turning = rotation(vault, kill_at=kill_at)

    async def until_killed():
        await turning.request("signer", "start")
        vault.clock.advance(330)
        await turning.tick(vault.clock.now())

    with pytest.raises(Killed):
        await until_killed()
    await vault.restart()
    await check(vault, "signer")
    turning = rotation(vault)
    if again == "start" and kill_at not in ("published", "activating", "activated"):
        await turning.request("signer", "start")
    await turning.tick(vault.clock.now())
    await check(vault, "signer")
    vault.clock.advance(330)
    await turning.tick(vault.clock.now())
    await check(vault, "signer")
    assert (await vault.phases("signer"))[2] == "active"
    vault.clock.advance(60)
    await turning.tick(vault.clock.now())
    assert await vault.phases("signer") == {1: "destroyed", 2: "active"}
    assert set(vault.files()) == {"api-key", "signer.pem.v2"}


async def test_memory_follows_a_rotation_that_was_cut_off_after_its_transaction_without_a_restart(vault):
    with pytest.raises(Killed):
        await rotation(vault, kill_at="activated").request("api", "start", value=Secret(NEW))
    await rotation(vault).tick(vault.clock.now())
    assert value_of(vault) == NEW


async def test_the_state_itself_refuses_a_second_active_version(vault):
    row = next(row for row in await vault.versions() if row.alias == "api")

    def work(connection):
        with pytest.raises(IntegrityError):
            key_rows.put_version(connection, replace(row, version=9))
        return None, ()

    await vault.store.write(work)


async def test_neither_value_is_in_the_state_the_log_or_the_answers(vault, capsys):
    turning = rotation(vault)
    answers = [
        await turning.request("api", "start", value=Secret(NEW)),
        await turning.request("api", "status"),
        await turning.request("api", "finish"),
        await turning.request("signer", "start", force=True),
    ]
    private = vault.files()["signer.pem"].splitlines()[1]
    written = vault.everything_written().decode("utf-8", "replace") + json.dumps(answers) + "".join(capsys.readouterr())
    assert CANARY not in written
    assert private not in written
