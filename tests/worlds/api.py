"""A small working API on loopback for the flow tests: records what reached it and answers as it is told.

A path that no handler was given for answers 501, so that nothing passes by luck, unless ``otherwise`` is set.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


@dataclass(frozen=True)
class Received:
    """One request as it came. Header names are lower-case; repeated headers stay repeated."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key == name.lower()]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None


@dataclass
class Answer:
    """What to answer. A ``body`` that is no bytes is sent chunk by chunk as it comes."""

    status: int = 200
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes | Iterable[bytes] = b'{"ok": true}'


Handler = Callable[[Received], Answer]


class Api:
    """``with Api() as api: api.on("GET", "/v1/items", handler)``."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.connections = 0
        self.otherwise: Handler | None = None
        self._handlers: dict[tuple[str, str], Handler] = {}
        api = self

        class Serve(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Head and body go out as they are written: nobody waits for an acknowledgement between them.
            disable_nagle_algorithm = True

            def setup(self):
                api.connections += 1
                super().setup()

            def log_message(self, *_):
                pass

            def serve(self):
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length) if length else b""
                if (self.headers.get("transfer-encoding") or "").lower() == "chunked":
                    while size := int(self.rfile.readline(), 16):
                        body += self.rfile.read(size)
                        self.rfile.readline()
                    self.rfile.readline()
                headers = [(name.lower(), value) for name, value in self.headers.items()]
                request = Received(self.command, self.requestline.split(" ")[1], headers, body)
                api.received.append(request)
                handler = api._handlers.get((self.command, request.target.split("?")[0]), api.otherwise)
                answer = handler(request) if handler else Answer(501, body=b'{"unknown": true}')
                self.send(answer)

            def send(self, answer):
                self.send_response_only(answer.status)
                if not any(name.lower() == "content-type" for name, _ in answer.headers):
                    self.send_header("Content-Type", "application/json")
                for name, value in answer.headers:
                    self.send_header(name, value)
                if isinstance(answer.body, bytes):
                    self.send_header("Content-Length", str(len(answer.body)))
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(answer.body)
                    return
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                try:
                    for chunk in answer.body:
                        self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                        self.wfile.flush()
                    self.wfile.write(b"0\r\n\r\n")
                except OSError:
                    self.close_connection = True

        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
            setattr(Serve, f"do_{method}", Serve.serve)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_):
                pass

        self._server = Server(("127.0.0.1", 0), Serve)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def on(self, method: str, path: str, answer: Answer | Handler | None = None) -> None:
        """Serve a path. An :class:`Answer` is given each time; a function gets the request."""
        answer = answer if answer is not None else Answer()
        self._handlers[method, path] = answer if callable(answer) else lambda _request: answer

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
