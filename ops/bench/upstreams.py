"""What every proxy stands in front of: answers from memory over plaintext and TLS, and events, on the other core."""

from __future__ import annotations

import contextlib
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import trustme

from ops.bench import nginx
from ops.bench.processes import OTHER_CORE, free_port, started, wait_for

#: 236 bytes, the size that the figures of the design were taken with.
ANSWER = json.dumps({"result": {"id": "01JSGCEXAMPLE000000000000", "text": "x" * 152}, "success": True})
BIG_BYTES = 65536
#: nginx verifies names only; the others go by the address.
TLS_NAME = "upstream.test"


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where the answers are, and whom to trust for the TLS one."""

    plain: str
    secure: str
    ca_file: Path


@contextlib.contextmanager
def answers(base: Path, name: str = "upstream", *, core: int = OTHER_CORE) -> Iterator[Upstream]:
    """Serve ``/v1/items`` and all below it (236 bytes of JSON) and ``/v1/big`` (64 KiB of JSON)."""
    plain, secure = free_port(), free_port()
    directory = base / f"{name}-files"
    directory.mkdir()
    (directory / "big.json").write_text(_big())
    base.chmod(0o755)
    ca = trustme.CA()
    ca.cert_pem.write_to_path(directory / "ca.pem")
    leaf = ca.issue_cert("127.0.0.1", TLS_NAME)
    leaf.private_key_and_cert_chain_pem.write_to_path(directory / "leaf.pem")
    server = f"""listen 127.0.0.1:{plain} backlog=1024; listen 127.0.0.1:{secure} ssl backlog=1024;
      ssl_certificate {directory}/leaf.pem; ssl_certificate_key {directory}/leaf.pem;
      ssl_protocols TLSv1.2 TLSv1.3; ssl_session_cache shared:tls:1m;
      location /v1/items {{ default_type application/json; return 200 '{ANSWER}'; }}
      location = /v1/big {{ default_type application/json; alias {directory}/big.json; }}"""
    with nginx.running(base, name, server, core=core):
        for port in (plain, secure):
            wait_for(("127.0.0.1", port), log=base / f"{name}.log")
        yield Upstream(f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{secure}", directory / "ca.pem")


@contextlib.contextmanager
def events(base: Path, *, every_s: float) -> Iterator[str]:
    """Serve ``/v1/events``: a stream whose events carry when they were sent. Gives the origin."""
    port = free_port()
    argv = [sys.executable, "-m", "ops.bench.event_source", str(port), str(every_s)]
    with started(argv, core=OTHER_CORE, log=base / "events.log"):
        wait_for(("127.0.0.1", port), log=base / "events.log")
        yield f"http://127.0.0.1:{port}"


def _big() -> str:
    """Return rows as an API lists them: what looks for a secret in them must look at varied text."""
    chance = random.Random(65536)  # noqa: S311
    rows: list[str] = []
    left = BIG_BYTES - len('{"rows":[],"pad":""}')
    while True:
        row = {"id": chance.randrange(10**9), "key": f"{chance.getrandbits(128):032x}", "text": "value of a row" * 4}
        text = json.dumps(row)
        if left < len(text) + 1:
            # The last row has no comma behind it.
            return '{"rows":[' + ",".join(rows) + '],"pad":"' + "-" * (left + 1) + '"}'
        rows.append(text)
        left -= len(text) + 1
