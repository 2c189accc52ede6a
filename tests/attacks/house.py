"""Both programs as real processes, and what a case asks of them in one line."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.worlds.service import BIN, CANARY, OpenRun, Reply, Service

#: What every profile of these tests has unless it says otherwise.
COMMON = {"allowed_callers": ["support-agent"], "token": {"type": "static", "key": "api"}}


class House(Service):
    """A service whose answers are judged as a whole: who refused, what was counted, what was not done."""

    #: What the API gets to see and nobody else.
    secret = CANARY

    def refused(self, run: OpenRun, reply: Reply, status: int, code: str, *, counted: bool = True) -> None:
        """The broker refused with this code, counted it once, and did not ask the minter."""
        assert (reply.status, reply.json["code"]) == (status, code), reply.body
        assert reply.json["by"] == "broker"
        assert reply.header("content-type") == "application/problem+json"
        assert reply.header("broker-refused-by") == "broker"
        denied = {row["code"]: row["count"] for row in self.trace(run)["trace"]["denied_by"]}
        assert denied == ({code: 1} if counted else {})
        assert self.minted_for(run) == []

    def minted_for(self, run: OpenRun) -> list[dict[str, Any]]:
        """What the minter's log says of the run."""
        return [line for line in self.audit() if line.get("run_id") == run.run_id]

    def head(self, run: OpenRun, profile: str, method: str = "GET", target: str = "/v1/items", *more: str) -> bytes:
        """The head of a call in bytes, without its last line break."""
        lines = [f"{method} /p/{profile}{target} HTTP/1.1", f"Host: 127.0.0.1:{self.port}"]
        lines += [f"Authorization: Bearer {run.token}", *more]
        return "".join(f"{line}\r\n" for line in lines).encode()

    def answers(self, data: bytes) -> list[Reply]:
        """Send bytes and return all answers up to the end of the connection, which the broker must close."""
        received = self.raw(data)
        replies = []
        while received:
            reply, received = parse(received)
            replies.append(reply)
        return replies

    def fails(self, program: str, **environ: str) -> str:
        """The faults of a start that must fail with exit status 3."""
        done = subprocess.run(
            [str(BIN / program), "serve", "--config", f"{program}.toml"],
            cwd=self.root,
            env={**self.env(), **environ},
            capture_output=True,
            check=False,
            timeout=30,
        )
        self.replies += [done.stdout, done.stderr]
        assert done.returncode == 3, done
        return done.stderr.decode()

    @contextlib.contextmanager
    def connection(self) -> Iterator[http.client.HTTPConnection]:
        """One connection, which is not opened again when the broker closes it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.connect()
        connection.auto_open = 0
        try:
            yield connection
        finally:
            connection.close()


def parse(received: bytes) -> tuple[Reply, bytes]:
    """Split the first answer, which has a length, from what comes behind it."""
    head, end, rest = received.partition(b"\r\n\r\n")
    assert end, received
    line, *lines = head.decode("latin-1").split("\r\n")
    headers = [(name, value) for name, _, value in (entry.partition(": ") for entry in lines)]
    reply = Reply(int(line.split(" ")[1]), headers, b"")
    length = int(reply.header("content-length") or 0)
    return Reply(reply.status, headers, rest[:length]), rest[length:]


@contextlib.contextmanager
def serving(
    root: Path, profiles: dict[str, Any], *, start: bool = True, house: type[House] = House, **settings: Any
) -> Iterator[Any]:
    """Serve these profiles until the block ends; the marked secret is searched for then, and after the end."""
    made = house(root, **settings)
    try:
        made.prepare({name: {**COMMON, **fields} for name, fields in profiles.items()})
        if start:
            made.start()
        yield made
        made.assert_canary_absent()
    finally:
        made.end()
        made.assert_canary_absent()


def unix(path: Path, method: str, target: str, *, token: str = "", body: Any = None) -> Reply:
    """Ask a program over its Unix socket."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(10)
    with contextlib.closing(connection):
        connection.sock.connect(str(path))
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection.request(method, target, body=None if body is None else json.dumps(body), headers=headers)
        answer = connection.getresponse()
        return Reply(answer.status, answer.getheaders(), answer.read())
