"""A small working issuer on loopback: named tokens made by right of a root key, and an account of all that happened.

- ``POST /tokens {name, ttl_s}`` makes a token, ``GET /tokens?prefix=`` lists names, ``DELETE /tokens/NAME`` deletes one
  (404 when there is none), ``GET /use`` takes a token while it is alive.
- ``POST /roots {name}`` makes a second root key (there are two slots), ``GET /whoami`` says which one asks and does
  nothing, ``DELETE /roots/NAME`` deletes one, never the one that asks.
- ``PUT /control`` switches how it fails, as :meth:`Issuer.fail` does.

Whatever else is asked answers 501.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs, unquote, urlsplit

#: down: 503; limited: 429 with Retry-After; refuse: 401; forbid: 403; hang: no answer until it is mended; slow: an
#: answer after a while; drop: done, and the connection closed without an answer.
MODES = ("down", "limited", "refuse", "forbid", "hang", "slow", "drop")
OPERATIONS = ("make", "list", "delete", "use", "make-root", "whoami", "delete-root")
SLOW_S = 0.3

_PATHS = (
    ("make", "POST", "/tokens"),
    ("list", "GET", "/tokens"),
    ("delete", "DELETE", "/tokens/([^/]+)"),
    ("use", "GET", "/use"),
    ("make-root", "POST", "/roots"),
    ("whoami", "GET", "/whoami"),
    ("delete-root", "DELETE", "/roots/([^/]+)"),
)


@dataclass
class Token:
    """``value`` is what its bearer shows; ``expires_at`` is by the issuer's own clock."""

    name: str
    value: str
    expires_at: float


@dataclass(frozen=True)
class Seen:
    """One request: when, what, about whom, and the answer. ``done`` says that it had its effect."""

    at: float
    what: str
    name: str
    status: int
    done: bool


@dataclass
class Failure:
    mode: str
    on: tuple[str, ...]
    times: int | None
    retry_after: int
    mended: threading.Event = field(default_factory=threading.Event)


