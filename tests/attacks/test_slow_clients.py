"""Clients that are slow on purpose: with heads, with bodies, with reading. The deadlines are short here."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest

from config.listeners import Limits
from config.settings import BrokerSettings
from tests.attacks.flood import measured, resident
from tests.attacks.house import serving
from tests.attacks.leaving import in_flight, over
from tests.attacks.wire import Wire

pytestmark = pytest.mark.flow

LIMITS = "[limits]\nheader_deadline = 0.6\nbody_deadline = 0.8\nkeep_alive = 1.5"


@pytest.fixture(scope="module")
def _house(tmp_path_factory, upstream):
    grant = {"base_url": upstream.origin, "allow": ["GET /v1/items", "POST /v1/items"], "max_response": "1GiB"}
    profiles = {"items": {**grant, "max_concurrent": 1}, "many": {**grant, "max_concurrent": 500}}
    with serving(tmp_path_factory.mktemp("slow"), profiles, broker_extra=LIMITS) as house:
        yield house


@pytest.fixture
def house(_house, upstream):
    upstream.forget()
    return _house


def drip(wire: Wire, data: bytes, *, every: float) -> bool:
    """Send byte after byte, with as long as ``every`` between two; say whether all were sent before the answer."""
    for byte in data:
        wire.send(bytes([byte]))
        wire.sock.settimeout(every)
        with contextlib.suppress(TimeoutError):
            if wire.more() or wire.ended:
                wire.sock.settimeout(10)
                return False
    wire.sock.settimeout(10)
    return True


def test_the_deadlines_are_ten_and_thirty_seconds_unless_the_settings_say_otherwise():
    limits = Limits.of(BrokerSettings().limits)
    assert (limits.header_s, limits.body_idle_s, limits.keep_alive_s, limits.write_idle_s) == (10, 30, 75, 60)


@pytest.mark.parametrize("begin", ["", "GET", "GET /p/items/v1/items HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
def test_a_head_that_does_not_come_ends_the_connection(house, upstream, begin):
    with Wire.to(house.port) as wire:
        wire.send(begin.encode())
        answer = wire.answer()
        if begin:
            assert (answer.status, answer.code) == (408, "request-timeout")
        else:
            assert answer is None
        assert wire.rest() == b""
    assert upstream.received == b""


def test_a_head_that_drips_has_the_same_time_as_one_that_does_not_come(house, upstream):
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        began = time.monotonic()
        assert not drip(wire, house.head(run, "items") + b"X: " + b"a" * 3000, every=0.05)
        answer = wire.answer()
        assert (answer.status, answer.code) == (408, "request-timeout")
        assert time.monotonic() - began < 10  # at this pace the whole head would take minutes
        assert wire.rest() == b""
    assert upstream.received == b""


def test_a_second_head_on_the_connection_has_its_own_time(house, upstream):
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        for _ in range(3):
            wire.send(house.head(run, "items"))
            # Longer than between two sweeps, shorter than the deadline: three of them are longer.
            assert drip(wire, b"\r", every=0.3)
            wire.send(b"\n")
            assert wire.answer().status == 200
        wire.send(b"GET /p/items")
        assert wire.answer().code == "request-timeout"


@pytest.mark.parametrize(
    ("framing", "piece"),
    [("Content-Length: 100000", b"x"), ("Transfer-Encoding: chunked", b"1\r\nx\r\n")],
    ids=["length", "chunks"],
)
@pytest.mark.parametrize("drips", [False, True], ids=["stops", "drips"])
def test_a_body_that_stops_or_drips_ends_and_the_api_never_sees_its_end(house, upstream, framing, piece, drips):
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        wire.send(house.head(run, "items", "POST", "/v1/items", framing) + b"\r\n" + piece)
        if drips:
            # Steady, and still less than the 256 bytes a second that a body must bring.
            assert not drip(wire, piece * 3000, every=0.02)
        answer = wire.answer()
        assert (answer.status, answer.code) == (408, "request-timeout")
        assert wire.rest() == b""
    assert upstream.requests == []
    over(house, upstream, run)


@pytest.mark.parametrize("rest", [b"0" * 3000, b"1;" + b"a" * 3000], ids=["zeros before a size", "an extension"])
def test_chunks_that_bring_nothing_of_the_body_are_no_progress(house, upstream, rest):
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        framing = "Transfer-Encoding: chunked"
        wire.send(house.head(run, "items", "POST", "/v1/items", framing) + b"\r\n1\r\nx\r\n")
        assert not drip(wire, rest, every=0.02)
        # So many zeros may also be refused as no size.
        assert wire.answer().code in ("request-timeout", "request-malformed")
        assert wire.rest() == b""
    assert upstream.requests == []
    over(house, upstream, run)


def test_a_body_that_is_not_sent_after_100_continue_ends(house, upstream):
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        headers = ("Expect: 100-continue", "Content-Length: 5")
        wire.send(house.head(run, "items", "POST", "/v1/items", *headers) + b"\r\n")
        assert wire.answer().code == "request-timeout"
        assert wire.interim == [100]
    assert upstream.requests == []
    over(house, upstream, run)


def test_an_idle_connection_is_closed_without_a_word(house, upstream):
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        wire.send(house.head(run, "items") + b"\r\n")
        assert wire.answer().status == 200
        assert wire.rest() == b""
        assert not wire.reset


def test_a_call_that_takes_longer_than_every_deadline_is_answered(house, upstream):
    """The deadlines are for what the code sends, not for how long the API takes."""
    late = threading.Event()

    async def slow(_request, writer):
        while not late.is_set():  # noqa: ASYNC110 - the event is another thread's
            await asyncio.sleep(0.01)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    upstream.answers(slow)
    run = house.open_run("items")
    with Wire.to(house.port) as wire, Wire.to(house.port) as idle:
        wire.send(house.head(run, "items") + b"\r\n")
        idle.send(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        # Somebody else's longest deadline shows that they are over.
        assert idle.answer().status == 200
        assert idle.rest() == b""
        late.set()
        assert wire.answer().body == b"ok"


def test_who_does_not_read_a_large_answer_costs_little_memory_and_its_call_waits(house, upstream):
    """A gigabyte for each of twenty clients that read nothing: what is held is bounded, and the API is held up."""
    sent = []

    async def endless(_request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        number = len(sent)
        sent.append(0)
        piece = b"x" * 65536
        with contextlib.suppress(ConnectionError):
            while sent[number] < 1_000_000_000:
                writer.write(piece)
                await writer.drain()
                sent[number] += len(piece)

    upstream.answers(endless)
    run = house.open_run("many")
    broker = house.processes["broker"].pid
    before = resident(broker)
    clients = 20
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire.to(house.port, receive_buffer=16384)) for _ in range(clients)]
        for wire in wires:
            wire.send(house.head(run, "many") + b"\r\n")
        house.until(lambda: len(sent) == clients, "all calls are on their way")
        at_rest(sent)
        grown = resident(broker) - before
        held = sum(sent)
        measured(f"{clients} clients that do not read: {held >> 20} MiB taken from the API, {grown >> 20} MiB kept")
        # The rest is in the kernel's buffers of four sockets a call.
        assert grown < clients << 20
        # Who reads meanwhile is not held up.
        upstream.says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        assert house.call(run, "GET", "/v1/items", profile="many").body == b"ok"
    house.until(lambda: in_flight(house, run, "many") == 0, "the slots are free")


def at_rest(sent: list[int]) -> None:
    """Wait until nothing moves any more."""
    still, before = 0, -1
    while still < 20:
        threading.Event().wait(0.02)
        now = sum(sent)
        still, before = (still + 1 if now == before else 0), now
