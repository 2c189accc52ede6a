"""Token kinds: the contract over every kind, then what each makes and refuses."""

import asyncio
import contextlib
import inspect
import json
import os
import re
import stat
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import freezegun
import jwt
import pytest

from config.errors import ConfigurationError
from config.problems import ProblemError
from minter import kinds
from minter.kinds import Ending, MintRequest
from minter.signing import generate
from tests.minter.vault import CANARY, ORIGIN, Vault, grants_of, quick_directory

every = pytest.mark.parametrize("name", kinds.names())


@pytest.fixture
async def vault(clock):
    with quick_directory() as directory:
        made = Vault(directory, clock)
        made.environ["CLOUDFLARE_API_TOKEN"] = CANARY
        made.put("api-key", CANARY)
        made.key("api", "file:api-key")
        made.key("run-signer", "file:run-signer.pem", use="signing")
        made.more = {"issuer": "https://minter.example"}
        script(made, "helper", exec_credential(CANARY))
        made.command("cluster-token", argv=[str(directory / "helper")])
        made.grants = grants_of(*(kinds.classes()[name].example for name in kinds.names() if name != "exec"))
        await made.start()
        yield made
        await made.stop()


def script(vault, name, body, *, shell="/bin/sh"):
    path = vault.directory / name
    path.write_text(f"#!{shell}\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def exec_credential(token="t", **status):
    document = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": token, **status},
    }
    return f"echo '{json.dumps(document)}'"


def request(vault, **changes):
    now = vault.clock.now()
    values = {
        "lease_id": "lse_1",
        "run_id": "run_1",
        "caller": "support-agent",
        "profile": "memory",
        "params": {},
        "origin": ORIGIN,
        "routes": ("POST /v1/recall", "GET /v1/memories/{id}"),
        "scopes": (),
        "now": now,
        "not_after": now + 900,
        "broker": "broker-1",
    }
    return MintRequest(**{**values, **changes})


def build(vault, token):
    return kinds.build(token, vault.custody, "grants.json: profiles.p.token")


def faults_of(vault, token):
    with pytest.raises(ConfigurationError) as refused:
        build(vault, token)
    assert CANARY not in str(refused.value)
    return str(refused.value)


class Lease:
    id = "lse_1"
    token = "{}"


# --- the contract ---


@every
def test_a_kind_says_what_it_is_to_operators(name):
    described = kinds.describe(name)
    assert described["name"] == name == described["example"]["type"]
    assert len(described["doc"]) > 80
    assert isinstance(described["local"], bool)
    assert sys.modules[kinds.classes()[name].__module__].__doc__


@every
async def test_a_mint_gives_what_is_promised_and_shows_nothing(name, vault):
    kind = build(vault, kinds.classes()[name].example)
    assert kind.name == name
    minted = await kind.mint(request(vault))
    assert minted.credential
    for value in minted.credential.values():
        assert re.fullmatch(r"[\x20-\x7e]+", value.reveal())
        assert value.reveal() not in repr(minted)
        assert value.reveal() not in minted.fingerprint
    assert minted.fingerprint
    assert minted.expires_at is None or minted.expires_at > vault.clock.now()
    assert all(vault.custody.settings_of(alias) for alias, _ in minted.key_versions)


@every
async def test_two_mints_of_the_same_have_the_same_fingerprint_exactly_if_they_are_the_same(name, vault):
    kind = build(vault, kinds.classes()[name].example)
    first = await kind.mint(request(vault))
    second = await kind.mint(request(vault, lease_id="lse_2"))
    same = [v.reveal() for v in first.credential.values()] == [v.reveal() for v in second.credential.values()]
    assert (first.fingerprint == second.fingerprint) is same


@every
async def test_a_revocation_says_how_it_ends_as_the_mint_foretold_and_can_be_repeated(name, vault):
    kind = build(vault, kinds.classes()[name].example)
    minted = await kind.mint(request(vault))
    for credential in (minted.credential, None):
        assert await kind.revoke(Lease(), credential) == Ending(minted.how_ends)


