"""Credentials of leases stand sealed in the state: nothing of them can be read there, moved, swapped or put back."""

from __future__ import annotations

import base64
import dataclasses
import gc
import shutil

import pytest

from config.problems import ProblemError
from config.secret import Secret
from minter import minting
from minter.data_keys import data_keys
from minter.kinds import RevocationError
from minter.lease_rows import LeaseRow
from minter.revocation import Endings
from minter.sealing import read_sealing_key, unwrap
from minter.tables import leases
from tests.minter.lease_world import CANARY

CHANGE = "UPDATE leases SET data_key = ?, sealed = ? WHERE id = ?"


async def columns(world, lease_id):
    """Return the data key's number and the sealed value of a lease, as they stand in its row."""
    query = "SELECT data_key, sealed FROM leases WHERE id = ?"
    return await world.minter.store.read(lambda found: tuple(found.exec_driver_sql(query, (lease_id,)).one()))


async def put(world, lease_id, data_key, blob):
    """Write them, as somebody could who can write the file."""
    await world.minter.store.write(
        lambda found: (found.exec_driver_sql(CHANGE, (data_key, blob, lease_id)).close(), ())
    )


def shapes(secret: bytes):
    """Return a secret as it stands, in hexadecimal digits, and in base64 wherever it may begin in a longer text."""
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    for skip in range(3):
        whole = base64.b64encode(secret[skip : skip + (len(secret) - skip) // 3 * 3])
        yield whole
        yield whole.translate(bytes.maketrans(b"+/", b"-_"))


async def secrets_of(world, lent):
    """Return every secret that this minter has, by what it is."""
    custody = world.minter.custody
    sealing = Secret((world.folder / "state" / "sealing.key").read_text().strip())
    rows = await world.minter.store.read(data_keys)
    found = {f"{one.row.kind} {one.row.id}": one.credential["value"].reveal().encode() for one in lent}
    found |= {
        "static key": CANARY.encode(),
        "signing key": (world.folder / "secrets" / "signer").read_bytes().strip(),
        "params key": custody._params_key,
        "fingerprint key": custody.reader.fingerprint_key,
        "sealing key": read_sealing_key(sealing),
    }
    for row in rows:
        key = unwrap(
            read_sealing_key(sealing), sealing_version=row.sealing_version, number=row.number, wrapped=row.wrapped
        )
        found[f"data key {row.number}"] = key
    return found


async def test_no_byte_of_a_secret_is_in_any_file_of_the_database(world):
    lent = [await world.lease(profile=profile) for profile in ("static", "jwt", "remote") for _ in range(3)]
    await world.minter.service.end_run("b1", lent[0].row.run_id)
    await world.minter.endings.drain(5)
    state = world.folder / "state"
    # A copy that a change of the schema puts beside the state, and what the journal holds at this moment.
    shutil.copy(state / "minter.db", state / "minter.db.before-test")
    files = [path for path in state.iterdir() if path.name.startswith("minter.db")]
    assert len(files) >= 3
    everything = b"\n".join(path.read_bytes() for path in files)
    assert lent[-1].row.id.encode() in everything, "the files are not the ones that are searched"
    for what, secret in (await secrets_of(world, lent)).items():
        assert len(secret) >= 8, what
        assert not any(shape in everything for shape in shapes(secret)), f"{what} is in the state"


async def test_the_search_finds_a_secret_that_is_there(world):
    """The search above would be worth nothing if it could not find anything."""
    live = await world.lease(profile="static")
    for shape in shapes(CANARY.encode()):
        await put(world, live.row.id, 1, b"..." + shape + b"...")
        everything = (world.folder / "state" / "minter.db").read_bytes()
        assert shape in everything


# --- what does not open is refused ---


async def swap(world, first, second):
    own, other = await columns(world, first), await columns(world, second)
    await put(world, first, *other)
    await put(world, second, *own)


async def test_swapped_values_of_two_leases_do_not_open_and_both_leases_end(world):
    requests = [world.request("static"), world.request("static")]
    lent = [await world.lease(request) for request in requests]
    await swap(world, *(one.row.id for one in lent))
    for request, before in zip(requests, lent, strict=True):
        after = await world.lease(request)
        assert after.row.id != before.row.id
        row = await world.row(before.row.id)
        assert (row.state, row.end_reason) == ("revoked", "value-lost")
        assert world.codes(lease_id=before.row.id, prefix="") == [
            "lease.requested",
            "lease.minted",
            "seal.refused",
            "lease.revoked",
        ]


async def test_a_value_that_was_moved_to_another_lease_does_not_open(world):
    rich, poor = await world.lease(profile="jwt"), world.request("remote")
    lent = await world.lease(poor)
    await put(world, lent.row.id, *await columns(world, rich.row.id))
    again = await world.lease(poor)
    assert again.row.id != lent.row.id
    assert again.credential["value"].reveal() != rich.credential["value"].reveal()
    assert "seal.refused" in world.codes(lease_id=lent.row.id, prefix="seal.")


async def test_a_value_that_was_copied_before_its_lease_ended_does_not_open_in_the_next_lease_of_the_run(world):
    request = world.request("remote")
    first = await world.lease(request)
    old = await columns(world, first.row.id)
    await world.minter.service.end_one(first.row.id, "operator")
    await world.minter.endings.drain(5)
    second = await world.lease(request)
    await put(world, second.row.id, *old)
    third = await world.lease(request)
    assert third.row.id not in (first.row.id, second.row.id)
    assert third.credential["value"].reveal() != first.credential["value"].reveal()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("kind", "jwt"),
        ("broker", "b2"),
        ("run_id", "run_9999999999999999999999"),
        ("caller", "somebody"),
        ("profile", "jwt"),
        ("params_digest", "hmac-sha256:0"),
        ("origin", "https://evil.example.com"),
        ("expires_at", 4e9),
    ],
)
async def test_a_value_does_not_open_once_its_row_says_that_it_is_anothers_or_for_longer(world, column, value):
    live = await world.lease(profile="static")
    assert await world.minter.service.values.hand_out(await world.row(live.row.id)) is not None
    update = f"UPDATE leases SET {column} = ? WHERE id = ?"  # noqa: S608
    await world.minter.store.write(lambda found: (found.exec_driver_sql(update, (value, live.row.id)).close(), ()))
    assert await world.minter.service.values.hand_out(await world.row(live.row.id)) is None


