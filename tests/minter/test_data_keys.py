"""The keys that seal a state: made once, opened at each start, renewed, and moved to another sealing key."""

import asyncio
import base64
import os
import secrets
import threading

import pytest
from cryptography.exceptions import InvalidTag

from config.clock import rfc3339
from config.errors import ConfigurationError
from config.problems import ProblemError
from config.secret import Secret
from config.settings import SEALING_KEY
from minter import failpoints, lease_rows, resealing, sealed_values
from minter.audit import AuditUnavailable
from minter.data_keys import USED_S, data_keys
from minter.sealing import _context
from minter.sealing_rotation import SealingRotation
from minter.sources import Context, SourceError, Sources
from tests.minter.vault import CANARY, Vault, quick_directory

#: How long a version of the sealing key is kept after its successor took over.
OVERLAP_S = 3600.0


@pytest.fixture
async def vault(clock):
    with quick_directory() as directory:
        vault = Vault(directory, clock)
        vault.key("api", "file:api-key")
        vault.put("api-key", CANARY)
        vault.key("signer", "sealed:signer", use="signing")
        yield vault
        await vault.stop()


def sealing_file(vault):
    return vault.directory / "state" / "sealing.key"


def rotation(vault, ended=None):
    async def end_all(reason):
        if ended is not None:
            ended.append(reason)

    return SealingRotation(
        vault.custody.data_keys, vault.store, clock=vault.clock, overlap_s=OVERLAP_S, end_all=end_all
    )


async def seal_a_lease(vault, run="run_1", value=CANARY):
    """Write a lease with a sealed value, and return its id."""
    await vault.lend("api", 1, run=run)
    lease_id = f"lse_api_1_{run}"
    sealer = vault.custody.data_keys.sealer

    def work(connection):
        place = lease_rows.place(lease_rows.get(connection, lease_id))
        sealed = sealer.seal_credential(place, {"value": Secret(value)})
        connection.exec_driver_sql(
            "UPDATE leases SET data_key = ?, sealed = ? WHERE id = ?", (sealed.data_key, sealed.blob, lease_id)
        )
        return None, ()

    await vault.store.write(work)
    return lease_id


async def signer_of(vault):
    return (await asyncio.to_thread(vault.custody.reader.sources.read, "sealed:signer")).reveal()


async def value_of(vault, lease_id):
    row, sealed = await vault.store.read(lambda c: (lease_rows.get(c, lease_id), lease_rows.value_of(c, lease_id)))
    opened = vault.custody.data_keys.sealer.open_credential(lease_rows.place(row), sealed)
    return opened["value"].reveal()


# --- the first start and every later one ---


async def test_the_first_start_makes_a_sealing_key_for_its_user_alone_beside_the_state(vault):
    await vault.start()
    assert sealing_file(vault).stat().st_mode & 0o777 == 0o600
    assert len(base64.b64decode(sealing_file(vault).read_text())) == 32
    assert await vault.phases(SEALING_KEY) == {1: "active"}


async def test_what_is_sealed_opens_after_a_restart_and_nothing_of_it_is_in_the_state(vault):
    await vault.start()
    lease_id = await seal_a_lease(vault)
    signer = await signer_of(vault)
    params = vault.custody.param_digest({"customer": "acme"})
    await vault.restart()
    assert await value_of(vault, lease_id) == CANARY
    assert await signer_of(vault) == signer
    assert vault.custody.param_digest({"customer": "acme"}) == params
    written = b"".join(p.read_bytes() for p in vault.directory.iterdir() if p.name.startswith("minter.db"))
    middle = signer.splitlines()[1]
    for secret in (CANARY, signer, middle, sealing_file(vault).read_text(), vault.custody._params_key.hex()):
        assert secret.encode() not in written
    assert vault.custody._params_key not in written


