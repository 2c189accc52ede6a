"""Keys that operators create, import, retire and destroy while the minter runs; a kill between any two steps."""

import asyncio
import json
import os
from dataclasses import replace

import msgspec
import pytest

from config.errors import ConfigurationError
from config.problems import ProblemError
from config.secret import Secret
from config.settings import AuditSettings, KeySettings, MinterSettings, TlsSettings
from minter import doctor_keys, failpoints, key_rows, kinds, signing
from minter.audit import AuditUnavailable
from minter.key_ending import KeyEnding
from minter.key_making import KeyMaking
from minter.rotation import Rotation
from minter.sources import SourceError
from tests.minter.vault import CANARY, ORIGIN, Vault, grants_of, quick_directory

MADE = ("key.declared", "key.written", "key.created")


@pytest.fixture
async def vault(clock):
    with quick_directory() as directory:
        made = Vault(directory, clock)
        made.put("api-key", "value-of-api")
        made.key("api", "file:api-key")
        made.grants = grants_of({"type": "static", "key": "api"})
        await made.start()
        yield made
        await made.stop()


class Killed(BaseException):
    """What a kill is to the code: nothing after it runs."""


def kill_at(monkeypatch, point):
    def reached(name):
        assert name in failpoints.POINTS
        if name == point:
            raise Killed

    monkeypatch.setattr(failpoints, "reached", reached)


def making(vault):
    return KeyMaking(vault.custody, vault.store, clock=vault.clock)


def ending(vault, ended=None):
    async def end_all(alias, uid):
        if ended is not None:
            ended.append((alias, uid))
        return []

    rotation = Rotation(vault.custody, vault.store, clock=vault.clock)
    return KeyEnding(vault.custody, vault.store, rotation, clock=vault.clock, end_all=end_all)


def static(source="sealed:mem", **more):
    return KeySettings(source=source, **more)


def signer(source="sealed:signer", **more):
    return KeySettings(source=source, use="signing", **more)


async def refused(awaitable, code):
    with pytest.raises(ProblemError) as error:
        await awaitable
    assert error.value.code == code
    assert CANARY not in str(error.value)
    return error.value.detail


def value_of(vault, alias="mem", origin=ORIGIN):
    return vault.custody.secret(alias, origin)[0].reveal()


# --- create and import ---


@pytest.mark.parametrize("source", ["sealed:mem", "file:mem-key"])
async def test_an_imported_key_is_lent_at_once_and_after_a_restart(vault, source):
    row = await making(vault).declare("mem", static(source), Secret(CANARY + "\n"), uid=1000)
    assert (row.version, row.phase, row.source_ref.removeprefix("file:")) == (1, "active", source.removeprefix("file:"))
    assert value_of(vault) == CANARY
    vault.grants = grants_of({"type": "static", "key": "mem"})
    await vault.restart()
    assert value_of(vault) == CANARY
    assert vault.events("key.created")[-1]["uid"] == 1000
    assert CANARY.encode() not in vault.everything_written()


async def test_a_created_signing_key_is_the_minters_own_and_its_private_half_is_nowhere_in_the_clear(vault):
    await making(vault).declare("run-signer", signer(algorithm="ES256"), None)
    key, version = vault.custody.signing_key("run-signer", ORIGIN)
    assert (key.algorithm, version) == ("ES256", 1)
    assert key.kid in vault.custody.jwks().decode()
    await vault.restart()
    assert vault.custody.signing_key("run-signer", ORIGIN)[0].kid == key.kid
    assert b"PRIVATE KEY" not in vault.everything_written()


async def test_a_private_key_can_be_imported_and_another_text_cannot(vault):
    value = signing.generate("EdDSA")
    detail = await refused(making(vault).declare("run-signer", signer(), Secret(CANARY)), "body-malformed")
    assert "JWK nor PEM" in detail
    await making(vault).declare("run-signer", signer(), value)
    assert vault.custody.signing_key("run-signer", ORIGIN)[0].sign(b"{}")


