"""What the benchmarks claim: the arithmetic of the targets, and that what they send is what they say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import subprocess
import sys

import pytest

from config.grants import parse_grants
from ops.bench import calls, stacks, upstreams
from ops.bench.load import Load, Sample
from ops.bench.processes import cpu_seconds, tool
from ops.bench.scenarios import SCENARIOS
from ops.bench.targets import Outcome


def sample(cpu_us: float, *, failed: int = 0) -> Sample:
    return Sample(calls=1, cpu_us=cpu_us, per_second=1, p50_ms=cpu_us, p99_ms=1, failed=failed)


@pytest.mark.parametrize(
    ("measured", "at_least", "note", "verdict"),
    [
        (0.4, True, "", "held"),
        (0.39, True, "", "NOT HELD"),
        (0.4, False, "", "held"),
        (0.41, False, "", "NOT HELD"),
        (0.4, True, "3 calls failed", "NOT HELD"),
        (math.nan, True, "", "not measured"),
    ],
)
def test_a_target_holds_at_its_limit_and_never_with_calls_that_failed(measured, at_least, note, verdict):
    assert Outcome("of nginx", 0.4, measured, at_least, note).verdict == verdict


def test_ratios_are_taken_within_a_round_before_the_median_is():
    # The machine changes its speed between rounds: the ratio of the medians would be 1.
    first, second = [sample(10), sample(30), sample(40)], [sample(40), sample(20), sample(30)]
    assert calls._against(first, second, field="cpu_us") == 40 / 30
    assert calls._against(first, second, field="cpu_us", difference=True) == 10


def test_a_peer_that_is_not_installed_is_not_measured():
    target = SCENARIOS[0].targets[2]
    rows = {contender: [sample(10)] for contender in SCENARIOS[0].contenders if contender[0] != "mitmproxy"}
    assert calls._outcome(target, rows).verdict == "not measured"


def test_every_target_compares_contenders_of_its_own_load():
    for scenario in SCENARIOS:
        for target in scenario.targets:
            assert {target.first, target.second} <= set(scenario.contenders)


def test_the_profiles_load_and_lead_to_every_path_that_is_sent():
    written = json.dumps({"profiles": stacks.profiles(stacks.Origins())}).encode()
    grants = parse_grants(written, name="grants.json")
    for scenario in SCENARIOS:
        path = scenario.load.path + "/*" * scenario.load.different
        for name, profile in scenario.contenders:
            if name == "broker":
                allowed = {rule.text for rule in grants.profiles[profile].allow}
                assert f"{scenario.load.method} {path}" in allowed


def test_the_cpu_time_of_a_process_is_exact():
    tell = "import time\nwhile True: print(time.process_time(), flush=True); input()"
    command = [sys.executable, "-c", tell]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        before = float(child.stdout.readline())
        read = cpu_seconds(child.pid)
        child.stdin.write(b"\n")
        child.stdin.flush()
        after = float(child.stdout.readline())
        child.stdin.close()
    assert before <= read <= after


def test_the_large_answer_is_json_of_64_kib():
    body = upstreams._big()
    assert len(body) == 65536
    assert len(json.loads(body)["rows"]) > 100


@pytest.mark.skipif(tool("wrk") is None, reason="wrk is not installed")
async def test_runs_take_turns_and_no_target_comes_twice():
    heads: list[bytes] = []
    answering = set()

    async def answer(reader, writer):
        answering.add(asyncio.current_task())
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                body = await reader.readexactly(int(re.search(rb"Content-Length: (\d+)", head)[1]))
                heads.append(head)
                assert len(body) == 1024
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/p/bench"
    load = Load(2, method="POST", body_bytes=1024, different=True, runs=3)
    argv, env = load.command(url, ["a", "b", "c"], seconds=1)
    await asyncio.to_thread(subprocess.run, argv, env=env, check=True, capture_output=True, timeout=30)
    server.close()
    await asyncio.gather(*answering)
    await asyncio.sleep(0)  # the transports say that they are closed
    targets = [head.split(b" ")[1] for head in heads]
    assert len(targets) == len(set(targets)) > 10
    assert all(re.fullmatch(rb"/p/bench/v1/items/\d+", target) for target in targets)
    told = [re.search(rb"Authorization: Bearer (\w)", head)[1] for head in heads]
    assert max(told.count(run) for run in (b"a", b"b", b"c")) - min(told.count(run) for run in (b"a", b"b", b"c")) <= 3
