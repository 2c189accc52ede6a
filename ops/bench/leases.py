"""Many leases: how soon a minter is ready with a large state, and what a million live leases cost in memory and ticks.

``python -m ops.bench.leases DIRECTORY`` is the half that runs in a process of its own, to see its memory from inside.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from config.grants import parse_grants
from config.load import load_settings, system_clock
from config.profiles import Profile
from config.settings import MinterSettings
from minter import lease_rows
from minter.lease_rows import LeaseRow, State
from minter.minter import Minter
from minter.minting import new_id
from minter.sealing import Sealed
from minter.store import engine_for
from ops.bench import stacks
from ops.bench.processes import MEASURED_CORE, cpu_seconds, resident_bytes, wait_for

ENDED: Final = 1_000_000
LIVE: Final = 100_000
MANY: Final = 1_000_000
_TICKS: Final = 20
_LIFE_S: Final = 12 * 3600.0


def measure(base: Path, *, share: float = 1.0) -> None:
    """Print how long a start takes with many ended and some live leases, then what a million live ones cost.

    ``share``: of those numbers, for a quick look.
    """
    base = base / "leases"
    base.mkdir()
    _start(base / "start", ended=round(ENDED * share), live=round(LIVE * share))
    _many(base / "many", round(MANY * share))


def _start(base: Path, *, ended: int, live: int) -> None:
    _first_start(base)
    fill(base, ended=ended, live=live)
    taken, cpu = [], []
    for _ in range(3):
        (base / "brokers.json").unlink()
        with stacks.minter(base, core=MEASURED_CORE, wait=False) as pid:
            start = time.perf_counter()
            wait_for(str(base / "run/minter.sock"), log=base / "minter.log", seconds=120)
            taken.append(time.perf_counter() - start)
            cpu.append(cpu_seconds(pid))
    print(f"\nstart with {ended:,} ended and {live:,} live leases: ready after {statistics.median(taken):.1f} s,")
    print(f"  {statistics.median(cpu):.1f} s of CPU, imports included")


def _many(base: Path, live: int) -> None:
    _first_start(base)
    empty = _inside(base)
    fill(base, ended=0, live=live)
    full = _inside(base)
    each = (full["resident"] - empty["resident"]) / live
    print(f"\n{full['live']:,} live leases: {each:.0f} bytes of resident memory each")
    print(f"  a tick takes {full['tick_ms']:.1f} ms, the longest of {_TICKS} {full['longest_ms']:.1f} ms")
    print(f"  a start with them takes {full['start_s']:.1f} s")


def _first_start(base: Path) -> None:
    """Have a minter make its state, its keys and its files."""
    base.mkdir()
    with stacks.minter(base, core=MEASURED_CORE):
        pass


def fill(base: Path, *, ended: int, live: int) -> None:
    """Write leases into a state, as they would be after that many mints, all of them different."""
    profile = parse_grants((base / "grants.json").read_bytes(), name="grants.json").profiles["bench"]
    engine = engine_for(base / "state/minter.db")
    with engine.connect() as connection, connection.begin():
        (data_key,) = connection.exec_driver_sql("SELECT id FROM data_keys WHERE phase = 'active'").one()
        for row in islice(_rows(profile, "expired"), ended):
            lease_rows.insert(connection, row)
        for row in islice(_rows(profile, "active"), live):
            # As long as a sealed credential; a start opens none.
            lease_rows.insert(connection, row, Sealed(data_key, secrets.token_bytes(90)))
    engine.dispose()


def _rows(profile: Profile, state: State) -> Iterator[LeaseRow]:
    clock = system_clock()
    token = msgspec.json.encode(profile.token, order="sorted").decode()
    while True:
        now = clock.now()
        left_s = _LIFE_S if state == "active" else -60.0
        over: dict[str, Any] = {"how": "key_still_valid", "end_reason": "expired", "ended_at": now}
        yield LeaseRow(
            id=new_id(),
            broker="broker-1",
            run_id="run_" + secrets.token_hex(11),
            caller="bench",
            profile=profile.name,
            params_digest="hmac-sha256:" + secrets.token_hex(32),
            origin=profile.base_url,
            grant_digest=profile.digest,
            kind="static",
            state=state,
            fingerprint=secrets.token_hex(8),
            created_at=now,
            expires_at=now + left_s,
            boot_expires_at=clock.boottime() + left_s,
            boot_id=clock.boot_id(),
            run_ends_at=now + left_s,
            key_alias="bench",
            key_version=1,
            key_versions='["bench@1"]',
            token=token,
            trace_id=secrets.token_hex(16),
            **(over if state == "expired" else {}),
        )


# --- inside ---


def _inside(base: Path) -> dict[str, float]:
    argv = ["taskset", "-c", str(MEASURED_CORE), sys.executable, "-m", "ops.bench.leases", str(base)]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


async def _look(base: Path) -> dict[str, float]:
    settings = load_settings(MinterSettings, base / "minter.toml", {})
    start = time.perf_counter()
    minter = await Minter.start(settings, clock=system_clock(), environ={})
    started_s = time.perf_counter() - start
    ticks = []
    for _ in range(_TICKS):
        start = time.perf_counter()
        await minter.expiry.tick()
        ticks.append((time.perf_counter() - start) * 1e3)
    found = {
        "live": len(minter.book),
        "resident": resident_bytes(os.getpid()),
        "tick_ms": statistics.median(ticks),
        "longest_ms": max(ticks),
        "start_s": started_s,
    }
    await minter.stop(drain_s=5)
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_look(Path(sys.argv[1])))))