async def test_what_an_operator_said_of_a_key_stands_after_a_restart(vault):
    said = static(owner="team", purpose="memory", second_copy="the safe", rotate_every=1000.0, origins=[ORIGIN])
    await making(vault).declare("mem", said, Secret(CANARY))
    await vault.restart()
    found = vault.custody.settings_of("mem")
    assert (found.owner, found.purpose, found.second_copy, found.rotate_every) == ("team", "memory", "the safe", 1000.0)
    with pytest.raises(ProblemError) as elsewhere:
        vault.custody.secret("mem", "https://evil.example.com")
    assert elsewhere.value.code == "origin-not-pinned"
    await vault.custody.rebind(vault.store, "mem", ["https://other.example.com"])
    await vault.restart()
    assert value_of(vault, origin="https://other.example.com") == CANARY


async def test_a_grants_file_may_name_a_declared_key_and_no_other(vault):
    await making(vault).declare("mem", static(), Secret(CANARY))
    await vault.restart()
    token = {"type": "static", "key": "mem"}
    assert kinds.checker(vault.custody)("p", token) == []
    assert kinds.checker(vault.custody)("p", {**token, "key": "nobody"}) != []


@pytest.mark.parametrize("alias", ["", "a:b", "a/b", "../x", "ü", "a b", "-a", "a" * 65, "env:X", "a\n"])
async def test_what_is_no_alias_is_refused(vault, alias):
    await refused(making(vault).declare(alias, static(), Secret(CANARY)), "body-malformed")


@pytest.mark.parametrize("alias", ["api", "sealing-key", "audit-signer"])
async def test_a_key_of_the_settings_or_of_the_minters_own_is_not_declared(vault, alias):
    await refused(making(vault).declare(alias, static(), Secret(CANARY)), "key-exists")


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        (static(), None),
        (static(), ""),
        (static(origins=["ftp://x"]), CANARY),
        (KeySettings(source="sealed:x", use="sealing"), CANARY),
        (static("env:THE_KEY"), CANARY),
        (static("fd:3"), CANARY),
        (static("nowhere:x"), CANARY),
        (static("sealed"), CANARY),
    ],
)
async def test_what_cannot_be_kept_is_refused_before_anything_is_written(vault, settings, value):
    given = None if value is None else Secret(value)
    await refused(making(vault).declare("mem", settings, given), "body-malformed")
    assert "key.declared" not in vault.codes()


async def test_nothing_that_is_at_a_place_is_overwritten(vault):
    vault.put("mem-key", "somebody's")
    await refused(making(vault).declare("mem", static("file:mem-key"), Secret(CANARY)), "key-exists")
    assert vault.files()["mem-key"] == "somebody's"
    assert "mem" not in vault.custody.aliases()


@pytest.mark.parametrize("source", ["file:api-key", "file:./api-key", "file:sub/../api-key"])
async def test_two_keys_never_share_a_place_however_it_is_spelled(vault, source):
    (vault.directory / "sub").mkdir()
    await refused(making(vault).declare("mem", static(source), None, in_place=True), "key-exists")


@pytest.mark.parametrize("use", ["static", "signing"])
@pytest.mark.parametrize(
    "source",
    [
        "file:api-key.v2",
        "file:./api-key.v17",
        "file:api-key.v2.v3",
        "sealed:audit-signer.v2",
        "sealed:audit-signer.v1",
        "file:state/sealing.key.v2",
    ],
)
async def test_nobody_plants_the_next_version_of_another_key(vault, source, use):
    value = Secret(signing.generate("EdDSA").reveal() if use == "signing" else CANARY)
    vault.custody.settings.keys["beside-the-state"] = KeySettings(source="file:state/x")
    await refused(making(vault).declare("mem", KeySettings(source=source, use=use), value), "key-exists")
    assert "key.declared" not in vault.codes()