async def test_a_state_without_its_sealing_key_does_not_start_and_gets_no_new_one(vault):
    await vault.start()
    await vault.stop()
    kept = sealing_file(vault).read_text()
    sealing_file(vault).unlink()
    with pytest.raises(ConfigurationError, match="second copy"):
        await vault.start()
    assert not sealing_file(vault).exists()
    await vault.stop()
    vault.put("state/sealing.key", kept)
    await vault.start()


async def test_a_state_does_not_start_with_another_sealing_key(vault):
    await vault.start()
    await vault.stop()
    vault.put("state/sealing.key", base64.b64encode(secrets.token_bytes(32)).decode())
    with pytest.raises(ConfigurationError, match="another key than the one"):
        await vault.start()


@pytest.mark.parametrize("content", ["", "hello", base64.b64encode(b"short").decode()])
async def test_what_is_no_sealing_key_is_a_fault_that_does_not_show_it(vault, content):
    (vault.directory / "state").mkdir(mode=0o700, exist_ok=True)
    vault.put("state/sealing.key", content)
    with pytest.raises(ConfigurationError) as refused:
        await vault.start()
    assert not content or content not in str(refused.value)


@pytest.mark.parametrize("source", ["env:KEY", "fd:5", "sealed:sealing-key"])
async def test_a_sealing_key_lives_where_it_outlasts_the_state(vault, source):
    vault.key(SEALING_KEY, source, use="sealing")
    with pytest.raises(ConfigurationError, match="cannot be where a sealing key lives"):
        await vault.start()


async def test_a_sealing_key_may_move_to_another_place(vault):
    await vault.start()
    lease_id = await seal_a_lease(vault)
    await vault.stop()
    sealing_file(vault).rename(vault.directory / "elsewhere.key")
    vault.key(SEALING_KEY, "file:elsewhere.key", use="sealing")
    await vault.start()
    assert await value_of(vault, lease_id) == CANARY
    assert [row.source_ref for row in await vault.versions() if row.alias == SEALING_KEY] == ["file:elsewhere.key"]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE data_keys SET wrapped = zeroblob(60)",
        "UPDATE data_keys SET sealing_version = 2",
        "UPDATE data_keys SET id = 9",
        "DELETE FROM data_keys",
    ],
)
async def test_a_data_key_that_was_changed_stops_the_start(vault, change):
    await vault.start()
    await vault.store.write(lambda c: (c.exec_driver_sql(change) and None, ()))
    await vault.stop()
    with pytest.raises(ConfigurationError, match=SEALING_KEY):
        await vault.start()


async def test_the_keys_of_the_first_schema_are_sealed_and_wiped_at_the_first_start(vault):
    vault.open()
    plain = {name: secrets.token_hex(32) for name in ("fingerprint_key", "params_key")}

    def as_0001_did(connection):
        for name, value in plain.items():
            connection.exec_driver_sql("INSERT INTO meta (name, value) VALUES (?, ?)", (name, value))
        return None, ()

    await vault.store.write(as_0001_did)
    await vault.custody.load(vault.store, vault.grants)
    assert vault.custody._params_key.hex() == plain["params_key"]
    assert vault.custody.reader.fingerprint_key.hex() == plain["fingerprint_key"]
    await vault.restart()
    assert vault.custody._params_key.hex() == plain["params_key"]
    for path in vault.directory.iterdir():
        if path.name.startswith("minter.db"):
            written = path.read_bytes()
            assert not [name for name, value in plain.items() if value.encode() in written], path.name


# --- a data key's day ---


async def test_a_data_key_seals_for_a_day_and_what_it_sealed_moves_to_the_next(vault):
    await vault.start()
    keys = vault.custody.data_keys
    lease_id = await seal_a_lease(vault)
    await keys.tick(vault.store, vault.clock.now())
    assert keys.sealer.current == 1
    vault.clock.advance(USED_S)
    await keys.tick(vault.store, vault.clock.now())
    assert keys.sealer.current == 2
    assert [row.number for row in await vault.store.read(data_keys)] == [2]
    assert await value_of(vault, lease_id) == CANARY
    assert await vault.store.read(resealing.left) == 0
    await vault.restart()
    assert await value_of(vault, lease_id) == CANARY
    assert [event["data_key"] for event in vault.events("data-key.destroyed")] == [1]


