"""Clients that end their side of the connection and wait: what was asked as a whole is answered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.attacks.house import serving
from tests.attacks.leaving import Gate, begun, in_flight, over
from tests.attacks.wire import Wire

pytestmark = pytest.mark.flow


@pytest.fixture(scope="module")
def _house(tmp_path_factory, upstream):
    grant = {"base_url": upstream.origin, "allow": ["GET /v1/items", "POST /v1/items"]}
    # One call at a time: a slot that is not freed is the end of the run.
    with serving(tmp_path_factory.mktemp("leaving"), {"items": {**grant, "max_concurrent": 1}}) as house:
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


@pytest.mark.parametrize("target", ["/p/items/v1/items", "/v1/self", "/livez"])
def test_who_ends_its_side_behind_a_whole_request_gets_the_answer(house, upstream, target):
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        wire.send(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {run.token}\r\n\r\n".encode())
        wire.end_sending()
        assert wire.answer().status == 200
        assert wire.rest() == b""
        assert not wire.reset


@pytest.mark.parametrize("when", ["before_the_head", "after_the_head"])
def test_who_ends_its_side_while_the_api_is_slow_gets_the_answer(house, upstream, gate, when):
    upstream.answers(getattr(gate, when))
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        wire.send(house.head(run, "items") + b"\r\n")
        house.until(lambda: upstream.requests, "the call is on its way")
        wire.end_sending()
        # The broker looks after its calls four times a second: it has seen this one more than once by then.
        for _ in range(3):
            before = house.http("GET", "/livez")
            assert before.status == 200
            wire.sock.settimeout(0.3)
            with contextlib.suppress(TimeoutError):
                wire.more()
        wire.sock.settimeout(10)
        assert not gate.left.is_set()
        gate.open.set()
        answer = wire.answer()
        assert (answer.status, answer.body) == (200, b"ok" if when == "before_the_head" else b"one\ntwo\n")
        assert wire.rest() == b""
    assert in_flight(house, run) == 0


def test_who_ends_its_side_behind_a_whole_body_gets_the_answer(house, upstream):
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        wire.send(house.head(run, "items", "POST", "/v1/items", "Content-Length: 5") + b"\r\nhello")
        wire.end_sending()
        assert wire.answer().body == b'{"ok":true}'
    assert [request.body for request in upstream.requests] == [b"hello"]


def test_who_ends_its_side_behind_several_requests_gets_all_answers(house, upstream):
    run = house.open_run("items")
    call = house.head(run, "items") + b"\r\n"
    with Wire.to(house.port) as wire:
        wire.send(call + b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + call)
        wire.end_sending()
        assert [wire.answer().status for _ in range(3)] == [200, 200, 200]
        assert wire.rest() == b""
    assert len(upstream.requests) == 2


@pytest.mark.parametrize(
    ("framing", "part"),
    [("Content-Length: 10", b"hello"), ("Transfer-Encoding: chunked", b"5\r\nhello\r\n")],
    ids=["length", "chunks"],
)
def test_who_ends_its_side_within_a_body_is_told_and_the_api_never_sees_its_end(house, upstream, framing, part):
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        wire.send(house.head(run, "items", "POST", "/v1/items", framing) + b"\r\n" + part)
        begun(house, run)
        wire.end_sending()
        answer = wire.answer()
        assert (answer.status, answer.code) == (400, "request-malformed")
        assert wire.rest() == b""
    assert upstream.requests == []
    over(house, upstream, run)
