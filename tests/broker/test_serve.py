"""The broker as a process: what stops its start, and how it says that it is ready."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker import serve as module
from broker.status import base_url
from config import tokens
from config.errors import ConfigurationError
from config.listeners import Listener
from config.server import Bound
from tests.broker.house import profile

BROKER = Path(sys.executable).parent / "broker"


class Place:
    """A directory with what a broker needs; its minter is away."""

    def __init__(self, root):
        self.root = root
        (root / "run").mkdir(mode=0o700)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.write("broker.toml", f'listen = ["127.0.0.1:{self.port}"]\n')
        self.write("grants.json", json.dumps({"profiles": {"memory": profile()}}))
        self.write("callers.json", '{"callers": []}')
        self.write("run/broker.credential", tokens.generate(tokens.BROKER).reveal())
        self.processes = []

    def write(self, name, text):
        path = self.root / name
        path.touch(0o600)
        path.write_text(text)

    def start(self, *, files=None, **environ):
        few = ["sh", "-c", f'ulimit -n {files}; exec "$0" "$@"'] if files else []
        with (self.root / "log").open("wb") as log:
            process = subprocess.Popen(
                [*few, BROKER, "serve", "--config", "broker.toml"],
                cwd=self.root,
                env={"PATH": os.environ["PATH"], "BROKER_ALLOW_ROOT": "1", **environ},
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def log(self):
        return (self.root / "log").read_text()

    def until(self, condition):
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def ask(self, method, target, headers=()):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.putrequest(method, target, skip_host=True)
            for name, value in {"Host": f"127.0.0.1:{self.port}", **dict(headers)}.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()
        process.stdout.close()


def ended(process):
    return process.wait(20)


def test_it_says_when_it_is_ready_reloads_and_ends_with_0(place):
    process = place.start()
    place.until(lambda: '"ready"' in place.log())
    assert place.ask("GET", "/readyz") == (200, {"ready": True})
    assert place.ask("GET", "/openapi.json")[1]["info"]["title"]
    for headers in ({"Host": "evil.example"}, {"Origin": "http://127.0.0.1"}, {"Host": ""}):
        status, problem = place.ask("GET", "/readyz", headers)
        assert (status in (400, 403, 421), problem["by"]) == (True, "broker"), problem
    process.send_signal(signal.SIGHUP)
    place.until(lambda: '"reloaded"' in place.log())
    place.write("grants.json", "{")
    process.send_signal(signal.SIGHUP)
    place.until(lambda: "reload-refused" in place.log())
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0
    assert process.stdout.read() == b""
    assert not (place.root / "run/broker-admin.sock").exists()


def test_whoever_connects_cannot_take_the_last_open_file(place):
    """With the default of 2048 connections and few files, the state could not be opened any more."""
    process = place.start(files=64)
    place.until(lambda: '"ready"' in place.log())
    assert '"few-open-files"' in place.log()
    crowd = [socket.create_connection(("127.0.0.1", place.port), 20) for _ in range(100)]
    # None of them asks anything: they make room for each other, and for whoever does.
    assert place.ask("GET", "/livez")[0] == 200
    assert [one.recv(100) for one in crowd[:80]] == [b""] * 80
    assert len(os.listdir(f"/proc/{process.pid}/fd")) < 60
    for one in crowd:
        one.close()
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0
    assert "state-unavailable" not in place.log()


def test_every_fault_is_named_at_once_and_the_state_is_not_touched(place):
    place.write("broker.toml", 'listen = ["nonsense"]\nadmin_listen = ["127.0.0.1:1"]\npublic_url = "ftp://x"\n')
    place.write("grants.json", json.dumps({"profiles": {"memory": profile(placement={"scheme": "smoke"})}}))
    (place.root / "callers.json").unlink()
    (place.root / "run/broker.credential").chmod(0o644)
    process = place.start()
    assert ended(process) == 3
    for word in ("listen[0]", "admin_listen", "public_url", "placement", "callers.json", "can be read by others"):
        assert word in place.log(), word
    assert not (place.root / "state").exists()


def test_two_brokers_do_not_share_a_state(place):
    first = place.start()
    place.until(lambda: '"ready"' in place.log())
    place.write("broker.toml", 'listen = ["127.0.0.1:0"]\nadmin_listen = []\n')
    assert ended(place.start()) == 3
    assert f"in use by another broker, process {first.pid}" in place.log()
    assert place.ask("GET", "/readyz")[0] == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_it_does_not_run_as_root_unless_told_so(place):
    assert ended(place.start(BROKER_ALLOW_ROOT="0")) == 3
    assert "root" in place.log()


@pytest.mark.parametrize(
    ("public_url", "listen", "expected"),
    [
        ("", ["127.0.0.1:8090"], "http://127.0.0.1:8090"),
        ("", ["0.0.0.0:8090"], "http://127.0.0.1:8090"),
        ("", ["[::1]:8090"], "http://[::1]:8090"),
        ("", ["unix:/run/x.sock", "tls:broker.internal:8443"], "https://broker.internal:8443"),
        ("", ["unix:/run/x.sock"], "http://localhost"),
        ("http://host.docker.internal:8090/", ["127.0.0.1:8090"], "http://host.docker.internal:8090"),
    ],
)
def test_base_urls_begin_with_the_public_url_or_the_first_address(public_url, listen, expected):
    bound = [Bound(Listener.parse(text), None) for text in listen]
    assert base_url(public_url, bound) == expected


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("", set()),
        ("http://host.docker.internal:8090", {"host.docker.internal"}),
        ("https://[::1]:8443/", {"[::1]"}),
    ],
)
def test_the_host_of_the_public_url_is_answered(url, hosts):
    assert module._public_host(url) == hosts


def test_a_host_that_no_request_could_name_is_a_fault():
    assert module._hosts(["broker.internal", "[fd00::1]"]) == {"broker.internal", "[fd00::1]"}
    with pytest.raises(ConfigurationError) as refused:
        module._hosts(["broker.internal:8090", "broker.internal", "http://broker.internal", ""])
    assert [fault.where for fault in refused.value.faults] == ["hosts[0]", "hosts[2]", "hosts[3]"]


def test_operators_are_served_on_unix_sockets_only():
    assert module._admin_listeners([]) == ()
    assert module._admin_listeners(["unix:/run/x.sock"])[0].kind == "unix"
    with pytest.raises(ConfigurationError):
        module._admin_listeners(["unix:/run/x.sock", "127.0.0.1:8091"])
