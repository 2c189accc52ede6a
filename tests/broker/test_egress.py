"""Where bytes go: checked addresses only, verified TLS only, nothing of the environment."""

from __future__ import annotations

import socket
import ssl
from typing import ClassVar

import pytest
import trustme
from aiohttp.abc import AbstractResolver

from broker import egress as egress_module
from broker.egress import CheckedResolver, Egress, MinterTransport
from config import tls
from config.errors import ConfigurationError
from config.problems import ProblemError
from config.settings import TlsSettings, UpstreamSettings
from config.tls import client_context
from tests.worlds.recording import recording


class Names(AbstractResolver):
    """A resolver that answers what its test wrote down, and counts."""

    answers: ClassVar[dict[str, list[list[str]]]] = {}
    asked: ClassVar[list[str]] = []

    async def resolve(self, host, port=0, family=socket.AF_UNSPEC):
        Names.asked.append(host)
        answers = Names.answers[host]
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
                "proto": 0,
                "flags": socket.AI_NUMERICHOST,
            }
            for address in addresses
        ]

    async def close(self):
        pass


@pytest.fixture
def names():
    Names.answers, Names.asked = {}, []
    return Names


@pytest.fixture
def ca():
    return trustme.CA()


def server_side(ca, name):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(name).configure_cert(context)
    return context


async def get(egress: Egress, url: str, host: str, *, private: bool = False) -> bytes:
    origin = egress.origin(url, host, private=private)
    sending = await origin.connect("GET", b"/a", [], None)
    answer = await sending.send()
    body = await answer.read()
    answer.close()
    return body


# --- addresses ---


