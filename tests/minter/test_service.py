from __future__ import annotations

import asyncio
import dataclasses
import math

import pytest

from config.problems import ProblemError
from minter import store
from minter.book import SLICE
from minter.kinds import RevocationError
from tests.minter.lease_world import CANARY, ORIGIN, grants


async def test_a_lease_is_minted_committed_and_audited_before_it_is_released(world):
    live = await world.lease(profile="jwt")
    assert (await world.row(live.row.id)).state == "active"
    assert world.codes(lease_id=live.row.id) == ["lease.requested", "lease.minted"]
    assert live.credential["value"].reveal().count(".") == 2


async def test_an_issuer_is_asked_only_after_the_intent_is_on_disk(world):
    world.remote.gate.clear()
    asking = asyncio.create_task(world.lease(profile="remote"))
    await world.remote.asked.wait()
    assert await world.states() == {"intent": 1}
    assert world.codes() == ["lease.requested", "lease.intent"]
    world.remote.gate.set()
    live = await asking
    assert world.codes(lease_id=live.row.id) == ["lease.requested", "lease.intent", "lease.minted"]


@pytest.mark.parametrize("profile", ["jwt", "remote"])
async def test_a_hundred_parallel_identical_requests_are_one_mint(world, profile):
    request = world.request(profile)
    lent = await asyncio.gather(*(world.lease(request) for _ in range(100)))
    assert len({live.row.id for live in lent}) == 1
    codes = world.codes(lease_id=lent[0].row.id)
    assert codes.count("lease.minted") == 1
    assert codes.count("lease.reissued") == 99


@pytest.mark.parametrize("profile", ["static", "jwt", "remote"])
async def test_a_request_that_comes_in_the_moment_a_mint_ends_does_not_stop_the_loop(world, profile, monkeypatch):
    request, later = world.request(profile), []
    admission, metrics = world.minter.service.admission, world.minter.service.metrics
    admit, minted = admission.admit, metrics.minted
    admitted = []

    def count(*args):
        admitted.append(args)
        assert len(admitted) < 50, "asked again and again for a mint that has ended"
        return admit(*args)

    def just_before_the_end(kind):
        minted(kind)
        if not later:
            # The loop runs it after the mint has ended and before anybody is told so.
            later.append(asyncio.create_task(world.lease(request)))

    monkeypatch.setattr(admission, "admit", count)
    monkeypatch.setattr(metrics, "minted", just_before_the_end)
    first = await world.lease(request)
    assert (await later[0]).row.id == first.row.id


async def test_a_live_lease_is_handed_out_again_and_that_is_audited(world):
    request = world.request()
    first = await world.lease(request)
    world.clock.advance(5)
    assert (await world.lease(request)).row.id == first.row.id
    assert world.codes(lease_id=first.row.id) == ["lease.requested", "lease.minted", "lease.reissued"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"caller": "other"}, "caller-not-allowed"),
        ({"params": {"customer": "other"}}, "lease-conflict"),
        ({"params": {"customer": "UPPER"}}, "params-invalid"),
        ({"params": {}}, "params-invalid"),
        ({"origin": "https://evil.example.com"}, "origin-mismatch"),
        ({"grant_digest": "sha256:00"}, "grant-mismatch"),
        ({"ttl_s": 0.0}, "run-over"),
        ({"ttl_s": -1.0}, "run-over"),
        ({"ttl_s": 86401.0}, "ttl-invalid"),
        ({"ttl_s": float("inf")}, "ttl-invalid"),
        ({"ttl_s": float("nan")}, "ttl-invalid"),
        ({"run_id": "run_short"}, "body-malformed"),
        ({"run_id": "run_" + "a" * 21 + "\n"}, "body-malformed"),
        ({"caller": "agent\nforged"}, "body-malformed"),
        ({"trace_id": "a b"}, "body-malformed"),
        ({"profile": "open", "params": {}}, "no-token"),
        ({"profile": "none", "params": {}}, "profile-unknown"),
    ],
)
async def test_what_is_not_exactly_granted_is_refused(world, change, code):
    run_id = world.run_id()
    await world.lease(run_id=run_id)
    assert await world.refusal(**{"run_id": run_id, **change}) == code
    assert len(world.minter.book) == 1