@pytest.mark.parametrize("by", ["age", "rotation"])
async def test_a_new_data_key_that_the_log_was_not_told_of_is_used_and_nothing_sealed_is_lost(vault, monkeypatch, by):
    """The race: it is committed, the log fails, and who asked takes it for not done."""
    await vault.start()
    keys = vault.custody.data_keys
    lease_id = await seal_a_lease(vault)
    turning = rotation(vault)
    vault.clock.advance(USED_S if by == "age" else 1.0)

    def full(*_events, **_now):
        raise AuditUnavailable("no space is left")

    with monkeypatch.context() as patch:
        # For a rotation, when it takes over: what was written before is told.
        if by == "age":
            patch.setattr(vault.audit, "append", full)
        else:
            patch.setattr(failpoints, "reached", lambda name: name == "rewrap.activating" and fail(patch))

        def fail(patch):
            patch.setattr(vault.audit, "append", full)

        with pytest.raises(ProblemError, match="audit-unavailable"):
            await (keys.tick(vault.store, vault.clock.now()) if by == "age" else turning.request("start"))
    late = await seal_a_lease(vault, "run_2")
    for _ in range(2):
        await turning.tick(vault.clock.now())
    assert [(row.number, row.phase) for row in await vault.store.read(data_keys)] == [(2, "active")]
    assert keys.sealer.current == 2
    await vault.restart()
    assert [await value_of(vault, one) for one in (lease_id, late)] == [CANARY] * 2


async def test_a_day_that_ends_while_the_sealing_key_cannot_be_had_goes_on_with_the_old_data_key(vault):
    await vault.start()
    lease_id = await seal_a_lease(vault)
    away = sealing_file(vault).rename(sealing_file(vault).with_suffix(".away"))
    vault.clock.advance(USED_S)
    turning = rotation(vault)
    with pytest.raises(ProblemError) as refused:
        await turning.tick(vault.clock.now())
    assert refused.value.code == "secret-unavailable"
    assert vault.custody.data_keys.sealer.current == 1
    assert await value_of(vault, lease_id) == CANARY
    away.rename(sealing_file(vault))
    await turning.tick(vault.clock.now())
    assert vault.custody.data_keys.sealer.current == 2
    assert await value_of(vault, lease_id) == CANARY


async def test_a_data_key_stays_while_a_value_of_it_is_left(vault, monkeypatch):
    monkeypatch.setattr("minter.data_keys.BATCH", 2)
    await vault.start()
    ids = [await seal_a_lease(vault, f"run_{n}") for n in range(5)]
    keys = vault.custody.data_keys
    vault.clock.advance(USED_S)
    await keys.tick(vault.store, vault.clock.now())
    assert await vault.store.read(resealing.left) == 3
    assert keys.moving
    # A restart in the middle goes on.
    await vault.restart()
    assert [await value_of(vault, lease_id) for lease_id in ids] == [CANARY] * 5
    keys = vault.custody.data_keys
    for _ in range(3):
        await keys.tick(vault.store, vault.clock.now())
    assert not keys.moving
    assert len(await vault.store.read(data_keys)) == 1
    assert [await value_of(vault, lease_id) for lease_id in ids] == [CANARY] * 5


async def test_a_lease_whose_value_was_tampered_with_is_erased_as_it_moves_and_the_log_says_so(vault):
    await vault.start()
    good, bad = [await seal_a_lease(vault, run) for run in ("run_1", "run_2")]
    swap = "UPDATE leases SET sealed = (SELECT sealed FROM leases WHERE id = ?) WHERE id = ?"
    await vault.store.write(lambda c: (c.exec_driver_sql(swap, (good, bad)) and None, ()))
    vault.clock.advance(USED_S)
    await vault.custody.data_keys.tick(vault.store, vault.clock.now())
    assert await value_of(vault, good) == CANARY
    assert [event["lease_id"] for event in vault.events("seal.refused")] == [bad]
    empty = await vault.store.read(
        lambda c: c.exec_driver_sql("SELECT id FROM leases WHERE sealed IS NULL").scalars().all()
    )
    assert empty == [bad]


