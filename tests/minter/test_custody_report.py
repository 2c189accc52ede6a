"""What the custody report says, in which order, and that it can be compared; how it holds against hostile names."""

import copy
import json

import pytest

from config.clock import parse_rfc3339, rfc3339
from config.problems import ProblemError
from config.settings import KeySettings
from minter import custody_report, report_findings, report_leases
from minter.kinds import RevocationError
from minter.report_findings import MANY_PROFILES, UNUSED_S
from tests.minter.lease_world import CANARY, ORIGIN

DAY = 86400.0


async def report(world, *, at=None):
    made = await world.minter.custody_report.make(now=world.clock.now() if at is None else at)
    assert CANARY not in json.dumps(made)
    return made


def of(made, alias):
    return next(key for key in made["keys"] if key["alias"] == alias)


async def end(world, **wanted):
    await world.minter.service.end(
        lambda live: all(getattr(live.row, name) == value for name, value in wanted.items()), "operator"
    )


# --- the head: what it was computed from ---


async def test_the_report_begins_with_what_is_open_and_ends_with_what_it_does_not_prove(world):
    assert list(await report(world)) == [
        *("version", "generated_at", "program", "installation", "quarantined_since", "grants_digest", "audit"),
        *("leases", "valid_until_rotated", "keys", "without_key", "broker_tokens", "findings", "does_not_prove"),
    ]


async def test_the_head_names_the_last_line_of_the_log_that_a_verifier_meets(world):
    await world.lease()
    made = await report(world)
    last = world.audit()[-1]
    assert (made["audit"]["seq"], made["audit"]["at"]) == (last["seq"], last["at"])
    assert made["audit"]["seq_after"] == made["audit"]["seq"]
    await world.lease()
    assert world.audit()[made["audit"]["seq"]]["prev"] == made["audit"]["hash"]
    assert made["installation"] == world.audit()[0]["installation"]


async def test_two_reports_of_one_state_are_equal_byte_for_byte_and_a_mint_changes_the_head(world):
    await world.lease()
    await world.lease(profile="jwt")
    # What a start still has to write, its checkpoint among it, is written.
    await world.minter.expiry.tick()
    now = world.clock.now()
    first = json.dumps(await report(world, at=now))
    await world.minter.expiry.tick()
    world.clock.advance(1)
    assert json.dumps(await report(world, at=now)) == first
    await world.lease()
    other = await report(world, at=now)
    assert other["audit"]["hash"] != json.loads(first)["audit"]["hash"]


async def test_a_report_is_no_event_and_changes_nothing(world):
    await world.lease()
    before = world.audit()
    await report(world)
    assert world.audit() == before


async def test_a_state_in_quarantine_says_so_in_the_report(world):
    now = world.clock.now()
    await world.minter.store.write(
        lambda found: (found.exec_driver_sql("INSERT INTO meta VALUES ('quarantine', ?)", (repr(now),)).close(), ())
    )
    assert (await report(world))["quarantined_since"] == rfc3339(now)


# --- leases ---


async def test_open_leases_say_until_when_they_live_and_whether_their_end_upstream_is_possible(world):
    static, jwt = await world.lease(), await world.lease(profile="jwt")
    leases = (await report(world))["leases"]
    assert leases["totals"] == {"orphan_suspect": 0, "irrevocable": 0, "revoking": 0, "intent": 0, "active": 2}
    shown = {one["lease_id"]: one for one in leases["active"]}
    assert (shown[static.row.id]["lives_until"], shown[static.row.id]["upstream"]) == (None, "key_still_valid")
    assert shown[jwt.row.id]["lives_until"] == rfc3339(jwt.row.expires_at)
    assert shown[jwt.row.id]["upstream"] == "expired_only"
    assert shown[jwt.row.id]["keys"] == ["signer"]
    groups = {one["profile"]: one for one in leases["groups"]}
    assert (groups["static"]["lives_until"], groups["static"]["upstream"]) == (None, "key_still_valid")
    assert (groups["jwt"]["leases"], groups["jwt"]["lives_until"]) == (1, rfc3339(jwt.row.expires_at))


