"""Where a broker's calls go, whatever names resolve to, certificates say and the environment holds.

One broker for all: proxies, trust files, a key log and a .netrc stand in its environment, and none has a say.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import ssl
import warnings
from ipaddress import ip_address
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from broker import egress
from config.errors import ConfigurationError
from config.grants import parse_grants
from tests.attacks.house import serving
from tests.broker.calling import profile as calling_profile
from tests.broker.calling import world
from tests.config.test_addresses import LOOPBACK, NEVER, PRIVATE
from tests.worlds.outcomes import call
from tests.worlds.recording import recording
from tests.worlds.rule_breaker import RuleBreaker

pytestmark = pytest.mark.flow

ITEM = "/v1/items/1"
ADDRESS_REFUSED, UNREACHABLE = "upstream-address-refused", "upstream-unreachable"


def literals(texts: list[str]) -> list[str]:
    """Return addresses in the one spelling that grants take, without those that no grant takes at all."""
    found = {ip_address(text) for text in texts}
    return sorted(str(one) for one in found if one.version == 4 or one.ipv4_mapped is None)


NEVER_LITERALS, PRIVATE_LITERALS = literals(NEVER), literals(PRIVATE)
MAPPED = sorted(text for text in {*NEVER, *PRIVATE} if text.startswith("::ffff:") and text.count(":") == 3)


def server(chain: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    chain.configure_cert(context)
    return context


def self_signed(tmp_path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path / "self-signed.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


def old_tls(chain: trustme.LeafCert) -> ssl.SSLContext:
    context = server(chain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    return context


class Servers:
    """An API for each certificate, and a proxy that must not be called."""

    def __init__(self, stack: contextlib.ExitStack, tmp_path) -> None:
        self.trusted, self.of_the_environment = trustme.CA(), trustme.CA()
        now = dt.datetime.now(dt.UTC)
        day, issue = dt.timedelta(days=1), self.trusted.issue_cert
        contexts = {
            "good": server(issue("localhost")),
            "expired": server(issue("localhost", not_before=now - 2 * day, not_after=now - day)),
            "not yet valid": server(issue("localhost", not_before=now + day, not_after=now + 2 * day)),
            "another name": server(issue("other.test")),
            "a name above": server(issue("*.localhost")),
            "a common name only": server(issue("other.test", common_name="localhost")),
            "an address for a name": server(issue("127.0.0.1")),
            "another authority": server(trustme.CA().issue_cert("localhost")),
            "the environment's authority": server(self.of_the_environment.issue_cert("localhost")),
            "self-signed": self_signed(tmp_path),
            "TLS 1.1": old_tls(issue("localhost")),
            "no TLS": None,
        }
        self.apis = {name: stack.enter_context(RuleBreaker(context)) for name, context in contexts.items()}
        self.proxy = stack.enter_context(RuleBreaker())
        self.proxied: list[object] = []
        self.proxy.greet = self.proxied.append

    def origins(self) -> dict[str, str]:
        origins = {name: f"https://localhost:{api.port}" for name, api in self.apis.items()}
        # The certificate names the name, and the profile the address.
        origins["a name for an address"] = f"https://127.0.0.1:{self.apis['good'].port}"
        origins["plain"] = f"http://127.0.0.1:{self.apis['no TLS'].port}"
        return origins


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with contextlib.ExitStack() as stack:
        yield Servers(stack, tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def profiles(servers):
    """Names of profiles by what they are about."""
    origins = servers.origins()
    at = {"allow": ["GET /v1/items/*"], "token": None, "max_calls": 1000}
    made = {f"tls-{number}": {**at, "base_url": origin} for number, origin in enumerate(origins.values())}
    for kind, literals in (("never", NEVER_LITERALS), ("private", PRIVATE_LITERALS)):
        for number, text in enumerate(literals):
            host = f"[{text}]" if ":" in text else text
            made[f"{kind}-{number}"] = {**at, "base_url": f"https://{host}", "private_addresses": kind == "never"}
    return made


@pytest.fixture(scope="module")
def house(tmp_path_factory, servers, profiles):
    trust = tmp_path_factory.mktemp("trust")
    servers.trusted.cert_pem.write_to_path(str(trust / "trusted.pem"))
    servers.of_the_environment.cert_pem.write_to_path(str(trust / "environment.pem"))
    root = tmp_path_factory.mktemp("egress")
    (root / ".netrc").write_text(f"default login user password {'x' * 20}\n")
    (root / ".netrc").chmod(0o600)
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    files = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
    environ = {
        **dict.fromkeys(proxies, servers.proxy.origin),
        **dict.fromkeys(files, str(trust / "environment.pem")),
        "SSL_CERT_DIR": str(trust),
        "SSLKEYLOGFILE": str(root / "keys.log"),
        "NETRC": str(root / ".netrc"),
        "NO_PROXY": "elsewhere.test",
        "no_proxy": "elsewhere.test",
    }
    extra = f'max_runs = 1000\n[upstream]\nca_file = "{trust / "trusted.pem"}"'
    with serving(root, profiles, broker_extra=extra, environ=environ) as made:
        yield made


def ask(house, servers, profile):
    """Make one call of a profile; no proxy may have heard of it."""
    seen = call(house, house.open_run(profile), "GET", ITEM, profile=profile)
    assert servers.proxied == []
    return seen


# --- addresses ---


@pytest.mark.parametrize(
    ("profile", "text"),
    [
        *((f"never-{number}", text) for number, text in enumerate(NEVER_LITERALS)),
        *((f"private-{number}", text) for number, text in enumerate(PRIVATE_LITERALS)),
    ],
    ids=[*NEVER_LITERALS, *PRIVATE_LITERALS],
)
def test_a_profile_of_such_an_address_reaches_nobody(house, servers, profile, text):
    """With ``private_addresses`` where the address is one that is never called, and without where it is private."""
    run = house.open_run(profile)
    seen = call(house, run, "GET", ITEM, profile=profile)
    assert (seen.status, seen.code) == (502, ADDRESS_REFUSED)
    assert text.encode() not in seen.body
    [row] = house.trace(run)["trace"]["rows"]
    assert (row["status"], row["delivered"]) == (502, False)
    assert servers.proxied == []


@pytest.mark.parametrize("text", MAPPED)
def test_a_profile_of_a_mapped_address_does_not_load(text):
    profile = {"base_url": f"https://[{ip_address(text)}]", "allowed_callers": ["a"], "allow": ["GET /v1/items"]}
    with pytest.raises(ConfigurationError, match="write an IPv4 address as such"):
        parse_grants(json.dumps({"profiles": {"api": profile}}).encode(), name="grants.json")


# --- names ---


class Names:
    """A resolver that says what its test wrote down, the last answer for ever, and counts."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, _host: str, _port: int) -> list[str]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.mark.parametrize("text", [*NEVER, *PRIVATE, *LOOPBACK, "fe80::1%lo", "::1%lo", "localhost"])