async def test_a_key_that_was_tampered_with_is_not_thrown_away_and_is_told_once(vault):
    await vault.start()
    spoil = "UPDATE sealed_values SET sealed = zeroblob(80) WHERE name = 'signer'"
    await vault.store.write(lambda c: (c.exec_driver_sql(spoil) and None, ()))
    vault.clock.advance(USED_S)
    for _ in range(3):
        await vault.custody.data_keys.tick(vault.store, vault.clock.now())
    assert [event["alias"] for event in vault.events("seal.refused")] == ["signer"]
    assert ("signer", 1) in await vault.store.read(sealed_values.names)
    assert len(await vault.store.read(data_keys)) == 2


# --- another sealing key ---


async def test_a_rotation_wraps_everything_by_a_new_key_and_deletes_the_old_one(vault):
    await vault.start()
    lease_id, turning = await seal_a_lease(vault), rotation(vault)
    old = sealing_file(vault).read_text()
    plan = await turning.request("start", uid=0)
    assert (plan["state"], plan["active_version"], plan["next_step"]) == ("retiring", 2, "retire")
    vault.clock.advance(OVERLAP_S - 1)
    await turning.tick(vault.clock.now())
    assert await vault.phases(SEALING_KEY) == {1: "retiring", 2: "active"}
    assert sealing_file(vault).read_text() == old
    vault.clock.advance(1)
    await turning.tick(vault.clock.now())
    assert await vault.phases(SEALING_KEY) == {1: "destroyed", 2: "active"}
    assert not sealing_file(vault).exists()
    new = (vault.directory / "state" / "sealing.key.v2").read_text()
    assert new != old
    assert await value_of(vault, lease_id) == CANARY
    assert {row.sealing_version for row in await vault.store.read(data_keys)} == {2}
    await vault.restart()
    assert await value_of(vault, lease_id) == CANARY
    codes = [code for code in vault.codes() if code.startswith("key.")]
    assert codes == [
        "key.created",  # of the two keys of this test
        "key.created",
        "key.rotation-begun",
        "key.rotation-prepared",
        "key.rotation-activated",
        "key.destroyed",
    ]


async def test_a_second_start_while_the_version_before_is_kept_is_a_conflict_and_not_another_rotation(vault):
    await vault.start()
    turning = rotation(vault)
    await turning.request("start")
    for _ in range(2):
        with pytest.raises(ProblemError) as refused:
            await turning.request("start")
        assert refused.value.code == "rotation-running"
        assert "--finish" in refused.value.detail
        await vault.restart()
        turning = rotation(vault)
    assert await vault.phases(SEALING_KEY) == {1: "retiring", 2: "active"}
    assert (await turning.request("start", compromised=True))["active_version"] == 3
    assert await vault.phases(SEALING_KEY) == {1: "destroyed", 2: "destroyed", 3: "active"}


async def test_a_stolen_copy_of_the_old_key_opens_nothing_that_is_in_the_state_after_a_rotation(vault):
    await vault.start()
    lease_id, turning = await seal_a_lease(vault), rotation(vault)
    stolen = vault.custody.data_keys.sealer._keys[1]
    await turning.request("start")
    await turning.request("finish")
    row, sealed = await vault.store.read(lambda c: (lease_rows.get(c, lease_id), lease_rows.value_of(c, lease_id)))
    assert sealed.data_key == 2
    context = _context(("minter-broker seal 1", 2, *lease_rows.place(row)))
    with pytest.raises(InvalidTag):
        stolen.decrypt(sealed.blob[:12], sealed.blob[12:], context)


