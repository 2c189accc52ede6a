"""nginx, as the upstream of all and as the peer that adds the same header."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ops.bench.processes import started, tool


@contextlib.contextmanager
def running(base: Path, name: str, server: str, *, core: int, http: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run one worker with these ``server`` and ``http`` directives, keep-alive without end and no access log."""
    directory = base / name
    directory.mkdir()
    config = directory / "nginx.conf"
    config.write_text(
        f"""daemon off; worker_processes 1; pid {directory}/pid; error_log {directory}/error.log; {_user()}
    events {{ worker_connections 4096; }}
    http {{ access_log off; keepalive_requests 100000000; keepalive_timeout 1h; sendfile on; tcp_nopush on;
      client_body_temp_path {directory}/b; proxy_temp_path {directory}/p; fastcgi_temp_path {directory}/f;
      uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s; {http}
      server {{ {server} }} }}"""
    )
    with started([tool("nginx") or "nginx", "-c", str(config)], core=core, log=base / f"{name}.log") as process:
        yield process


def _user() -> str:
    return "user root;" if os.geteuid() == 0 else ""
