"""A minter as a real process that a test kills, with an issuer, one broker's and the operator's way to it.

It notes what it was given and reads what the minter wrote, so that both can be compared after a kill.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.grants import parse_grants
from config.tokens import BROKER, digest, generate
from minter.audit_segments import segments
from tests.worlds.issuer import Issuer

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parent.parent.parent
PLUGINS = Path(__file__).parent / "distributions" / "issuer_double"
CALLER = "agent"
#: Values that may stand in the minter's files of secrets and nowhere else.
STATIC = "sekret-CANARY-static-"

SETTINGS = """\
kinds = ["issuer-double"]
drain = "2s"
verifier_cache = "0s"
{more}
[audit_log]
checkpoint_records = 7
[keys.api]
source = "file:secrets/api.key"
[keys.issuer-root]
source = "file:secrets/root.key"
[keys.signer]
use = "signing"
source = "file:secrets/signer"
"""


class GoneError(Exception):
    """The minter is not there any more."""


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Received:
    """A credential as the broker got it."""

    lease_id: str
    run_id: str
    profile: str
    value: str
    fingerprint: str


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("minter", timeout=timeout)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass
class Killable:
    """``prepare`` its folder, ``start`` it, ask, ``kill`` or let it die, start it again; ``end`` always."""

    root: Path
    issuer: Issuer
    process: subprocess.Popen[bytes] | None = None
    received: list[Received] = field(default_factory=list)
    #: Leases of which it was said that the issuer has deleted them.
    told_deleted: set[str] = field(default_factory=set)
    #: Leases that were in the state before there was a minter: no log tells their story.
    inherited: set[str] = field(default_factory=set)
    failpoint: str = ""
    settings_more: str = ""
    environ: dict[str, str] = field(default_factory=dict)
    _token: str = field(default="", repr=False)
    _offset: float = 0.0
    _runs: Iterator[int] = field(default_factory=itertools.count, repr=False)

    # --- the folder ---

    def prepare(self) -> None:
        for name in ("run", "state", "secrets"):
            (self.root / name).mkdir(mode=0o700)
        self.secret("api.key", STATIC + "1")
        self.secret("root.key", self.issuer.root)
        token = generate(BROKER)
        self._token = token.reveal()
        entry = {"sha256": digest(self._token, BROKER).hex()}
        self.write("brokers.json", {"brokers": [{"id": "b1", "tokens": [entry], "uid": os.geteuid()}]})
        self.grant()
        self.settings()
        self.pass_time(0)

    def settings(self, more: str = "") -> None:
        (self.root / "minter.toml").write_text(SETTINGS.format(more=more) + self.settings_more)

    def secret(self, name: str, value: str) -> None:
        path = self.root / "secrets" / name
        path.touch(0o600)
        path.write_text(value + "\n")

    def write(self, name: str, document: Any) -> None:
        fresh = self.root / f"{name}.new"
        fresh.write_text(json.dumps(document))
        fresh.rename(self.root / name)

    def grant(self, *without: str, allow: tuple[str, ...] = ("GET /use",)) -> None:
        """Write the grants: a profile of each kind, but those that are named."""
        origin = self.issuer.origin
        tokens = {
            "static": {"type": "static", "key": "api"},
            "jwt": {"type": "jwt", "key": "signer", "audience": origin},
            "issued": {"type": "issuer-double", "issuer": origin, "key": "issuer-root"},
        }
        profiles = {
            name: {"base_url": origin, "allowed_callers": [CALLER], "token": token, "allow": list(allow), "ttl": "10m"}
            for name, token in tokens.items()
            if name not in without
        }
        self.write("grants.json", {"profiles": profiles})
        self.grants = parse_grants(json.dumps({"profiles": profiles}).encode(), name="grants.json")

    def pass_time(self, seconds: float) -> None:
        """Move the minter's clocks on, and the issuer's with them."""
        self._offset += seconds
        self.issuer.ahead_s += seconds
        self.write("clock.json", {"wall": self._offset, "boot": self._offset, "boot_id": ""})

    def now(self) -> float:
        return time.time() + self._offset

    # --- the process ---

    def env(self, failpoint: str = "") -> dict[str, str]:
        env = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.root),
            "PYTHONPATH": f"{ROOT}:{PLUGINS}",
            "MINTER_ALLOW_ROOT": "1",
            "MINTER_TEST_CLOCK": str(self.root / "clock.json"),
            **self.environ,
        }
        return env | ({"MINTER_TEST_FAILPOINT": failpoint} if failpoint else {})

    def start(self, failpoint: str = "", *, wait: bool = True) -> bool:
        """Start it; return whether it listens (else it died at its start)."""
        self.stop()
        with (self.root / "minter.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(BIN / "minter"), "serve", "--config", "minter.toml"],
                cwd=self.root,
                env=self.env(failpoint),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self.listens() if wait else True

    def listens(self) -> bool:
        assert self.process is not None
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return False
            if all(map(self._answers, ("minter", "minter-admin"))):
                return True
            time.sleep(0.01)
        raise AssertionError(f"it does not listen: {self.log()[-3000:]}")

    def _answers(self, name: str) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.root / f"run/{name}.sock")) == 0

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def killed(self) -> bool:
        """Say whether it ended by SIGKILL."""
        return self.process is not None and self.process.poll() == -signal.SIGKILL

    def died(self) -> None:
        """Wait for the end of one that answers no more."""
        assert self.process is not None
        self.process.wait(20)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int | None:
        """End it in order, if it is there; return its exit status."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        status, self.process = self.process.returncode, None
        return status

    def end(self) -> None:
        if self.alive():
            self.kill()
        self.process = None

    def run(self, *arguments: str, failpoint: str = "", stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a command of the minter's."""
        return subprocess.run(
            [str(BIN / "minter"), *arguments],
            cwd=self.root,
            env=self.env(failpoint),
            input=stdin,
            capture_output=True,
            check=False,
        )

    def log(self) -> str:
        return (self.root / "minter.log").read_text()

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 20) -> None:
        """Poll for what the minter is about to do; :class:`GoneError` when it dies meanwhile."""
        deadline = time.monotonic() + seconds
        while not condition():
            if not self.alive():
                raise GoneError
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}; {self.log()[-2000:]}"
            time.sleep(0.02)

    # --- asking ---

    def ask(self, where: str, method: str, path: str, body: Any = None, *, timeout: float = 20) -> Reply:
        """Send one request to ``minter`` (as the broker) or ``minter-admin``. Errors: :class:`GoneError`."""
        connection = _UnixConnection(self.root / "run" / f"{where}.sock", timeout)
        headers = {"Content-Type": "application/json"}
        if where == "minter":
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return Reply(answer.status, answer.read())
        except (OSError, http.client.HTTPException):
            raise GoneError from None
        finally:
            connection.close()

    def admin(self, method: str, path: str, body: Any = None, *, timeout: float = 20) -> Reply:
        return self.ask("minter-admin", method, path, body, timeout=timeout)

    def run_id(self) -> str:
        return f"run_{next(self._runs):022d}"

    def lease(self, profile: str, run_id: str, *, ttl_s: float = 600.0) -> Received | Reply:
        """Ask for a lease as the broker does; note the credential that comes."""
        granted = self.grants.profiles.get(profile)
        request = {
            "run_id": run_id,
            "caller": CALLER,
            "profile": profile,
            "params": {},
            "ttl_s": ttl_s,
            "origin": self.issuer.origin,
            "grant_digest": granted.digest if granted else "sha256:none",
        }
        reply = self.ask("minter", "POST", "/v1/leases", request)
        if reply.status != 200:
            return reply
        lent = reply.json
        got = Received(lent["lease_id"], run_id, profile, lent["credential"]["value"], lent["fingerprint"])
        self.received.append(got)
        return got

    def end_run(self, run_id: str) -> None:
        for one in self.ask("minter", "DELETE", f"/v1/runs/{run_id}").json["leases"]:
            if one["how"] == "upstream_deleted":
                self.told_deleted.add(one["lease_id"])

    def use(self, value: str) -> int:
        """Use a token at the issuer; return the status."""
        connection = http.client.HTTPConnection(self.issuer.origin.removeprefix("http://"), timeout=20)
        try:
            connection.request("GET", "/use", headers={"Authorization": f"Bearer {value}"})
            return connection.getresponse().status
        finally:
            connection.close()

    # --- looking ---

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.root / "state/minter.db", timeout=10)) as connection:
            connection.execute("PRAGMA query_only = ON")
            return connection.execute(statement, values).fetchall()

    def state_of(self, lease_id: str) -> tuple[str, str, float]:
        """Return the state of a lease, how it ended and when it ends at the latest."""
        found = self.query("SELECT state, how, expires_at FROM leases WHERE id = ?", lease_id)
        return found[0] if found else ("none", "", 0.0)

    def logs(self) -> list[Path]:
        """Return the files of the audit log, the oldest first."""
        return [segment.path for segment in segments(self.root / "state/audit.jsonl")]

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for path in self.logs() for line in path.read_bytes().splitlines()]