async def test_rows_that_swap_their_ids_and_values_lend_nobody_the_others_credential(world):
    requests = [world.request("jwt"), world.request("jwt")]
    lent = [await world.lease(request) for request in requests]
    first, second = (one.row.id for one in lent)
    values = {first: await columns(world, first), second: await columns(world, second)}

    def exchange(connection):
        for old, new in ((first, "aside"), (second, first), ("aside", second)):
            connection.exec_driver_sql("UPDATE leases SET id = ? WHERE id = ?", (new, old))
        for id_, value in values.items():
            connection.exec_driver_sql(CHANGE, (*value, id_))
        return None, ()

    await world.minter.store.write(exchange)
    await world.restart()
    again = [await world.lease(request) for request in requests]
    assert not {one.row.id for one in again} & {first, second}


@pytest.mark.parametrize(
    "damage", [(99, None), (None, b""), (1, b""), (1, b"\0" * 12), (1, b"\0" * 80), ("1", b"x"), (1, "text")]
)
async def test_a_value_that_is_damaged_ends_its_lease_and_stops_nothing(world, damage):
    request = world.request("jwt")
    first = await world.lease(request)
    data_key, blob = await columns(world, first.row.id)
    await put(
        world,
        first.row.id,
        *(given if given is not None else own for given, own in zip(damage, (data_key, blob), strict=True)),
    )
    second = await world.lease(request)
    assert second.row.id != first.row.id
    assert (await world.row(first.row.id)).end_reason == "value-lost"
    assert (await world.lease(request)).row.id == second.row.id


async def test_an_upstream_is_still_asked_to_end_what_does_not_open_by_the_leases_name(world):
    lent = [await world.lease(profile="remote") for _ in range(2)]
    await swap(world, *(one.row.id for one in lent))
    await world.minter.service.end_run("b1", lent[0].row.run_id)
    await world.minter.endings.drain(5)
    assert (world.remote.revoked, world.remote.ended_with) == ([lent[0].row.id], [])
    assert world.codes(prefix="seal.") == ["seal.refused"]


# --- how long a value is kept ---


@pytest.mark.parametrize("profile", ["static", "jwt", "remote"])
async def test_the_value_is_erased_by_the_write_that_ends_the_lease(world, profile):
    ended, expired = await world.lease(profile=profile), await world.lease(profile=profile)
    assert None not in await columns(world, expired.row.id)
    await world.minter.service.end_run("b1", ended.row.run_id)
    await world.minter.endings.drain(5)
    assert await columns(world, ended.row.id) == (None, None)
    world.clock.advance(86_400)
    await world.minter.expiry.tick()
    await world.minter.endings.drain(5)
    assert (await world.row(expired.row.id)).state in ("expired", "revoked")
    assert await columns(world, expired.row.id) == (None, None)


