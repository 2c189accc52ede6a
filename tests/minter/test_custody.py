"""Custody keys: read at load, pinned to origins, counted, reported; a fault names the reference, not the value."""

import asyncio
import json
import traceback

import pytest
import structlog

from config.clock import rfc3339
from config.errors import ConfigurationError
from config.grants import parse_grants
from config.problems import ProblemError
from config.secret import Secret
from config.settings import KeySettings, MinterSettings
from minter import report_keys, report_leases
from minter.rotation import Rotation
from minter.signing import PRIVATE_MEMBERS, generate
from minter.sources.file import FileSource
from tests.minter.vault import CANARY, ORIGIN, Vault, grants_of, quick_directory

ELSEWHERE = "https://evil.example.com"
STATIC = {"type": "static", "key": "api"}


@pytest.fixture
async def vault(clock):
    with quick_directory() as directory:
        made = Vault(directory, clock)
        made.put("api-key", CANARY)
        made.key("api", "file:api-key", owner="team", purpose="calls", rotate_every=1000.0)
        made.grants = grants_of(STATIC)
        yield made
        await made.stop()


async def use(vault, alias="api", origin=ORIGIN):
    """What the service does at a mint."""
    value, version = vault.custody.secret(alias, origin)
    await vault.store.write(
        lambda connection: (
            None,
            vault.custody.record_use(
                connection, [(alias, version)], origin=origin, caller="agent", broker="b1", now=vault.clock.now()
            ),
        )
    )
    return value


async def faults(vault):
    with pytest.raises(ConfigurationError) as refused:
        await vault.restart()
    text = str(refused.value)
    assert CANARY not in text
    assert CANARY not in "".join(traceback.format_exception(refused.value))
    return text


async def report(vault, alias="api"):
    def read(connection):
        now = vault.clock.now()
        _, held = report_leases.leases(connection, how_ends=lambda _kind: None, now=now)
        return report_keys.keys(vault.custody, connection, profiles=vault.grants.profiles, held=held, now=now)

    rows = await vault.store.read(read)
    assert CANARY not in json.dumps(rows)
    return next(row for row in rows if row["alias"] == alias)


# --- loading ---


async def test_a_secret_is_read_at_start_and_its_fingerprint_is_keyed(vault):
    await vault.start()
    value, version = vault.custody.secret("api", ORIGIN)
    assert (value.reveal(), version) == (CANARY, 1)
    fingerprint = (await vault.versions())[0].fingerprint
    assert fingerprint == vault.custody.fingerprint(Secret(CANARY))
    assert len(fingerprint) == 16
    assert fingerprint != value.fingerprint()
    await vault.restart()
    assert (await vault.versions())[0].fingerprint == fingerprint
    assert vault.codes().count("key.created") == 1


async def test_another_installation_has_another_fingerprint_of_the_same_secret(vault, clock):
    await vault.start()
    with quick_directory() as directory:
        other = Vault(directory, clock)
        await other.start()
        assert other.custody.fingerprint(Secret(CANARY)) != vault.custody.fingerprint(Secret(CANARY))
        await other.stop()


async def test_run_parameters_are_kept_as_a_keyed_digest_that_the_order_does_not_change(vault):
    await vault.start()
    one = vault.custody.param_digest({"customer": CANARY, "b": "2"})
    assert one == vault.custody.param_digest({"b": "2", "customer": CANARY})
    assert one != vault.custody.param_digest({"b": "2"})
    assert CANARY not in one
    await vault.restart()
    assert one == vault.custody.param_digest({"customer": CANARY, "b": "2"})


@pytest.mark.parametrize("content", [None, "", "\n"])
async def test_a_missing_or_empty_secret_is_a_fault_that_names_the_reference(vault, content):
    if content is None:
        (vault.directory / "api-key").unlink()
    else:
        vault.put("api-key", content)
    assert "keys.api (file:api-key)" in await faults(vault)


