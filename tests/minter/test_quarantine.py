"""A restored state: nothing is lent or ended until an operator confirms it; then what the backup calls live ends."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from config.problems import ProblemError
from minter import key_rows, quarantine


async def restored(world):
    """Stop the minter, put its state in quarantine as a restore does, start it again."""
    await world.stop()
    quarantine.begin(world.folder / "state/minter.db", now=world.clock.now())
    await world.start()


async def ended(world, lent):
    """Wait until the ends of a confirmation are written; return why this one ended."""
    while world.minter.endings._later:
        await asyncio.wait(world.minter.endings._later)
    await world.minter.expiry.tick()
    kept = await world.minter.store.read(
        lambda found: found.exec_driver_sql("SELECT name FROM meta WHERE name = 'restore-confirmed'").all()
    )
    assert kept == []
    return (await world.row(lent.row.id)).end_reason


async def test_a_restored_state_lends_ends_revokes_and_sweeps_nothing(world):
    request, remote = world.request(), world.request("remote")
    lent, far = await world.lease(request), await world.lease(remote)
    await restored(world)
    assert await world.refusal(request) == "quarantined"
    assert await world.refusal() == "quarantined"
    service = world.minter.service
    for ending in (
        service.end_run("b1", request.run_id),
        service.end(lambda _live: True, "operator"),
        service.end_one(lent.row.id, "operator"),
        world.minter.reloader.reload(),
    ):
        with pytest.raises(ProblemError, match="quarantined"):
            await ending
    before = await world.states()
    world.clock.advance(7200)
    await world.minter.expiry.tick()
    assert await world.states() == before == {"active": 2}
    assert world.remote.revoked == []
    assert far.row.id in {live.row.id for live in world.minter.book}
    assert "restore --confirm" in world.minter.readiness.report()["quarantine"]
    assert world.minter.expiry.healthy()


async def test_a_quarantine_outlives_a_restart_and_a_value_that_says_nothing_keeps_it(world):
    await restored(world)
    await world.restart()
    assert await world.refusal() == "quarantined"
    await world.stop()
    with sqlite3.connect(world.folder / "state/minter.db") as state:
        state.execute("UPDATE meta SET value = 'no' WHERE name = 'quarantine'")
    state.close()
    await world.start()
    assert await world.refusal() == "quarantined"


async def test_a_confirmation_says_what_it_does_ends_the_backups_leases_and_is_audited(world):
    request = world.request("remote")
    before = await world.lease(request)
    await restored(world)
    expected = await world.minter.quarantine.summary()
    done = await world.minter.quarantine.confirm(uid=7)
    assert expected == done
    assert (done.leases, done.suspects) == (1, 0)
    (event,) = [event for event in world.audit() if event["code"] == "restore.confirmed"]
    assert (event["uid"], event["count"], event["suspects"]) == (7, 1, 0)
    assert await ended(world, before) == "restored"
    again = await world.lease(request)
    assert again.row.id != before.row.id
    await world.restart()
    assert await world.refusal(profile="none") != "quarantined"
    with pytest.raises(ProblemError, match="not-quarantined"):
        await world.minter.quarantine.confirm(uid=7)


async def test_a_confirmation_that_was_cut_off_is_finished_by_the_next_start_and_new_leases_stay(world):
    before = await world.lease()
    await restored(world)

    async def cut_off():
        raise RuntimeError

    world.minter.quarantine._settle = cut_off
    with pytest.raises(RuntimeError):
        await world.minter.quarantine.confirm(uid=0)
    await world.restart()
    assert await ended(world, before) == "restored"
    world.clock.advance(1)
    after = await world.lease()
    await world.restart()
    assert (await world.row(after.row.id)).end_reason != "restored"


async def test_operators_are_refused_everything_but_the_confirmation_and_readers_see_all(served):
    world = served.world
    await world.lease()
    world.minter.quarantine.since = world.clock.now()
    for method, path, body in (
        ("DELETE", "/v1/leases?all=true", None),
        ("POST", "/v1/keys/signer/rotate", {"step": "begin"}),
        ("POST", "/v1/reload", {}),
    ):
        status, answer, _ = await served.ask("admin", method, path, json=body)
        assert (status, answer["code"]) == (503, "quarantined"), path
    status, answer, _ = await served.ask("brokers", "GET", "/v1/leases/watch", broker="b1")
    assert (status, answer["code"]) == (503, "quarantined")
    # A token of the backup may have been revoked since: nobody is told that it is good. Its key is still published.
    form = {"Content-Type": "application/x-www-form-urlencoded", **served.bearer()}
    status, answer, _ = await served.ask("public", "POST", "/v1/introspect", data=b"token=x", headers=form)
    assert (status, answer["code"]) == (503, "quarantined")
    assert (await served.ask("public", "GET", "/.well-known/jwks.json"))[0] == 200
    assert (await served.ask("brokers", "GET", "/readyz"))[0] == 503
    for path in ("/v1/leases", "/v1/custody", "/v1/audit", "/v1/quarantine", "/v1/process", "/livez"):
        assert (await served.ask("admin", "GET", path))[0] == 200, path
    status, answer, _ = await served.ask("admin", "DELETE", "/v1/quarantine")
    assert (status, answer["leases"]) == (200, 1)
    assert (await served.ask("brokers", "GET", "/readyz"))[0] == 200
    assert (await served.lease())[0] == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("signer/rotate", {"step": "start"}),
        ("signer/retire", {"force": True}),
        ("signer/destroy", {}),
        ("signer/rebind", {"origins": ["https://a.example.com"]}),
        ("made/create", {"settings": {"source": "sealed:made", "use": "signing"}}),
        ("made/import", {"settings": {"source": "sealed:made"}, "value": "x"}),
    ],
)
async def test_no_key_of_a_restored_state_is_changed(served, path, body):
    served.world.minter.quarantine.since = served.world.clock.now()
    before = await served.world.minter.store.read(key_rows.versions)
    status, answer, _ = await served.ask("admin", "POST", f"/v1/keys/{path}", json=body)
    assert (status, answer["code"]) == (503, "quarantined")
    assert await served.world.minter.store.read(key_rows.versions) == before