async def test_a_name_that_resolves_to_this_machine_or_its_network_is_not_dialled(names):
    async with recording() as api:
        egress = Egress(UpstreamSettings(), resolver=names)
        for address in ("127.0.0.1", "::1", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1"):
            names.answers["inside.test"] = [[address]]
            with pytest.raises(ProblemError, match="upstream-address-refused"):
                await CheckedResolver(names(), private=False, loopback=False).resolve("inside.test", api.port)
        names.answers["rebound.test"] = [["127.0.0.1"]]
        with pytest.raises(ProblemError, match="upstream-address-refused"):
            await get(egress, f"http://rebound.test:{api.port}", "rebound.test")
        assert api.raw == []
        await egress.close()


async def test_one_bad_address_among_good_ones_refuses_the_name(names):
    names.answers["mixed.test"] = [["1.1.1.1", "169.254.169.254"]]
    with pytest.raises(ProblemError, match="upstream-address-refused"):
        await CheckedResolver(names(), private=True, loopback=False).resolve("mixed.test", 443)


async def test_a_literal_address_is_checked_too(names):
    async with recording() as api:
        egress = Egress(UpstreamSettings(), resolver=names)
        for host in ("169.254.169.254", "10.0.0.1", "[::ffff:10.0.0.1]", "100.100.100.200"):
            with pytest.raises(ProblemError, match="upstream-address-refused"):
                await get(egress, f"http://{host}:{api.port}", host)
        assert await get(egress, f"http://127.0.0.1:{api.port}", "127.0.0.1") == b'{"ok":true}'
        assert names.asked == []
        await egress.close()


async def test_a_loopback_origin_reaches_the_loopback_only(names):
    async with recording() as api:
        egress = Egress(UpstreamSettings(), resolver=names)
        names.answers["localhost"] = [["127.0.0.1"]]
        assert await get(egress, f"http://localhost:{api.port}", "localhost") == b'{"ok":true}'
        assert api.requests[0].values(b"host") == [f"localhost:{api.port}".encode()]
        await egress.close()
        names.answers["localhost"] = [["1.1.1.1"]]
        with pytest.raises(ProblemError, match="upstream-address-refused"):
            await get(egress, f"http://localhost:{api.port}", "localhost")
        await egress.close()


async def test_a_name_that_answers_differently_the_second_time_is_dialled_where_it_was_checked(names, monkeypatch):
    """DNS rebinding: the address that was checked is the one that is dialled; nobody resolves again."""
    monkeypatch.setattr(egress_module.addresses, "check", lambda *_, **__: None)
    async with recording() as api, recording(host="127.0.0.2") as decoy:
        names.answers["turn.test"] = [["127.0.0.1"], ["127.0.0.2"]]
        egress = Egress(UpstreamSettings(), resolver=names)
        for _ in range(3):
            await get(egress, f"http://turn.test:{api.port}", "turn.test")
        assert names.asked == ["turn.test"]
        assert (len(api.requests), decoy.raw) == (3, [])
        await egress.close()


async def test_a_name_that_does_not_resolve_or_a_port_that_is_shut_is_unreachable():
    egress = Egress(UpstreamSettings(connect_timeout=1.0))
    with pytest.raises(ProblemError, match="upstream-unreachable"):
        await get(egress, "http://127.0.0.1:9", "127.0.0.1")
    await egress.close()


# --- TLS ---


async def tls_get(ca, names, tmp_path, *, certificate: str, called: str, trusted: bool = True) -> bytes:
    """Call https://{called}, which resolves to a server that shows a certificate for ``certificate``."""
    ca_file = tmp_path / "ca.pem"
    (ca if trusted else trustme.CA()).cert_pem.write_to_path(str(ca_file))
    names.answers[called] = [["127.0.0.1"]]
    async with recording(server_side(ca, certificate)) as api:
        egress = Egress(UpstreamSettings(ca_file=str(ca_file)), resolver=names)
        try:
            return await get(egress, f"https://{called}:{api.port}", called)
        finally:
            await egress.close()


async def test_tls_is_verified_against_the_file_of_the_settings(ca, names, tmp_path):
    assert await tls_get(ca, names, tmp_path, certificate="localhost", called="localhost") == b'{"ok":true}'


@pytest.mark.parametrize(("certificate", "trusted"), [("other.test", True), ("localhost", False)])
async def test_a_wrong_name_or_an_unknown_authority_is_not_spoken_to(ca, names, tmp_path, certificate, trusted):
    with pytest.raises(ProblemError, match="upstream-unreachable"):
        await tls_get(ca, names, tmp_path, certificate=certificate, called="localhost", trusted=trusted)


async def test_nothing_of_the_environment_has_a_say(ca, names, tmp_path, monkeypatch):
    trusted = tmp_path / "trusted.pem"
    ca.cert_pem.write_to_path(str(trusted))
    keys = tmp_path / "keys.log"
    netrc = tmp_path / "netrc"
    netrc.write_text("machine localhost login a password b\n")
    async with recording() as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
        monkeypatch.setenv("SSLKEYLOGFILE", str(keys))
        monkeypatch.setenv("NETRC", str(netrc))
        names.answers["localhost"] = [["127.0.0.1"]]
        async with recording(server_side(ca, "localhost")) as api:
            egress = Egress(UpstreamSettings(), resolver=names)
            with pytest.raises(ProblemError, match="upstream-unreachable"):
                await get(egress, f"https://localhost:{api.port}", "localhost")
            assert api.requests == []
            await egress.close()
        async with recording() as api:
            egress = Egress(UpstreamSettings(ca_file=str(trusted)), resolver=names)
            await get(egress, f"http://localhost:{api.port}", "localhost")
            assert api.requests[0].values(b"authorization") == []
            await egress.close()
        assert await tls_get(ca, names, tmp_path, certificate="localhost", called="localhost") == b'{"ok":true}'
        assert proxy.raw == []
    assert not keys.exists()


def test_a_client_context_verifies_chain_and_name_from_tls_1_2_on(tmp_path):
    context = client_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.keylog_filename is None
    (tmp_path / "empty.pem").write_text("")
    for bad in (tmp_path / "none.pem", tmp_path / "empty.pem"):
        with pytest.raises(ConfigurationError, match="ca_file"):
            client_context(str(bad))


async def test_a_system_without_authorities_calls_no_https_origin(ca, names, monkeypatch):
    nothing = ssl.get_default_verify_paths()._replace(openssl_cafile="/none", openssl_capath="/none")
    monkeypatch.setattr(tls.ssl, "get_default_verify_paths", lambda: nothing)
    monkeypatch.setattr(tls, "_BUNDLES", ())
    names.answers["localhost"] = [["127.0.0.1"]]
    async with recording(server_side(ca, "localhost")) as api:
        egress = Egress(UpstreamSettings(), resolver=names)
        with pytest.raises(ProblemError, match="upstream-unreachable"):
            await get(egress, f"https://localhost:{api.port}", "localhost")
        assert api.requests == []
        await egress.close()


# --- the exact target, and framing ---


async def test_a_target_that_the_library_would_change_is_not_sent():
    async with recording() as api:
        egress = Egress(UpstreamSettings())
        origin = egress.origin(api.url, "127.0.0.1", private=False)
        for target in (b"/a#b", b"/a\tb", b"/a\nb"):
            with pytest.raises(ProblemError, match="target-malformed"):
                await origin.connect("GET", target, [], None)
        assert api.raw == []
        await egress.close()


# --- the minter ---


@pytest.mark.parametrize("address", ["", "unix:", "http://x", "127.0.0.1:80", "tls:", "tls:127.0.0.1:443"])
def test_a_minter_is_a_unix_socket_or_tls_with_a_certificate(address):
    with pytest.raises(ConfigurationError, match="minter"):
        MinterTransport(address, TlsSettings())


async def test_a_minter_over_tcp_is_spoken_to_with_mutual_tls_only(ca, tmp_path):
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    ours = ca.issue_cert("broker.test")
    ours.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    ours.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    context = server_side(ca, "localhost")
    ca.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    settings = TlsSettings(
        certificate=str(tmp_path / "cert.pem"), key=str(tmp_path / "key.pem"), client_ca=str(tmp_path / "ca.pem")
    )
    async with recording(context) as minter:
        transport = MinterTransport(f"tls:localhost:{minter.port}", settings)
        status, _, body = await transport.request(
            "POST", "/v1/leases", authorization="Bearer x", body=b"{}", timeout_s=5
        )
        assert (status, body) == (200, b'{"ok":true}')
        assert minter.requests[0].values(b"authorization") == [b"Bearer x"]
        assert minter.requests[0].values(b"user-agent") == []
        await transport.close()
