"""Two users on one machine: the broker's user obtains credentials over the socket, and nothing else of the minter."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.flow.test_main_job import profile
from tests.worlds.service import CANARY
from tests.worlds.two_users import BROKER, MINTER, OTHER, SHARED, two_users
from tests.worlds.users import tried_as

pytestmark = [
    pytest.mark.flow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="switching to other users needs root"),
]


@pytest.fixture
def two():
    with two_users() as made:
        yield made


def test_the_brokers_user_makes_calls_and_cannot_read_the_minters_memory_environment_or_files(two, api):
    api.on("GET", "/v1/items")
    two.prepare({"api": profile(api)})
    two.start()
    run = two.open_run()
    assert two.call(run, "GET", "/v1/items").status == 200
    assert api.received[0].header("authorization") == f"Bearer {CANARY}"

    pid, root = two.processes["minter"].pid, two.root

    def attach():
        if ctypes.CDLL(None, use_errno=True).ptrace(16, pid, 0, 0) != 0:
            raise PermissionError

    attempts = {
        "memory": lambda: Path(f"/proc/{pid}/mem").open("rb"),
        "environment": lambda: Path(f"/proc/{pid}/environ").read_bytes(),
        "maps": lambda: Path(f"/proc/{pid}/maps").read_bytes(),
        "open files": lambda: os.listdir(f"/proc/{pid}/fd"),
        "trace": attach,
        "signal": lambda: os.kill(pid, signal.SIGTERM),
        "secret": (root / "secrets/api.key").read_bytes,
        "secrets folder": lambda: os.listdir(root / "secrets"),
        "state": lambda: os.listdir(root / "state"),
        "database": (root / "state/minter.db").read_bytes,
        "audit": (root / "state/audit.jsonl").read_bytes,
        "brokers": (root / "brokers.json").read_bytes,
        "admin socket": lambda: socket.socket(socket.AF_UNIX).connect(str(root / "run/minter-admin.sock")),
        "replace the socket": (root / "shared/minter.sock").unlink,
    }
    outcomes = tried_as(BROKER, attempts, groups=[SHARED])
    assert outcomes == dict.fromkeys(attempts, "PermissionError")
    # The minter's own user is no exception: its process is not dumpable.
    own = {name: attempts[name] for name in ("memory", "environment", "open files", "trace")}
    assert tried_as(MINTER, own) == dict.fromkeys(own, "PermissionError")
    # And the attempts can succeed at all: root's do.
    assert tried_as(0, {name: attempts[name] for name in ("secret", "state", "brokers")}) == dict.fromkeys(
        ("secret", "state", "brokers"), "succeeded"
    )


def test_a_stolen_broker_credential_is_worth_nothing_to_another_user(two, api):
    two.prepare({"api": profile(api)})
    two.start()
    credential = (two.root / "broker/broker.credential").read_text().strip()
    socket_path = str(two.root / "shared/minter.sock")

    def ask():
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(socket_path)
            connection.settimeout(5)
            body = b"{}"
            connection.sendall(
                b"POST /v1/leases HTTP/1.1\r\nHost: minter\r\nAuthorization: Bearer " + credential.encode() + b"\r\n"
                b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n" + body
            )
            answer = connection.recv(65536)
        if b" 401 " in answer.split(b"\r\n")[0]:
            raise ConnectionRefusedError
        raise ValueError

    assert tried_as(OTHER, {"connect": ask}) == {"connect": "PermissionError"}
    assert tried_as(OTHER, {"member of the group": ask}, groups=[SHARED]) == {
        "member of the group": "ConnectionRefusedError"
    }
    assert tried_as(BROKER, {"the broker's own user": ask}, groups=[SHARED]) == {"the broker's own user": "ValueError"}
    # Denials are written together, so that a flood of them cannot fill the log.
    two.until(lambda: two.audited("access.denied"), "the denial is in the audit log")