@every
@pytest.mark.parametrize(
    "change", [{"tpye": "x"}, {"unknown": 1}, {"ttl": "soon"}, {"key": 5}, {"key": None, "env": {}}]
)
def test_a_token_object_with_a_fault_is_refused_with_its_place(name, change, vault):
    token = {**kinds.classes()[name].example, **change}
    text = faults_of(vault, token)
    assert "grants.json: profiles.p.token" in text
    assert len(kinds.checker(vault.custody)("grants.json: profiles.p.token", token)) >= 1


@every
def test_the_example_has_no_fault(name, vault):
    assert kinds.checker(vault.custody)("here", dict(kinds.classes()[name].example)) == []


@pytest.mark.parametrize("token", [{}, {"type": 1}, {"type": None}, {"type": "oauth9"}, {"type": "Static"}])
def test_an_unknown_kind_is_refused_and_the_known_ones_named(token, vault):
    text = faults_of(vault, token)
    assert "static" in text


def test_a_plugin_loads_only_when_the_settings_name_it(vault, monkeypatch):
    directory = vault.directory / "site"
    directory.mkdir()
    (directory / "vault_kind.py").write_text(
        textwrap.dedent("""
        class Kind:
            name = "vault"
            local = False
            example = {"type": "vault"}
            @classmethod
            def build(cls, token, custody, where):
                return cls()
        """)
    )
    info = directory / "vault_kind-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vault-kind\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[minter.kinds]\nvault = vault_kind:Kind\n")
    monkeypatch.syspath_prepend(str(directory))
    assert "vault" not in kinds.names()
    assert "vault" in kinds.names(["vault"])
    for name, why in (("missing", "not installed"), ("jwt", "minter's own")):
        with pytest.raises(ConfigurationError, match=why):
            kinds.names([name])


def test_the_kinds_are_coroutines_where_the_service_awaits_them():
    for kind in kinds.classes().values():
        assert inspect.iscoroutinefunction(kind.mint)
        assert inspect.iscoroutinefunction(kind.revoke)


# --- static ---


async def test_a_static_key_is_lent_as_it_is_without_an_end(vault):
    minted = await build(vault, {"type": "static", "key": "api"}).mint(request(vault))
    assert minted.credential["value"].reveal() == CANARY
    assert (minted.expires_at, minted.how_ends) == (None, "key_still_valid")
    assert minted.key_versions == (("api", 1),)


async def test_several_fields_come_from_several_keys(vault):
    token = {"type": "static", "fields": {"api_key": {"key": "api"}, "app_key": {"env": "CLOUDFLARE_API_TOKEN"}}}
    minted = await build(vault, token).mint(request(vault))
    assert minted.credential.keys() == {"api_key", "app_key"}
    assert minted.key_versions == (("api", 1), ("env:CLOUDFLARE_API_TOKEN", 1))


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ({"type": "static"}, "names no secret"),
        ({"type": "static", "key": "api", "env": "X"}, "names 2 secrets"),
        ({"type": "static", "key": "nobody"}, "no key 'nobody'"),
        ({"type": "static", "key": "run-signer"}, "signing key"),
        ({"type": "static", "fields": {}}, "names no field"),
        ({"type": "static", "fields": {"a": {}}}, "fields.a"),
        ({"type": "static", "key": "api", "fields": {"a": {"key": "api"}}}, "both"),
        ({"type": "static", "value": CANARY}, "value"),
    ],
)
def test_a_static_token_must_name_its_keys(token, why, vault):
    assert why in faults_of(vault, token)


@pytest.mark.parametrize("value", ["two\nlines", "tab\t", "ümlaut", "nul\x7f"])
async def test_a_static_key_that_cannot_be_sent_is_refused_before_it_is_lent(vault, value):
    vault.put("api-key", CANARY + value)
    await vault.restart()
    with pytest.raises(ProblemError) as refused:
        await build(vault, {"type": "static", "key": "api"}).mint(request(vault))
    assert refused.value.code == "secret-unavailable"
    assert CANARY not in str(refused.value)


# --- jwt ---

SIGNED = {"type": "jwt", "key": "run-signer", "audience": "https://api.example.com"}


def verified(vault, token, **options):
    header = jwt.get_unverified_header(token)
    keys = {key["kid"]: key for key in json.loads(vault.custody.jwks())["keys"]}
    jwk = jwt.PyJWK(keys[header["kid"]])
    checks = {"verify_exp": False, "verify_iat": False, **options}
    return header, jwt.decode(
        token, jwk.key, algorithms=[jwk.algorithm_name], audience="https://api.example.com", options=checks
    )