@pytest.mark.parametrize(
    ("value", "scrub", "said"),
    [("zq7-key", "mask", True), ("zq7-key", "refuse", True), ("zq7-key", "off", False), ("zq7-key8", "mask", False)],
)
async def test_a_lent_key_that_answers_cannot_be_scrubbed_of_is_said_at_load(vault, value, scrub, said):
    profile = {"base_url": ORIGIN, "allowed_callers": ["agent"], "token": STATIC, "scrub": scrub}
    vault.put("api-key", value)
    vault.grants = parse_grants(json.dumps({"profiles": {"p": profile}}).encode(), name="grants.json")
    with structlog.testing.capture_logs() as logs:
        await vault.start()
    expected = {"event": "key-too-short-to-scrub", "log_level": "warning", "alias": "api"}
    assert logs == ([expected] if said else [])


async def test_every_fault_is_named_at_once(vault):
    vault.put("bad-signer", CANARY)
    vault.key("bad", "file:bad-signer", use="signing")
    vault.key("gone", "file:gone")
    vault.key("with:colon", "file:api-key")
    vault.key("odd", "file:api-key", origins=["https://A.example/"])
    vault.grants = grants_of(STATIC, {"type": "static", "env": "NOT_SET"})
    text = await faults(vault)
    for place in ("keys.bad (file:bad-signer)", "keys.gone (file:gone)", "keys.with:colon", "keys.odd.origins[0]"):
        assert place in text
    assert "env:NOT_SET: is not set" in text


async def test_a_secret_that_the_grants_name_inline_has_its_reference_as_alias(vault):
    vault.environ["TOKEN"] = CANARY + "\n"
    vault.grants = grants_of({"type": "static", "env": "TOKEN"})
    await vault.start()
    assert vault.custody.secret("env:TOKEN", ORIGIN)[0].reveal() == CANARY
    assert vault.custody.aliases() == ["api", "audit-signer", "env:TOKEN"]


async def test_a_key_that_nobody_loaded_is_unavailable(vault):
    await vault.start()
    for ask in (vault.custody.secret, vault.custody.signing_key):
        with pytest.raises(ProblemError) as refused:
            ask("nobody", ORIGIN)
        assert refused.value.code == "secret-unavailable"
    with pytest.raises(ProblemError, match="no signing key"):
        vault.custody.signing_key("api", ORIGIN)


async def test_a_reload_with_a_fault_changes_nothing(vault):
    await vault.start()
    before = await vault.versions()
    vault.put("api-key", "another value")
    vault.custody.settings.keys["gone"] = KeySettings(source="file:gone")
    with pytest.raises(ConfigurationError):
        await vault.custody.load(vault.store, vault.grants)
    assert vault.custody.secret("api", ORIGIN)[0].reveal() == CANARY
    assert await vault.versions() == before


async def test_a_value_that_changed_in_its_source_is_taken_at_a_reload_and_said(vault):
    await vault.start()
    vault.put("api-key", "another value")
    staged = await vault.custody.stage(vault.store, vault.grants)
    assert vault.custody.secret("api", ORIGIN)[0].reveal() == CANARY
    assert await vault.custody.adopt(vault.store, staged) == ["api"]
    assert vault.custody.secret("api", ORIGIN)[0].reveal() == "another value"
    assert len(vault.events("key.changed")) == 1
    assert await vault.custody.adopt(vault.store, await vault.custody.stage(vault.store, vault.grants)) == []


async def test_a_reload_that_began_before_a_rotation_does_not_bring_the_old_version_back(vault):
    await vault.start()
    vault.put("api-key", "changed by hand meanwhile")
    staged = await vault.custody.stage(vault.store, vault.grants)
    await Rotation(vault.custody, vault.store, clock=vault.clock).request("api", "start", value=Secret("rotated"))
    assert await vault.custody.adopt(vault.store, staged) == []
    assert vault.custody.secret("api", ORIGIN)[0].reveal() == "rotated"
    assert await vault.phases("api") == {1: "retiring", 2: "active"}
    assert vault.events("key.changed") == []


async def test_a_key_that_the_grants_name_no_longer_can_still_end_what_was_made_with_it(vault):
    vault.environ["TOKEN"] = CANARY
    vault.grants = grants_of({"type": "static", "env": "TOKEN"})
    await vault.start()
    await vault.custody.load(vault.store, grants_of(STATIC))
    assert vault.custody.secret("env:TOKEN", ORIGIN)[0].reveal() == CANARY