async def test_another_caller_under_the_same_run_and_profile_is_a_conflict(world):
    world.write_grants(static={"allowed_callers": ["*"]})
    await world.minter.reloader.reload()
    run_id = world.run_id()
    await world.lease(run_id=run_id)
    assert await world.refusal(run_id=run_id, caller="somebody") == "lease-conflict"


async def test_a_conflicting_request_during_a_mint_is_refused_and_not_given_the_other_ones_credential(world):
    world.write_grants(remote={"allowed_callers": ["*"]})
    await world.minter.reloader.reload()
    world.play_remote()
    world.remote.gate.clear()
    run_id = world.run_id()
    first = asyncio.create_task(world.lease(profile="remote", run_id=run_id))
    await world.remote.asked.wait()
    assert await world.refusal(profile="remote", run_id=run_id, caller="somebody") == "lease-conflict"
    world.remote.gate.set()
    await first


async def test_two_brokers_with_the_same_run_id_have_leases_of_their_own(world):
    request = world.request()
    one, two = await world.lease(request, broker="b1"), await world.lease(request, broker="b2")
    assert one.row.id != two.row.id


async def test_a_broker_gets_only_the_profiles_that_are_its_own(world):
    world.write_brokers(b1={"profiles": ["jwt"]}, b2={})
    await world.minter.reloader.reload()
    assert await world.refusal(profile="static") == "profile-not-allowed"
    await world.lease(profile="jwt")
    await world.lease(profile="static", broker="b2")


async def test_a_key_that_is_pinned_elsewhere_is_not_lent(world):
    request = world.request()
    await world.lease(request)
    await world.minter.custody.rebind(world.minter.store, "api-key", ["https://other.example.com"])
    assert await world.refusal(request) == "origin-not-pinned"
    assert await world.refusal() == "origin-not-pinned"


# --- how long ---


async def test_a_lease_ends_with_the_run_the_grant_or_the_issuers_own_end_whichever_is_first(world):
    now = world.clock.now()
    assert (await world.lease(profile="jwt", ttl_s=60.0)).row.expires_at == now + 60
    assert (await world.lease(profile="jwt", ttl_s=3000.0)).row.expires_at == now + 600
    world.remote.life_s = 90.0
    live = await world.lease(profile="remote", ttl_s=300.0)
    assert live.row.expires_at == now + 90
    assert live.live.remaining(world.clock, highest_wall=0.0) == 90
    world.clock.wall -= 86400
    assert live.live.remaining(world.clock, highest_wall=0.0) == 90


async def test_near_its_end_a_lease_is_replaced_by_one_that_lasts_longer(world):
    run_id = world.run_id()
    first = await world.lease(profile="jwt", run_id=run_id, ttl_s=3000.0)
    world.clock.advance(569)
    assert (await world.lease(profile="jwt", run_id=run_id, ttl_s=2431.0)).row.id == first.row.id
    world.clock.advance(2)
    second = await world.lease(profile="jwt", run_id=run_id, ttl_s=2429.0)
    assert second is not first
    assert second.live.remaining(world.clock, highest_wall=0.0) == 600


async def test_a_replaced_lease_stays_good_until_its_end_and_is_ended_then(world):
    run_id = world.run_id()
    first = await world.lease(profile="remote", run_id=run_id, ttl_s=3000.0)
    world.clock.advance(580)
    await world.lease(profile="remote", run_id=run_id, ttl_s=2420.0)
    await world.minter.expiry.tick()
    assert world.remote.live == {"remote-0", "remote-1"}
    assert world.minter.book.get(first.row.id) is not None
    world.clock.advance(20)
    await world.minter.expiry.tick()
    await world.minter.endings.drain(1)
    assert world.remote.live == {"remote-1"}
    assert (await world.row(first.row.id)).state == "expired"


async def test_the_last_seconds_of_a_run_work(world):
    run_id = world.run_id()
    first = await world.lease(profile="jwt", run_id=run_id, ttl_s=40.0)
    world.clock.advance(39)
    assert (await world.lease(profile="jwt", run_id=run_id, ttl_s=1.0)).row.id == first.row.id
    assert (await world.lease(profile="jwt", ttl_s=5.0)).live.remaining(world.clock, highest_wall=0.0) == 5


