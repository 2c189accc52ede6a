"""An API on loopback that breaks the rules of HTTP as its test says, over blocking sockets and a thread a connection.

A target that the test said nothing about is answered with itself: an answer that went to another call is seen at once.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import Self

from tests.worlds.recording import Request

#: Nothing of a test takes longer.
_PATIENCE_S = 30.0


class Peer:
    """The API's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = b""

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def drip(self, data: bytes, size: int = 1, pause_s: float = 0.0005) -> None:
        """Send in pieces of ``size`` bytes that arrive one by one."""
        pause = threading.Event()
        for at in range(0, len(data), size):
            self.sock.sendall(data[at : at + size])
            pause.wait(pause_s)

    def reset(self) -> None:
        """End the connection with RST in place of FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def gone(self) -> bool:
        """Wait until the other side has closed, and say that it sent nothing more before."""
        try:
            return self._buffer == b"" and self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def line(self, end: bytes) -> bytes:
        """Read to ``end``, which is part of what is returned; empty when the connection ended before."""
        while end not in self._buffer:
            if not (piece := self.sock.recv(65536)):
                return b""
            self._buffer += piece
        line, found, self._buffer = self._buffer.partition(end)
        return line + found

    def exactly(self, count: int) -> bytes:
        taken = bytearray(self._buffer[:count])
        self._buffer = self._buffer[count:]
        while len(taken) < count:
            if not (piece := self.sock.recv(min(count - len(taken), 1 << 20))):
                raise ConnectionError("it broke off")
            taken += piece
        return bytes(taken)

    def head(self) -> Request | None:
        """Read a request's head; None when the other side has closed."""
        if not (head := self.line(b"\r\n\r\n")):
            return None
        line, *lines = head[:-4].split(b"\r\n")
        headers = [(name, value.strip(b" ")) for name, _, value in (entry.partition(b":") for entry in lines)]
        return Request(line, headers, b"", head)

    def body(self, request: Request) -> None:
        """Read the request's body to its end."""
        if request.values(b"transfer-encoding") == [b"chunked"]:
            while size := int(self.line(b"\r\n") or b"x", 16):
                request.body += self.exactly(size)
                assert self.exactly(2) == b"\r\n"
            assert self.line(b"\r\n") == b"\r\n"
        elif length := request.values(b"content-length"):
            request.body = self.exactly(int(length[0]))


Script = Callable[[Peer, Request], None]


def whole(body: bytes, *headers: bytes) -> bytes:
    """Return a well-formed answer."""
    return b"".join((b"HTTP/1.1 200 OK\r\n", *headers, b"Content-Length: %d\r\n\r\n" % len(body), body))


def says(data: bytes, *, then_close: bool = False) -> Script:
    """Answer with these bytes."""

    def script(peer: Peer, _request: Request) -> None:
        peer.send(data)
        if then_close:
            peer.sock.close()

    return script


class RuleBreaker:
    """``with RuleBreaker() as api: api.on(b"/v1/items/1", says(b"nonsense"))``.

    ``requests`` are those whose head came since the last :meth:`forget`, and ``carriers`` the connections they came on.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.carriers: set[Peer] = set()
        #: Called when a connection begins, before anything is read.
        self.greet: Callable[[Peer], None] = lambda _peer: None
        self._scripts: dict[bytes, Script] = {}
        self._heads: dict[bytes, Script] = {}
        self._tls = tls
        self._server = socket.create_server(("127.0.0.1", 0), backlog=256)
        for which in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # else the kernel's buffers grow with what arrives
            self._server.setsockopt(socket.SOL_SOCKET, which, 1 << 18)
        self.port = self._server.getsockname()[1]
        self._stopped = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        # Closing alone would not wake the thread that accepts.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    @property
    def origin(self) -> str:
        return f"http{'s' * bool(self._tls)}://{'localhost' if self._tls else '127.0.0.1'}:{self.port}"

    def on(self, target: bytes, script: Script) -> None:
        """Play ``script`` once a request of ``target`` is here as a whole."""
        self._scripts[target] = script

    def on_head(self, target: bytes, script: Script) -> None:
        """Play ``script`` when the head of such a request is here; what comes of its body is the script's affair."""
        self._heads[target] = script

    def forget(self) -> None:
        self.requests, self.carriers = [], set()
        self._scripts, self._heads = {}, {}
        self.greet = lambda _peer: None

    def count(self, target: bytes) -> int:
        return sum(request.target == target for request in self.requests)

    def _accept(self) -> None:
        while not self._stopped:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(_PATIENCE_S)
        # Whoever is cut off in the middle of a script was cut off by the broker, or closed the connection itself.
        with contextlib.suppress(OSError):
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            peer = Peer(sock)
            with contextlib.closing(sock):
                self.greet(peer)
                while sock.fileno() >= 0 and (request := peer.head()) is not None:
                    self.requests.append(request)
                    self.carriers.add(peer)
                    self._answer(peer, request)

    def _answer(self, peer: Peer, request: Request) -> None:
        if early := self._heads.get(request.target):
            early(peer, request)
            return
        peer.body(request)
        script = self._scripts.get(request.target, says(whole(request.target)))
        script(peer, request)