async def test_a_key_whose_next_version_would_be_another_key_is_refused(vault):
    await making(vault).declare("mem", static("sealed:one.v2"), Secret(CANARY))
    await refused(making(vault).declare("mem2", static("sealed:one"), Secret("another")), "key-exists")
    await making(vault).declare("mem3", static("sealed:one-more"), Secret("another"))


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        *("audit.jsonl", "audit.jsonl.checkpoints", "audit.jsonl.next", "audit.jsonl.000000000001-000000000003"),
        *("minter.db", "minter.db-wal", "minter.db.restoring", ".minter.db.x.tmp", "second", "second.next"),
        *("grants.json", "brokers.json", "tls.key", "run.sock", "linked/audit.jsonl"),
    ],
)
async def test_no_file_of_the_minters_own_becomes_a_key_that_a_call_could_write_or_destroy(
    vault, monkeypatch, name, in_place
):
    at = vault.directory
    (at / "linked").symlink_to(at)
    settings = replace_all(vault.custody.settings, at)
    monkeypatch.setattr(vault.custody, "settings", settings)
    value = None if in_place else Secret(CANARY)
    detail = await refused(
        making(vault).declare("mem", static(f"file:{name}"), value, in_place=in_place), "body-malformed"
    )
    assert "of the minter's own" in detail
    assert "key.declared" not in vault.codes()


def replace_all(settings, at):
    return msgspec.structs.replace(
        settings,
        state=f"sqlite:{at}/minter.db",
        audit=f"{at}/audit.jsonl",
        audit_log=AuditSettings(second=f"file:{at}/second"),
        grants=f"{at}/grants.json",
        brokers=f"{at}/brokers.json",
        listen=[f"unix:{at}/run.sock"],
        tls=TlsSettings(key=f"{at}/tls.key"),
    )


@pytest.mark.parametrize("place", ["elsewhere/x.pth", "sub/key", "linked/key"])
async def test_a_call_makes_files_only_where_the_minters_settings_keep_keys(vault, tmp_path, place):
    (vault.directory / "sub").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (vault.directory / "linked").symlink_to(tmp_path)
    source = f"file:{tmp_path / place}" if place.startswith("elsewhere") else f"file:{place}"
    await refused(making(vault).declare("mem", static(source), Secret(CANARY)), "body-malformed")
    await refused(making(vault).declare("mem", static(source), None, in_place=True), "body-malformed")
    vault.custody.settings.keys["there"] = KeySettings(source=f"{source}-of-the-settings")
    await making(vault).declare("mem", static(source), Secret(CANARY))


async def test_a_value_that_is_in_place_stays_there(vault):
    vault.put("mem-key", CANARY)
    await making(vault).declare("mem", static("file:mem-key"), None, in_place=True)
    assert value_of(vault) == CANARY
    await refused(making(vault).declare("mem2", static("file:nothing"), None, in_place=True), "secret-unavailable")
    assert "mem2" not in {row.alias for row in await vault.versions()}


@pytest.mark.parametrize(
    "more",
    [
        {"owner": "x" * 1001},
        {"purpose": "x" * 1001},
        {"second_copy": "x" * 1001},
        {"origins": [f"https://{n}.example.com" for n in range(101)]},
    ],
    ids=lambda more: next(iter(more)),
)
async def test_words_without_end_are_not_kept_for_good(vault, more):
    await refused(making(vault).declare("mem", static(**more), Secret(CANARY)), "body-malformed")
    assert "mem" not in await vault.store.read(key_rows.keys)


async def test_a_key_is_not_rebound_to_any_number_of_places(vault):
    origins = [f"https://{n}.example.com" for n in range(101)]
    await refused(vault.custody.rebind(vault.store, "api", origins), "body-malformed")


async def test_an_alias_is_declared_once(vault):
    await making(vault).declare("mem", static(), Secret(CANARY))
    await refused(making(vault).declare("mem", static("sealed:other"), Secret("another")), "key-exists")
    assert value_of(vault) == CANARY