async def test_short_lives_do_not_make_a_mint_of_each_request(world):
    world.write_grants(remote={"ttl": 20})
    await world.minter.reloader.reload()
    world.play_remote()
    run_id = world.run_id()
    for second in range(14):
        await world.lease(profile="remote", run_id=run_id, ttl_s=600.0 - second)
        world.clock.advance(1)
    assert len(world.remote.minted) == 1


async def test_a_run_that_was_made_longer_gets_a_lease_that_lasts_longer(world):
    run_id = world.run_id()
    first = await world.lease(profile="jwt", run_id=run_id, ttl_s=40.0)
    world.clock.advance(31)
    second = await world.lease(profile="jwt", run_id=run_id, ttl_s=400.0)
    assert second.row.expires_at == first.row.expires_at + 391


# --- ending ---


async def test_the_end_of_a_run_ends_its_leases_and_says_of_each_how(world):
    run_id = world.run_id()
    for profile in ("static", "jwt", "remote"):
        await world.lease(profile=profile, run_id=run_id)
    kept = await world.lease()
    ended = await world.minter.service.end_run("b1", run_id)
    assert {(one.profile, one.state, one.how) for one in ended} == {
        ("static", "revoked", "key_still_valid"),
        ("jwt", "revoked", "expired_only"),
        ("remote", "revoked", "upstream_deleted"),
    }
    assert [one.row.id for one in world.minter.book] == [kept.row.id]


async def test_when_one_of_a_runs_leases_cannot_be_revoked_the_others_are_and_it_is_said(world):
    run_id = world.run_id()
    await world.lease(profile="jwt", run_id=run_id)
    await world.lease(profile="remote", run_id=run_id)
    world.remote.refuse = [RevocationError()]
    ended = await world.minter.service.end_run("b1", run_id)
    assert {(one.profile, one.state, one.how) for one in ended} == {
        ("jwt", "revoked", "expired_only"),
        ("remote", "revoking", ""),
    }


async def test_another_brokers_run_cannot_be_ended(world):
    run_id = world.run_id()
    live = await world.lease(run_id=run_id)
    assert await world.minter.service.end_run("b2", run_id) == []
    assert [one.row.id for one in world.minter.book] == [live.row.id]
    with pytest.raises(ProblemError, match="lease-not-found"):
        await world.minter.service.end_one(live.row.id, "revoked", broker="b2")


@pytest.mark.parametrize(
    ("by", "code"),
    [
        ("run", "run-over"),
        ("operator", "run-over"),
        ("reload", "caller-not-allowed"),
        ("narrowed", "profile-not-allowed"),
        ("removed", "profile-not-allowed"),
    ],
)
async def test_a_mint_under_way_when_its_end_is_asked_for_is_ended_too_and_not_released(world, by, code):
    world.remote.gate.clear()
    run_id = world.run_id()
    asking = asyncio.create_task(world.lease(profile="remote", run_id=run_id))
    await world.remote.asked.wait()
    # None of them waits for an issuer that may hang.
    if by == "run":
        assert await world.minter.service.end_run("b1", run_id) == []
    elif by == "operator":
        ending = world.minter.service.end(lambda live: live.row.run_id == run_id, "operator", uid=0, final=True)
        assert await ending == []
    elif by == "reload":
        world.write_grants(remote={"allowed_callers": ["other"]})
        assert await world.minter.reloader.reload() == ()
        world.play_remote()
    else:
        world.write_brokers(**({"b1": {"profiles": ["jwt"]}} if by == "narrowed" else {}), b2={})
        assert await world.minter.reloader.reload() == ()
        world.play_remote()
    world.remote.gate.set()
    with pytest.raises(ProblemError) as refused:
        await asking
    assert refused.value.code == code
    await world.minter.endings.drain(5)
    assert world.remote.live == set()
    assert await world.states() == {"revoked": 1}