# --- signing keys ---


async def test_a_signing_key_is_made_once_and_is_a_fault_when_it_is_gone(vault):
    vault.key("signer", "file:signer.pem", use="signing")
    await vault.start()
    made = (vault.directory / "signer.pem").read_text()
    assert (vault.directory / "signer.pem").stat().st_mode & 0o777 == 0o600
    await vault.restart()
    assert (vault.directory / "signer.pem").read_text() == made
    (vault.directory / "signer.pem").unlink()
    assert "keys.signer (file:signer.pem): does not exist" in await faults(vault)
    assert not (vault.directory / "signer.pem").exists()


async def test_a_start_that_fails_makes_no_key(vault):
    vault.key("signer", "file:signer.pem", use="signing")
    vault.key("gone", "file:gone")
    await faults(vault)
    assert not (vault.directory / "signer.pem").exists()


async def test_a_signing_key_that_is_missing_where_the_minter_cannot_write_is_a_fault(vault):
    vault.key("signer", "env:SIGNER", use="signing")
    assert "keys.signer (env:SIGNER): is not set" in await faults(vault)


async def test_the_key_set_holds_public_members_of_asymmetric_keys_and_nothing_else(vault):
    for algorithm in ("EdDSA", "ES256", "RS256", "HS256"):
        vault.put(f"key-{algorithm}", generate(algorithm).reveal())
        vault.key(algorithm, f"file:key-{algorithm}", use="signing", algorithm=algorithm)
    await vault.start()
    keys = json.loads(vault.custody.jwks())["keys"]
    assert sorted(key["alg"] for key in keys) == ["ES256", "EdDSA", "RS256"]
    for key in keys:
        assert not PRIVATE_MEMBERS & key.keys()
        assert key["use"] == "sig"
        assert key["kid"]


async def test_a_token_is_read_only_with_a_key_of_ours_and_until_its_end(vault):
    vault.key("signer", "file:signer.pem", use="signing")
    await vault.start()
    key, _ = vault.custody.signing_key("signer", ORIGIN)
    now = int(vault.clock.now())
    good = key.sign(b'{"exp":%d}' % (now + 1)).reveal()
    assert vault.custody.read_token(good) == {"exp": now + 1}
    for token in ("", "a.b.c", good[:-2], key.sign(b"{}").reveal(), key.sign(b'{"exp":"x"}').reveal()):
        assert vault.custody.read_token(token) is None
    vault.clock.advance(1)
    assert vault.custody.read_token(good) is None


# --- where a key may go ---


async def test_a_key_is_pinned_at_its_first_use_to_the_origins_its_grants_name(vault):
    await vault.start()
    await use(vault)
    assert vault.events("key.pinned")[0]["origins"] == [ORIGIN]
    await use(vault)
    assert len(vault.events("key.pinned")) == 1
    with pytest.raises(ProblemError) as refused:
        vault.custody.secret("api", ELSEWHERE)
    assert refused.value.code == "origin-not-pinned"


def two_profiles(first, second):
    document = {
        name: {"base_url": origin, "allowed_callers": ["agent"], "token": token, "allow": ["GET /v1/x"]}
        for name, token, origin in (("p0", first, ORIGIN), ("evil", second, ELSEWHERE))
    }
    return parse_grants(json.dumps({"profiles": document}).encode(), name="grants.json")


@pytest.mark.parametrize(
    "spelling", ["api.key", "./api.key", "../{name}/api.key", "{folder}/api.key", "{folder}//api.key"]
)
@pytest.mark.parametrize("first", [STATIC, {"type": "static", "file": "api.key"}])
async def test_a_pin_holds_for_every_spelling_of_the_keys_place(vault, first, spelling):
    vault.key("api", f"file:{vault.directory}/api.key")
    vault.put("api.key", CANARY)
    vault.grants = grants_of(first)
    await vault.start()
    await use(vault, "api" if "key" in first else "file:api.key")
    again = {"type": "static", "file": spelling.format(folder=vault.directory, name=vault.directory.name)}
    vault.grants = two_profiles(first, again)
    with pytest.raises(
        ConfigurationError, match=r"profiles\.evil\.base_url: custody key .* is pinned to other origins"
    ):
        await vault.custody.stage(vault.store, vault.grants)
    vault.grants = grants_of(first, again)
    await vault.custody.stage(vault.store, vault.grants)


