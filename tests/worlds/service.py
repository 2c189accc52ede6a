"""Both programs as real processes in a directory of their own, with an operator's and an agent's way to them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent

#: The marked secret: it may be in the file it was put in and at the API, and nowhere else.
CANARY = "sekret-CANARY-7f3a9c51d2e84b06"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class OpenRun:
    run_id: str
    token: str
    profiles: dict[str, Any]


@dataclass
class Service:
    """A minter and a broker. Write grants, then ``start``; ``tests/flow/conftest.py`` ends it."""

    root: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    replies: list[bytes] = field(default_factory=list)
    port: int = 0
    caller_token: str = ""
    minter_extra: str = ""
    minter_top: str = ""
    broker_extra: str = ""
    environ: dict[str, str] = field(default_factory=dict)

    def prepare(self, profiles: dict[str, Any]) -> None:
        """Make the directory as an operator would, with the secret in a file of the minter's."""
        for name in ("run", "state", "secrets"):
            (self.root / name).mkdir(mode=0o700)
        secret = self.root / "secrets/api.key"
        secret.touch(0o600)
        secret.write_text(CANARY + "\n")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.grant(profiles)
        (self.root / "minter.toml").write_text(
            f'{self.minter_top}\n[keys.api]\nsource = "file:secrets/api.key"\n'
            f'[keys.signer]\nuse = "signing"\nsource = "file:secrets/signer"\n{self.minter_extra}\n'
        )
        (self.root / "broker.toml").write_text(f'listen = ["127.0.0.1:{self.port}"]\n{self.broker_extra}\n')
        credential = self.run("minter", "brokers", "create", "broker-1", "--file", "brokers.json").stdout
        (self.root / "run/broker.credential").touch(0o600)
        (self.root / "run/broker.credential").write_bytes(credential)
        self.caller_token = self.new_caller("support-agent")

    def grant(self, profiles: dict[str, Any]) -> None:
        (self.root / "grants.json").write_text(json.dumps({"profiles": profiles}, indent=1))

    def new_caller(self, name: str) -> str:
        return self.run("broker", "callers", "create", name, "--file", "callers.json").stdout.decode().strip()

    # --- programs ---

    def env(self) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.root),
            "MINTER_ALLOW_ROOT": "1",
            "BROKER_ALLOW_ROOT": "1",
            **self.environ,
        }

    def run(self, program: str, *arguments: str, check: bool = True, stdin: bytes = b"") -> Any:
        """Run a command of either program in the directory; its output is searched for the secret at the end."""
        done = subprocess.run(
            [str(BIN / program), *arguments],
            cwd=self.root,
            env=self.env(),
            input=stdin,
            capture_output=True,
            check=False,
        )
        self.replies += [done.stdout, done.stderr]
        if check:
            assert done.returncode == 0, (program, arguments, done.returncode, done.stderr.decode())
        return done

    def start(self, *programs: str) -> None:
        for program in programs or ("minter", "broker"):
            log = (self.root / f"{program}.log").open("ab")
            self.processes[program] = subprocess.Popen(
                [str(BIN / program), "serve", "--config", f"{program}.toml"],
                cwd=self.root,
                env=self.env(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            log.close()
            self.until(lambda p=program: self.ready(p), f"{program} is ready")

    def ready(self, program: str) -> bool:
        process = self.processes[program]
        assert process.poll() is None, f"{program} ended: {self.log(program)[-3000:]}"
        if program == "minter":
            with socket.socket(socket.AF_UNIX) as probe:
                return probe.connect_ex(str(self.root / "run/minter.sock")) == 0
        with contextlib.suppress(OSError):
            return self.http("GET", "/readyz").status == 200
        return False

    def stop(self, program: str, signal_: int = signal.SIGTERM) -> int:
        process = self.processes.pop(program)
        process.send_signal(signal_)
        return process.wait(20)

    def reload(self, program: str) -> None:
        """Send SIGHUP and wait until the program says what came of it."""
        lines = self.log(program).count("reload")
        self.processes[program].send_signal(signal.SIGHUP)
        self.until(lambda: self.log(program).count("reload") > lines, f"{program} reloaded")

    def log(self, program: str) -> str:
        return (self.root / f"{program}.log").read_text()

    @staticmethod
    def until(condition: Any, what: str, seconds: float = 20) -> None:
        """Poll for what another process is about to do; fails by name instead of waiting for ever."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
            time.sleep(0.02)

    # --- the caller's and the code's side ---

    def http(
        self, method: str, target: str, *, headers: Any = (), body: bytes | None = None, timeout: float = 20
    ) -> Reply:
        """Send a request with exactly this target and these headers (and Host, and Content-Length with a body)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.putrequest(method, target, skip_accept_encoding=True)
            for name, value in dict(headers).items() if isinstance(headers, dict) else headers:
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            reply = Reply(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()
        self.replies.append(reply.body + repr(reply.headers).encode())
        return reply

    def raw(self, data: bytes, *, timeout: float = 10) -> bytes:
        """Send bytes as they are and return all that comes until the broker closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.sendall(data)
            received = b""
            while chunk := connection.recv(65536):
                received += chunk
        self.replies.append(received)
        return received

    def caller(self, method: str, path: str, body: Any = None, *, token: str | None = None, headers: Any = ()) -> Reply:
        sent = {
            "Authorization": f"Bearer {token or self.caller_token}",
            "Content-Type": "application/json",
            **dict(headers),
        }
        return self.http(method, path, headers=sent, body=None if body is None else json.dumps(body).encode())

    def open_run(self, profile: str = "api", **body: Any) -> OpenRun:
        reply = self.caller("POST", "/v1/runs", {"profile": profile, **body})
        assert reply.status == 201, reply.body
        return OpenRun(reply.json["run_id"], reply.json["run_token"], reply.json["profiles"])

    def call(
        self,
        run: OpenRun,
        method: str,
        target: str,
        *,
        profile: str = "api",
        headers: Any = (),
        body: bytes | None = None,
    ) -> Reply:
        sent = [("Authorization", f"Bearer {run.token}"), *headers]
        if body is not None:
            sent.append(("Content-Type", "application/json"))
        return self.http(method, f"/p/{profile}{target}", headers=sent, body=body)

    @contextlib.contextmanager
    def stream(self, run: OpenRun, target: str, *, profile: str = "api") -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("GET", f"/p/{profile}{target}", headers={"Authorization": f"Bearer {run.token}"})
        try:
            yield connection.getresponse()
        finally:
            connection.close()

    def trace(self, run: OpenRun) -> Any:
        return self.caller("GET", f"/v1/runs/{run.run_id}").json

    # --- what the minter wrote down ---

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.root / "state/audit.jsonl").read_text().splitlines()]

    def audited(self, code: str) -> list[dict[str, Any]]:
        return [line for line in self.audit() if line["code"] == code]

    def leases(self) -> list[dict[str, Any]]:
        document = json.loads(self.run("minter", "leases", "list", "--json").stdout)
        return document["leases"] if isinstance(document, dict) else document

    # --- the end ---

    def end(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            process.kill()
            process.wait()
        self.processes.clear()

    def assert_canary_absent(self) -> None:
        """Search all that was said and written, and the kernel's view of the processes, for the secret."""
        needle = CANARY.encode()
        for process in self.processes.values():
            for view in ("environ", "cmdline"):
                path = Path(f"/proc/{process.pid}/{view}")
                if path.exists() and os.access(path, os.R_OK):
                    assert needle not in path.read_bytes(), path
        for path in self.root.rglob("*"):
            if path.is_file() and path.parent.name != "secrets":
                assert needle not in path.read_bytes(), path
        for reply in self.replies:
            assert needle not in reply
