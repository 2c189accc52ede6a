"""The way to issuers: one origin, checked addresses, nothing followed, nothing taken from the environment."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys

import pytest
import trustme

from config.secret import Secret
from minter import egress
from tests.worlds.api import Answer, Api


@pytest.fixture
def issuer():
    with Api() as running:
        yield running


async def test_an_issuer_gets_the_secret_in_one_header_and_its_whole_answer_comes_back(issuer):
    issuer.on("POST", "/tokens", Answer(429, [("Retry-After", "7")], b'{"no": true}'))
    answer = await egress.call(issuer.origin, "POST", "/tokens?a=%2F", bearer=Secret("root"), body=b"{}")
    assert (answer.status, answer.body, answer.retry_after) == (429, b'{"no": true}', 7.0)
    (request,) = issuer.received
    assert request.target == "/tokens?a=%2F"
    assert sorted(name for name, _ in request.headers) == [
        "accept",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "host",
    ]
    assert request.header("authorization") == "Bearer root"


async def test_a_redirect_is_an_answer_and_the_secret_goes_nowhere_else(issuer):
    with Api() as other:
        issuer.on("GET", "/tokens", Answer(302, [("Location", f"{other.origin}/tokens")]))
        answer = await egress.call(issuer.origin, "GET", "/tokens", bearer=Secret("root"))
        assert answer.status == 302
        assert other.received == []


async def test_a_proxy_named_in_the_environment_is_not_asked(issuer, monkeypatch):
    issuer.on("GET", "/tokens")
    with Api() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.origin)
        assert (await egress.call(issuer.origin, "GET", "/tokens")).status == 200
        assert proxy.received == []


#: A process of its own: aiohttp reads the environment once, as it is imported.
CALLS = """
import asyncio, sys
from minter import egress
try:
    print(asyncio.run(egress.call(sys.argv[1], "GET", "/tokens")).status)
except egress.EgressError as error:
    print(error.reason)
"""


async def test_no_trust_file_and_no_key_log_is_taken_from_the_environment(tmp_path):
    ca, seen, keys = trustme.CA(), [], tmp_path / "keys.log"
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    environ = {**os.environ, "SSL_CERT_FILE": str(tmp_path / "ca.pem"), "SSLKEYLOGFILE": str(keys)}
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(theirs)

    async def answer(reader, writer):
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=theirs) as server:
        origin = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        calling = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CALLS, origin), env=environ, stdout=subprocess.PIPE
        )
        said, _ = await calling.communicate()
    assert said == b"no connection (ClientConnectorCertificateError)\n"
    assert seen == []
    # aiohttp begins the file as it is imported; nothing of this connection is in it.
    assert "SECRET" not in keys.read_text()


@pytest.mark.parametrize(
    "origin",
    [
        "http://issuer.example.com",
        "https://169.254.169.254",
        "https://[fd00:ec2::254]",
        "https://user@issuer.example.com",
        "ftp://127.0.0.1",
        "",
    ],
)
async def test_an_origin_in_the_clear_or_at_an_address_of_the_clouds_is_refused_without_a_packet(origin):
    with pytest.raises(egress.EgressError) as caught:
        await egress.call(origin, "GET", "/tokens", bearer=Secret("canary-root"))
    assert caught.value.unsent
    assert "canary-root" not in str(caught.value)


async def test_a_name_that_resolves_to_an_address_of_the_clouds_is_refused_without_a_packet(monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 443))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_named: found)
    with pytest.raises(egress.EgressError) as caught:
        await egress.call("https://issuer.example.com", "GET", "/tokens")
    assert caught.value.unsent


async def test_nobody_there_is_told_apart_from_an_answer_that_was_lost(issuer):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        origin = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(egress.EgressError) as nobody:
            await egress.call(origin, "GET", "/tokens")
    assert nobody.value.unsent

    def drop(_request):
        raise ConnectionError

    issuer.on("POST", "/tokens", drop)
    with pytest.raises(egress.EgressError) as lost:
        await egress.call(issuer.origin, "POST", "/tokens", body=b"{}")
    assert not lost.value.unsent
    assert len(issuer.received) == 1, "nothing is sent twice"


async def test_an_answer_without_end_is_given_up(issuer, monkeypatch):
    monkeypatch.setattr(egress, "MAX_ISSUER_BYTES", 1000)
    issuer.on("GET", "/tokens", Answer(200, body=b"x" * 1001))
    with pytest.raises(egress.EgressError):
        await egress.call(issuer.origin, "GET", "/tokens")


async def test_an_issuer_that_hangs_is_given_up(issuer):
    import threading

    go_on = threading.Event()

    def hang(_request):
        go_on.wait(20)
        return Answer()

    issuer.on("GET", "/tokens", hang)
    try:
        with pytest.raises(egress.EgressError) as caught:
            await egress.call(issuer.origin, "GET", "/tokens", timeout_s=0.2)
        assert not caught.value.unsent
    finally:
        go_on.set()
