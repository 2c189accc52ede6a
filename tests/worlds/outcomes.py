"""What the code sees of a call whose answer may be cut: status, headers, body, and whether that is all of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.worlds.service import OpenRun, Service


@dataclass(frozen=True)
class Outcome:
    """``complete`` is false when the answer broke off; ``status`` is 0 when not even its head came."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    complete: bool

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    @property
    def code(self) -> str:
        """The code with which the broker refused, ``cut`` for an answer that broke off, else nothing."""
        if not self.complete:
            return "cut"
        return json.loads(self.body)["code"] if self.values("broker-refused-by") == ["broker"] else ""


def call(
    service: Service,
    run: OpenRun,
    method: str,
    target: str,
    *,
    profile: str = "items",
    headers: Sequence[tuple[str, str]] = (),
    body: bytes | None = None,
) -> Outcome:
    """Make one call over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
    with contextlib.closing(connection):
        connection.putrequest(method, f"/p/{profile}{target}", skip_accept_encoding=True)
        for name, value in (("Authorization", f"Bearer {run.token}"), *headers):
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        seen = _read(connection)
    service.replies.append(seen.body + repr(seen.headers).encode())
    return seen


def _read(connection: http.client.HTTPConnection) -> Outcome:
    try:
        answer = connection.getresponse()
    except (http.client.RemoteDisconnected, ConnectionError):
        return Outcome(0, [], b"", complete=False)
    try:
        return Outcome(answer.status, answer.getheaders(), answer.read(), complete=True)
    except http.client.IncompleteRead as error:
        return Outcome(answer.status, answer.getheaders(), error.partial, complete=False)
    except ConnectionError:
        return Outcome(answer.status, answer.getheaders(), b"", complete=False)


@contextlib.contextmanager
def asking(service: Service, data: bytes, *, buffer: int = 0) -> Iterator[socket.socket]:
    """Send a request in bytes and yield the socket, for a test that reads the answer at its own pace.

    ``buffer`` limits what the kernel holds for this end, which otherwise grows with what arrives.
    """
    with socket.socket() as sock:
        if buffer:
            # Before it connects: later the window has been announced.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        sock.settimeout(20)
        sock.connect(("127.0.0.1", service.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(data)
        yield sock


def until(sock: socket.socket, end: bytes) -> bytes:
    """Read until what came ends in ``end``, byte by byte, so that nothing behind it is taken."""
    got = b""
    while not got.endswith(end):
        piece = sock.recv(1)
        assert piece, got
        got += piece
    return got