async def test_of_two_at_once_that_want_one_place_one_gets_it(vault):
    made = making(vault)
    results = await asyncio.gather(
        *(made.declare(f"mem-{n}", static("file:one"), Secret(f"{CANARY}-{n}")) for n in range(4)),
        return_exceptions=True,
    )
    assert sorted(getattr(result, "code", "made") for result in results) == [*["key-exists"] * 3, "made"]


async def test_a_source_that_fails_leaves_no_key_and_no_value(vault, monkeypatch):
    def fail(ref, value):
        raise SourceError("cannot be written (EIO)")

    with monkeypatch.context() as broken:
        broken.setattr(vault.custody.reader.sources, "write", fail)
        await refused(making(vault).declare("mem", static("file:mem-key"), Secret(CANARY)), "secret-unavailable")
    assert "mem" not in {row.alias for row in await vault.versions()}
    assert len(vault.events("key.import-failed")) == 1
    await making(vault).declare("mem", static("file:mem-key"), Secret(CANARY))


@pytest.mark.parametrize("point", MADE)
@pytest.mark.parametrize("again", ["restarted", "running"])
@pytest.mark.parametrize("source", ["sealed:mem", "file:mem-key"])
async def test_an_import_that_was_killed_is_made_good_by_the_same_command(vault, monkeypatch, point, again, source):
    with monkeypatch.context() as killing:
        kill_at(killing, point)
        with pytest.raises(Killed):
            await making(vault).declare("mem", static(source), Secret(CANARY))
    if again == "restarted":
        await vault.restart()
    if point == "key.created":
        # Its answer was lost, not the key.
        await refused(making(vault).declare("mem", static(source), Secret(CANARY)), "key-exists")
        await vault.restart()
    else:
        assert "mem" not in vault.custody.aliases()
        await making(vault).declare("mem", static(source), Secret(CANARY))
    assert value_of(vault) == CANARY
    assert await vault.phases("mem") == {1: "active"}


@pytest.mark.parametrize("point", MADE)
@pytest.mark.parametrize("source", ["sealed:mem", "file:mem-key"])
async def test_a_start_takes_back_an_import_that_was_killed(vault, monkeypatch, point, source):
    with monkeypatch.context() as killing:
        kill_at(killing, point)
        with pytest.raises(Killed):
            await making(vault).declare("mem", static(source), Secret(CANARY))
    await vault.restart()
    await making(vault).tick(vault.clock.now())
    if point == "key.created":
        assert value_of(vault) == CANARY
        return
    assert await vault.phases("mem") == {}
    assert "mem-key" not in vault.files()
    assert vault.events("key.import-failed")[0]["reason"] == "interrupted"
    await vault.restart()
    await making(vault).declare("mem", static(source), Secret(CANARY))


async def test_what_is_being_imported_is_not_taken_back_by_a_tick_meanwhile(vault):
    made = making(vault)
    await asyncio.gather(made.declare("mem", static(), Secret(CANARY)), made.tick(vault.clock.now()))
    assert value_of(vault) == CANARY


async def test_what_a_killed_import_left_is_deleted_when_another_place_is_given(vault, monkeypatch):
    with monkeypatch.context() as killing:
        kill_at(killing, "key.written")
        with pytest.raises(Killed):
            await making(vault).declare("mem", static("file:first"), Secret(CANARY))
    assert "first" in vault.files()
    await vault.restart()
    await making(vault).declare("mem", static("file:second"), Secret(CANARY))
    assert set(vault.files()) >= {"second"}
    assert "first" not in vault.files()


async def test_a_key_that_minter_toml_names_later_is_minter_tomls(vault):
    await making(vault).declare("mem", static(), Secret(CANARY))
    vault.put("mem-key", "of the settings")
    vault.key("mem", "file:mem-key")
    await vault.restart()
    assert value_of(vault) == "of the settings"


# --- retire ---


