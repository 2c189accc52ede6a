"""Requests that come before the answers to those before them: each gets its own answer, in its turn, or none."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from config.listeners import Limits
from tests.attacks.wire import Wire

pytestmark = pytest.mark.flow

LIVE = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


async def echo(request, writer):
    """Answer with the target, now at once, now later."""
    await asyncio.sleep(random.choice((0, 0, 0.002)))  # noqa: S311 - only so that answers overtake each other
    body = request.target
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
    if request.line.startswith(b"HEAD "):
        return
    await asyncio.sleep(random.choice((0, 0, 0.002)))  # noqa: S311
    writer.write(body)


def get(house, run, target, *more, profile="items", method="GET"):
    return house.head(run, profile, method, target, *more) + b"\r\n"


def own(house, run, path, method="GET"):
    """A request of the control API."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {run.token}\r\n\r\n"
    return head.encode()


def test_calls_and_requests_of_the_control_api_are_answered_in_their_order(house, upstream):
    upstream.answers(echo)
    run = house.open_run("items")
    body = b"GET /p/items/v1/admin HTTP/1.1\r\n\r\n"
    sent = [
        get(house, run, "/v1/items/1"),
        own(house, run, "/v1/self"),
        get(house, run, "/v1/items", f"Content-Length: {len(body)}", method="POST") + body,
        LIVE,
        get(house, run, "/v1/nothing"),
        get(house, run, "/v1/items/2"),
        own(house, run, "/v1/runs"),
        get(house, run, "/v1/items", "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n0\r\n\r\n",
        get(house, run, "/v1/items/3"),
    ]
    with Wire.to(house.port) as wire:
        wire.send(b"".join(sent))
        answers = [wire.answer() for _ in sent]
    assert [answer.status for answer in answers] == [200, 200, 200, 200, 403, 200, 401, 200, 200]
    assert [answers[n].body for n in (0, 2, 5, 7, 8)] == [
        b"/v1/items/1",
        b"/v1/items",
        b"/v1/items/2",
        b"/v1/items",
        b"/v1/items/3",
    ]
    assert json.loads(answers[1].body)["run_id"] == run.run_id
    assert json.loads(answers[3].body) == {"live": True}
    assert answers[4].code == "route-not-granted"
    assert [request.body for request in upstream.requests] == [b"", body, b"", b"abc", b""]


def test_what_is_ready_waits_for_the_slow_answer_before_it(house, upstream):
    gate = threading.Event()

    async def slow_first(request, writer):
        if request.target.endswith(b"/slow"):
            assert await asyncio.to_thread(gate.wait, 10)
        await echo(request, writer)

    upstream.answers(slow_first)
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        wire.send(get(house, run, "/v1/items/slow"))
        house.until(lambda: upstream.requests, "the slow call is on its way")
        wire.send(get(house, run, "/v1/items/quick") + LIVE + get(house, run, "/v1/nothing"))
        # Another connection is not held up, and by its answer the broker has read what came before it.
        assert house.call(run, "GET", "/v1/items/other", profile="items").body == b"/v1/items/other"
        assert not wire.more(wait=False)
        gate.set()
        assert [wire.answer().body for _ in range(2)] == [b"/v1/items/slow", b"/v1/items/quick"]
        assert wire.answer().status == 200
        assert wire.answer().code == "route-not-granted"


def test_a_refusal_that_closes_waits_for_its_turn_and_nothing_behind_it_is_read(house, upstream):
    upstream.answers(echo)
    run = house.open_run("items")
    refused = get(house, run, "/v1/items/no", "Content-Length: 1", "Content-Length: 2")
    with Wire.to(house.port) as wire:
        wire.send(get(house, run, "/v1/items/1") + LIVE + refused + get(house, run, "/v1/items/2"))
        assert [wire.answer().status for _ in range(2)] == [200, 200]
        assert wire.answer().code == "request-malformed"
        assert wire.rest() == b""
    assert [request.target for request in upstream.requests] == [b"/v1/items/1"]


def test_a_call_that_is_refused_takes_its_body_with_it(house, upstream):
    """What stands in the body of a refused call is no request, and the one behind it is."""
    upstream.answers(echo)
    run = house.open_run("items")
    inner = get(house, run, "/v1/items/smuggled")
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)
    with Wire.to(house.port) as wire:
        for how, body in ((f"Content-Length: {len(inner)}", inner), ("Transfer-Encoding: chunked", chunked)):
            wire.send(get(house, run, "/v1/nothing", how, method="POST") + body + get(house, run, "/v1/items/next"))
            assert wire.answer().code == "route-not-granted"
            assert wire.answer().body == b"/v1/items/next"
    assert [request.target for request in upstream.requests] == [b"/v1/items/next"] * 2


