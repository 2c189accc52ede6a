"""Where bytes go: checked addresses only, verified TLS only, nothing of the environment."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor

import pytest
import structlog
import trustme
import uvloop

from broker import egress as egress_module
from broker.egress import Egress, MinterTransport
from broker.wire.whole import fetch
from config import tls
from config.errors import ConfigurationError
from config.problems import ProblemError
from config.settings import TlsSettings, UpstreamSettings
from config.tls import client_context
from tests.worlds.recording import recording


class Names:
    """Resolves to what its test wrote down, one answer after the other, the last for good; and counts."""

    def __init__(self):
        self.answers: dict[str, list[list[str]]] = {}
        self.asked: list[str] = []

    async def __call__(self, host, _port):
        self.asked.append(host)
        answers = self.answers[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.fixture
def names():
    return Names()


@pytest.fixture
def ca():
    return trustme.CA()


def server_side(ca, name):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(name).configure_cert(context)
    return context


async def get(egress: Egress, url: str, *, private: bool = False) -> bytes:
    origin = egress.origin(url, private=private)
    request = b"GET /a HTTP/1.1\r\nhost: %s\r\n\r\n" % origin.authority
    return (await fetch(origin, request, limit=1000)).body


# --- addresses ---


async def test_a_name_that_resolves_to_this_machine_or_its_network_is_not_dialled(names):
    async with recording() as api:
        egress = Egress(UpstreamSettings(), resolve=names)
        for address in ("127.0.0.1", "::1", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1"):
            names.answers["inside.test"] = [[address]]
            with pytest.raises(ProblemError, match="upstream-address-refused"):
                await get(egress, f"http://inside.test:{api.port}")
            await egress.close()  # and what was resolved is forgotten
            egress = Egress(UpstreamSettings(), resolve=names)
        assert len(names.asked) == 5
        assert api.raw == []
        await egress.close()


async def test_one_bad_address_among_good_ones_refuses_the_name(names):
    names.answers["mixed.test"] = [["1.1.1.1", "169.254.169.254"]]
    egress = Egress(UpstreamSettings(), resolve=names)
    with pytest.raises(ProblemError, match="upstream-address-refused"):
        await get(egress, "https://mixed.test", private=True)
    await egress.close()


async def test_a_private_address_is_dialled_for_a_profile_that_says_so_and_for_no_other(names, monkeypatch):
    """Both policies share what was resolved; each checks it."""
    checked = []
    monkeypatch.setattr(egress_module.addresses, "check", lambda address, **policy: checked.append((address, policy)))
    async with recording() as api:
        names.answers["house.test"] = [["127.0.0.1"]]
        egress = Egress(UpstreamSettings(), resolve=names)
        for private in (True, False):
            await get(egress, f"http://house.test:{api.port}", private=private)
        assert checked == [("127.0.0.1", {"private": private, "loopback": False}) for private in (True, False)]
        assert names.asked == ["house.test"]
        assert len(api.raw) == 2
        await egress.close()


async def test_a_literal_address_is_checked_too(names):
    async with recording() as api:
        egress = Egress(UpstreamSettings(), resolve=names)
        for host in ("169.254.169.254", "10.0.0.1", "[::ffff:10.0.0.1]", "100.100.100.200"):
            with pytest.raises(ProblemError, match="upstream-address-refused"):
                await get(egress, f"http://{host}:{api.port}")
        assert await get(egress, f"http://127.0.0.1:{api.port}") == b'{"ok":true}'
        assert names.asked == []
        await egress.close()


async def test_a_loopback_origin_reaches_the_loopback_only(names):
    async with recording() as api:
        egress = Egress(UpstreamSettings(), resolve=names)
        names.answers["localhost"] = [["127.0.0.1"]]
        assert await get(egress, f"http://localhost:{api.port}") == b'{"ok":true}'
        assert api.requests[0].values(b"host") == [f"localhost:{api.port}".encode()]
        await egress.close()
        egress = Egress(UpstreamSettings(), resolve=names)
        names.answers["localhost"] = [["1.1.1.1"]]
        with pytest.raises(ProblemError, match="upstream-address-refused"):
            await get(egress, f"http://localhost:{api.port}")
        await egress.close()


async def test_a_name_that_answers_differently_the_second_time_is_dialled_where_it_was_checked(names, monkeypatch):
    """DNS rebinding: the address that was checked is the one that is dialled; nobody resolves again."""
    monkeypatch.setattr(egress_module.addresses, "check", lambda *_, **__: None)
    async with recording() as api, recording(host="127.0.0.2") as decoy:
        names.answers["turn.test"] = [["127.0.0.1"], ["127.0.0.2"]]
        egress = Egress(UpstreamSettings(), resolve=names)
        origin = egress.origin(f"http://turn.test:{api.port}", private=False)
        for _ in range(3):
            (await origin.connect(fresh=True)).abandon()
        assert names.asked == ["turn.test"]
        await api.until(lambda api: api.gone == 3)
        assert decoy.raw == []
        await egress.close()


async def test_a_name_is_resolved_again_after_ten_seconds_and_checked_again(names, monkeypatch):
    async with recording() as api:
        names.answers["localhost"] = [["127.0.0.1"], ["10.0.0.1"]]
        egress = Egress(UpstreamSettings(keep_alive=0.0), resolve=names)
        loop = asyncio.get_running_loop()
        real = loop.time
        for later in (0, 9):
            monkeypatch.setattr(loop, "time", lambda later=later: real() + later)
            await get(egress, f"http://localhost:{api.port}")
        assert len(names.asked) == 1
        monkeypatch.setattr(loop, "time", lambda: real() + 11)
        with pytest.raises(ProblemError, match="upstream-address-refused"):
            await get(egress, f"http://localhost:{api.port}")
        assert len(names.asked) == 2
        await egress.close()


async def test_who_asks_for_a_name_at_once_shares_the_answer_and_giving_up_spoils_it_for_nobody():
    asked = asyncio.Event()
    hold = asyncio.Event()
    count = 0

    async def slow(_host, _port):
        nonlocal count
        count += 1
        asked.set()
        await hold.wait()
        return ["127.0.0.1"]

    async with recording() as api:
        egress = Egress(UpstreamSettings(), resolve=slow)
        asking = [asyncio.create_task(get(egress, f"http://localhost:{api.port}")) for _ in range(3)]
        await asked.wait()
        asking[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking[0]
        hold.set()
        assert await asyncio.gather(*asking[1:]) == [b'{"ok":true}'] * 2
        assert count == 1
        await egress.close()


async def test_closing_ends_a_look_up_and_who_waits_for_it():
    asked = asyncio.Event()

    async def never(_host, _port):
        asked.set()
        await asyncio.Event().wait()

    egress = Egress(UpstreamSettings(connect_timeout=60.0), resolve=never)
    asking = asyncio.create_task(get(egress, "https://slow.test"))
    await asked.wait()
    await egress.close()
    with pytest.raises(ProblemError, match="upstream-unreachable"):
        await asyncio.wait_for(asking, 5)


async def test_a_failed_look_up_is_not_kept():
    fails = True

    async def flaky(_host, _port):
        if fails:
            raise OSError("no such name")
        return ["127.0.0.1"]

    async with recording() as api:
        egress = Egress(UpstreamSettings(), resolve=flaky)
        with pytest.raises(ProblemError, match="upstream-unreachable"):
            await get(egress, f"http://localhost:{api.port}")
        fails = False
        assert await get(egress, f"http://localhost:{api.port}") == b'{"ok":true}'
        await egress.close()


async def test_the_next_address_is_dialled_when_the_first_does_not_answer(names):
    async with recording(host="127.0.0.2") as api:
        names.answers["localhost"] = [["127.0.0.1", "127.0.0.2"]]
        egress = Egress(UpstreamSettings(), resolve=names)
        assert await get(egress, f"http://localhost:{api.port}") == b'{"ok":true}'
        names.answers["localhost"] = [[]]
        with pytest.raises(ProblemError, match="upstream-unreachable"):
            await get(Egress(UpstreamSettings(), resolve=names), f"http://localhost:{api.port}")
        await egress.close()


async def test_the_next_address_is_dialled_beside_one_that_is_silent(names):
    """A full backlog: the system drops what asks for a connection without a word."""
    async with recording(host="127.0.0.2") as api, contextlib.AsyncExitStack() as stack:
        silent = stack.enter_context(socket.socket())
        silent.bind(("127.0.0.1", api.port))
        silent.listen(0)
        for _ in range(8):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(("127.0.0.1", api.port))
        names.answers["localhost"] = [["127.0.0.1", "127.0.0.2"]]
        egress = Egress(UpstreamSettings(connect_timeout=3.0), resolve=names)
        assert await get(egress, f"http://localhost:{api.port}") == b'{"ok":true}'
        await egress.close()


async def test_the_port_is_the_schemes_own_where_none_is_written():
    asked = []

    async def resolve(host, port):
        asked.append((host, port))
        raise OSError

    egress = Egress(UpstreamSettings(), resolve=resolve)
    for url in ("http://a.test", "https://a.test", "https://a.test:8443"):
        with pytest.raises(ProblemError, match="upstream-unreachable"):
            await get(egress, url)
    assert asked == [("a.test", 80), ("a.test", 443), ("a.test", 8443)]
    await egress.close()


async def test_a_name_that_does_not_resolve_or_a_port_that_is_shut_is_unreachable():
    egress = Egress(UpstreamSettings(connect_timeout=1.0))
    for url in ("http://127.0.0.1:9", "https://nowhere.invalid", f"https://{'a' * 64}.test", "https://a..b"):
        with pytest.raises(ProblemError, match="upstream-unreachable") as caught:
            await get(egress, url)
        assert caught.value.retry_after == 1
    await egress.close()


async def test_the_log_says_why_an_api_cannot_be_reached_once_and_that_it_can_again(ca, names, tmp_path):
    """The code is told the same whatever it is; only the operator can do something about a certificate."""
    ca_file = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(str(ca_file))
    names.answers["localhost"] = [["127.0.0.1"]]

    async def speaks_no_tls(_reader, writer):
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    async def fails(egress, url):
        for _ in range(3):
            with pytest.raises(ProblemError, match="upstream-"):
                await get(egress, url)

    egress = Egress(UpstreamSettings(ca_file=str(ca_file), connect_timeout=1.0), resolve=names)
    system = Egress(UpstreamSettings(connect_timeout=1.0))
    with structlog.testing.capture_logs() as logs:
        async with recording(server_side(ca, "other.test")) as api:
            await fails(egress, f"https://localhost:{api.port}")
        async with await asyncio.start_server(speaks_no_tls, "127.0.0.1", 0) as server:
            await fails(egress, f"https://localhost:{server.sockets[0].getsockname()[1]}")
        await fails(system, "https://nowhere.invalid")
        await fails(system, "https://192.168.1.1")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            await fails(egress, f"http://localhost:{port}")
        async with recording(port=port):
            for _ in range(3):
                await get(egress, f"http://localhost:{port}")
    said = [(log["event"], log["origin"].partition(":")[0], log.get("reason", "")) for log in logs]
    mismatch, plain, unresolved, private, shut, again = said
    assert mismatch[:2] == ("upstream-unreachable", "localhost")
    assert mismatch[2].startswith("its certificate does not verify: ")
    assert plain[2].startswith("no TLS: ")
    assert unresolved[2].startswith("its name does not resolve")
    assert private[1:] == ("192.168.1.1", "The API's address is not one that may be called")
    assert shut[1:] == ("localhost", os.strerror(errno.ECONNREFUSED))
    assert again == ("upstream-reachable-again", "localhost", "")
    await egress.close()
    await system.close()


async def test_an_origin_that_takes_the_connection_and_never_greets_is_unreachable_in_time(names):
    """The time is for all of it: name, connection and TLS."""
    async with await asyncio.start_server(lambda _r, w: held.append(w), "127.0.0.1", 0) as server:
        held: list[asyncio.StreamWriter] = []
        names.answers["localhost"] = [["127.0.0.1"]]
        egress = Egress(UpstreamSettings(connect_timeout=0.2), resolve=names)
        with (
            structlog.testing.capture_logs() as logs,
            pytest.raises(ProblemError, match="upstream-unreachable"),
        ):
            await get(egress, f"https://localhost:{server.sockets[0].getsockname()[1]}")
        assert [log["reason"] for log in logs] == ["no connection within connect_timeout"]
        assert len(held) == 1
        assert await asyncio.wait_for(_end_of(held[0]), 5)
        held[0].close()
        await egress.close()


async def _end_of(writer: asyncio.StreamWriter) -> bool:
    """Wait until the other side is gone."""
    try:
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0)
    except ConnectionError:
        return True


# --- TLS ---


async def tls_get(ca, names, tmp_path, *, certificate: str, called: str, trusted: bool = True) -> bytes:
    """Call https://{called}, which resolves to a server that shows a certificate for ``certificate``."""
    ca_file = tmp_path / "ca.pem"
    (ca if trusted else trustme.CA()).cert_pem.write_to_path(str(ca_file))
    names.answers[called] = [["127.0.0.1"]]
    async with recording(server_side(ca, certificate)) as api:
        egress = Egress(UpstreamSettings(ca_file=str(ca_file)), resolve=names)
        try:
            return await get(egress, f"https://{called}:{api.port}")
        finally:
            await egress.close()


