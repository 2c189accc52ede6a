"""Minter and broker with all that they do, as processes, each on its core."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.store import Store
from ops.bench.processes import MEASURED_CORE, OTHER_CORE, free_port, started, wait_for

BIN = Path(sys.executable).parent
KEY = "bench-" + secrets.token_hex(20)
#: Nothing listens there; for what only mints.
NOWHERE = "127.0.0.1:9"
#: The most that a run may have.
MAX_CALLS = 100_000


@dataclass(frozen=True, slots=True)
class Stack:
    """Something to send load to.

    ``pid`` is the process in the middle, if there is one; ``proxied``: the target begins with ``/p/{profile}``;
    ``caller_token`` opens runs, where there are any.
    """

    name: str
    pid: int | None
    url: str
    proxied: bool = True
    caller_token: str = field(default="", repr=False)

    def at(self, profile: str) -> str:
        """Return what stands before the upstream's path."""
        return f"{self.url}/p/{profile}" if self.proxied else self.url


@dataclass(frozen=True, slots=True)
class Origins:
    """Where the profiles lead to."""

    plain: str = f"http://{NOWHERE}"
    secure: str = f"https://{NOWHERE}"
    events: str = f"http://{NOWHERE}"


def profiles(origins: Origins) -> dict[str, Any]:
    """Return the profiles. ``bench`` has everything on but scrubbing, which ``scrubbed`` has too.

    A key goes to one origin only, so each origin has one of its own.
    """
    static = {"token": {"type": "static", "key": "plain"}, "base_url": origins.plain}
    common = {
        "allowed_callers": ["*"],
        "allow": ["GET /v1/items", "GET /v1/items/*", "POST /v1/items", "GET /v1/big"],
        "max_calls": MAX_CALLS,
        "max_concurrent": 512,
    }
    return {
        "bench": {**common, **static, "scrub": "off"},
        "scrubbed": {**common, **static, "scrub": "mask"},
        "tls": {**common, "token": {"type": "static", "key": "secure"}, "base_url": origins.secure, "scrub": "off"},
        "signed": {
            **common,
            "token": {"type": "jwt", "key": "signer", "audience": origins.plain},
            "base_url": origins.plain,
        },
        "events": {
            **common,
            "token": {"type": "static", "key": "events"},
            "base_url": origins.events,
            "allow": ["GET /v1/events"],
            "ttl": "3h",
        },
    }


@contextlib.contextmanager
def minter(base: Path, origins: Origins | None = None, *, core: int = OTHER_CORE, wait: bool = True) -> Iterator[int]:
    """Start a minter, whose directory is the base. Gives its pid.

    ``wait``: only when it is ready.
    """
    (base / "grants.json").write_text(json.dumps({"profiles": profiles(origins or Origins())}))
    for name in ("run", "state", "keys"):
        (base / name).mkdir(mode=0o700, exist_ok=True)
    settings = 'allow_root = true\n[keys.signer]\nuse = "signing"\nsource = "file:state/signer"\n'
    for name in ("plain", "secure", "events"):
        _write_secret(base / "keys" / name, KEY.encode())
        settings += f'[keys.{name}]\nsource = "file:keys/{name}"\n'
    (base / "minter.toml").write_text(settings)
    create = ["minter", "brokers", "create", "broker-1", "--file", str(base / "brokers.json")]
    _write_secret(base / "run/broker.credential", _output(create))
    argv = [str(BIN / "minter"), "serve", "--config", str(base / "minter.toml")]
    with started(argv, core=core, log=base / "minter.log") as process:
        if wait:
            wait_for(str(base / "run/minter.sock"), log=base / "minter.log")
        yield process.pid


@contextlib.contextmanager
def broker(base: Path, origins: Origins, *, ca_file: Path | None = None) -> Iterator[Stack]:
    """Start minter and broker in a directory of their own.

    The broker's state is made before: the process that makes it loads what migrates, 11 MiB that no later start has.
    """
    base = base / "broker"
    base.mkdir()
    with minter(base, origins):
        token = _output(["broker", "callers", "create", "bench", "--file", str(base / "callers.json")])
        port = free_port()
        settings = f'allow_root = true\nlisten = ["127.0.0.1:{port}"]\n'
        if ca_file is not None:
            settings += f'[upstream]\nca_file = "{ca_file}"\n'
        (base / "broker.toml").write_text(settings)
        Store.open(f"sqlite:{base}/state/broker.db").close()
        argv = [str(BIN / "broker"), "serve", "--config", str(base / "broker.toml")]
        with started(argv, core=MEASURED_CORE, log=base / "broker.log") as process:
            wait_for(("127.0.0.1", port), log=base / "broker.log")
            yield Stack("broker", process.pid, f"http://127.0.0.1:{port}", caller_token=token.decode().strip())


def _output(command: list[str]) -> bytes:
    return subprocess.run([str(BIN / command[0]), *command[1:]], check=True, capture_output=True).stdout


def _write_secret(target: Path, content: bytes) -> None:
    target.touch(0o600)
    target.write_bytes(content)


@contextlib.contextmanager
def runs(stack: Stack, profile: str, count: int) -> Iterator[list[str]]:
    """Open runs for the time of the block and give their tokens; who needs no run gets a word in its place."""
    if not stack.caller_token:
        yield ["none"]
        return
    opened = [_ask(stack, "POST", "/v1/runs", {"profile": profile}) for _ in range(count)]
    try:
        yield [run["run_token"] for run in opened]
    finally:
        for run in opened:
            _ask(stack, "DELETE", f"/v1/runs/{run['run_id']}")


def _ask(stack: Stack, method: str, path: str, body: Mapping[str, str] | None = None) -> dict[str, str]:
    request = urllib.request.Request(
        stack.url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {stack.caller_token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        told: dict[str, str] = json.loads(answer.read() or b"{}")
        return told