async def test_a_retired_key_is_out_of_use_for_good(vault):
    ended = []
    await making(vault).declare("mem", static(), Secret(CANARY))
    done = await ending(vault, ended).retire("mem", uid=1000)
    assert (done["alias"], done["profiles"], ended) == ("mem", [], [("mem", 1000)])
    for _ in range(2):
        with pytest.raises(ProblemError, match="retired") as unavailable:
            value_of(vault)
        assert unavailable.value.code == "secret-unavailable"
        await refused(Rotation(vault.custody, vault.store, clock=vault.clock).request("mem", "status"), "key-retired")
        assert "spent" in await refused(making(vault).declare("mem", static(), Secret("new")), "key-exists")
        await vault.restart()
    assert vault.events("key.out-of-use")[0]["uid"] == 1000


async def test_a_key_that_the_grants_name_is_retired_only_by_force_and_stops_no_later_start(vault):
    detail = await refused(ending(vault).retire("api"), "key-in-use")
    assert "p0" in detail
    assert value_of(vault, "api") == "value-of-api"
    assert (await ending(vault).retire("api", force=True))["profiles"] == ["p0"]
    (vault.directory / "api-key").unlink()
    await vault.restart()
    with pytest.raises(ProblemError, match="retired"):
        value_of(vault, "api")


async def test_a_retired_signing_key_is_published_no_more(vault):
    await making(vault).declare("run-signer", signer(), None)
    key = vault.custody.signing_key("run-signer", ORIGIN)[0]
    token = key.sign(b'{"exp":1893460000}').reveal()
    assert vault.custody.read_token(token)
    await ending(vault).retire("run-signer")
    assert (key.kid in vault.custody.jwks().decode(), vault.custody.read_token(token)) == (False, None)
    await vault.restart()
    assert (key.kid in vault.custody.jwks().decode(), vault.custody.read_token(token)) == (False, None)


@pytest.mark.parametrize("alias", ["sealing-key", "audit-signer"])
async def test_the_minters_own_keys_are_not_retired(vault, alias):
    await refused(ending(vault).retire(alias, force=True), "key-in-use")


async def test_a_key_that_nobody_knows_is_neither_retired_nor_destroyed(vault):
    await refused(ending(vault).retire("nobody"), "key-not-found")
    await refused(ending(vault).destroy("nobody"), "key-not-found")


async def test_a_kill_between_the_row_and_the_end_of_the_leases_is_made_good_by_the_same_command(vault, monkeypatch):
    ended = []
    await making(vault).declare("mem", static(), Secret(CANARY))
    with monkeypatch.context() as killing:
        kill_at(killing, "key.retired")
        with pytest.raises(Killed):
            await ending(vault, ended).retire("mem")
    await vault.restart()
    assert "mem" not in vault.custody.aliases()
    await ending(vault, ended).retire("mem")
    assert ended == [("mem", None)]
    assert len(vault.events("key.out-of-use")) == 1


# --- destroy ---


async def test_only_a_retired_key_is_destroyed_and_its_versions_stay_as_history(vault):
    await making(vault).declare("mem", static("file:mem-key", second_copy="the safe"), Secret(CANARY))
    rotation = Rotation(vault.custody, vault.store, clock=vault.clock)
    await rotation.request("mem", "start", value=Secret("second"))
    await refused(ending(vault).destroy("mem"), "key-in-use")
    assert vault.files()["mem-key"] == CANARY
    await ending(vault).retire("mem")
    done = await ending(vault).destroy("mem")
    assert {one["phase"] for one in done["versions"]} == {"destroyed"}
    assert any("the safe" in one for one in done["to_do"])
    assert not {"mem-key", "mem-key.v2"} & set(vault.files())
    assert await vault.phases("mem") == {1: "destroyed", 2: "destroyed"}
    await vault.restart()
    await ending(vault).destroy("mem")
    assert len(vault.events("key.destroyed")) == 2