async def test_tls_is_verified_against_the_file_of_the_settings(ca, names, tmp_path):
    assert await tls_get(ca, names, tmp_path, certificate="localhost", called="localhost") == b'{"ok":true}'


async def test_no_other_protocol_than_http_1_1_is_agreed_on(ca, names, tmp_path):
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = server_side(ca, "localhost")
    context.set_alpn_protocols(["h2", "http/1.1"])
    names.answers["localhost"] = [["127.0.0.1"]]
    async with recording(context) as api:
        egress = Egress(UpstreamSettings(ca_file=str(tmp_path / "ca.pem")), resolve=names)
        connection = await egress.origin(f"https://localhost:{api.port}", private=False).connect()
        assert connection._transport.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        connection.abandon()
        await egress.close()


@pytest.mark.parametrize("said", [True, False])
def test_the_end_of_a_body_over_tls_is_one_only_if_the_api_says_so(ca, tmp_path, said):
    """Whoever sits on the wire can end a connection, and what had come of the body would pass for all of it."""
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def serve(listener):
        accepted, _ = listener.accept()
        with server_side(ca, "localhost").wrap_socket(accepted, server_side=True) as api:
            api.recv(65536)
            api.sendall(b"HTTP/1.1 200 OK\r\n\r\nall of it")
            if said:
                with contextlib.suppress(OSError):  # the answer to it may never come
                    api.unwrap()
            else:
                api.shutdown(socket.SHUT_RDWR)

    async def ask(port):
        egress = Egress(UpstreamSettings(ca_file=str(tmp_path / "ca.pem")))
        try:
            return await get(egress, f"https://localhost:{port}")
        finally:
            await egress.close()

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        serving = threads.submit(serve, listener)
        with contextlib.nullcontext() if said else pytest.raises(ProblemError, match="upstream-broke-off"):
            assert uvloop.run(ask(listener.getsockname()[1])) == b"all of it"
        serving.result(5)


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
            egress = Egress(UpstreamSettings(), resolve=names)
            with pytest.raises(ProblemError, match="upstream-unreachable"):
                await get(egress, f"https://localhost:{api.port}")
            assert api.requests == []
            await egress.close()
        async with recording() as api:
            egress = Egress(UpstreamSettings(ca_file=str(trusted)), resolve=names)
            await get(egress, f"http://localhost:{api.port}")
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
        egress = Egress(UpstreamSettings(), resolve=names)
        with pytest.raises(ProblemError, match="upstream-unreachable"):
            await get(egress, f"https://localhost:{api.port}")
        assert api.requests == []
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