async def test_orphans_and_irrevocables_stand_there_with_when_they_die_at_the_latest(world):
    world.remote.life_s = None
    kept = await world.lease(profile="remote")
    world.remote.refuse = [RevocationError(permanent=True)]
    await end(world, profile="remote")
    world.remote.fail = RuntimeError("the issuer broke off")
    with pytest.raises(ProblemError):
        await world.lease(profile="remote", ttl_s=300.0)
    leases = (await report(world))["leases"]
    (orphan,) = leases["orphans"]
    assert orphan["lives_until"] == rfc3339(world.clock.now() + 300)
    assert (orphan["state"], orphan["reason"]) == ("orphan_suspect", "mint-failed")
    (irrevocable,) = leases["irrevocable"]
    assert (irrevocable["lease_id"], irrevocable["lives_until"]) == (kept.row.id, None)
    assert irrevocable["upstream"] == "unknown"  # the played kind does not say, so nothing is promised
    assert irrevocable["next_attempt_at"] is not None


async def test_a_token_that_was_revoked_is_listed_until_it_ends_by_itself(world):
    token = await world.lease(profile="jwt")
    await end(world, profile="jwt")
    (group,) = (await report(world))["leases"]["over_but_valid"]
    assert (group["profile"], group["leases"], group["keys"]) == ("jwt", 1, ["signer"])
    assert group["lives_until"] == rfc3339(token.row.expires_at)
    at = token.row.expires_at
    assert (await report(world, at=at - 1))["leases"]["over_but_valid"]
    assert not (await report(world, at=at))["leases"]["over_but_valid"]


async def test_a_static_key_that_was_lent_is_valid_until_it_is_rotated_whatever_became_of_its_leases(world):
    await world.lease()
    await end(world, profile="static")
    (lent,) = (await report(world))["valid_until_rotated"]
    assert (lent["alias"], lent["versions"], lent["uses"], lent["live_leases"]) == ("api-key", [1], 1, 0)


async def test_a_root_secret_by_whose_right_others_make_tokens_was_not_lent_itself(world):
    await world.lease()
    keys = (await report(world))["keys"]
    root = next(key for key in keys if key["alias"] == "api-key")
    assert custody_report._valid_until_rotated([root])
    made_by_right_of_it = {**root, "who_may": [{**root["who_may"][0], "kind": "issuer-double"}]}
    assert not custody_report._valid_until_rotated([made_by_right_of_it])
    assert custody_report._valid_until_rotated([{**root, "who_may": []}])


async def test_lists_and_groups_are_cut_and_say_of_how_many(world, monkeypatch):
    for name, value in (("LISTED", 2), ("GROUPS", 1)):
        monkeypatch.setattr(report_leases, name, value)
    for number in range(3):
        await world.lease(ttl_s=100.0 + number)
        await world.lease(profile="jwt")
    leases = (await report(world))["leases"]
    assert (len(leases["active"]), leases["totals"]["active"]) == (2, 6)
    assert (len(leases["groups"]), leases["groups_total"], leases["looked_through"]) == (1, 2, 6)
    ends = [parse_rfc3339(one["lease_ends_at"]) for one in leases["active"]]
    assert ends == sorted(ends, reverse=True)  # those that live longest


async def test_every_query_over_leases_is_bounded_or_an_index(world):
    """A million leases must not hold up what is written: no query looks at the whole table."""

    def plans(connection):
        asked = [(report_leases._LIVE, ()), (report_leases._ENDED, ("revoked", 0.0)), (report_leases._LIST, ("a", 1))]
        asked.append(("SELECT count(*) FROM leases WHERE state = ?", ("active",)))
        return [
            (sql, " ".join(row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values)))
            for sql, values in asked
        ]

    for sql, plan in await world.minter.store.read(plans):
        assert "SCAN leases" not in plan, plan
        assert "USING INDEX ix_leases_state" in plan or "USING COVERING INDEX" in plan, plan
        assert "LIMIT" in sql or sql.startswith("SELECT count(*)")