@pytest.mark.parametrize("reason", ["key-retired", "key-changed", "operator"])
async def test_a_run_whose_mint_was_overtaken_by_the_end_of_its_key_gets_a_fresh_lease(world, reason):
    world.remote.gate.clear()
    run_id = world.run_id()
    asking = [asyncio.create_task(world.lease(profile="remote", run_id=run_id, ttl_s=100.0)) for _ in range(3)]
    await world.remote.asked.wait()
    await asyncio.sleep(0)
    await world.minter.service.end(lambda live: live.row.profile == "remote", reason)
    world.clock.advance(10)
    world.remote.gate.set()
    lives = await asyncio.gather(*asking)
    await world.minter.endings.drain(5)
    assert len({live.row.id for live in lives}) == 1
    assert [one.row.id for one in world.minter.book] == [lives[0].row.id]
    assert len(world.remote.live) == 1
    assert await world.states() == {"active": 1, "revoked": 1}
    # Its run has not become longer by the time that this took.
    assert lives[0].row.expires_at == world.clock.now() + 90


async def test_a_request_whose_lease_is_ended_each_time_is_refused_after_a_few(world, monkeypatch):
    mint = world.remote.mint

    async def overtaken(request):
        await world.minter.service.end(lambda _live: True, "key-retired")
        return await mint(request)

    monkeypatch.setattr(world.remote, "mint", overtaken)
    with pytest.raises(ProblemError) as refused:
        await world.lease(profile="remote")
    assert (refused.value.code, refused.value.retry_after) == ("not-ready", 1)
    await world.minter.endings.drain(5)
    assert await world.states() == {"revoked": 4}
    assert world.remote.live == set()


async def test_a_run_that_ends_while_its_overtaken_lease_is_ended_gets_no_other(world):
    world.remote.gate.clear()
    run_id = world.run_id()
    asking = asyncio.create_task(world.lease(profile="remote", run_id=run_id))
    await world.remote.asked.wait()
    await world.minter.service.end(lambda _live: True, "key-retired")
    await world.minter.service.end_run("b1", run_id)
    world.remote.gate.set()
    with pytest.raises(ProblemError, match="run-over"):
        await asking
    assert len(world.remote.minted) == 1


async def test_a_mint_under_way_goes_on_when_another_end_is_asked_for(world):
    world.remote.gate.clear()
    asking = asyncio.create_task(world.lease(profile="remote"))
    await world.remote.asked.wait()
    await world.minter.service.end(lambda live: live.row.profile == "jwt", "operator", uid=0)
    world.remote.gate.set()
    await asking


async def test_a_request_that_the_end_of_its_run_has_overtaken_is_refused(world):
    run_id = world.run_id()
    await world.minter.service.end_run("b1", run_id)
    assert await world.refusal(run_id=run_id) == "run-over"


async def test_a_caller_that_gives_up_does_not_take_the_mint_along(world):
    world.remote.gate.clear()
    request = world.request("remote")
    first = asyncio.create_task(world.lease(request))
    second = asyncio.create_task(world.lease(request))
    await world.remote.asked.wait()
    first.cancel()
    world.remote.gate.set()
    live = await second
    assert world.minter.book.get(live.row.id) is not None
    assert len(world.remote.minted) == 1


async def test_a_lease_that_ends_while_it_is_handed_out_again_is_not_released(world):
    request = world.request("jwt")
    first = await world.lease(request)
    asking = asyncio.create_task(world.lease(request))
    await asyncio.sleep(0)  # it is being written that it is handed out
    await world.minter.service.end(lambda live: live.id == first.row.id, "operator", uid=0)
    second = await asking
    assert second is not first
    assert world.minter.book.get(second.row.id) is not None


# --- failing ---


async def test_an_issuer_that_fails_is_a_problem_without_a_word_of_its_own_and_audited(world):
    world.remote.fail = RuntimeError("upstream says: secret-detail-0451")
    with pytest.raises(ProblemError) as refused:
        await world.lease(profile="remote")
    assert refused.value.code == "issuer-failed"
    assert refused.value.__cause__ is None
    assert "secret-detail" not in str(refused.value) + str(refused.value.body("minter"))
    assert world.codes() == ["lease.requested", "lease.intent", "lease.mint-failed", "lease.orphaned"]
    assert [event["problem"] for event in world.audit() if event["code"] == "lease.mint-failed"] == ["issuer-failed"]
    assert "secret-detail" not in (world.folder / "state" / "audit.jsonl").read_text()


