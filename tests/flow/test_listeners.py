"""The broker over TLS and over a Unix socket, as other hosts and containers reach it; the minter over mutual TLS."""

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


def write_pem(certificate, path):
    """Write a certificate and its private key beside it."""
    certificate.cert_chain_pems[0].write_to_path(f"{path}.pem")
    certificate.private_key_pem.write_to_path(f"{path}.key")
    path.with_name(path.name + ".key").chmod(0o600)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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
    write_pem(ca.issue_cert("broker.internal", "127.0.0.1"), service.root / "tls")
    tls_port = free_port()
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


def test_a_broker_on_another_machine_reaches_the_minter_by_mutual_tls(service, api):
    """The stream of ended leases comes that way too: a revocation is obeyed at once."""
    api.on("GET", "/v1/items")
    ca, port = trustme.CA(), free_port()
    ca.cert_pem.write_to_path(service.root / "ca.pem")
    write_pem(ca.issue_cert("localhost"), service.root / "minter")
    write_pem(ca.issue_cert("broker.internal"), service.root / "broker")
    service.minter_top = f'listen = ["unix:run/minter.sock", "tls:127.0.0.1:{port}"]'
    service.minter_extra = '[tls]\ncertificate = "minter.pem"\nkey = "minter.key"\nclient_ca = "ca.pem"\n'
    service.broker_extra = (
        f'minter = "tls:localhost:{port}"\n'
        '[minter_tls]\ncertificate = "broker.pem"\nkey = "broker.key"\nclient_ca = "ca.pem"\n'
    )
    service.prepare({"api": profile(api)})
    service.start()
    run = service.open_run()
    assert service.call(run, "GET", "/v1/items").status == 200
    first = service.leases()[0]["lease_id"]
    service.run("minter", "leases", "revoke", first)
    service.until(lambda: service.call(run, "GET", "/v1/items").status == 200, "the run minted again", 5)
    assert service.leases()[0]["lease_id"] != first
