"""The loads that are measured, who is compared in each, and what is to be reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ops.bench.load import Load

#: Who takes part: the name of a stack and, for the broker, the profile that is called.
Contender = tuple[str, str]
NGINX, AIOHTTP, MITMPROXY, DIRECT = ("nginx", "bench"), ("aiohttp", "bench"), ("mitmproxy", "bench"), ("direct", "")
#: The same upstream on the core of what is measured: one hop between cores, as a call through the network has.
ACROSS = ("direct, across", "")
BROKER, SCRUBBED = ("broker", "bench"), ("broker", "scrubbed")
NGINX_ROOMY, NGINX_TLS, BROKER_TLS = ("nginx", "roomy"), ("nginx", "tls"), ("broker", "tls")


@dataclass(frozen=True, slots=True)
class Target:
    """``first`` against ``second`` in each round, as a ratio or a difference; the median is held against the limit."""

    what: str
    first: Contender
    second: Contender
    limit: float
    field: Literal["cpu_us", "p50_ms", "p99_ms"] = "cpu_us"
    at_least: bool = True
    difference: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """One load. nginx is first, where it takes part: the table's ratios are to it."""

    title: str
    load: Load
    contenders: tuple[Contender, ...]
    targets: tuple[Target, ...] = ()


def _small(connections: int, *further: Target) -> tuple[Target, ...]:
    return (
        Target(f"of nginx, small JSON, {connections} connections", NGINX, BROKER, 0.40),
        Target(f"times an aiohttp proxy, {connections} connections", AIOHTTP, BROKER, 5),
        Target(f"times mitmproxy, {connections} connections", MITMPROXY, BROKER, 35),
        *further,
    )


SCENARIOS = (
    Scenario(
        "236-byte JSON, 16 connections", Load(16), (NGINX, AIOHTTP, MITMPROXY, BROKER, SCRUBBED), targets=_small(16)
    ),
    Scenario(
        "236-byte JSON, 64 connections",
        Load(64),
        (NGINX, AIOHTTP, MITMPROXY, BROKER),
        targets=_small(
            64,
            Target("p99 over nginx's, 64 connections", BROKER, NGINX, 3, field="p99_ms", at_least=False),
        ),
    ),
    Scenario(
        "236-byte JSON, 1 connection",
        Load(1),
        (DIRECT, ACROSS, NGINX, AIOHTTP, BROKER),
        targets=(
            Target(
                "added p50, 1 connection, ms", BROKER, DIRECT, 0.12, field="p50_ms", at_least=False, difference=True
            ),
        ),
    ),
    Scenario(
        "64 KiB of JSON, 16 connections",
        Load(16, path="/v1/big"),
        (NGINX, NGINX_ROOMY, AIOHTTP, BROKER, SCRUBBED),
        targets=(
            Target("of nginx, 64 KiB bodies", NGINX, BROKER, 0.8),
            Target("of nginx with buffers of that size, 64 KiB bodies", NGINX_ROOMY, BROKER, 0.8),
            Target("scrubbing 64 KiB of JSON over not scrubbing it", SCRUBBED, BROKER, 2, at_least=False),
        ),
    ),
    Scenario(
        "TLS upstream, 236-byte JSON, 16 connections",
        Load(16),
        (NGINX_TLS, BROKER_TLS),
        targets=(Target("of nginx, TLS upstream", NGINX_TLS, BROKER_TLS, 0.40),),
    ),
    Scenario("POST of 1 KiB, 16 connections", Load(16, method="POST", body_bytes=1024), (NGINX, AIOHTTP, BROKER)),
    Scenario("every target another one, 16 connections", Load(16, different=True), (NGINX, AIOHTTP, BROKER)),
    Scenario("16 runs take turns, 64 connections", Load(64, different=True, runs=16), (NGINX, BROKER)),
)