async def test_a_place_that_the_minter_cannot_write_is_named_until_it_is_empty(vault):
    vault.environ["THE_KEY"] = CANARY
    vault.key("from-env", "env:THE_KEY")
    await vault.restart()
    await ending(vault).retire("from-env")
    done = await ending(vault).destroy("from-env")
    assert any("env:THE_KEY" in one for one in done["to_do"])
    assert [row.problem for row in await vault.versions() if row.alias == "from-env"] == ["left-in-source"]
    del vault.environ["THE_KEY"]
    await vault.restart()
    assert not any("env:THE_KEY" in one for one in (await ending(vault).destroy("from-env"))["to_do"])
    assert [row.problem for row in await vault.versions() if row.alias == "from-env"] == [""]


async def test_a_failed_deletion_is_seen_and_can_be_repeated(vault, monkeypatch):
    await making(vault).declare("mem", static("file:mem-key"), Secret(CANARY))
    await ending(vault).retire("mem")

    def fail(ref):
        raise SourceError("cannot be deleted (EIO)")

    with monkeypatch.context() as broken:
        broken.setattr(vault.custody.reader.sources, "delete", fail)
        await refused(ending(vault).destroy("mem"), "secret-unavailable")
    assert [row.problem for row in await vault.versions() if row.alias == "mem"] == ["destroy-failed"]
    assert len(vault.events("key.destroy-failed")) == 1
    await ending(vault).destroy("mem")
    assert [(row.phase, row.problem) for row in await vault.versions() if row.alias == "mem"] == [("destroyed", "")]


async def test_a_value_that_another_key_needs_is_not_deleted(vault):
    vault.put("one", CANARY)
    await making(vault).declare("mem", static("file:one"), None, in_place=True)
    vault.key("other", "file:./one")
    await vault.restart()
    await ending(vault).retire("mem")
    assert "other" in await refused(ending(vault).destroy("mem"), "key-in-use")
    assert "one" in vault.files()


@pytest.mark.parametrize("point", ["key.deleted", "key.destroyed"])
async def test_a_killed_destruction_is_made_good_by_the_same_command(vault, monkeypatch, point):
    await making(vault).declare("mem", static("file:mem-key"), Secret(CANARY))
    await ending(vault).retire("mem")
    with monkeypatch.context() as killing:
        kill_at(killing, point)
        with pytest.raises(Killed):
            await ending(vault).destroy("mem")
    await vault.restart()
    await ending(vault).destroy("mem")
    assert await vault.phases("mem") == {1: "destroyed"}
    assert "mem-key" not in vault.files()


# --- what doctor says ---


async def test_doctor_has_a_fault_for_each_version_whose_last_step_failed(vault):
    row = next(row for row in await vault.versions() if row.alias == "api")

    def work(connection):
        for number, problem in enumerate(("destroy-failed", "not-accepted", "left-in-source", "another"), 2):
            phase = "destroyed" if problem == "left-in-source" else "retiring"
            key_rows.put_version(connection, replace(row, version=number, phase=phase, problem=problem))
        return None, ()

    await vault.store.write(work)
    settings = MinterSettings(keys=vault.keys, state=f"sqlite:{vault.directory}/minter.db")
    settings = settings.anchored(vault.directory)
    faults = [one for one in doctor_keys.check_keys(settings, os.geteuid(), {}) if one.level == "fault"]
    assert [one.what.split(" ", 2)[1] for one in faults if one.where == "api"] == ["2", "3", "4", "5"]
    assert CANARY not in str(faults)


async def test_doctor_looks_at_declared_keys_and_not_at_retired_ones(vault):
    vault.put("mem-key", CANARY)
    await making(vault).declare("mem", static("file:mem-key"), None, in_place=True)
    await making(vault).declare("gone", static("file:gone-key"), Secret("value"))
    await ending(vault).retire("gone")
    (vault.directory / "mem-key").unlink()
    (vault.directory / "gone-key").unlink()
    grants = {"p": {"base_url": ORIGIN, "allowed_callers": ["agent"], "token": {"type": "static", "key": "mem"}}}
    vault.put("grants.json", json.dumps({"profiles": {"p": {**grants["p"], "allow": ["GET /x"]}}}))
    settings = MinterSettings(keys=vault.keys, state=f"sqlite:{vault.directory}/minter.db").anchored(vault.directory)
    found = {one.where: one.level for one in doctor_keys.check_keys(settings, os.geteuid(), {})}
    assert found["mem (file:mem-key)"] == "fault"
    assert not any(where.startswith("gone") for where in found)