async def test_a_token_says_who_may_do_what_for_which_run(vault):
    minted = await build(vault, {**SIGNED, "claims": {"tenant": "acme"}}).mint(
        request(vault, scopes=("memory:read", "memory:write"))
    )
    header, claims = verified(vault, minted.credential["value"].reveal())
    now = int(vault.clock.now())
    assert header["typ"] == "at+jwt"
    assert claims == {
        "iss": "https://minter.example",
        "sub": "support-agent",
        "aud": "https://api.example.com",
        "exp": now + 900,
        "iat": now - 10,
        "jti": "lse_1",
        "run_id": "run_1",
        "client_id": "broker-1",
        "scope": "memory:read memory:write",
        "tenant": "acme",
        "authorization_details": [
            {
                "type": "minter-broker-route",
                "profile": "memory",
                "locations": [ORIGIN],
                "actions": ["POST /v1/recall", "GET /v1/memories/{id}"],
            }
        ],
    }
    assert (minted.expires_at, minted.how_ends) == (now + 900, "expired_only")
    assert minted.key_versions == (("run-signer", 1),)


async def test_a_verifier_whose_clock_is_ten_seconds_behind_takes_the_token_until_its_end(vault):
    """jpadilla/pyjwt#854: PyJWT refuses a token from the future, with no leeway."""
    token = (await build(vault, SIGNED).mint(request(vault))).credential["value"].reveal()
    start = vault.clock.now()
    for moment, error in (
        (-11, jwt.ImmatureSignatureError),
        (-10, None),
        (899, None),
        (900, jwt.ExpiredSignatureError),
    ):
        with (
            freezegun.freeze_time(datetime.fromtimestamp(start + moment, UTC), real_asyncio=True),
            pytest.raises(error) if error else contextlib.nullcontext(),
        ):
            verified(vault, token, verify_exp=True, verify_iat=True)


async def test_a_token_without_scopes_has_no_scope(vault):
    minted = await build(vault, SIGNED).mint(request(vault))
    assert "scope" not in verified(vault, minted.credential["value"].reveal())[1]


@pytest.mark.parametrize(
    ("ttl", "left", "expected"), [("10m", 900, 600), ("1h", 900, 900), (None, 7.5, 7), (1.5, 900, 1)]
)
async def test_a_token_lasts_no_longer_than_its_ttl_and_never_past_the_run(vault, ttl, left, expected):
    vault.clock.wall += 0.25
    minted = await build(vault, {**SIGNED, **({"ttl": ttl} if ttl else {})}).mint(
        request(vault, not_after=vault.clock.now() + left)
    )
    claims = verified(vault, minted.credential["value"].reveal())[1]
    assert type(claims["exp"]) is int
    assert type(claims["iat"]) is int
    assert claims["exp"] - int(vault.clock.now()) == expected
    assert claims["exp"] <= vault.clock.now() + left


async def test_no_token_is_made_for_less_than_a_second(vault):
    with pytest.raises(ProblemError) as refused:
        await build(vault, SIGNED).mint(request(vault, not_after=vault.clock.now() + 0.9))
    assert refused.value.code == "run-over"


@pytest.mark.parametrize("algorithm", ["EdDSA", "ES256", "RS256", "HS256"])
async def test_every_algorithm_signs_tokens_that_an_independent_verifier_takes(vault, algorithm):
    key = generate(algorithm)
    vault.put("other-signer", key.reveal())
    vault.key("other", "file:other-signer", use="signing", algorithm=algorithm)
    await vault.restart()
    minted = await build(vault, {**SIGNED, "key": "other", "algorithm": algorithm}).mint(request(vault))
    token = minted.credential["value"].reveal()
    if algorithm == "HS256":
        kid = jwt.get_unverified_header(token)["kid"]
        assert kid not in vault.custody.jwks().decode()
        jwt.decode(
            token,
            key.reveal(),
            algorithms=["HS256"],
            audience=SIGNED["audience"],
            options={"verify_exp": False, "verify_iat": False},
        )
    else:
        verified(vault, token)
    assert vault.custody.read_token(token)["jti"] == "lse_1"
    vault.clock.advance(900)
    assert vault.custody.read_token(token) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"audience": ""}, "audience"),
        ({"audience": None}, "audience"),
        ({"key": "nobody"}, "no key 'nobody'"),
        ({"key": "api"}, "no signing key"),
        ({"algorithm": "RS256"}, "signs EdDSA"),
        ({"algorithm": "none"}, "algorithm"),
        ({"ttl": "soon"}, "ttl"),
        *(({"claims": {name: 1}}, f"claims.{name}") for name in ("iss", "exp", "cnf", "scope", "run_id", "act")),
    ],
)
def test_a_jwt_token_object_with_a_fault_is_refused(vault, change, why):
    token = {name: value for name, value in {**SIGNED, **change}.items() if value is not None}
    assert why in faults_of(vault, token)