async def test_a_name_of_such_an_address_reaches_nobody_whatever_stands_beside_it(tmp_path, text):
    for answer in ([text], ["1.1.1.1", text], [text, "2606:4700::1111"]):
        names = Names(answer)
        async with world(tmp_path, resolve=names) as w:
            w.token = w.open_run(
                {"api": calling_profile(f"https://inside.test:{w.api.port}", private_addresses=text not in PRIVATE)}
            )
            reply = await w.call("GET", "/v1/items")
            assert (reply.status, reply.code) == (502, ADDRESS_REFUSED)
            assert text.encode() not in reply.body.replace(b"localhost", b"")
            assert names.asked == 1
            assert w.api.raw == []
            [run] = [run for run in w.runs.values() if run is not w.run]
            assert [(row["status"], row["delivered"]) for row in run.trace.snapshot()["rows"]] == [(502, False)]


async def test_a_name_whose_answers_alternate_is_checked_each_time_that_it_is_dialled(tmp_path, monkeypatch):
    """DNS rebinding: each connection asks once, and what was checked is what is dialled."""
    monkeypatch.setattr(egress, "_DNS_TTL_S", 0)
    good = ["127.0.0.1"]
    names = Names(good, ["169.254.169.254"], good, [*good, "10.0.0.1"], ["1.1.1.1"], good)
    async with world(tmp_path, resolve=names) as w:
        w.api.says(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        w.token = w.open_run({"api": calling_profile(f"http://localhost:{w.api.port}")})
        statuses = [(await w.call("GET", "/v1/items")).status for _ in range(6)]
        assert statuses == [200, 502, 200, 502, 502, 200]
        assert names.asked == 6
        assert len(w.api.raw) == 3
        assert {value for request in w.api.requests for value in request.values(b"host")} == {
            f"localhost:{w.api.port}".encode()
        }


async def test_what_a_name_becomes_later_does_not_move_a_connection(tmp_path):
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    async with world(tmp_path, resolve=names) as w, recording(host="127.0.0.2") as decoy:
        w.token = w.open_run({"api": calling_profile(f"http://localhost:{w.api.port}")})
        for _ in range(5):
            assert (await w.call("GET", "/v1/items")).status == 200
        assert (names.asked, len(w.api.raw), decoy.raw) == (1, 1, [])


# --- certificates ---


def number_of(servers, about):
    return f"tls-{list(servers.origins()).index(about)}"


def test_a_certificate_that_is_in_order_is_spoken_to(house, servers):
    api = servers.apis["good"]
    api.forget()
    seen = ask(house, servers, number_of(servers, "good"))
    assert (seen.status, seen.body) == (200, ITEM.encode())
    assert api.count(ITEM.encode()) == 1


@pytest.mark.parametrize(
    "about",
    [
        "expired",
        "not yet valid",
        "another name",
        "a name above",
        "a common name only",
        "an address for a name",
        "a name for an address",
        "another authority",
        "the environment's authority",
        "self-signed",
        "TLS 1.1",
        "no TLS",
    ],
)
def test_a_certificate_that_is_not_in_order_gets_no_call(house, servers, about):
    api = servers.apis.get(about, servers.apis["good"])
    api.forget()
    run = house.open_run(number_of(servers, about))
    seen = call(house, run, "GET", ITEM, profile=number_of(servers, about))
    assert (seen.status, seen.code) == (502, UNREACHABLE)
    assert api.requests == []
    for word in (b"certificate", b"CERTIFICATE", b"localhost", b"127.0.0.1", b"SSL"):
        assert word not in seen.body
    assert house.trace(run)["trace"]["rows"][0]["delivered"] is False
    assert servers.proxied == []


# --- the environment ---


def test_proxies_and_netrc_of_the_environment_have_no_say(house, servers):
    api = servers.apis["no TLS"]
    api.forget()
    seen = ask(house, servers, number_of(servers, "plain"))
    assert (seen.status, seen.body) == (200, ITEM.encode())
    [request] = api.requests
    assert request.line == b"GET /v1/items/1 HTTP/1.1"
    assert request.values(b"authorization") == request.values(b"proxy-authorization") == []


def test_no_key_is_logged(house, servers):
    """A library may open the file and say what it is for; of our connections there is no line in it."""
    assert ask(house, servers, number_of(servers, "good")).status == 200
    log = Path(house.environ["SSLKEYLOGFILE"])
    lines = log.read_text().splitlines() if log.exists() else []
    assert [line for line in lines if not line.startswith("#")] == []
