"""The broker over TLS and over a Unix socket, as other hosts and containers reach it."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import stat

import pytest
import trustme

from tests.flow.test_main_job import profile
from tests.worlds.service import CANARY

pytestmark = pytest.mark.flow


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("broker", timeout=20)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


@pytest.fixture
def reached(service, api):
    """The service with all three kinds of listeners; gives a way to send a request over each."""
    api.on("GET", "/v1/items")
    ca = trustme.CA()
    certificate = ca.issue_cert("broker.internal", "127.0.0.1")
    certificate.private_key_pem.write_to_path(service.root / "tls.key")
    (service.root / "tls.key").chmod(0o600)
    with (service.root / "tls.pem").open("wb") as file:
        for blob in certificate.cert_chain_pems:
            file.write(blob.bytes())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        tls_port = probe.getsockname()[1]
    service.prepare({"api": profile(api)})
    (service.root / "broker.toml").write_text(
        f'listen = ["127.0.0.1:{service.port}", "unix:run/broker.sock", "tls:127.0.0.1:{tls_port}"]\n'
        'public_url = "https://broker.internal:8443"\n[tls]\ncertificate = "tls.pem"\nkey = "tls.key"\n'
    )
    service.start()
    context = ssl.create_default_context()
    ca.configure_trust(context)

    def send(kind, method, target, headers=None, body=None):
        connection = {
            "tcp": lambda: http.client.HTTPConnection("127.0.0.1", service.port, timeout=20),
            "unix": lambda: UnixConnection(str(service.root / "run/broker.sock")),
            "tls": lambda: http.client.HTTPSConnection("127.0.0.1", tls_port, context=context, timeout=20),
        }[kind]()
        try:
            connection.request(method, target, body=body, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    return service, send


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
def test_a_run_is_opened_and_makes_its_call_over_each_listener(reached, api, kind):
    service, send = reached
    caller = {"Authorization": f"Bearer {service.caller_token}", "Content-Type": "application/json"}
    status, body = send(kind, "POST", "/v1/runs", caller, b'{"profile": "api"}')
    assert status == 201
    run = json.loads(body)
    assert run["profiles"]["api"]["base_url"] == "https://broker.internal:8443/p/api"
    token = {"Authorization": f"Bearer {run['run_token']}"}
    assert send(kind, "GET", "/p/api/v1/items", token)[0] == 200
    assert send(kind, "GET", "/p/api/v1/admin", token)[0] == 403
    assert api.received[0].header("authorization") == f"Bearer {CANARY}"
    assert len(api.received) == 1


def test_the_public_name_is_answered_and_a_foreign_one_or_a_web_page_is_not(reached):
    service, send = reached
    assert send("tcp", "GET", "/livez", {"Host": "broker.internal:8443"})[0] == 200
    status, body = send("tcp", "GET", "/livez", {"Host": "evil.example"})
    assert (status, json.loads(body)["code"]) == (421, "host-not-allowed")
    status, body = send("tcp", "GET", "/livez", {"Origin": "https://evil.example"})
    assert (status, json.loads(body)["code"]) == (403, "origin-not-allowed")
    mode = (service.root / "run/broker.sock").stat().st_mode
    assert (stat.S_IMODE(mode), stat.S_ISSOCK(mode)) == (0o600, True)