async def test_a_failed_mint_may_have_made_something_and_stays_visible_until_its_worst_case_end(world):
    world.remote.fail = ProblemError("issuer-failed", retry_after=1)
    assert await world.refusal(profile="remote", ttl_s=100.0) == "issuer-failed"
    assert await world.states() == {"orphan_suspect": 1}
    world.clock.advance(100)
    await world.minter.expiry.tick()
    assert await world.states() == {"expired": 1}


async def test_after_a_failed_mint_the_same_run_can_mint(world):
    request = world.request("remote")
    world.remote.fail = ProblemError("secret-unavailable")
    assert await world.refusal(request) == "secret-unavailable"
    assert await world.states() == {}
    world.remote.fail = None
    await world.lease(request)
    assert await world.states() == {"active": 1}


async def test_all_who_wait_for_a_mint_that_fails_are_told_and_it_is_not_tried_again_for_each(world):
    world.remote.gate.clear()
    world.remote.fail = ProblemError("issuer-failed")
    request = world.request("remote")
    asking = [asyncio.create_task(world.lease(request)) for _ in range(20)]
    await world.remote.asked.wait()
    await asyncio.sleep(0)
    world.remote.gate.set()
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert {result.code for result in results} == {"issuer-failed"}
    assert world.codes().count("lease.mint-failed") == 1


@pytest.mark.parametrize("life_s", [math.nan, math.inf, 1e15])
async def test_an_end_that_is_no_instant_is_none_and_the_lease_is_shown_like_any_other(served, life_s):
    world = served.world
    world.remote.life_s = life_s
    lent = await world.lease(profile="remote")
    assert (await world.row(lent.row.id)).credential_ends_at is None
    status, body, _ = await served.ask("admin", "GET", "/v1/leases")
    assert (status, [lease["lives_until"] for lease in body["leases"]]) == (200, [None])


async def test_a_kind_that_gives_no_credential_is_an_issuer_that_failed(world, monkeypatch):
    async def nothing(_request):
        return None

    monkeypatch.setattr(world.remote, "mint", nothing)
    assert await world.refusal(profile="remote") == "issuer-failed"
    assert await world.states() == {"orphan_suspect": 1}


async def test_a_credential_that_has_ended_already_is_not_lent(world):
    world.remote.life_s = 0.0
    assert await world.refusal(profile="remote") == "issuer-failed"


@pytest.mark.parametrize("profile", ["static", "remote"])
async def test_when_the_audit_log_cannot_be_written_nothing_is_released(world, profile, monkeypatch):
    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(world.minter.audit._file, "_write", full)
    assert await world.refusal(profile=profile) == "audit-unavailable"
    assert len(world.minter.book) == 0
    assert world.remote.minted == []
    assert not world.minter.readiness.ready()
    monkeypatch.undo()
    live = await world.lease(profile=profile)
    assert await world.states() in ({"active": 1, "revoked": 1}, {"active": 1})
    assert "lease.minted" in world.codes(lease_id=live.row.id)
    assert world.minter.readiness.ready()


async def test_when_the_log_fails_after_an_issuer_minted_the_credential_is_revoked(world, monkeypatch):
    world.remote.gate.clear()
    asking = asyncio.create_task(world.lease(profile="remote"))
    await world.remote.asked.wait()

    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(world.minter.audit._file, "_write", full)
    world.remote.gate.set()
    with pytest.raises(ProblemError, match="audit-unavailable"):
        await asking
    await world.minter.endings.drain(1)
    assert world.remote.live == set()


async def test_when_the_state_cannot_be_written_after_an_issuer_minted_the_credential_is_revoked(world):
    world.remote.gate.clear()
    asking = asyncio.create_task(world.lease(profile="remote"))
    await world.remote.asked.wait()
    async with world.locked_state():
        world.remote.gate.set()
        with pytest.raises(ProblemError, match="state-unavailable"):
            await asking
        assert len(world.minter.book) == 0
        assert not world.minter.readiness.ready()
    await world.minter.expiry.tick()
    await world.minter.endings.drain(1)
    assert world.remote.live == set()
    assert await world.states() == {"revoked": 1}
    assert world.minter.readiness.ready()


