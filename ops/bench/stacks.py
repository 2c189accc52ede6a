"""The three proxies that are compared, all in front of the same upstream and adding the same header."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ops.bench.processes import MEASURED_CORE, OTHER_CORE, free_port, started, wait_for

NGINX = "nginx" if os.access("/usr/bin/nginx", os.X_OK) else "/usr/sbin/nginx"
BIN = Path(sys.executable).parent
#: 236 bytes, the size that the figures of the design were taken with.
ANSWER = json.dumps({"result": {"id": "01JSGCEXAMPLE000000000000", "text": "x" * 152}, "success": True})
BIG_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Stack:
    """Something to send load to. ``pid`` is the process in the middle."""

    name: str
    pid: int
    url: str
    token: str


@contextlib.contextmanager
def upstream(base: Path) -> Iterator[int]:
    """Serve the answer from memory: nginx on the other core. ``/v1/items`` is small, ``/v1/big`` has 64 KiB."""
    port = free_port()
    big = base / "big.json"
    big.write_text(json.dumps("y" * (BIG_BYTES - 2)))
    base.chmod(0o755)
    server = f"""listen 127.0.0.1:{port} backlog=1024;
      location = /v1/items {{ default_type application/json; return 200 '{ANSWER}'; }}
      location = /v1/big {{ default_type application/json; alias {big}; }}"""
    with _nginx(base, "upstream", server, core=OTHER_CORE):
        wait_for(("127.0.0.1", port), log=base / "upstream.log")
        yield port


@contextlib.contextmanager
def nginx(base: Path, upstream_port: int) -> Iterator[Stack]:
    """Start nginx as the proxy that adds the header."""
    port = free_port()
    http = f"upstream api {{ server 127.0.0.1:{upstream_port}; keepalive 128; keepalive_requests 1000000; }}"
    server = f"""listen 127.0.0.1:{port} backlog=1024;
      location /p/bench/ {{
        proxy_pass http://api/; proxy_http_version 1.1; proxy_set_header Connection "";
        proxy_set_header Authorization "Bearer {KEY}"; }}"""
    with _nginx(base, "nginx", server, core=MEASURED_CORE, http=http) as process:
        wait_for(("127.0.0.1", port), log=base / "nginx.log")
        yield Stack("nginx", process.pid, f"http://127.0.0.1:{port}/p/bench", "none")


KEY = "bench-" + secrets.token_hex(20)


@contextlib.contextmanager
def _nginx(base: Path, name: str, server: str, *, core: int, http: str = "") -> Iterator[subprocess.Popen[bytes]]:
    directory = base / name
    directory.mkdir(exist_ok=True)
    config = directory / "nginx.conf"
    config.write_text(
        f"""daemon off; worker_processes 1; pid {directory}/pid; error_log {directory}/error.log; {_user()}
    events {{ worker_connections 4096; }}
    http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {directory}/b;
      proxy_temp_path {directory}/p; fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u;
      scgi_temp_path {directory}/s; {http}
      server {{ {server} }} }}"""
    )
    with started([NGINX, "-c", str(config)], core=core, log=base / f"{name}.log") as process:
        yield process


def _user() -> str:
    return "user root;" if os.geteuid() == 0 else ""


@contextlib.contextmanager
def aiohttp_proxy(base: Path, upstream_port: int) -> Iterator[Stack]:
    """Start the plain reverse proxy that most people would write with aiohttp."""
    port = free_port()
    argv = [sys.executable, "-m", "ops.bench.aiohttp_proxy", str(port), str(upstream_port)]
    with started(argv, core=MEASURED_CORE, log=base / "aiohttp.log", env={"BENCH_KEY": KEY}) as process:
        wait_for(("127.0.0.1", port), log=base / "aiohttp.log")
        yield Stack("aiohttp", process.pid, f"http://127.0.0.1:{port}/p/bench", "none")


@contextlib.contextmanager
def minter(base: Path, upstream_port: int, *, core: int = OTHER_CORE, wait: bool = True) -> Iterator[int]:
    """Start a minter with a ``static`` and a ``jwt`` profile; its directory is the base. Gives its pid.

    ``wait``: only when it is ready.
    """
    read, write = os.pipe()
    os.write(write, KEY.encode())
    os.close(write)
    origin = f"http://127.0.0.1:{upstream_port}"
    routes = ["GET /v1/items", "GET /v1/big", "POST /v1/items"]
    common = {
        "base_url": origin,
        "allowed_callers": ["*"],
        "allow": routes,
        "max_calls": 100_000,
        "max_concurrent": 512,
    }
    profiles = {
        "bench": {**common, "token": {"type": "static", "key": "bench"}},
        "signed": {**common, "token": {"type": "jwt", "key": "signer", "audience": origin}},
    }
    (base / "grants.json").write_text(json.dumps({"profiles": profiles}))
    (base / "minter.toml").write_text(
        f'allow_root = true\n[keys.bench]\nsource = "fd:{read}"\n'
        '[keys.signer]\nuse = "signing"\nsource = "file:state/signer"\n'
    )
    for name in ("run", "state"):
        (base / name).mkdir(mode=0o700, exist_ok=True)
    _create(
        ["minter", "brokers", "create", "broker-1", "--file", str(base / "brokers.json")],
        base / "run/broker.credential",
    )
    argv = [str(BIN / "minter"), "serve", "--config", str(base / "minter.toml")]
    with started(argv, core=core, log=base / "minter.log", pass_fds=[read]) as process:
        os.close(read)
        if wait:
            wait_for(str(base / "run/minter.sock"), log=base / "minter.log")
        yield process.pid


def _create(command: list[str], target: Path) -> None:
    argv = [str(BIN / command[0]), *command[1:]]
    done = subprocess.run(argv, check=True, capture_output=True)
    target.touch(0o600)
    target.write_bytes(done.stdout)


@contextlib.contextmanager
def broker(base: Path, upstream_port: int) -> Iterator[Stack]:
    """Start minter and broker with all that they do, and open a run."""
    with minter(base, upstream_port):
        _create(["broker", "callers", "create", "bench", "--file", str(base / "callers.json")], base / "caller.token")
        port = free_port()
        (base / "broker.toml").write_text(f'allow_root = true\nlisten = ["127.0.0.1:{port}"]\n')
        argv = [str(BIN / "broker"), "serve", "--config", str(base / "broker.toml")]
        with started(argv, core=MEASURED_CORE, log=base / "broker.log") as process:
            wait_for(("127.0.0.1", port), log=base / "broker.log")
            url = f"http://127.0.0.1:{port}"
            yield Stack("broker", process.pid, f"{url}/p/bench", open_run(base, url))


def open_run(base: Path, url: str) -> str:
    """Open a run at the broker and return its token."""
    request = urllib.request.Request(
        f"{url}/v1/runs",
        data=b'{"profile": "bench"}',
        headers={
            "Authorization": "Bearer " + (base / "caller.token").read_text().strip(),
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as answer:
        token: str = json.load(answer)["run_token"]
        return token
