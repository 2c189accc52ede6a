"""Requests to the broker's two APIs in process, through their real ASGI applications."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

from broker.admin import Admin
from broker.app import Control
from broker.callers import Callers, Failures
from broker.current import Current
from broker.envelope import Envelope
from broker.reload import Reloader
from broker.status import Status
from config import tokenfiles, tokens
from config.grants import parse_grants
from config.load import edit_token_file
from config.problems import ProblemError
from tests.broker.house import House, profile

OPERATOR = 4711


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.headers["broker-refused-by"] == "broker"
        assert self.json["status"] == self.status
        return self.json["code"]


@dataclass
class DataPath:
    """In the place of the data path: it notes what arrives and answers what the test says."""

    calls: list[Any] = field(default_factory=list)
    answer: Any = None
    fail: ProblemError | None = None

    def carry(self, run: Any, granted: Any, asking: Any, target: bytes) -> None:
        self._body, self._cut = b"", ""
        asking.call = self
        asking.want_body()
        self.calls.append((run.run_id, granted.name, asking.method, target, asking.headers, self._body))
        if self.fail is not None:
            asking.refuse(self.fail)
            return
        status, headers, pieces = self.answer or (200, [(b"content-type", b"application/json")], [b'{"ok":', b"1}"])
        asking.begin(status, headers, None, bodiless=False)
        for piece in pieces:
            asking.piece(piece)
            if self._cut:
                asking.break_off(ProblemError(self._cut))
                return
        asking.end()

    def body_piece(self, piece: bytes) -> None:
        self._body += piece

    def body_end(self) -> None:
        pass

    def cut(self, code: str) -> None:
        self._cut = code


@dataclass
class Desk:
    """Both APIs over one :class:`House`."""

    root: Path
    grants: dict[str, Any] = field(default_factory=lambda: {"memory": profile()})
    max_runs: int = 100

    async def start(self) -> Desk:
        self.house = House(f"sqlite:{self.root}/state/broker.db", max_runs=self.max_runs)
        await self.house.start(Current(self.read_grants()))
        self.token = self.create("orchestrator")
        house, clock = self.house, self.house.clock
        self.failures = Failures(clock, house.metrics.authentication_failed)
        self.callers = Callers(self.root / "callers.json", clock, self.failures)
        self.data_path = DataPath()
        self.status = Status(house.store, house.registry._leases, base_url="http://127.0.0.1:8090", serving=True)
        self.control = Control(
            registry=house.registry,
            callers=self.callers,
            failures=self.failures,
            store=house.store,
            clock=clock,
            status=self.status,
            envelope=Envelope(self.data_path, house.metrics.refused),
        )
        self.reloader = Reloader(
            read_grants=self.read_grants, callers=self.callers, registry=house.registry, metrics=house.metrics
        )
        self.admin = Admin(
            registry=house.registry,
            store=house.store,
            clock=clock,
            status=self.status,
            metrics=house.metrics,
            reloader=self.reloader,
            operators=frozenset({OPERATOR}),
        )
        self._control = self.control.app()
        self._admin = self.admin.app()
        return self

    def read_grants(self) -> Any:
        return parse_grants(json.dumps({"profiles": self.grants}).encode(), name="grants.json")

    def create(self, id_: str) -> str:
        issued = []

        def change(file: Any) -> Any:
            principals, token = tokenfiles.create(file.principals(), tokenfiles.Principal(id=id_), tokens.CALLER)
            issued.append(token.reveal())
            return tokenfiles.TokenFile(callers=principals)

        edit_token_file(self.root / "callers.json", change)
        return issued[0]

    async def stop(self) -> None:
        await self.house.outbox.settle()
        self.house.stop()

    async def ask(
        self, method: str, target: str, body: Any = None, *, token: str | None = None, headers: Any = ()
    ) -> Reply:
        """Ask ``listen``; ``body`` that is no bytes goes as JSON."""
        return await _ask(self._control, method, target, body=body, token=token, headers=headers, peer=None)

    async def caller(self, method: str, target: str, body: Any = None, *, headers: Any = ()) -> Reply:
        return await self.ask(method, target, body, token=self.token, headers=headers)

    async def operator(self, method: str, target: str, *, uid: int | None = OPERATOR) -> Reply:
        """Ask ``admin_listen`` as a user."""
        peer = None if uid is None else SimpleNamespace(uid=uid, gid=uid, pid=1)
        return await _ask(self._admin, method, target, body=None, token=None, headers=(), peer=peer)

    async def open(self, **body: Any) -> Any:
        reply = await self.caller("POST", "/v1/runs", {"profile": "memory"} | body)
        assert reply.status == 201, reply.body
        return SimpleNamespace(**reply.json)


async def _ask(app: Any, method: str, target: str, *, body: Any, token: str | None, headers: Any, peer: Any) -> Reply:
    path, _, query = target.partition("?")
    sent = [(name.lower().encode(), value.encode()) for name, value in dict(headers).items()]
    if token is not None:
        sent.append((b"authorization", b"Bearer " + token.encode()))
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    if body is not None and not any(name == b"content-type" for name, _ in sent):
        sent.append((b"content-type", b"application/json"))
    scope = {
        "type": "http",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "target": target.encode(),
        "headers": sent,
        "peer": peer,
        "client": ("127.0.0.1", 5) if peer is None else None,
        "server": ("127.0.0.1", 8090),
        "scheme": "http",
        "http_version": "1.1",
        "root_path": "",
        "body_length": len(data),
    }
    messages = [{"type": "http.request", "body": data, "more_body": False}]
    answered: list[Any] = []

    async def receive() -> Any:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop(0)

    async def send(message: Any) -> None:
        answered.append(message)

    await app(scope, receive, send)
    start, *pieces = answered
    return Reply(
        start["status"],
        {name.decode(): value.decode() for name, value in start["headers"]},
        b"".join(piece.get("body", b"") for piece in pieces),
    )
