"""A minter's custody on a real store, a real audit log and real files, for the tests of it."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from config.clock import FakeClock
from config.grants import parse_grants
from config.settings import CommandSettings, KeySettings, MinterSettings
from minter import key_rows
from minter.audit import AuditLog
from minter.custody import Custody
from minter.held import OWN_KEYS
from minter.lease_rows import LeaseRow, insert
from minter.sources import Context, Sources
from minter.state_lock import lock_state
from minter.store import Store, identity, migrate

ORIGIN = "https://api.example.com"
CANARY = "canary-0123456789"


def grants_of(*tokens, origin=ORIGIN):
    """Grants with a profile ``p0``, ``p1`` … for each token object."""
    profiles = {
        f"p{n}": {"base_url": origin, "allowed_callers": ["agent"], "token": token, "allow": ["GET /v1/x"]}
        for n, token in enumerate(tokens)
    }
    return parse_grants(json.dumps({"profiles": profiles}).encode(), name="grants.json")


@functools.cache
def _empty_state() -> bytes:
    """Migrate once: a schema is made by alembic, which takes a while."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "minter.db"
        migrate(path)
        return path.read_bytes()


@contextmanager
def quick_directory() -> Iterator[Path]:
    """A directory in memory where there is one: the store and the log sync at every write."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a fresh private directory within
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


class Vault:
    """Start it, stop it, start it again: what is on disk stays."""

    def __init__(self, directory: Path, clock: FakeClock):
        self.directory = directory
        self.clock = clock
        self.keys = {}
        self.commands = {}
        self.environ = {}
        self.grants = grants_of()
        self.more = {}
        self.store = None
        self.custody = None

    def put(self, name: str, value: str) -> None:
        path = self.directory / name
        path.write_text(value)
        path.chmod(0o600)

    def files(self) -> dict[str, str]:
        return {
            path.name: path.read_text()
            for path in sorted(self.directory.iterdir())
            if path.is_file() and not path.name.startswith(("minter.db", "audit"))
        }

    def key(self, alias: str, source: str, **settings) -> None:
        self.keys[alias] = KeySettings(source=source, **settings)

    def command(self, name: str, **settings) -> None:
        self.commands[name] = CommandSettings(**settings)

    def open(self) -> None:
        """Open the state and the log: everything of a start but the secrets."""
        path = self.directory / "minter.db"
        self._lock = lock_state(path)
        if not path.exists():
            path.write_bytes(_empty_state())
        migrate(path)
        installation, known = identity(path)
        self.audit = AuditLog(
            self.directory / "audit.jsonl", installation=installation, known=known, now=self.clock.now()
        )
        self.store = Store(path, audit=self.audit, clock=self.clock)
        state = f"sqlite:{self.directory / 'state' / 'minter.db'}"
        (self.directory / "state").mkdir(mode=0o700, exist_ok=True)
        settings = MinterSettings(**{"keys": self.keys, "commands": self.commands, "state": state} | self.more)
        context = Context(environ=dict(self.environ), base=self.directory)
        self.custody = Custody(settings, sources=Sources(context), clock=self.clock)

    async def start(self) -> Custody:
        self.open()
        await self.custody.load(self.store, self.grants)
        return self.custody

    async def stop(self) -> None:
        if self.store is not None:
            await self.store.close()
            self.audit.close()
            os.close(self._lock)
            self.store = None

    async def restart(self) -> Custody:
        await self.stop()
        return await self.start()

    async def versions(self):
        return await self.store.read(key_rows.versions)

    async def phases(self, alias):
        return {row.version: row.phase for row in await self.versions() if row.alias == alias}

    def lines(self):
        """What the log says, the making of the keys that every minter has left out."""
        lines = map(json.loads, (self.directory / "audit.jsonl").read_text().splitlines())
        return [line for line in lines if not (line["code"] == "key.created" and line["alias"] in OWN_KEYS)]

    def codes(self):
        return [line["code"] for line in self.lines()]

    def events(self, code):
        return [line for line in self.lines() if line["code"] == code]

    async def lend(self, alias, version, *, run="run_1", ends_in=900.0, state="active"):
        """Write a lease that was made with a version."""
        now = self.clock.now()
        row = LeaseRow(
            id=f"lse_{alias}_{version}_{run}",
            broker="b1",
            run_id=run,
            caller="agent",
            profile="p0",
            params_digest="",
            origin=ORIGIN,
            grant_digest="",
            kind="static",
            state=state,
            created_at=now,
            expires_at=now + ends_in,
            boot_expires_at=ends_in,
            boot_id="boot-1",
            run_ends_at=now + ends_in,
            credential_ends_at=now + ends_in,
            key_alias=alias,
            key_version=version,
            key_versions=json.dumps([f"{alias}@{version}"]),
            token="{}",
        )
        await self.store.write(lambda connection: (insert(connection, row), ()))

    def everything_written(self) -> bytes:
        return b"".join(path.read_bytes() for path in self.directory.rglob("*") if path.suffix in (".db", ".jsonl"))
