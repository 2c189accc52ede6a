"""Clients that leave in the middle of everything: no call, no connection to the API and no slot stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from tests.attacks.house import serving
from tests.attacks.leaving import HEAD, Gate, begun, in_flight, over
from tests.attacks.wire import Wire

pytestmark = pytest.mark.flow


@pytest.fixture(scope="module")
def _house(tmp_path_factory, upstream):
    grant = {"base_url": upstream.origin, "allow": ["GET /v1/items", "POST /v1/items"]}
    # One call at a time: a slot that is not freed is the end of the run.
    grant |= {"max_concurrent": 1, "max_request": "64MiB"}
    with serving(tmp_path_factory.mktemp("leaving"), {"items": grant}) as house:
        yield house


@pytest.fixture
def house(_house, upstream):
    upstream.forget()
    return _house


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open.set()


@contextlib.contextmanager
def stopped(process) -> Iterator[None]:
    """Hold a process where it stands."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


#: Who ends only its own side cannot be told from who is gone, and counts as gone.
LEAVING = pytest.mark.parametrize("leave", ["drop", "close", "half-close"])


def gone(wire: Wire, leave: str) -> None:
    if leave == "drop":
        wire.drop()
    elif leave == "half-close":
        wire.end_sending()
    else:
        wire.sock.close()


@LEAVING
@pytest.mark.parametrize("when", ["before_the_head", "after_the_head"])
def test_who_leaves_while_the_api_works_ends_its_call_to_it(house, upstream, gate, when, leave):
    upstream.answers(getattr(gate, when))
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        wire.send(house.head(run, "items") + b"\r\n")
        house.until(lambda: upstream.requests, "the call is on its way")
        if when == "after_the_head":
            while b"one" not in wire.received:
                assert wire.more()
        gone(wire, leave)
    house.until(gate.left.is_set, "the API is left")
    over(house, upstream, run)


@LEAVING
@pytest.mark.parametrize("framing", ["Content-Length: 1000000", "Transfer-Encoding: chunked"], ids=["length", "chunks"])
def test_who_leaves_within_its_body_ends_its_call_to_the_api(house, upstream, framing, leave):
    run = house.open_run("items")
    part = b"x" * 50_000 if "Length" in framing else b"c350\r\n" + b"x" * 50_000 + b"\r\n"
    with Wire.to(house.port) as wire:
        wire.send(house.head(run, "items", "POST", "/v1/items", framing) + b"\r\n" + part)
        house.until(lambda: upstream.received.count(b"x") >= 50_000, "the API has what there is of the body")
        connections = upstream.gone
        gone(wire, leave)
    house.until(lambda: upstream.gone > connections, "the API's connection is closed")
    assert upstream.requests == []
    over(house, upstream, run)


@LEAVING
@pytest.mark.parametrize("with_body", [False, True], ids=["GET", "POST"])
def test_who_leaves_while_the_minter_is_asked_frees_its_slot(house, upstream, leave, with_body):
    """Of a body that has come by then nothing more is read, which must not hide that its sender is gone."""
    run = house.open_run("items")
    call = house.head(run, "items") + b"\r\n"
    if with_body:
        call = house.head(run, "items", "POST", "/v1/items", "Content-Length: 5") + b"\r\nhello"
    with stopped(house.processes["minter"]):
        with Wire.to(house.port) as wire:
            wire.send(call)
            begun(house, run)
            gone(wire, leave)
        house.until(lambda: in_flight(house, run) == 0, "the slot is free", 4)
    assert upstream.received == b""
    over(house, upstream, run)


def test_who_resets_while_the_api_does_not_take_the_body_ends_its_call(house, upstream, gate):
    """The broker reads no more of the body then. (An orderly close stands behind all that is not read: 504 ends it.)"""

    async def deaf(_request, _writer):
        await gate.passed()

    upstream.answers_heads(deaf)
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        head = house.head(run, "items", "POST", "/v1/items", "Content-Length: 60000000")
        wire.send(head + b"\r\n")
        wire.sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            wire.sock.sendall(b"x" * 60_000_000)
        begun(house, run)
        wire.drop()
    over(house, upstream, run)