async def test_a_second_rotation_while_values_move_is_a_conflict(vault, monkeypatch):
    monkeypatch.setattr("minter.data_keys.BATCH", 1)
    await vault.start()
    for run in ("run_1", "run_2", "run_3"):
        await seal_a_lease(vault, run)
    turning = rotation(vault)
    assert (await turning.request("start"))["next_step"] == "move"
    with pytest.raises(ProblemError) as refused:
        await turning.request("start")
    assert refused.value.code == "rotation-running"
    await turning.request("finish")
    assert (await turning.request("start"))["active_version"] == 3


@pytest.mark.parametrize("compromised", [False, True])
async def test_the_plan_says_how_much_is_to_be_sealed_anew_and_how_long_the_old_key_is_kept(vault, clock, compromised):
    await vault.start()
    await seal_a_lease(vault)
    plan = await rotation(vault).request("start", dry_run=True, compromised=compromised, overlap_s=600.0)
    *_, move, retire = plan["steps"]
    assert f"({plan['sealed_values']} left)" in move["does"]
    assert plan["sealed_values"] > 0
    assert retire["at"] == rfc3339(clock.now() + (0.0 if compromised else 600.0))
    assert ("--finish" in retire["does"]) is not compromised


async def test_the_plan_of_a_compromise_begins_anew_wherever_a_rotation_stands(vault):
    await vault.start()
    turning = rotation(vault)
    assert (await turning.request("start"))["state"] == "retiring"
    plan = await turning.request("start", dry_run=True, compromised=True)
    assert not [step for step in plan["steps"] if step["done"]]
    assert f"({plan['sealed_values']} left)" in plan["steps"][2]["does"]


async def test_a_dry_run_changes_nothing(vault):
    await vault.start()
    await seal_a_lease(vault)
    before = await vault.versions(), await vault.store.read(data_keys), vault.codes()
    plan = await rotation(vault).request("start", dry_run=True)
    assert plan["next_step"] == "prepare"
    assert plan["sealed_values"] == 3
    assert (await vault.versions(), await vault.store.read(data_keys), vault.codes()) == before


async def test_after_a_compromise_every_lease_ends_and_a_person_is_told_what_is_left_to_do(vault):
    await vault.start()
    await seal_a_lease(vault)
    ended = []
    plan = await rotation(vault, ended).request("start", compromised=True)
    assert ended == ["key-compromised"]
    assert plan["affected"]["leases"] == 1
    assert any("signer" in line for line in plan["to_do"])


async def test_after_a_compromise_every_lease_ends_though_no_new_key_can_be_kept(vault):
    await vault.start()
    await seal_a_lease(vault)
    sealing_file(vault).unlink()
    ended = []
    with pytest.raises(ProblemError):
        await rotation(vault, ended).request("start", compromised=True)
    assert ended == ["key-compromised"]


async def test_a_sealing_key_that_cannot_be_read_when_a_day_is_over_is_said_and_asked_for_again(vault, clock):
    await vault.start()
    turning, kept = rotation(vault), sealing_file(vault).with_name("kept")
    sealing_file(vault).rename(kept)
    clock.advance(USED_S)
    with pytest.raises(ProblemError, match="secret-unavailable"):
        await turning.tick(clock.now())
    kept.rename(sealing_file(vault))
    await turning.tick(clock.now())
    assert vault.codes().count("data-key.renewed") == 1


async def test_a_data_key_that_the_state_has_no_longer_is_forgotten_though_the_log_was_not_told(
    vault, clock, monkeypatch
):
    await vault.start()
    await seal_a_lease(vault)
    old, append = vault.custody.data_keys.sealer.current, vault.audit.append

    def fails(events, *, now):
        if any(event.code == "data-key.destroyed" for event in events):
            raise AuditUnavailable("full")
        append(events, now=now)

    clock.advance(USED_S)
    with monkeypatch.context() as broken:
        broken.setattr(vault.audit, "append", fails)
        with pytest.raises(ProblemError, match="audit-unavailable"):
            await rotation(vault).tick(clock.now())
    await rotation(vault).tick(clock.now())
    assert old not in vault.custody.data_keys.sealer._keys
    assert not vault.custody.data_keys.moving


