"""Mints: new leases per second over the minter's socket, durable and audited, and the tick with many live ones."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from pathlib import Path

from config.grants import parse_grants
from ops.bench import stacks
from ops.bench.processes import MEASURED_CORE, OTHER_CORE, cpu_seconds, resident_bytes

CONCURRENT = 64
LIVE = 100_000


def measure(base: Path, *, rounds: int, seconds: float, live: int = LIVE) -> None:
    """Print mints per second for both local kinds, then the same with many live leases."""
    base = base / "mints"
    base.mkdir()
    with stacks.minter(base, core=MEASURED_CORE) as pid:
        os.sched_setaffinity(0, {OTHER_CORE})
        asyncio.run(_measure(base, pid, rounds=rounds, seconds=seconds, live=live))


async def _measure(base: Path, pid: int, *, rounds: int, seconds: float, live: int) -> None:
    client = Client(base)
    for profile in ("static", "jwt"):
        name = "bench" if profile == "static" else "signed"
        rates, cpu, p50, p99 = [], [], [], []
        for _ in range(rounds):
            before, start = cpu_seconds(pid), time.perf_counter()
            waited = await client.load(name, until=start + seconds)
            rates.append(len(waited) / (time.perf_counter() - start))
            cpu.append((cpu_seconds(pid) - before) / len(waited) * 1e6)
            p50.append(statistics.median(waited) * 1e3)
            p99.append(statistics.quantiles(waited, n=100)[98] * 1e3)
        print(f"\nmints, kind {profile}, {CONCURRENT} concurrent runs, sealed, durable and audited:")
        print(f"  {statistics.median(rates):.0f} a second, {statistics.median(cpu):.0f} CPU us each,", end=" ")
        print(f"p50 {statistics.median(p50):.1f} ms, p99 {statistics.median(p99):.1f} ms")
    few = await idle_cpu(pid)
    print(f"  live leases so far: {client.made}; CPU of a quiet second: {few * 1000:.1f} ms")
    while client.made < live:
        await client.load("bench", until=time.perf_counter() + 5)
    many = await idle_cpu(pid)
    print(f"with {client.made} live leases: CPU of a quiet second {many * 1000:.1f} ms,")
    print(f"  {resident_bytes(pid) / 2**20:.0f} MiB resident")


async def idle_cpu(pid: int) -> float:
    """Return the CPU seconds that a process uses in a second of doing nothing (two backstop ticks and more)."""
    before = cpu_seconds(pid)
    await asyncio.sleep(12)
    return (cpu_seconds(pid) - before) / 12


class Client:
    """Asks for leases as fast as answers come, one connection a run."""

    def __init__(self, base: Path) -> None:
        """Read what a broker would know."""
        self.socket = str(base / "run/minter.sock")
        self.credential = (base / "run/broker.credential").read_text().strip()
        grants = parse_grants((base / "grants.json").read_bytes(), name="grants.json")
        self.profiles = grants.profiles
        self.made = 0

    async def load(self, profile: str, *, until: float) -> list[float]:
        """Mint on all connections until the time is up; return how long each answer took, in seconds."""
        waited = await asyncio.gather(*(self._one(profile, until) for _ in range(CONCURRENT)))
        self.made += sum(map(len, waited))
        return [one for of_one in waited for one in of_one]

    async def _one(self, profile: str, until: float) -> list[float]:
        reader, writer = await asyncio.open_unix_connection(self.socket)
        waited: list[float] = []
        while (begun := time.perf_counter()) < until:
            granted = self.profiles[profile]
            body = json.dumps(
                {
                    "run_id": "run_" + os.urandom(11).hex(),
                    "caller": "bench",
                    "profile": profile,
                    "params": {},
                    "ttl_s": 900,
                    "origin": granted.base_url,
                    "grant_digest": granted.digest,
                }
            ).encode()
            head = (
                f"POST /v1/leases HTTP/1.1\r\nHost: minter\r\nAuthorization: Bearer {self.credential}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1]) for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length")
            )
            text = await reader.readexactly(length)
            if b" 200 " not in answer.split(b"\r\n")[0] and b" 201 " not in answer.split(b"\r\n")[0]:
                raise SystemExit(f"the minter refused: {text.decode()}")
            waited.append(time.perf_counter() - begun)
        writer.close()
        return waited