async def test_a_version_of_a_key_is_not_lent_elsewhere_under_a_name_of_its_own(vault):
    vault.key("api", f"file:{vault.directory}/api.key", origins=[ORIGIN])
    vault.put("api.key", CANARY)
    vault.grants = grants_of(STATIC)
    await vault.start()
    rotation = Rotation(vault.custody, vault.store, clock=vault.clock)
    await rotation.request("api", "start", value=Secret(CANARY + "-2"))
    vault.grants = two_profiles(STATIC, {"type": "static", "file": "api.key.v2"})
    with pytest.raises(ConfigurationError, match=r"file:api\.key\.v2 is the same"):
        await vault.custody.stage(vault.store, vault.grants)


async def test_one_secret_that_the_same_grants_spell_twice_is_pinned_to_all_they_name(vault):
    vault.put("api.key", CANARY)
    inline = {"type": "static", "file": "api.key"}
    vault.grants = two_profiles(inline, {"type": "static", "file": "./api.key"})
    await vault.start()
    await use(vault, "file:api.key")
    await vault.restart()
    assert vault.events("key.pinned")[0]["origins"] == sorted([ORIGIN, ELSEWHERE])


async def test_a_signing_key_is_not_lent_by_the_name_of_its_file(vault):
    vault.key("signer", f"file:{vault.directory}/signer", use="signing", algorithm="HS256")
    vault.grants = grants_of({"type": "static", "file": "signer"})
    vault.put("signer", "a-shared-secret-of-32-bytes-or-more")
    assert "is where signing key signer lives" in await faults(vault)


async def test_grants_that_send_a_pinned_key_elsewhere_are_refused_until_it_is_rebound(vault):
    await vault.start()
    await use(vault)
    vault.grants = grants_of(STATIC, origin=ELSEWHERE)
    with pytest.raises(ConfigurationError, match=r"profiles\.p0\.base_url"):
        await vault.custody.stage(vault.store, vault.grants)
    assert "pinned to other origins" in await faults(vault)
    assert "minter keys rebind api" in await faults(vault)
    vault.grants = grants_of(STATIC)
    await vault.restart()
    assert await vault.custody.rebind(vault.store, "api", [ELSEWHERE], uid=7) == [ELSEWHERE]
    assert vault.events("key.rebound")[0]["origins"] == [ELSEWHERE]
    with pytest.raises(ProblemError):
        vault.custody.secret("api", ORIGIN)
    vault.grants = grants_of(STATIC, origin=ELSEWHERE)
    await vault.restart()
    assert (await use(vault, origin=ELSEWHERE)).reveal() == CANARY


async def test_before_its_first_use_a_key_may_be_sent_anywhere_the_grants_say(vault):
    await vault.start()
    vault.grants = grants_of(STATIC, origin=ELSEWHERE)
    await vault.restart()
    await use(vault, origin=ELSEWHERE)


async def test_the_settings_pin_a_key_from_the_start_and_no_command_changes_it(vault):
    vault.key("api", "file:api-key", origins=[ELSEWHERE])
    assert "see origins in minter.toml" in await faults(vault)
    vault.grants = grants_of(STATIC, origin=ELSEWHERE)
    await vault.restart()
    with pytest.raises(ProblemError, match=r"minter\.toml"):
        await vault.custody.rebind(vault.store, "api", [ORIGIN])


@pytest.mark.parametrize("origins", [[], ["https://a.example/path"], ["ftp://a"], ["https://A.example"]])
async def test_a_key_is_rebound_to_origins_only(vault, origins):
    await vault.start()
    with pytest.raises(ProblemError) as refused:
        await vault.custody.rebind(vault.store, "api", origins)
    assert refused.value.code == "body-malformed"


async def test_an_unknown_key_cannot_be_rebound(vault):
    await vault.start()
    with pytest.raises(ProblemError) as refused:
        await vault.custody.rebind(vault.store, "nobody", [ORIGIN])
    assert refused.value.code == "key-not-found"


