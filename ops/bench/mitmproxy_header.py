"""The addon that mitmproxy runs: the same target and the same header as the others send.

It runs in mitmproxy's own environment, so it imports nothing of ours, and nothing of mitmproxy's either.
"""

from __future__ import annotations

import os
from typing import Any

AUTHORIZATION = f"Bearer {os.environ['BENCH_KEY']}"


def request(flow: Any) -> None:
    """Turn ``/p/bench/...`` into the upstream's target and set the header."""
    flow.request.path = flow.request.path.removeprefix("/p/bench")
    flow.request.headers["Authorization"] = AUTHORIZATION