async def test_an_end_that_is_undone_for_want_of_a_log_is_written_when_there_is_one_again(world, monkeypatch):
    first, other = await world.lease(profile="jwt"), await world.lease(profile="jwt")

    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "_OWED", 1)
    monkeypatch.setattr(world.minter.audit._file, "_write", full)
    await world.minter.service.end_one(other.row.id, "revoked")
    await world.minter.service.end_one(first.row.id, "revoked")
    assert await world.states() == {"active": 1, "revoked": 1}
    again = world.request("jwt", run_id=first.row.run_id)
    assert await world.refusal(again) in ("state-unavailable", "audit-unavailable")
    monkeypatch.undo()
    await world.minter.expiry.tick()
    assert await world.states() == {"revoked": 2}
    await world.lease(again)
    assert "lease.revoked" in world.codes(lease_id=first.row.id)


async def test_a_local_lease_whose_mint_was_undone_for_want_of_a_log_leaves_nothing(world, monkeypatch):
    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "_OWED", 0)
    monkeypatch.setattr(world.minter.audit._file, "_write", full)
    assert await world.refusal(profile="jwt") == "audit-unavailable"
    monkeypatch.undo()
    await world.minter.expiry.tick()
    assert await world.states() == {}
    assert "lease.revoked" not in world.codes()


async def test_an_end_that_cannot_be_written_stops_use_all_the_same_and_is_written_later(world):
    live = await world.lease(profile="jwt")
    async with world.locked_state():
        await world.minter.service.end_run("b1", live.row.run_id)
        assert len(world.minter.book) == 0
    assert (await world.row(live.row.id)).state == "active"
    await world.minter.expiry.tick()
    assert (await world.row(live.row.id)).state == "revoked"


async def test_a_new_lease_waits_until_the_end_of_the_one_before_is_written(world):
    request = world.request("jwt")
    first = await world.lease(request)
    async with world.locked_state():
        await world.minter.service.end(lambda _live: True, "operator", uid=0)
        assert await world.refusal(request) == "state-unavailable"
    await world.lease(request)
    assert (await world.row(first.row.id)).state == "revoked"


# --- caps ---


async def test_live_leases_are_capped_for_each_broker_and_profile(tmp_path, clock):
    from config.settings import LeaseLimits
    from tests.minter.lease_world import World

    world = await World(tmp_path / "minter", clock, lease_limits=LeaseLimits(max_live=3)).start()
    results = await asyncio.gather(*(world.lease(profile="jwt") for _ in range(5)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, ProblemError)]
    assert [(one.code, one.status, one.retry_after is not None) for one in refused] == [
        ("too-many-leases", 429, True)
    ] * 2
    await world.lease(profile="static")
    await world.lease(profile="jwt", broker="b2")
    await world.stop()


async def test_new_leases_are_capped_by_the_second_and_the_answer_says_when_to_come_again(tmp_path, clock):
    from config.settings import LeaseLimits
    from tests.minter.lease_world import World

    world = await World(tmp_path / "minter", clock, lease_limits=LeaseLimits(mint_rate=2, mint_burst=2)).start()
    request = world.request("jwt")
    await world.lease(request)
    await world.lease(profile="jwt")
    with pytest.raises(ProblemError) as refused:
        await world.lease(profile="jwt")
    assert (refused.value.code, refused.value.retry_after) == ("mint-rate-exceeded", 0.5)
    await world.lease(request)
    clock.wall -= 86400
    clock.boot += 0.5
    await world.lease(profile="jwt")
    await world.stop()


# --- reload ---


async def test_a_changed_grant_supersedes_the_lease_of_the_older_digest(world):
    run_id = world.run_id()
    first = await world.lease(profile="remote", run_id=run_id)
    old_digest = first.row.grant_digest
    world.write_grants(remote={"allow": ["GET /v1/things"]})
    await world.minter.reloader.reload()
    world.play_remote()
    assert await world.refusal(profile="remote", run_id=run_id, grant_digest=old_digest) == "grant-mismatch"
    second = await world.lease(profile="remote", run_id=run_id)
    await world.minter.endings.drain(1)
    assert second.row.id != first.row.id
    assert world.remote.live == {"remote-1"}
    assert (await world.row(first.row.id)).end_reason == "superseded"