async def test_a_damaged_row_is_reported_and_stops_nothing(world):
    live, other = await world.lease(), await world.lease()
    await world.lease()

    def damage(connection):
        sql = (
            "UPDATE leases SET state = 'irrevocable', key_versions = x'00', caller = x'07', expires_at = 'never', "
            "credential_ends_at = 1e300, attempts = 'x' WHERE id = ?"
        )
        connection.exec_driver_sql(sql, (live.row.id,))
        connection.exec_driver_sql("UPDATE leases SET caller = x'07', kind = x'00' WHERE id = ?", (other.row.id,))
        return None, ()

    await world.minter.store.write(damage)
    made = await report(world)
    (shown,) = made["leases"]["irrevocable"]
    assert of(made, "api-key")["callers"] == {"": 1, "agent": 1}
    assert (shown["lease_id"], shown["keys"], shown["lives_until"], shown["attempts"]) == (live.row.id, [], None, 0)


# --- keys ---


async def test_a_key_says_who_may_use_it_and_who_did(world):
    await world.lease()
    await world.lease(broker="b2")
    key = of(await report(world), "api-key")
    assert key["protection"].startswith("In the clear in a file")
    assert [(one["profile"], one["kind"], one["callers"]) for one in key["who_may"]] == [
        ("static", "static", ["agent"])
    ]
    assert {(one["caller"], one["broker"], one["uses"]) for one in key["who_did"]} == {
        ("agent", "b1", 1),
        ("agent", "b2", 1),
    }


async def test_a_retired_key_says_so_and_is_still_valid_for_whoever_had_it(served):
    await served.world.lease()
    status, _, _ = await served.ask("admin", "POST", "/v1/keys/api-key/retire", json={"force": True})
    assert status == 200
    made = await report(served.world)
    key = of(made, "api-key")
    assert (key["phase"], key["due"], key["next_due_at"]) == ("retired", "", None)
    assert key["retired_at"] is not None
    assert [(one["alias"], one["phase"]) for one in made["valid_until_rotated"]] == [("api-key", "retired")]
    assert found(made, "api-key") == set()


async def test_the_minters_own_keys_and_the_brokers_tokens_are_keys_like_others(world):
    made = await report(world)
    assert of(made, "sealing-key")["use"] == "sealing"
    assert of(made, "audit-signer")["source"] == "sealed"
    (first, second) = made["broker_tokens"]
    assert (first["broker"], second["broker"]) == ("b1", "b2")
    assert len(first["tokens"][0]["digest"]) == 16
    token = world.tokens["b1"].reveal()
    assert token not in json.dumps(made)


async def test_profiles_without_a_key_are_there_too(world):
    assert [one["profile"] for one in (await report(world))["without_key"]] == ["open"]


# --- findings ---


def found(made, about=None):
    return {one["code"] for one in made["findings"] if about in (None, one["about"])}


async def restarted(world, **keys):
    world.changes["keys"] = {**world.settings.keys, **keys}
    await world.restart()


@pytest.mark.parametrize(
    ("days", "expected", "percent"),
    [(79.9, set(), 79), (80, {"due-soon"}, 80), (99.9, {"due-soon"}, 99), (100, {"overdue"}, 100)],
)
async def test_a_key_warns_at_80_and_alarms_at_100_per_cent_of_its_period(world, days, expected, percent):
    source = world.settings.keys["api-key"].source
    await restarted(world, **{"api-key": KeySettings(source=source, rotate_every=100 * DAY)})
    made = await report(world, at=world.clock.now() + days * DAY)
    assert found(made, "api-key") & {"due-soon", "overdue", "no-period"} == expected
    assert of(made, "api-key")["age_percent"] == percent