class Issuer:
    """``with Issuer() as issuer: issuer.root`` is the value of the first root key, as a person would get it."""

    SLOTS: ClassVar = 2

    def __init__(self) -> None:
        self.root = "root-" + secrets.token_hex(16)
        self.roots = {"given": self.root}
        self.tokens: dict[str, Token] = {}
        self.seen: list[Seen] = []
        #: By how much its clock is wrong, in seconds.
        self.ahead_s = 0.0
        self._made = 0
        self._failure: Failure | None = None
        self._lock = threading.RLock()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def now(self) -> float:
        return time.time() + self.ahead_s

    # --- how it fails ---

    def fail(self, mode: str, *on: str, times: int | None = None, retry_after: int = 1) -> None:
        """Fail in one way at the operations ``on`` (else all but use), so often or until it is mended."""
        assert mode in MODES, mode
        assert set(on) <= set(OPERATIONS), on
        self.mend()
        with self._lock:
            self._failure = Failure(mode, on or tuple(set(OPERATIONS) - {"use"}), times, retry_after)

    def mend(self) -> None:
        """Work again; what hangs goes on."""
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            failure.mended.set()

    # --- what is so ---

    def alive(self, prefix: str = "") -> list[str]:
        """Return the names of the tokens that it takes."""
        with self._lock:
            now = self.now()
            return sorted(t.name for t in self.tokens.values() if t.expires_at > now and t.name.startswith(prefix))

    def takes(self, value: str) -> bool:
        """Say whether a token is alive, without leaving a trace."""
        with self._lock:
            return any(t.value == value and t.expires_at > self.now() for t in self.tokens.values())

    def done(self, what: str) -> list[str]:
        """Return the names that an operation was done for, in order."""
        return [seen.name for seen in self.seen if seen.what == what and seen.done]

    # --- what it does: the status, and the document that is answered ---

    def answer(self, what: str, name: str, bearer: str, body: dict[str, Any]) -> tuple[int, Any]:
        with self._lock:
            if what == "use":
                return (200, {"ok": True}) if self.takes(bearer) else (401, {})
            if bearer not in self.roots.values():
                return 401, {}
            do = {
                "make": self._make,
                "list": self._list,
                "delete": self._delete,
                "make-root": self._make_root,
                "whoami": self._whoami,
                "delete-root": self._delete_root,
            }[what]
            return do(name, bearer, body)

    def _make(self, name: str, _bearer: str, body: dict[str, Any]) -> tuple[int, Any]:
        if name in self.tokens:
            return 409, {}
        self._made += 1
        value = f"tok-{self._made}-{secrets.token_hex(12)}"
        self.tokens[name] = Token(name, value, self.now() + float(body["ttl_s"]))
        return 201, {"value": value, "expires_at": self.tokens[name].expires_at}

    def _list(self, name: str, _bearer: str, _body: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"names": self.alive(name)}

    def _delete(self, name: str, _bearer: str, _body: dict[str, Any]) -> tuple[int, Any]:
        return (204, None) if self.tokens.pop(name, None) else (404, {})

    def _make_root(self, name: str, _bearer: str, _body: dict[str, Any]) -> tuple[int, Any]:
        if name in self.roots or len(self.roots) >= self.SLOTS:
            return 409, {}
        self.roots[name] = "root-" + secrets.token_hex(16)
        return 201, {"value": self.roots[name]}

    def _whoami(self, _name: str, bearer: str, _body: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"name": next(name for name, value in self.roots.items() if value == bearer)}

    def _delete_root(self, name: str, bearer: str, _body: dict[str, Any]) -> tuple[int, Any]:
        if self.roots.get(name) == bearer:
            return 409, {}
        return (204, None) if self.roots.pop(name, None) else (404, {})

    # --- as a server ---

    def serve(self, request: _Request, what: str, name: str, body: dict[str, Any]) -> None:
        failure = self._failing(what)
        mode = failure.mode if failure else ""
        if failure is not None and mode in ("hang", "slow"):
            failure.mended.wait(30 if mode == "hang" else SLOW_S)
        refused = {"down": 503, "limited": 429, "refuse": 401, "forbid": 403}.get(mode)
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        status, document = (refused, {}) if refused else self.answer(what, name, bearer, body)
        done = not refused and status < 300
        if what == "use" and done:
            name = next(t.name for t in self.tokens.values() if t.value == bearer)
        self.seen.append(Seen(time.time(), what, name, status, done))
        if mode == "drop":
            request.close_connection = True
            return
        headers = {"Retry-After": str(failure.retry_after)} if failure and mode in ("limited", "down") else {}
        request.send(status, document, {"Date": formatdate(self.now(), usegmt=True), **headers})

    def _failing(self, what: str) -> Failure | None:
        with self._lock:
            failure = self._failure
            if failure is None or what not in failure.on:
                return None
            if failure.times is not None:
                failure.times -= 1
                if failure.times <= 0:
                    self._failure = None
            return failure

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.mend()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        super().__init__(("127.0.0.1", 0), _Request)

    def handle_error(self, *_):
        pass


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_):
        pass

    def operation(self, body: dict[str, Any]) -> tuple[str, str]:
        target = urlsplit(self.path)
        for what, method, path in _PATHS:
            found = re.fullmatch(path, target.path)
            if found and method == self.command:
                named = body.get("name") or parse_qs(target.query).get("prefix", [""])[0]
                return what, unquote(found[1]) if found.groups() else named
        return "", ""

    def handle_request(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        issuer = self.server.issuer
        if (self.command, self.path) == ("PUT", "/control"):
            if body.get("mode"):
                issuer.fail(body["mode"], *body.get("on", ()), times=body.get("times"))
            else:
                issuer.mend()
            self.send(204, None, {})
            return
        what, name = self.operation(body)
        if what:
            issuer.serve(self, what, name, body)
        else:
            self.send(501, {}, {})

    def send(self, status: int, document: Any, headers: dict[str, str]) -> None:
        data = b"" if document is None else json.dumps(document).encode()
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


for _method in ("GET", "POST", "PUT", "DELETE"):
    setattr(_Request, f"do_{_method}", _Request.handle_request)