# --- exec ---


def run(vault, body, *, form="text", ttl=None, shell="/bin/sh", **settings):
    vault.command("under-test", argv=[script(vault, "under-test", body, shell=shell)], **settings)
    token = {"type": "exec", "command": "under-test", "format": form}
    return build(vault, token if ttl is None else {**token, "ttl": ttl}).mint(request(vault))


async def refused(vault, body, **options):
    with pytest.raises(ProblemError) as error:
        await run(vault, body, **options)
    assert error.value.code == "issuer-failed"
    assert error.value.retry_after
    assert CANARY not in str(error.value)
    return error.value.detail


async def test_a_plain_line_is_a_credential_of_a_short_life(vault):
    minted = await run(vault, f"echo {CANARY}")
    assert minted.credential["value"].reveal() == CANARY
    assert minted.expires_at == vault.clock.now() + 300
    assert (await run(vault, f"printf '{CANARY}\\r\\n'", ttl="1m")).credential["value"].reveal() == CANARY
    assert (await run(vault, f"echo {CANARY}", ttl="1m")).expires_at == vault.clock.now() + 60


async def test_an_exec_plugin_of_kubectl_is_understood_and_told_what_it_runs_for(vault):
    body = 'test "$KUBERNETES_EXEC_INFO" || exit 1\n' + exec_credential(
        CANARY, expirationTimestamp="2030-01-01T00:05:00Z"
    )
    minted = await run(vault, body, form="kubectl")
    assert minted.credential["value"].reveal() == CANARY
    assert minted.expires_at == vault.clock.now() + 300


async def test_a_credential_process_of_aws_is_understood(vault):
    document = {
        "Version": 1,
        "AccessKeyId": "AKIA",
        "SecretAccessKey": CANARY,
        "SessionToken": "session",
        "Expiration": "2030-01-01T01:00:00+00:00",
    }
    minted = await run(vault, f"echo '{json.dumps(document)}'", form="aws")
    revealed = {name: value.reveal() for name, value in minted.credential.items()}
    assert revealed == {"access_key_id": "AKIA", "secret_access_key": CANARY, "session_token": "session"}
    assert minted.expires_at == vault.clock.now() + 3600
    del document["SessionToken"], document["Expiration"]
    minted = await run(vault, f"echo '{json.dumps(document)}'", form="aws")
    assert minted.credential.keys() == {"access_key_id", "secret_access_key"}
    assert minted.expires_at == vault.clock.now() + 300


@pytest.mark.parametrize(
    ("form", "output", "why"),
    [
        ("text", "", "one line"),
        ("text", f"{CANARY}\n{CANARY}", "one line"),
        ("text", f"{CANARY}\t", "one line"),
        ("text", f"{CANARY}ü", "not what the format says"),
        ("kubectl", CANARY, "not what the format says"),
        ("kubectl", "[]", "no ExecCredential"),
        ("kubectl", '{"kind":"ExecCredential","apiVersion":"v9","status":{}}', "apiVersion"),
        ("kubectl", "[" * 60_000, "not what the format says"),
        ("aws", '{"Version":2}', "Version"),
        ("aws", '{"Version":true}', "Version"),
        ("aws", '{"Version":1,"AccessKeyId":"a"}', "SecretAccessKey"),
        ("aws", '{"Version":1,"AccessKeyId":"a","AccessKeyId":"b"}', "twice"),
        ("aws", '{"Version":1,"AccessKeyId":"a","SecretAccessKey":5}', "SecretAccessKey"),
        ("aws", '{"Version":1,"AccessKeyId":"a","SecretAccessKey":"b","Expiration":"2030-01-01T00:00:00"}', "zone"),
        ("aws", '{"Version":1,"AccessKeyId":"a","SecretAccessKey":"b","Expiration":"2029-01-01T00:00:00Z"}', "ended"),
        ("aws", '{"Version":1,"AccessKeyId":"a","SecretAccessKey":"b","Expiration":5}', "instant"),
        ("aws", '{"Version":1,"AccessKeyId":"a","SecretAccessKey":"b\\n"}', "cannot be sent"),
    ],
)
async def test_output_of_another_shape_is_refused_without_showing_it(vault, form, output, why):
    (vault.directory / "output").write_text(output)
    assert why in await refused(vault, f"cat {vault.directory}/output", form=form)