async def test_erased_values_are_overwritten_in_the_database_file(world):
    lent = [await world.lease(profile="jwt", ttl_s=60.0) for _ in range(30)]
    blobs = [(await columns(world, one.row.id))[1] for one in lent]
    file = world.folder / "state" / "minter.db"
    assert all(blob in file.read_bytes() for blob in blobs)
    for one in lent[::2]:
        await world.minter.service.end_run("b1", one.row.run_id)
    world.clock.advance(86_400 + 120)
    # One tick ends the others, the next forgets them.
    for _ in range(2):
        world.clock.advance(86_400)
        await world.minter.expiry.tick()
    assert await world.states() == {}
    left = file.read_bytes()
    pieces = [blob[start : start + 16] for blob in blobs for start in range(0, len(blob) - 16, 16)]
    assert [piece for piece in pieces if piece in left] == []


async def test_what_an_issuer_does_not_end_keeps_its_value_until_it_is_ended(world):
    live = await world.lease(profile="remote")
    world.remote.refuse = [RevocationError(permanent=True)]
    await world.minter.service.end_run("b1", live.row.run_id)
    await world.minter.endings.drain(5)
    assert (await world.row(live.row.id)).state == "irrevocable"
    await world.restart()
    assert None not in await columns(world, live.row.id)


async def test_the_value_of_a_row_that_is_set_aside_is_erased(world):
    live = await world.lease(profile="jwt")
    update = "UPDATE leases SET created_at = 'x' WHERE id = ?"
    await world.minter.store.write(lambda found: (found.exec_driver_sql(update, (live.row.id,)).close(), ()))
    await world.restart()
    assert await columns(world, live.row.id) == (None, None)


async def test_no_credential_is_held_in_memory_once_it_was_lent(world):
    live = await world.lease(profile="jwt")
    await world.lease(profile="jwt", run_id=live.row.run_id)
    ours = live.credential["value"]
    del live
    gc.collect()
    assert [type(one) for one in gc.get_referrers(ours) if type(one) in (dict, list, set, tuple)] == []


async def test_a_lease_that_an_older_program_left_without_a_value_is_ended_at_the_start(world):
    request = world.request("jwt")
    old, kept = await world.lease(request), await world.lease(profile="jwt")
    await put(world, old.row.id, None, None)
    await world.restart()
    assert [one.id for one in world.minter.book] == [kept.row.id]
    row = await world.row(old.row.id)
    assert (row.state, row.end_reason) == ("revoked", "value-lost")
    assert "seal.refused" not in world.codes(lease_id=old.row.id, prefix="")


async def test_leases_of_a_key_that_was_changed_in_place_while_the_minter_was_down_are_ended_at_the_start(world):
    request, other = world.request("static"), world.request("jwt")
    lent, kept = await world.lease(request), await world.lease(other)
    await world.stop()
    world.secret("api-key", CANARY + "-changed")
    await world.start()
    assert (await world.row(lent.row.id)).end_reason == "key-changed"
    assert (await world.lease(request)).credential["value"].reveal() == CANARY + "-changed"
    assert (await world.lease(other)).row.id == kept.row.id


async def test_leases_of_a_key_that_was_changed_in_place_end_though_the_minter_was_killed_as_it_noticed(
    world, monkeypatch
):
    lent = await world.lease(profile="static")
    await world.stop()
    world.secret("api-key", CANARY + "-changed")
    with monkeypatch.context() as patch:
        patch.setattr(Endings, "close_later", lambda *_args: None)
        await world.start()
    assert (await world.row(lent.row.id)).state == "active"
    await world.crash()
    assert lent.row.id not in world.minter.book
    await world.stop()
    await world.start()
    row = await world.row(lent.row.id)
    assert (row.state, row.end_reason) == ("revoked", "key-changed")


async def test_a_credential_that_could_not_be_written_is_still_ended_upstream_with_its_value(world, monkeypatch):
    def no_outcome(*_args):
        def work(_connection):
            raise ProblemError("state-unavailable")

        return work

    monkeypatch.setattr(minting, "outcome", no_outcome)
    assert await world.refusal(profile="remote") == "state-unavailable"
    await world.minter.endings.drain(5)
    assert world.remote.ended_with == ["remote-0"]
    assert world.minter.service.values._held == {}


def test_a_row_has_every_column_of_the_table_but_its_sealed_value():
    names = {field.name for field in dataclasses.fields(LeaseRow)}
    assert {str(column.name) for column in leases.columns} - names == {"data_key", "sealed"}
    assert names <= {str(column.name) for column in leases.columns}
