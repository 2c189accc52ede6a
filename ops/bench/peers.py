"""What the broker is compared with: nothing in the middle, nginx, an aiohttp proxy, mitmproxy.

All add the same header in front of the same upstream, keep connections alive on both sides and write no access log.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from ops.bench import nginx as server_of
from ops.bench.processes import MEASURED_CORE, free_port, started, tool, wait_for
from ops.bench.stacks import KEY, Stack
from ops.bench.upstreams import TLS_NAME, Upstream


def direct(upstream: Upstream, name: str = "direct") -> Stack:
    """Return the upstream itself."""
    return Stack(name, None, upstream.plain, proxied=False)


@contextlib.contextmanager
def nginx(base: Path, upstream: Upstream) -> Iterator[Stack]:
    """Start nginx: ``bench`` goes to the plaintext upstream, ``tls`` to the other one, verified.

    ``roomy`` is ``bench`` with buffers of 16 KiB, enough for 64 KiB: those that nginx has unasked are of 4 KiB.
    """
    port = free_port()
    kept = "keepalive 512; keepalive_requests 100000000; keepalive_timeout 1h;"
    http = f"""upstream plain {{ server {upstream.plain.removeprefix("http://")}; {kept} }}
      upstream secure {{ server {upstream.secure.removeprefix("https://")}; {kept} }}
      proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Authorization "Bearer {KEY}";
      proxy_ssl_trusted_certificate {upstream.ca_file}; proxy_ssl_verify on; proxy_ssl_name {TLS_NAME};
      proxy_ssl_server_name on; proxy_ssl_session_reuse on; proxy_ssl_protocols TLSv1.2 TLSv1.3;"""
    server = f"""listen 127.0.0.1:{port} backlog=1024;
      location /p/bench/ {{ proxy_pass http://plain/; }}
      location /p/roomy/ {{ proxy_pass http://plain/; proxy_buffers 16 16k; proxy_max_temp_file_size 0; }}
      location /p/tls/ {{ proxy_pass https://secure/; }}"""
    with server_of.running(base, "nginx", server, core=MEASURED_CORE, http=http) as process:
        wait_for(("127.0.0.1", port), log=base / "nginx.log")
        yield Stack("nginx", process.pid, f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def aiohttp(base: Path, upstream: Upstream) -> Iterator[Stack]:
    """Start the plain reverse proxy that most people would write with aiohttp."""
    port = free_port()
    argv = [sys.executable, "-m", "ops.bench.aiohttp_proxy", str(port), upstream.plain]
    with started(argv, core=MEASURED_CORE, log=base / "aiohttp.log", env={"BENCH_KEY": KEY}) as process:
        wait_for(("127.0.0.1", port), log=base / "aiohttp.log")
        yield Stack("aiohttp", process.pid, f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def mitmproxy(base: Path, upstream: Upstream) -> Iterator[Stack | None]:
    """Start mitmproxy in reverse mode with an addon that sets the header; nothing where it is not installed."""
    program = tool("mitmdump")
    if program is None:
        print("mitmproxy is not installed and is left out (make bench installs it)", file=sys.stderr)
        yield None
        return
    port = free_port()
    addon = Path(__file__).with_name("mitmproxy_header.py")
    argv = [program, "--mode", f"reverse:{upstream.plain}", "--listen-host", "127.0.0.1", "-p", str(port), "--quiet"]
    argv += ["--set", f"confdir={base / 'mitmproxy'}", "--set", "flow_detail=0", "--scripts", str(addon)]
    with started(argv, core=MEASURED_CORE, log=base / "mitmproxy.log", env={"BENCH_KEY": KEY}) as process:
        wait_for(("127.0.0.1", port), log=base / "mitmproxy.log")
        yield Stack("mitmproxy", process.pid, f"http://127.0.0.1:{port}")