def test_a_call_whose_body_is_refused_as_it_comes_frees_its_slot(house, upstream):
    """In one piece: the call waits for its body, and is over before it has waited."""
    run = house.open_run("items")
    head = house.head(run, "items", "POST", "/v1/items", "Transfer-Encoding: chunked") + b"\r\n"
    for body in (b"xx", b"3\r\nabcxx", b"3\r\nabc\r\n0\r\nX: trailer\r\n\r\n"):
        with Wire.to(house.port) as wire:
            wire.send(head + body)
            answer = wire.answer()
            assert (answer.status, answer.code) == (400, "request-malformed")
    assert upstream.requests == []
    over(house, upstream, run)


@pytest.mark.parametrize(
    ("framing", "part"),
    [("Content-Length: 10", b"hello"), ("Transfer-Encoding: chunked", b"5\r\nhello\r\n")],
    ids=["length", "chunks"],
)
def test_who_ends_its_side_within_a_body_is_told_and_the_api_never_sees_its_end(house, upstream, framing, part):
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        wire.send(house.head(run, "items", "POST", "/v1/items", framing) + b"\r\n" + part)
        house.until(lambda: b"hello" in upstream.received, "the API has what there is of the body")
        wire.end_sending()
        answer = wire.answer()
        assert (answer.status, answer.code) == (400, "request-malformed")
        assert wire.rest() == b""
    assert upstream.requests == []
    over(house, upstream, run)


@LEAVING
@pytest.mark.parametrize("sent", ["nothing", "a piece of a head", "a whole head of a body"])
def test_who_leaves_before_there_is_a_call_leaves_nothing(house, upstream, sent, leave):
    run = house.open_run("items")
    head = house.head(run, "items", "POST", "/v1/items", "Content-Length: 5")
    text = {"nothing": b"", "a piece of a head": head, "a whole head of a body": head + b"\r\n"}[sent]
    with Wire.to(house.port) as wire:
        wire.send(text)
        gone(wire, leave)
    over(house, upstream, run)


def test_who_leaves_at_any_byte_of_a_request_leaves_nothing(house, upstream):
    """Reset after every number of bytes of a call with a body in chunks: no slot is kept, and no half is a whole."""
    run = house.open_run("items")
    whole = house.head(run, "items", "POST", "/v1/items", "Transfer-Encoding: chunked") + b"\r\n3\r\nabc\r\n0\r\n\r\n"
    begin = whole.index(b"Transfer")
    for cut in range(begin, len(whole)):
        with Wire.to(house.port) as wire:
            wire.send(whole[:cut])
            wire.drop()
    assert upstream.requests == []
    over(house, upstream, run)


def test_who_leaves_at_any_byte_of_an_answer_ends_its_call(house, upstream, gate):
    """The API sends byte by byte and stops; the client goes once it has seen so many."""
    answer = HEAD.replace(b"chunked", b"chunked\r\nETag: abc") + b"6\r\nhello\n\r\n"

    async def drip(_request, writer):
        for byte in answer:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        await gate.passed()

    upstream.answers(drip)
    run = house.open_run("items", ttl="10m")
    seen = 1
    while True:
        with Wire.to(house.port) as wire:
            wire.send(house.head(run, "items") + b"\r\n")
            while len(wire.received) < seen and b"hello\n" not in wire.received:
                assert wire.more()
            complete = b"hello\n" in wire.received
            wire.drop()
        house.until(lambda: in_flight(house, run) == 0, "the slot is free")
        if complete:
            break
        seen = len(wire.received) + 1
    gate.open.set()
    over(house, upstream, run)


def test_a_hundred_clients_that_leave_at_once_leave_nothing(house, upstream, gate):
    upstream.answers(gate.before_the_head)
    runs = [house.open_run("items") for _ in range(20)]
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire.to(house.port)) for _ in range(100)]
        for number, wire in enumerate(wires):
            wire.send(house.head(runs[number % 20], "items") + b"\r\n")
        house.until(lambda: len(upstream.requests) == 20, "one call of each run is on its way")
        for number, wire in enumerate(wires):
            gone(wire, "drop" if number % 3 else "close")
    for run in runs:
        house.until(lambda run=run: in_flight(house, run) == 0, "the slot is free")
    gate.open.set()
    over(house, upstream, runs[0])