async def test_a_state_that_does_not_answer_is_a_source_that_cannot_be_reached(vault, monkeypatch):
    await vault.start()
    monkeypatch.setattr(sealed_values, "_ANSWER_S", 0.05)
    hangs = threading.Event()
    writing = asyncio.ensure_future(vault.store.write(lambda _connection: (hangs.wait(10), ())))
    try:
        with pytest.raises(SourceError, match="does not answer"):
            await signer_of(vault)
    finally:
        hangs.set()
        await writing


class Killed(BaseException):
    pass


async def whole(turning, clock):
    await turning.request("start", overlap_s=0)
    await turning.tick(clock.now())


@pytest.mark.parametrize(
    "point",
    ["begun", "written", "prepared", "activating", "activated", "moved", "deleted"],
)
async def test_a_rotation_that_is_killed_at_any_step_is_taken_up_and_loses_nothing(vault, monkeypatch, point):
    await vault.start()
    lease_id = await seal_a_lease(vault)

    def reached(name):
        if name == f"rewrap.{point}":
            raise Killed

    with monkeypatch.context() as kill:
        kill.setattr("minter.sealing_rotation.failpoints.reached", reached)
        with pytest.raises(Killed):
            await whole(rotation(vault), vault.clock)
    await vault.restart()
    phases = list((await vault.phases(SEALING_KEY)).values())
    assert phases.count("active") == 1
    assert await value_of(vault, lease_id) == CANARY
    turning = rotation(vault)
    for _ in range(3):
        vault.clock.advance(OVERLAP_S)
        await turning.tick(vault.clock.now())
    assert await vault.phases(SEALING_KEY) == {1: "destroyed", 2: "active"}
    assert await value_of(vault, lease_id) == CANARY
    await vault.restart()
    assert await value_of(vault, lease_id) == CANARY
    assert sorted(os.listdir(vault.directory / "state")) == ["sealing.key.v2"]


async def test_a_rotation_can_be_given_up_before_the_new_key_is_in_use(vault, monkeypatch):
    await vault.start()

    def reached(name):
        if name == "rewrap.prepared":
            raise Killed

    with monkeypatch.context() as kill:
        kill.setattr("minter.sealing_rotation.failpoints.reached", reached)
        with pytest.raises(Killed):
            await rotation(vault).request("start")
    plan = await rotation(vault).request("abort")
    assert (plan["state"], plan["active_version"]) == ("idle", 1)
    assert sorted(os.listdir(vault.directory / "state")) == ["sealing.key"]
    with pytest.raises(ProblemError):
        await rotation(vault).request("abort")


async def test_an_old_key_that_cannot_be_deleted_is_marked_and_tried_again(vault, monkeypatch):
    await vault.start()
    turning = rotation(vault)
    sources = vault.custody.data_keys.sources
    delete = sources.delete

    def refuse(_ref):
        raise SourceError("is held")

    monkeypatch.setattr(sources, "delete", refuse)
    await turning.request("start")
    await turning.request("finish")
    row = next(row for row in await vault.versions() if row.alias == SEALING_KEY and row.version == 1)
    assert (row.phase, row.problem) == ("retiring", "source-failed")
    monkeypatch.setattr(sources, "delete", delete)
    vault.clock.advance(3600)
    await turning.tick(vault.clock.now())
    assert await vault.phases(SEALING_KEY) == {1: "destroyed", 2: "active"}


async def test_what_is_sealed_opens_in_a_running_minter_only(vault):
    await vault.start()
    outside = Sources(Context(environ={}, base=vault.directory))
    with pytest.raises(SourceError, match="running minter"):
        outside.read("sealed:signer")