async def test_a_key_that_nobody_uses_is_found(world):
    await world.lease()
    now = world.clock.now()
    assert "never-used" in found(await report(world), "other-key")
    assert not {"unused", "never-used"} & found(await report(world, at=now + UNUSED_S - 1), "api-key")
    assert "unused" in found(await report(world, at=now + UNUSED_S), "api-key")
    assert not {"unused", "never-used", "not-referred-to"} & found(await report(world), "audit-signer")


async def test_a_key_that_no_profile_refers_to_is_found(world):
    world.write_grants(remote=None)
    await world.restart()
    assert "not-referred-to" in found(await report(world), "other-key")


async def test_what_is_too_wide_is_found(world):
    many = {f"p{n}": {"token": {"type": "static", "key": "api-key"}} for n in range(MANY_PROFILES)}
    grants = json.loads((world.folder / "grants.json").read_text())
    base = grants["profiles"]["open"]
    grants["profiles"] |= {name: {**base, **fields} for name, fields in many.items()}
    grants["profiles"]["p0"]["base_url"] = "https://other.example.com"
    grants["profiles"]["p1"]["allowed_callers"] = ["*"]
    grants["profiles"]["p2"]["allow"] = ["GET /v1/*/a/*/b/*"]
    (world.folder / "grants.json").write_text(json.dumps(grants))
    await world.restart()
    await world.lease()
    made = await report(world)
    assert found(made, "api-key") >= {"several-origins", "many-profiles", "lent-as-it-is"}
    assert found(made, "p1") == {"any-caller"}
    assert found(made, "p2") == {"wide-grant"}
    assert found(made, "static") == set()
    order = [report_findings._ORDER[one["severity"]] for one in made["findings"]]
    assert order == sorted(order)
    assert all(one["do"] for one in made["findings"])


async def test_a_sealing_key_without_a_second_copy_is_found(world):
    assert "no-second-copy" in found(await report(world), "sealing-key")


def test_a_step_that_failed_is_an_alarm_also_of_a_key_that_is_not_in_use():
    key = {**EMPTY_KEY, "alias": "a", "phase": "retired", "versions": [{"version": 2, "problem": "destroy-failed"}]}
    (finding,) = report_findings.findings([key], [], now=0.0)
    assert (finding["code"], finding["severity"], "destroy-failed" in finding["what"]) == ("step-failed", "alarm", True)


def test_a_command_in_a_finding_is_safe_to_copy():
    key = copy.deepcopy(EMPTY_KEY)
    key |= {"alias": "$(touch /tmp/x); 'q'", "due": "overdue", "age_percent": 100}
    (finding, *_) = report_findings.findings([key], [], now=0.0)
    assert finding["do"] == "minter rotate '$(touch /tmp/x); '\"'\"'q'\"'\"''"


EMPTY_KEY = {
    "alias": "",
    "phase": "active",
    "loaded": True,
    "due": "",
    "age_percent": None,
    "profiles": ["p"],
    "origins": [ORIGIN],
    "who_may": [],
    "last_used_at": None,
    "created_at": "2030-01-01T00:00:00.000Z",
    "next_due_at": None,
    "second_copy": "",
    "versions": [],
}


# --- the call ---


async def test_the_call_takes_an_instant_and_nothing_else(served):
    at = "2031-01-01T00:00:00.000Z"
    status, body, _ = await served.ask("admin", "GET", f"/v1/custody?at={at}")
    assert (status, body["generated_at"]) == (200, at)
    for query in ("at=now", "at=2031-01-01", f"at={at}&at={at}", "all=true", "at=0001-01-01T00:00:00Z"):
        status, body, _ = await served.ask("admin", "GET", f"/v1/custody?{query}")
        assert (status, body["code"]) == (400, "parameter-unknown"), query
