"""Raw connections to the broker: bytes out, answers in, and how the connection ended."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
from dataclasses import dataclass, field
from typing import Self

#: ``SO_LINGER`` on, zero seconds: closing resets.
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Answer:
    """One final answer; ``code`` is that of a refusal. ``whole`` is false for one that the connection's end cut."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    whole: bool = True

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def code(self) -> str | None:
        return json.loads(self.body)["code"] if self.header("content-type") == "application/problem+json" else None


@dataclass
class Wire:
    """One connection. Everything has a timeout: a test that would hang fails.

    ``ended`` says that the broker has closed its side; ``reset`` that it did so without order.
    """

    sock: socket.socket
    received: bytes = b""
    ended: bool = False
    reset: bool = False
    interim: list[int] = field(default_factory=list)

    @classmethod
    def to(cls, port: int, *, timeout: float = 10, receive_buffer: int = 0) -> Wire:
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(timeout)
        sock.connect(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(sock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        """Send; that the broker has had enough is no error: its answer says why."""
        with contextlib.suppress(ConnectionError):
            self.sock.sendall(data)

    def end_sending(self) -> None:
        """Half-close: nothing more is sent."""
        self.sock.shutdown(socket.SHUT_WR)

    def drop(self) -> None:
        """Reset the connection."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.sock.close()

    def more(self, *, wait: bool = True) -> bool:
        """Read what is there; say whether anything was."""
        if self.ended or not (wait or self._has_something()):
            return False
        try:
            piece = self.sock.recv(1 << 16)
        except ConnectionError:
            piece, self.reset = b"", True
        self.received += piece
        self.ended = not piece
        return bool(piece)

    def _has_something(self) -> bool:
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))

    def answer(self, *, head: bool = False) -> Answer | None:
        """Take the next final answer, of a HEAD if so; None when the connection ends without one."""
        while True:
            taken = _parse(self.received, ended=self.ended, head=head)
            if taken is None:
                if not self.more():
                    return _parse_cut(self.received)
                continue
            answer, self.received = taken
            if answer.status >= 200:
                return answer
            self.interim.append(answer.status)

    def rest(self) -> bytes:
        """Return what still comes until the broker closes."""
        while self.more():
            pass
        return self.received


def _parse(received: bytes, *, ended: bool, head: bool) -> tuple[Answer, bytes] | None:
    """Split the first answer from what comes behind it; None when it is not complete."""
    lines, end, rest = received.partition(b"\r\n\r\n")
    if not end:
        return None
    answer = _head(lines)
    if head or answer.status < 200 or answer.status in {204, 304}:
        return answer, rest
    split: tuple[bytes, bytes] | None = None
    length = answer.header("content-length")
    if answer.header("transfer-encoding") == "chunked":
        split = _chunks(rest)
    elif length is None:
        split = (rest, b"") if ended else None
    elif len(rest) >= int(length):
        split = rest[: int(length)], rest[int(length) :]
    return None if split is None else (Answer(answer.status, answer.headers, split[0]), split[1])


def _parse_cut(received: bytes) -> Answer | None:
    head, end, rest = received.partition(b"\r\n\r\n")
    if not end:
        return None
    answer = _head(head)
    return Answer(answer.status, answer.headers, rest, whole=False)


def _head(head: bytes) -> Answer:
    line, *lines = head.decode("latin-1").split("\r\n")
    version, status, _ = line.split(" ", 2)
    assert version == "HTTP/1.1", line
    return Answer(int(status), [(name, value) for name, _, value in (one.partition(": ") for one in lines)], b"")


def _chunks(data: bytes) -> tuple[bytes, bytes] | None:
    body = b""
    while True:
        line, end, data = data.partition(b"\r\n")
        if not end or len(data) < int(line, 16) + 2:
            return None
        size = int(line, 16)
        body += data[:size]
        assert data[size : size + 2] == b"\r\n"
        data = data[size + 2 :]
        if not size:
            return body, data