async def test_a_pin_that_was_not_committed_is_written_by_the_next_use(vault):
    await vault.start()

    def failing(connection):
        vault.custody.record_use(connection, [("api", 1)], origin=ORIGIN, caller="agent", broker="b1", now=0.0)
        raise ProblemError("state-unavailable")

    with pytest.raises(ProblemError):
        await vault.store.write(failing)
    assert vault.events("key.pinned") == []
    await use(vault)
    assert len(vault.events("key.pinned")) == 1
    await vault.restart()
    with pytest.raises(ProblemError):
        vault.custody.secret("api", ELSEWHERE)


async def test_many_first_uses_at_once_are_one_pin(vault):
    await vault.start()
    await asyncio.gather(*(use(vault) for _ in range(20)))
    assert len(vault.events("key.pinned")) == 1


# --- the report ---


async def test_the_report_says_where_a_key_is_whose_it_is_where_it_goes_and_who_uses_it(vault):
    await vault.start()
    await vault.lend("api", 1, run="run_a")
    await vault.lend("api", 1, run="run_b")
    await use(vault)
    vault.clock.advance(10)
    await use(vault)
    row = await report(vault)
    versions = row.pop("versions")
    assert row == {
        "alias": "api",
        "loaded": True,
        "use": "static",
        "algorithm": "",
        "owner": "team",
        "purpose": "calls",
        "second_copy": "",
        "phase": "active",
        "source": "file",
        "source_ref": "file:api-key",
        "protection": FileSource.protection,
        "fingerprint": vault.custody.fingerprint(Secret(CANARY)),
        "origins": [ORIGIN],
        "profiles": ["p0"],
        "created_at": "2030-01-01T00:00:00.000Z",
        "activated_at": "2030-01-01T00:00:00.000Z",
        "last_rotated_at": None,
        "retired_at": None,
        "rotate_every_s": 1000.0,
        "age_percent": 1,
        "next_due_at": "2030-01-01T00:16:40.000Z",
        "due": "no",
        "last_used_at": "2030-01-01T00:00:10.000Z",
        "uses": 2,
        "live_leases": 2,
        "callers": {"agent": 2},
        "callers_total": 1,
        "who_may": [
            {
                "profile": "p0",
                "kind": "static",
                "origin": ORIGIN,
                "callers": ["agent"],
                "routes": 1,
                "wildcard_routes": 0,
                "most_wildcards": 0,
            }
        ],
        "who_did": [
            {
                "caller": "agent",
                "broker": "b1",
                "uses": 2,
                "first_used_at": "2030-01-01T00:00:00.000Z",
                "last_used_at": "2030-01-01T00:00:10.000Z",
            }
        ],
    }
    assert [(version["version"], version["phase"]) for version in versions] == [(1, "active")]


async def test_uses_are_written_at_a_tick_and_survive_a_restart(vault):
    await vault.start()
    for _ in range(3):
        await use(vault)
    await vault.store.write(vault.custody.flush)
    await use(vault)
    assert (await report(vault))["uses"] == 4
    await vault.store.write(vault.custody.flush)
    await vault.restart()
    row = await report(vault)
    assert (row["uses"], row["last_used_at"]) == (4, rfc3339(vault.clock.now()))


@pytest.mark.parametrize(("age_s", "due"), [(799, "no"), (800, "soon"), (999, "soon"), (1000, "overdue")])
async def test_a_key_is_due_by_the_age_of_its_active_version(vault, age_s, due):
    await vault.start()
    vault.clock.advance(age_s)
    assert (await report(vault))["due"] == due


async def test_nothing_that_custody_writes_or_shows_holds_a_value(vault):
    vault.key("signer", "file:signer.pem", use="signing")
    await vault.start()
    await use(vault)
    shown = repr(vault.custody.__dict__) + json.dumps(await report(vault))
    written = vault.everything_written().decode("utf-8", "replace")
    private = (vault.directory / "signer.pem").read_text().splitlines()[1]
    for text in (shown, written):
        assert CANARY not in text
        assert private not in text


def test_every_alias_of_the_settings_is_its_own_word():
    settings = MinterSettings(keys={"a": KeySettings(source="env:X")})
    assert settings.keys["a"].use == "static"
