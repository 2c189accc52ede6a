"""A broker's data path between raw sockets: real server in front, recording API behind, working minter beside.

Only the registry of runs is left out: a run is put together here, with its budget in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.budget import Budget
from broker.call import Calls
from broker.egress import Egress, MinterTransport, Resolve, system_resolve
from broker.leases import Leases
from broker.minter_link import MinterLink
from broker.open_calls import OpenCalls
from broker.placements import Registry
from broker.run import Run
from broker.wire.exchange import CallsOnTheWire
from config import tokens
from config.asgi import read_body, send_json, send_problem
from config.clock import Deadline, FakeClock, rfc3339
from config.contract import LEASES, WATCH, EndedLease, LeaseRequest, decode
from config.grants import parse_grants
from config.http_server import GroupServer
from config.match import Matcher
from config.problems import ProblemError
from config.secret import Secret
from config.server import Listener, ListenerGroup, bind, release
from config.settings import UpstreamSettings
from tests.worlds.recording import Recording, recording

#: The credential that the minter lends: it may reach the API and nobody else.
KEY = "sekret-AAAA1111"
PLACEMENTS = Registry()


@dataclass
class Minter:
    """A minter that lends :data:`KEY`, one lease for each run and profile, and counts what it is asked."""

    clock: FakeClock
    asked: list[LeaseRequest] = field(default_factory=list)
    leases: dict[tuple[str, str], str] = field(default_factory=dict)
    credential: dict[str, str] = field(default_factory=lambda: {"value": KEY})
    ttl_s: float = 900.0
    refuse: ProblemError | None = None
    hold: asyncio.Event | None = None
    reply: bytes | None = None
    watchers: list[asyncio.Queue[EndedLease | None]] = field(default_factory=list)
    authorization: list[bytes] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.authorization.append(dict(scope["headers"]).get(b"authorization", b""))
        path, method = scope["path"], scope["method"]
        body = await read_body(receive, 65536)
        if (method, path) == ("POST", LEASES):
            await self._lease(body, send)
        elif (method, path) == ("GET", WATCH):
            await self._watch(send)
        elif method == "DELETE" and path.startswith("/v1/runs/"):
            await send_json(send, 200, {"leases": []})
        elif method == "POST" and path.endswith("/record"):
            await send_json(send, 200, {})
        else:
            await send_problem(send, ProblemError("not-found"), "minter")

    async def _lease(self, body: bytes, send: Any) -> None:
        request = decode(LeaseRequest, body)
        self.asked.append(request)
        if self.hold is not None:
            await self.hold.wait()
        if self.refuse is not None:
            await send_problem(send, self.refuse, "minter")
            return
        if self.reply is not None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": self.reply})
            return
        lease_id = self.leases.setdefault((request.run_id, request.profile), f"lse_{len(self.asked):022d}")
        await send_json(
            send,
            201,
            {
                "lease_id": lease_id,
                "credential": self.credential,
                "expires_at": rfc3339(self.clock.now() + self.ttl_s),
                "expires_in_s": self.ttl_s,
                "kind": "static",
                "fingerprint": "f",
            },
        )

    async def _watch(self, send: Any) -> None:
        queue: asyncio.Queue[EndedLease | None] = asyncio.Queue()
        self.watchers.append(queue)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        line: EndedLease | None = EndedLease()
        while line is not None:
            body = json.dumps({"lease_id": line.lease_id, "reason": line.reason}).encode() + b"\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})
            line = await queue.get()
        self.watchers.remove(queue)
        await send({"type": "http.response.body", "body": b""})

    def end(self, lease_id: str) -> None:
        """Revoke a lease: it is not handed out again, and whoever watches is told."""
        self.leases = {key: value for key, value in self.leases.items() if value != lease_id}
        for queue in self.watchers:
            queue.put_nowait(EndedLease(lease_id=lease_id, reason="revoked"))

    def beat(self) -> None:
        for queue in self.watchers:
            queue.put_nowait(EndedLease())

    def hang_up(self) -> None:
        for queue in self.watchers:
            queue.put_nowait(None)


@dataclass
class Counted:
    """The recorder: what it was told."""

    calls: list[tuple[str, int]] = field(default_factory=list)
    refusals: list[tuple[str, str]] = field(default_factory=list)

    def call(self, profile: str, status: int, seconds: float) -> None:
        assert seconds >= 0
        self.calls.append((profile, status))

    def refused(self, profile: str, code: str) -> None:
        self.refusals.append((profile, code))


@dataclass
class Reply:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key == name]
        assert len(values) < 2, f"{name} came {len(values)} times"
        return values[0] if values else None

    @property
    def problem(self) -> dict[str, Any]:
        assert self.header("content-type") == "application/problem+json", self
        assert self.header("broker-refused-by") == "broker"
        found: dict[str, Any] = json.loads(self.body)
        assert found["by"] == "broker"
        return found

    @property
    def code(self) -> str:
        return self.problem["code"]


class Code:
    """The code's side of a connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> Reply:
        async with asyncio.timeout(5):
            lines = (await self.reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
        headers = [tuple(line.decode("latin-1").split(": ", 1)) for line in lines[1:]]
        return Reply(int(lines[0].split(b" ")[1]), headers, b"")  # type: ignore[arg-type]

    async def reply(self, *, head: bool = False) -> Reply:
        """Read one answer; ``IncompleteReadError`` when it breaks off."""
        reply = await self.head()
        async with asyncio.timeout(5):
            if head or reply.status in (204, 304):
                return reply
            if (length := reply.header("content-length")) is not None:
                reply.body = await self.reader.readexactly(int(length))
            else:
                assert reply.header("transfer-encoding") == "chunked"
                while piece := await self.chunk():
                    reply.body += piece
        return reply

    async def chunk(self) -> bytes:
        async with asyncio.timeout(5):
            size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
            piece = await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        return piece

    async def rest(self) -> bytes:
        async with asyncio.timeout(5):
            return await self.reader.read()


@dataclass
class World:
    """All of it. ``token`` is the run token; ``call`` makes one call over a connection of its own."""

    clock: FakeClock
    api: Recording
    minter: Minter
    leases: Leases
    endpoint: Calls
    open_calls: OpenCalls
    recorder: Counted
    runs: dict[bytes, Run]
    port: int = 0
    token: str = ""
    run: Run = None  # type: ignore[assignment]
    reserved: list[int] = field(default_factory=list)
    watching: asyncio.Task[None] | None = None
    connected: list[Code] = field(default_factory=list)

    def open_run(self, profiles: dict[str, Any], params: dict[str, str] | None = None, ttl_s: float = 900.0) -> str:
        """Open a run on these profiles and return its token."""
        grants = parse_grants(
            json.dumps({"profiles": profiles}).encode(), name="grants.json", check_placement=PLACEMENTS.check
        )
        token = tokens.generate(tokens.RUN).reveal()
        run = Run(
            run_id=f"run_{len(self.runs):022d}",
            caller="tester",
            trace_id=None,
            params=params or {},
            deadline=Deadline.after(self.clock, ttl_s),
            created_at=self.clock.now(),
        )
        for profile in grants.profiles.values():
            run.grant(profile, Matcher(profile), budget=self._budget(profile.max_calls), leases=self.leases)
        digest = tokens.digest(token, tokens.RUN)
        assert digest is not None
        self.runs[digest] = run
        return token

    def _budget(self, limit: int) -> Budget:
        left = limit

        async def reserve(wanted: int) -> int:
            nonlocal left
            granted = min(wanted, left)
            left -= granted
            self.reserved.append(granted)
            return granted

        return Budget(limit, reserve)

    def reload(self, profile: dict[str, Any] | None) -> None:
        """Let the current grants hold this for the profile ``api``."""
        granted = self.run.profiles["api"]
        if profile is None:
            granted.current = None
            return
        grants = parse_grants(json.dumps({"profiles": {"api": profile}}).encode(), name="grants.json")
        found = grants.profiles["api"]
        granted.current = (found, Matcher(found))

    async def connect(self) -> Code:
        code = Code(*await asyncio.open_connection("127.0.0.1", self.port))
        self.connected.append(code)
        return code

    def request(
        self,
        method: str = "GET",
        target: str = "/v1/items",
        headers: dict[str, str] | list[tuple[str, str]] | None = None,
        body: bytes | None = None,
        *,
        profile: str = "api",
        token: bool = True,
    ) -> bytes:
        """Return a request in bytes; with ``token`` it carries the run token as ``Authorization: Bearer``."""
        lines = [f"{method} /p/{profile}{target} HTTP/1.1", f"Host: 127.0.0.1:{self.port}"]
        if token:
            lines.append(f"Authorization: Bearer {self.token}")
        pairs = headers.items() if isinstance(headers, dict) else headers or []
        lines += [f"{name}: {value}" for name, value in pairs]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")

    async def call(self, *args: Any, **kwargs: Any) -> Reply:
        """Make one call, over a connection of its own."""
        return await self.raw(self.request(*args, **kwargs), head=(args[:1] == ("HEAD",)))

    async def raw(self, data: bytes, *, head: bool = False) -> Reply:
        code = await self.connect()
        try:
            await code.send(data)
            return await code.reply(head=head)
        finally:
            code.writer.close()

    async def watch(self) -> None:
        """Follow the minter's stream, which most tests do without."""
        self.watching = asyncio.create_task(self.leases.watch())
        await eventually(lambda: self.leases.watching)

    async def settled(self) -> None:
        """Wait until no call is open."""
        await eventually(lambda: not len(self.open_calls))

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.run.trace.snapshot()["rows"]


async def eventually(condition: Callable[[], object]) -> None:
    """Let the loop go round until ``condition`` holds: what is on its way over a socket arrives meanwhile."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not come about")


def profile(url: str, **fields: Any) -> dict[str, Any]:
    """Return a profile that grants GET and POST of /v1/items."""
    return {
        "base_url": url,
        "allowed_callers": ["tester"],
        "token": {"type": "static", "key": "api-key"},
        "allow": ["GET /v1/items", "POST /v1/items", "GET /v1/items/*", "HEAD /v1/items", "DELETE /v1/items/*"],
        **fields,
    }


@contextlib.asynccontextmanager
async def world(
    tmp_path: Path, *, upstream: UpstreamSettings | None = None, resolve: Resolve = system_resolve, **fields: Any
) -> AsyncIterator[World]:
    """Serve until the block ends, with one run open on the profile ``api``."""
    clock = FakeClock()
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(recording())
        minter = Minter(clock)
        minter_socket = tmp_path / "minter" / "m.sock"
        await stack.enter_async_context(listening(minter, f"unix:{minter_socket}", by="minter"))
        transport = MinterTransport(f"unix:{minter_socket}")
        stack.push_async_callback(transport.close)
        leases = Leases(MinterLink(transport, Secret("mbk_of-this-broker")), clock)
        egress = Egress(upstream or UpstreamSettings(), resolve=resolve)
        stack.push_async_callback(egress.close)
        open_calls = OpenCalls(clock, header_timeout_s=60.0, idle_timeout_s=300.0)
        runs: dict[bytes, Run] = {}
        recorder = Counted()

        class Registry:
            def by_digest(self, digest: bytes) -> Run | None:
                return runs.get(digest)

        endpoint = Calls(
            runs=Registry(),
            egress=egress,
            clock=clock,
            placements=PLACEMENTS,
            recorder=recorder,
            open_calls=open_calls,
        )
        made = World(clock, api, minter, leases, endpoint, open_calls, recorder, runs)
        made.port = await stack.enter_async_context(
            listening(nothing_else, "127.0.0.1:0", direct=CallsOnTheWire(endpoint))
        )
        made.token = made.open_run({"api": profile(api.url, **fields)})
        made.run = next(iter(runs.values()))
        try:
            yield made
        finally:
            for code in made.connected:
                code.writer.close()
            if made.watching is not None:
                made.watching.cancel()
                await asyncio.gather(made.watching, return_exceptions=True)
            minter.hang_up()


async def nothing_else(_scope: Any, _receive: Any, send: Any) -> None:
    """Answer what is no call."""
    await send_problem(send, ProblemError("not-found"), "broker")


@contextlib.asynccontextmanager
async def listening(app: Any, listener: str, **group: Any) -> AsyncIterator[int]:
    """Serve an application in this loop until the block ends; yield its port."""
    bound = bind(Listener.parse(listener))
    # Without the server's own loop, which looks every tenth of a second whether it is to stop.
    server = GroupServer(
        ListenerGroup(app=app, listeners=(bound.listener,), **{"by": "broker", **group}), [bound], None, 1
    )
    await server.startup()
    try:
        yield bound.listener.port
    finally:
        server.cut.set()
        await server.shutdown()
        release(bound)