@pytest.mark.parametrize(
    "change",
    [
        {"jwt": None},
        {"jwt": {"token": {"type": "jwt", "key": "signer", "audience": "https://other.example.com"}}},
        {"jwt": {"token": None}},
        {"jwt": {"allowed_callers": ["other"]}},
    ],
)
async def test_leases_of_a_grant_that_is_gone_or_lends_something_else_are_ended_by_the_reload(world, change):
    live = await world.lease(profile="jwt")
    kept = await world.lease(profile="static")
    if change.get("jwt", {}) == {"token": None}:
        document = grants()
        del document["profiles"]["jwt"]["token"]
        import json

        (world.folder / "grants.json").write_text(json.dumps(document))
    else:
        world.write_grants(**change)
    assert await world.minter.reloader.reload() == ()
    assert [one.row.id for one in world.minter.book] == [kept.row.id]
    row = await world.row(live.row.id)
    assert (row.state, row.end_reason) == ("revoked", "grant-changed")


async def test_leases_of_a_broker_that_is_gone_are_ended_by_the_reload(world):
    live = await world.lease(broker="b2")
    world.write_brokers(b1={})
    await world.minter.reloader.reload()
    assert (await world.row(live.row.id)).end_reason == "broker-changed"


async def test_leases_of_a_key_whose_value_was_changed_in_place_are_ended_by_the_reload(world):
    request, other = world.request(), world.request("jwt")
    live, kept = await world.lease(request), await world.lease(other)
    world.secret("api-key", CANARY + "-changed")
    assert await world.minter.reloader.reload() == ()
    row = await world.row(live.row.id)
    assert (row.state, row.end_reason) == ("revoked", "key-changed")
    again = await world.lease(request)
    assert again.credential["value"].reveal() == CANARY + "-changed"
    assert await world.minter.reloader.reload() == ()
    assert (await world.lease(request)).row.id == again.row.id
    assert (await world.lease(other)).row.id == kept.row.id


async def test_a_reload_that_does_not_load_changes_nothing_and_is_audited(world):
    live = await world.lease(profile="jwt")
    (world.folder / "grants.json").write_text('{"profiles": {"jwt": {"base_url": 7}}}')
    (world.folder / "brokers.json").write_text("{")
    faults = await world.minter.reloader.reload(uid=0)
    assert len(faults) >= 3
    assert [one.row.id for one in world.minter.book] == [live.row.id]
    assert [event["code"] for event in world.audit()][-1] == "reload.refused"
    await world.lease(profile="static")


async def test_a_key_that_a_reload_sends_to_another_origin_is_refused_by_name(world):
    await world.lease(profile="static")
    world.write_grants(static={"base_url": "https://evil.example.com"})
    faults = await world.minter.reloader.reload()
    assert "api-key is pinned" in str(faults[0])


async def test_no_secret_reaches_the_state_or_the_audit_log(world):
    live = await world.lease(profile="static")
    assert live.credential["value"].reveal() == CANARY
    await world.minter.service.end_run("b1", live.row.run_id)
    for path in (world.folder / "state").iterdir():
        assert CANARY.encode() not in path.read_bytes()
        assert b"acme" not in path.read_bytes()
    assert ORIGIN in (world.folder / "state" / "audit.jsonl").read_text()


async def test_others_are_answered_while_an_end_looks_through_many_leases(world):
    live = await world.lease(profile="jwt")
    row = live.row
    for number in range(5 * SLICE):
        world.minter.book.add(dataclasses.replace(row, id=f"lse_{number:022d}", run_id=f"run_{number:022d}"))
    looked: list[str] = []

    def none_of_them(one):
        looked.append(one.id)
        return False

    ending = asyncio.create_task(world.minter.service.end(none_of_them, "operator"))
    answered = 0
    while not ending.done():
        before = len(looked)
        await asyncio.sleep(0)
        assert len(looked) - before <= SLICE
        answered += 1
    assert (len(looked), await ending) == (5 * SLICE + 1, [])
    assert answered >= 5
