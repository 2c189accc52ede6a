"""A minter in this process: real state, audit log, custody and kinds in a folder of its own, under a test's clock.

One kind is played: ``remote``, an issuer whose mints leave traces, so that tests can let it fail and hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import ClassVar

import aiohttp
import msgspec

from config import server
from config.clock import FakeClock
from config.contract import LeaseRequest
from config.listeners import Listener
from config.problems import ProblemError
from config.secret import Secret
from config.settings import KeySettings, LeaseLimits, MinterSettings
from config.tokenfiles import Principal, TokenEntry, TokenFile
from config.tokens import BROKER, digest, generate
from minter.kinds import Ending, Minted
from minter.listening import Listening
from minter.minter import Minter

ORIGIN = "https://api.example.com"
CANARY = "canary-static-key-5d41402abc4b2a76"


class RemoteKind:
    """An issuer in memory. ``fail`` is raised by the next mints, ``refuse`` by the next revocations."""

    name = "remote"
    local = False
    example: ClassVar = {}

    def __init__(self):
        self.live: set[str] = set()
        self.named: dict[str, str] = {}
        self.minted: list = []
        self.revoked: list = []
        self.ended_with: list = []
        self.fail: BaseException | None = None
        self.refuse: list[BaseException] = []
        self.life_s: float | None = 3600.0
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()

    async def mint(self, request):
        self.asked.set()
        await self.gate.wait()
        if self.fail is not None:
            raise self.fail
        value = f"remote-{len(self.minted)}"
        self.minted.append(request)
        self.live.add(value)
        self.named[request.lease_id] = value
        return Minted(
            credential={"value": Secret(value)},
            expires_at=None if self.life_s is None else request.now + self.life_s,
            fingerprint=Secret(value).fingerprint(),
            key_versions=(),
            how_ends="upstream_deleted",
        )

    async def revoke(self, lease, credential):
        self.revoked.append(lease.id)
        if self.refuse:
            raise self.refuse.pop(0)
        if credential is not None:
            self.ended_with.append(credential["value"].reveal())
        # Found by the lease's name: the value may not have reached the state.
        self.live.discard(self.named.get(lease.id, ""))
        return Ending("upstream_deleted")


def grants(**changes):
    """Return a grants document with a profile of each kind, with changes by profile."""
    route = ["GET /v1/things", "POST /v1/things"]
    base = {"base_url": ORIGIN, "allowed_callers": ["agent"], "allow": route}
    profiles = {
        "static": {**base, "token": {"type": "static", "key": "api-key"}, "params": {"customer": "[a-z]{1,20}"}},
        "jwt": {**base, "token": {"type": "jwt", "key": "signer", "audience": ORIGIN}, "ttl": "10m"},
        "remote": {**base, "token": {"type": "static", "key": "other-key"}, "ttl": "10m"},
        "open": {**base},
    }
    for name, change in changes.items():
        if change is None:
            del profiles[name]
        else:
            profiles[name] = {**profiles[name], **change}
    return {"profiles": profiles}


class World:
    """The minter and what surrounds it. ``restart`` and ``crash`` start it again on the same folder."""

    def __init__(self, folder: Path, clock: FakeClock, **settings):
        self.folder = folder
        self.clock = clock
        self.changes = settings
        self.remote = RemoteKind()
        self.tokens = {}
        self.runs = itertools.count()
        (folder / "secrets").mkdir(parents=True, mode=0o700)
        for name in ("api-key", "other-key"):
            self.secret(name, CANARY if name == "api-key" else "canary-other-key-7d793037a0760186")
        self.write_grants()
        self.write_brokers(b1={}, b2={})
        self.minter: Minter | None = None

    def secret(self, name, value):
        path = self.folder / "secrets" / name
        path.write_text(value + "\n")
        path.chmod(0o600)

    def write_grants(self, **changes):
        (self.folder / "grants.json").write_text(json.dumps(grants(**changes)))

    def write_brokers(self, **brokers):
        principals = []
        for name, fields in brokers.items():
            token = self.tokens.setdefault(name, generate(BROKER))
            entry = TokenEntry(sha256=digest(token.reveal(), BROKER).hex())
            principals.append(Principal(id=name, tokens=[entry], **({"uid": os.geteuid()} | fields)))
        (self.folder / "brokers.json").write_bytes(msgspec.json.encode(TokenFile(brokers=principals)))

    @property
    def settings(self):
        folder = self.folder
        return MinterSettings(
            **{
                "grants": str(folder / "grants.json"),
                "brokers": str(folder / "brokers.json"),
                "state": f"sqlite:{folder / 'state' / 'minter.db'}",
                "audit": str(folder / "state" / "audit.jsonl"),
                "keys": {
                    "api-key": KeySettings(source=f"file:{folder / 'secrets' / 'api-key'}"),
                    "other-key": KeySettings(source=f"file:{folder / 'secrets' / 'other-key'}"),
                    "signer": KeySettings(source=f"file:{folder / 'secrets' / 'signer'}", use="signing"),
                },
                "lease_limits": LeaseLimits(),
                **self.changes,
            }
        )

    async def start(self):
        self.minter = await Minter.start(self.settings, clock=self.clock, environ={})
        self.play_remote()
        # A start leaves what is overdue to a sweep beside it; a test that starts goes by what that made of it.
        await self.minter.endings.drain(5)
        await self.minter.expiry.tick()
        return self

    def play_remote(self):
        """Put the played issuer in the place of the kind that the profile ``remote`` names."""
        policy = self.minter.admission.policy
        if "remote" in policy.kinds:
            played = dataclasses.replace(policy, kinds={**policy.kinds, "remote": self.remote})
            self.minter.admission.policy = played
            self.minter.kinds_of.take(played)

    async def stop(self):
        if self.minter is not None:
            minter, self.minter = self.minter, None
            await minter.stop(drain_s=1.0)

    async def restart(self):
        await self.stop()
        await self.start()

    async def crash(self):
        """Start again from the files as they are at this moment; what the old process held in memory is gone."""
        now = self.folder / "state"
        kept = self.folder / "kept"
        shutil.copytree(now, kept)
        await self.stop()
        shutil.rmtree(now)
        kept.rename(now)
        await self.start()

    @contextlib.asynccontextmanager
    async def locked_state(self):
        """Keep the state from being written, as a backup that hangs would."""
        await self.minter.store.read(lambda found: found.exec_driver_sql("PRAGMA busy_timeout = 1").close())
        with contextlib.closing(sqlite3.connect(self.minter.store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")

    # --- asking ---

    def principal(self, name="b1"):
        return self.minter.brokers.principals[name]

    def request(self, profile="static", *, run_id=None, ttl_s=600.0, caller="agent", params=None, **fields):
        current = self.minter.admission.policy.grants.profiles.get(profile)
        if params is None:
            params = {"customer": "acme"} if profile == "static" else {}
        return LeaseRequest(
            **{
                "run_id": run_id or self.run_id(),
                "caller": caller,
                "profile": profile,
                "params": params,
                "ttl_s": ttl_s,
                "origin": ORIGIN,
                "grant_digest": current.digest if current else "sha256:none",
                **fields,
            }
        )

    def run_id(self):
        return f"run_{next(self.runs):022d}"

    async def lease(self, request=None, *, broker="b1", **fields):
        return await self.minter.service.lease(self.principal(broker), request or self.request(**fields))

    async def refusal(self, request=None, *, broker="b1", **fields):
        """Return the code of the refusal that must come."""
        try:
            live = await self.lease(request, broker=broker, **fields)
        except ProblemError as error:
            return error.code
        raise AssertionError(f"lease {live.row.id} was lent")

    # --- looking ---

    def audit(self):
        return [json.loads(line) for line in (self.folder / "state" / "audit.jsonl").read_text().splitlines()]

    def codes(self, *, lease_id=None, prefix="lease."):
        return [
            event["code"]
            for event in self.audit()
            if event["code"].startswith(prefix) and (lease_id is None or event.get("lease_id") == lease_id)
        ]

    async def row(self, lease_id):
        from minter import lease_rows

        return await self.minter.store.read(lambda found: lease_rows.get(found, lease_id))

    async def states(self):
        rows = await self.minter.store.read(
            lambda found: found.exec_driver_sql("SELECT state, count(*) FROM leases GROUP BY state").all()
        )
        return {row[0]: row[1] for row in rows}


class Served:
    """The same minter behind real sockets: brokers, operators and anyone, each in its own way."""

    def __init__(self, world: World):
        self.world = world

    async def __aenter__(self):
        run = self.world.folder / "run"
        run.mkdir(mode=0o700)
        self.sockets = {name: run / f"{name}.sock" for name in ("brokers", "admin", "public")}
        listening = Listening(**{name: (Listener("unix", path=str(path)),) for name, path in self.sockets.items()})
        self.stop = asyncio.Event()
        ready = asyncio.Event()
        self.task = asyncio.create_task(
            server.serve(
                listening.groups(self.world.minter),
                on_ready=lambda _bound: ready.set(),
                on_drain=self.world.minter.hub.close,
                stop=self.stop,
                drain_s=1.0,
            )
        )
        async with asyncio.timeout(10):
            await ready.wait()
        self.sessions = {
            name: aiohttp.ClientSession(base_url="http://minter", connector=aiohttp.UnixConnector(str(path)))
            for name, path in self.sockets.items()
        }
        return self

    async def __aexit__(self, *_):
        for session in self.sessions.values():
            await session.close()
        self.stop.set()
        await self.task

    def bearer(self, broker="b1"):
        return {"Authorization": f"Bearer {self.world.tokens[broker].reveal()}"}

    async def ask(self, where, method, path, *, broker=None, **given):
        headers = {**(self.bearer(broker) if broker else {}), **given.pop("headers", {})}
        async with self.sessions[where].request(method, path, headers=headers, **given) as response:
            text = await response.text()
            body = json.loads(text) if "json" in response.headers.get("Content-Type", "") else text
            return response.status, body, response.headers

    async def lease(self, *, broker="b1", **fields):
        """Ask for a lease as a broker does."""
        request = msgspec.to_builtins(self.world.request(**fields))
        return await self.ask("brokers", "POST", "/v1/leases", broker=broker, json=request)