def test_an_answer_to_head_takes_nothing_of_the_next_one(house, upstream):
    upstream.answers(echo)
    run = house.open_run("heads")
    with Wire.to(house.port) as wire:
        head = get(house, run, "/v1/file", profile="heads", method="HEAD")
        wire.send(head + get(house, run, "/v1/items", profile="heads") + head)
        answer = wire.answer(head=True)
        assert (answer.status, answer.header("content-length")) == (200, "8")
        assert wire.answer().body == b"/v1/items"
        assert wire.answer(head=True).header("content-length") == "8"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ],
    ids=["length", "within a chunk", "between chunks"],
)
def test_behind_an_answer_that_broke_off_there_is_none(house, upstream, answer):
    """Else the next answer would be read as the rest of it."""
    upstream.says(answer, then_close=True)
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        wire.send(get(house, run, "/v1/items/1") + get(house, run, "/v1/items/2") + LIVE)
        broken = wire.answer()
        assert (broken.status, broken.whole) == (200, False)
        assert b"HTTP/1.1" not in broken.body
        assert wire.ended
    assert len(upstream.requests) == 1


def test_what_waits_behind_a_client_that_leaves_is_never_sent(house, upstream):
    gate = threading.Event()

    async def stuck(_request, _writer):
        await asyncio.to_thread(gate.wait, 10)

    upstream.answers(stuck)
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        wire.send(get(house, run, "/v1/items/1") + get(house, run, "/v1/items/2") + get(house, run, "/v1/items/3"))
        house.until(lambda: upstream.requests, "the first call is on its way")
        wire.drop()
    house.until(lambda: house.trace(run)["open_calls"] == 0, "the call is over")
    gate.set()
    upstream.answers(echo)
    assert house.call(run, "GET", "/v1/items/last", profile="items").status == 200
    assert [request.target for request in upstream.requests] == [b"/v1/items/1", b"/v1/items/last"]


def test_only_so_many_requests_may_wait(house, upstream):
    gate = threading.Event()

    async def slow(request, writer):
        assert await asyncio.to_thread(gate.wait, 10)
        await echo(request, writer)

    upstream.answers(slow)
    run = house.open_run("items")
    most = Limits().max_pipelined + 1  # and the one that they wait for
    with Wire.to(house.port) as wire:
        wire.send(b"".join(get(house, run, f"/v1/items/{number}") for number in range(200)))
        house.until(lambda: upstream.requests, "the first call is on its way")
        gate.set()
        assert [wire.answer().body for _ in range(most)] == [b"/v1/items/%d" % number for number in range(most)]
        assert wire.answer().code == "too-many-requests"
        assert wire.rest() == b""
    assert len(upstream.requests) == most


def test_refusals_in_one_segment_wait_for_their_turn_too(house):
    """A megabyte of small requests that no API is asked for would otherwise hold up every other connection."""
    run = house.open_run("items")
    with Wire.to(house.port) as wire:
        wire.send(get(house, run, "/v1/nothing") * 200)
        codes = []
        while (answer := wire.answer()) is not None:
            codes.append(answer.code)
    assert codes[-1] == "too-many-requests"
    assert set(codes[:-1]) == {"route-not-granted"}
    assert len(codes) < 100


def test_code_that_asks_but_does_not_read_is_not_answered_any_more(house, upstream):
    """Else its answers, each of which is complete, would pile up in memory."""
    body = bytes(60_000)
    upstream.says(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    run = house.open_run("items")
    most = 300
    with Wire.to(house.port, receive_buffer=4096) as wire:
        made = 0
        while made < most:
            wire.send(get(house, run, "/v1/items"))
            try:
                house.until(lambda: len(upstream.requests) > made, "the call is made", 1)  # noqa: B023
            except AssertionError:
                break
            made += 1
        assert made < most
        # It reads again: nothing is lost, and what waited is asked for now.
        answers = [wire.answer() for _ in range(made + 1)]
    assert all(answer.body == body for answer in answers)
    assert len(upstream.requests) == made + 1


def test_bodies_in_small_chunks_are_each_requests_own_and_go_on_in_larger_ones(house, upstream):
    """A body of one-byte chunks would otherwise hold up everybody, here and at the API."""
    run = house.open_run("items")
    head = get(house, run, "/v1/items", "Transfer-Encoding: chunked", method="POST")
    bodies = [b"a" * 20_000, b"bc", b"", b"d" * 3]
    with Wire.to(house.port) as wire:
        wire.send(b"".join(head + b"".join(b"1\r\n%c\r\n" % one for one in body) + b"0\r\n\r\n" for body in bodies))
        assert [wire.answer().status for _ in bodies] == [200] * 4
    assert [request.body for request in upstream.requests] == bodies
    assert upstream.requests[0].raw.count(b"\r\n") < 1000


def test_answers_never_cross_between_connections_or_runs(house, upstream):
    """Eight connections with the requests of two runs in turn: every answer is the one to its own request."""
    upstream.answers(echo)
    runs = [house.open_run("items"), house.open_run("items")]
    rounds, depth = 10, 8

    def client(number: int) -> list[bytes]:
        got = []
        with Wire.to(house.port) as wire:
            for turn in range(rounds):
                targets = [f"/v1/items/{number}-{turn}-{place}" for place in range(depth)]
                calls = [get(house, runs[place % 2], target) for place, target in enumerate(targets)]
                wire.send(b"".join(calls))
                got += [wire.answer().body for _ in range(depth)]
        return got

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(client, range(8)))
    assert answers == [
        [b"/v1/items/%d-%d-%d" % (number, turn, place) for turn in range(rounds) for place in range(depth)]
        for number in range(8)
    ]
    for run in runs:
        assert house.trace(run)["profiles"]["items"]["calls_left"] == 2000 - 8 * rounds * depth // 2