@pytest.mark.parametrize("junk", ["{}", "x", "\\0"])
async def test_junk_behind_the_answer_is_refused(vault, junk):
    assert "format" in await refused(vault, f"{exec_credential(CANARY)}\nprintf '{junk}'", form="kubectl")


async def test_a_client_certificate_is_refused_with_a_word_about_it(vault):
    body = exec_credential("t", clientCertificateData=CANARY, clientKeyData=CANARY)
    assert "client certificate" in await refused(vault, body, form="kubectl")


async def test_the_helper_has_the_environment_of_the_settings_and_no_other(vault, monkeypatch):
    monkeypatch.setenv("MINTER_SECRET_OF_ITS_OWN", CANARY)
    body = f"env | cut -d= -f1 | grep -v -e ^_$ -e ^PWD$ -e ^SHLVL$ > {vault.directory}/seen; echo token"
    await run(vault, body, env={"PATH": os.environ["PATH"], "HELPER": "1"})
    assert sorted((vault.directory / "seen").read_text().split()) == ["HELPER", "PATH"]


async def test_no_shell_reads_the_arguments(vault):
    path = script(vault, "args", 'printf %s "$1"')
    vault.command("args", argv=[path, "$(id);`id`"])
    minted = await build(vault, {"type": "exec", "command": "args", "format": "text"}).mint(request(vault))
    assert minted.credential["value"].reveal() == "$(id);`id`"


async def test_what_the_helper_says_on_standard_error_goes_nowhere(vault, capfd):
    detail = await refused(vault, f"echo {CANARY} >&2; exit 3")
    assert "ended with an error" in detail
    assert CANARY not in "".join(capfd.readouterr())


async def test_a_helper_that_prints_too_much_is_killed(vault):
    assert "too much" in await refused(vault, "while :; do echo xxxxxxxxxxxxxxxx; done", max_output=1000)
    assert (await run(vault, "printf xxxxxxxxxx", max_output=10)).credential


async def test_a_helper_that_takes_too_long_is_killed_with_all_that_it_started(vault):
    body = f"sh -c 'echo $$ > {vault.directory}/child; exec sleep 60' & wait"
    assert "too long" in await refused(vault, body, timeout=1, env={"PATH": os.environ["PATH"]})
    child = int((vault.directory / "child").read_text())
    async with asyncio.timeout(5):
        while runs(child):  # noqa: ASYNC110 - the kernel ends it when it gets to it, and announces nothing
            await asyncio.sleep(0.005)


def runs(pid):
    """Say whether a process runs; one that was killed and waits to be collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


async def test_a_child_that_keeps_the_output_open_does_not_hold_the_mint_up(vault):
    body = f"sleep 60 & echo {CANARY}"
    assert "too long" in await refused(vault, body, timeout=0.4, env={"PATH": os.environ["PATH"]})


async def test_a_helper_that_is_not_there_is_a_failure_of_the_issuer(vault):
    vault.command("gone", argv=["/nonexistent/helper"])
    kind = build(vault, {"type": "exec", "command": "gone", "format": "text"})
    with pytest.raises(ProblemError, match="cannot be started"):
        await kind.mint(request(vault))


def test_a_command_must_be_declared_and_absolute(vault):
    assert "no command 'x'" in faults_of(vault, {"type": "exec", "command": "x", "format": "text"})
    assert "format" in faults_of(vault, {"type": "exec", "command": "cluster-token", "format": "yaml"})
    vault.command("relative", argv=["helper"])
    assert "absolute" in faults_of(vault, {"type": "exec", "command": "relative", "format": "text"})