# --- after a crash a start is not stopped ---


async def test_a_start_with_an_unfinished_import_goes_on(vault, monkeypatch):
    with monkeypatch.context() as killing:
        kill_at(killing, "key.declared")
        with pytest.raises(Killed):
            await making(vault).declare("mem", static(), Secret(CANARY))
    vault.grants = grants_of({"type": "static", "key": "mem"})
    await vault.restart()
    with pytest.raises(ProblemError) as unavailable:
        value_of(vault)
    assert unavailable.value.code == "secret-unavailable"


async def test_a_declared_key_whose_value_is_gone_stops_the_start_like_any_other(vault):
    await making(vault).declare("mem", static("file:mem-key"), Secret(CANARY))
    (vault.directory / "mem-key").unlink()
    with pytest.raises(ConfigurationError, match="does not exist"):
        await vault.restart()


async def test_no_answer_of_all_these_holds_a_value(vault):
    answers = [
        str(await making(vault).declare("mem", static(), Secret(CANARY))),
        json.dumps(await ending(vault).retire("mem")),
        json.dumps(await ending(vault).destroy("mem")),
    ]
    assert CANARY not in "".join(answers)


# --- what stands though the log could not be told ---


@pytest.fixture
def deaf(vault, monkeypatch):
    def fails(_events, *, now):
        raise AuditUnavailable(f"the audit log cannot be written at {now}")

    return lambda: monkeypatch.setattr(vault.audit, "append", fails)


async def test_a_key_is_out_of_use_and_its_leases_end_though_the_log_cannot_be_told_that_it_was_retired(vault, deaf):
    await making(vault).declare("mem", static(), Secret(CANARY))
    ended = []
    deaf()
    await refused(ending(vault, ended).retire("mem", uid=7), "audit-unavailable")
    with pytest.raises(ProblemError, match="secret-unavailable"):
        value_of(vault)
    assert ended == [("mem", 7)]


async def test_a_key_goes_nowhere_else_though_the_log_cannot_be_told_that_it_was_rebound(vault, deaf):
    await vault.custody.rebind(vault.store, "api", [ORIGIN])
    deaf()
    await refused(vault.custody.rebind(vault.store, "api", ["https://b.example.com"]), "audit-unavailable")
    with pytest.raises(ProblemError, match="origin-not-pinned"):
        value_of(vault, "api")


async def test_a_key_that_the_state_has_is_in_force_though_the_log_cannot_be_told_of_it(vault, deaf):
    vault.put("mem-key", CANARY)
    make = making(vault)
    deaf()
    await refused(make.declare("mem", static("file:mem-key"), None, in_place=True), "audit-unavailable")
    assert value_of(vault) == CANARY


# --- a reload beside an operator ---


async def test_a_key_that_is_retired_while_a_reload_reads_stays_out_of_use(vault):
    await making(vault).declare("mem", static(), Secret(CANARY))
    staged = await vault.custody.stage(vault.store, vault.grants)
    await ending(vault).retire("mem")
    await vault.custody.adopt(vault.store, staged)
    with pytest.raises(ProblemError, match="secret-unavailable"):
        value_of(vault)


async def test_a_key_that_is_rebound_while_a_reload_reads_goes_where_the_operator_said(vault):
    await vault.custody.rebind(vault.store, "api", [ORIGIN])
    staged = await vault.custody.stage(vault.store, vault.grants)
    await vault.custody.rebind(vault.store, "api", ["https://b.example.com"])
    await vault.custody.adopt(vault.store, staged)
    with pytest.raises(ProblemError, match="origin-not-pinned"):
        value_of(vault, "api")
    assert vault.custody.origins_of("api") == ["https://b.example.com"]
