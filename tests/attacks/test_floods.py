"""Floods: many connections that drip, come and go, or take every open file. Who is well-behaved must not notice.

``FLOOD_CONNECTIONS`` is how many come and go: some thousands in the suite, a hundred thousand with ``make attacks``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import statistics
import threading
import time

import pytest

from tests.attacks.flood import measured, open_files, resident
from tests.attacks.house import serving
from tests.attacks.wire import Wire

pytestmark = pytest.mark.flow

CONNECTIONS = int(os.environ.get("FLOOD_CONNECTIONS", "3000"))
DRIPS = 500
MIB = 1 << 20
LIVE = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
#: What a call gets while no file can be opened: its answer, over what is open, or which part of us needs one.
HONEST = ((200, None), (502, "upstream-unreachable"), (503, "state-unavailable"))


@pytest.fixture(scope="module")
def _house(tmp_path_factory, upstream):
    grant = {"base_url": upstream.origin, "allow": ["GET /v1/items", "POST /v1/items"]}
    profiles = {"items": {**grant, "max_calls": 100_000, "max_concurrent": 1000}}
    # Connections to the API are not kept for long, so that those which stay behind can be counted.
    with serving(tmp_path_factory.mktemp("floods"), profiles, broker_extra="[upstream]\nkeep_alive = 0.5") as house:
        house.idle_files = open_files(house.processes["broker"].pid)
        yield house


@pytest.fixture
def house(_house, upstream):
    upstream.forget()
    return _house


def call(wire: Wire, data: bytes) -> float:
    """Make a call that must be answered well; return how many milliseconds it took."""
    began = time.perf_counter()
    wire.send(data)
    answer = wire.answer()
    assert answer is not None
    assert (answer.status, answer.body) == (200, b'{"ok":true}')
    return (time.perf_counter() - began) * 1000


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def test_five_hundred_that_drip_do_not_keep_a_healthy_client_from_its_answers(house, upstream):
    """Half of them drip a head, half the body of a call, ten bytes a second each."""
    run, other = house.open_run("items"), house.open_run("items")
    get = house.head(run, "items") + b"\r\n"
    post = house.head(other, "items", "POST", "/v1/items", "Content-Length: 1000000") + b"\r\n"
    stop = threading.Event()

    def dripping(wires: list[Wire]) -> None:
        for number, wire in enumerate(itertools.cycle(wires)):
            if number % 50 == 0 and stop.wait(0.01):
                return
            wire.send(b"x")

    with contextlib.ExitStack() as stack:
        healthy = stack.enter_context(Wire.to(house.port))
        alone = [call(healthy, get) for _ in range(300)]
        wires = [stack.enter_context(Wire.to(house.port)) for _ in range(DRIPS)]
        for number, wire in enumerate(wires):
            wire.send(post if number % 2 else b"GET /p/items/v1/items HTTP/1.1\r\nX: ")
        thread = threading.Thread(target=dripping, args=[wires])
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        beside = [call(healthy, get) for _ in range(300)]
        # A new connection is served, too.
        for _ in range(20):
            with Wire.to(house.port) as late:
                call(late, get)
    measured(f"a call alone: p99 {p99(alone):.2f} ms; beside {DRIPS} that drip: p99 {p99(beside):.2f} ms")
    assert len([request for request in upstream.requests if request.line.startswith(b"POST")]) == 0


def come_and_go(house, run, count: int) -> None:
    """Open and leave connections in all ways: silent, in a head, in a body, with an answer that nobody reads."""
    head = house.head(run, "items") + b"\r\n"
    texts = itertools.cycle([b"", head[:40], head, b"POST" + head[3:-2] + b"Content-Length: 9\r\n\r\nabc", head + head])
    for number in range(count):
        wire = Wire.to(house.port)
        wire.send(next(texts))
        if number % 3:
            wire.drop()
        else:
            wire.sock.close()


def test_many_connections_that_come_and_go_leave_no_file_and_no_memory(house, upstream):
    broker = house.processes["broker"].pid
    runs = [house.open_run("items") for _ in range(4)]
    get = house.head(house.open_run("items"), "items") + b"\r\n"
    # What is made once has been made, and as many were open at once as there will be: a busy machine lets them pile up.
    for number in range(max(len(runs), CONNECTIONS // 2500)):
        come_and_go(house, runs[number % len(runs)], 250)
    at_rest(house, runs)
    memory = resident(broker)
    began = time.perf_counter()
    with Wire.to(house.port) as healthy:
        for number in range(CONNECTIONS // 250):
            come_and_go(house, runs[number % len(runs)], 250)
            call(healthy, get)
    seconds = time.perf_counter() - began
    at_rest(house, runs)
    grown = resident(broker) - memory
    measured(f"{CONNECTIONS} connections that came and went in {seconds:.1f} s: {grown / MIB:+.1f} MiB, no file")
    assert grown < 10 * MIB


def at_rest(house, runs) -> None:
    """Wait until the broker has let go of every connection, but for what it holds of its state and of the minter."""
    broker = house.processes["broker"].pid
    house.until(lambda: open_files(broker) <= house.idle_files + 2, "every connection is closed")
    house.until(lambda: sum(house.trace(run)["open_calls"] for run in runs) == 0, "every call is over")


def test_a_broker_without_open_files_serves_who_is_there_and_recovers(house, upstream):
    """The limit is lowered to what is open and a few more, and then as many connections come as there are none for."""
    broker = house.processes["broker"].pid
    run = house.open_run("items")
    get = house.head(run, "items") + b"\r\n"
    before = resource.prlimit(broker, resource.RLIMIT_NOFILE)

    def said(event: str) -> int:
        return house.log("broker").count(f'"{event}"')

    with contextlib.ExitStack() as stack:
        healthy = stack.enter_context(Wire.to(house.port))
        call(healthy, get)
        few = open_files(broker) + 10
        resource.prlimit(broker, resource.RLIMIT_NOFILE, (few, before[1]))
        stack.callback(resource.prlimit, broker, resource.RLIMIT_NOFILE, before)
        crowd = []
        for _ in range(200):
            with contextlib.suppress(OSError):
                crowd.append(stack.enter_context(Wire.to(house.port)))
        for wire in crowd:
            wire.send(get)
        # Who was there before is answered, and gets an honest refusal where a file is needed.
        for _ in range(100):
            healthy.send(get)
            answer = healthy.answer()
            assert (answer.status, answer.code) in HONEST
            healthy.send(LIVE)
            assert healthy.answer().status == 200
        house.until(lambda: said("no-open-files"), "the broker says so")
    assert resource.prlimit(broker, resource.RLIMIT_NOFILE) == before
    house.until(lambda: house.call(run, "GET", "/v1/items", profile="items").status == 200, "it serves anew")
    house.until(lambda: said("open-files-again"), "the broker says so")
    assert (said("no-open-files"), said("open-files-again")) == (1, 1)
