"""Hostile requests on the data path: one table of bytes, each with its one answer, however the bytes are split.

The table is ``tests/vectors/http/requests.json``, which other implementations can use as well.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.house import House, serving
from tests.attacks.wire import Wire

pytestmark = pytest.mark.flow

REQUESTS = json.loads((Path(__file__).parents[1] / "vectors/http/requests.json").read_text())["requests"]
LIVE = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
#: A request of more bytes is sent as a whole only.
SHORT = 3000
#: So many connections are open at once.
BATCH = 100


def large(case: dict[str, Any]) -> bool:
    return any(len(piece) > SHORT if isinstance(piece, str) else piece["times"] > SHORT for piece in case["send"])


SHORT_ONES = [case for case in REQUESTS if not large(case)]
GROUPS = sorted({case["group"] for case in SHORT_ONES})


def name_of(case: dict[str, Any]) -> str:
    return f"{case['group']}: {case['name']}"


@dataclass
class Bench:
    """A broker, the API behind it, and the words that stand in the table in braces."""

    house: House
    upstream: Any
    words: dict[str, str]
    pulse: Wire

    def bytes_of(self, case: dict[str, Any]) -> bytes:
        text = "".join(piece if isinstance(piece, str) else piece["repeat"] * piece["times"] for piece in case["send"])
        for word, value in self.words.items():
            text = text.replace("{" + word + "}", value)
        return text.encode("latin-1")

    def wire(self) -> Wire:
        return Wire.to(self.house.port)

    def settle(self) -> None:
        """Wait until the broker has read what was sent before: it answers what came in after that."""
        for _ in range(2):
            self.pulse.send(LIVE)
            answer = self.pulse.answer()
            assert answer is not None
            assert answer.status == 200

    def outcome(self, wire: Wire, case: dict[str, Any]) -> tuple[list[Any], str]:
        """What was answered, and what became of the connection."""
        answers: list[Any] = []
        for _ in range(len(case.get("before", [])) + 1):
            answer = wire.answer()
            if answer is None:
                break
            answers.append(answer.status if answer.code is None else (answer.status, answer.code))
        if case["connection"] == "keep" and not wire.ended:
            wire.send(LIVE)
            live = wire.answer()
            return answers, "keep" if live is not None and live.status == 200 else "close"
        try:
            rest = wire.rest()
        except TimeoutError:
            return answers, "keep"
        return answers, f"close after {rest!r}" if rest else "close"

    def sent(self) -> list[str]:
        """The method and target of each complete request that reached the API."""
        return [b" ".join(request.line.split(b" ")[:2]).decode("latin-1") for request in self.upstream.requests]


def expected(case: dict[str, Any]) -> tuple[list[Any], str]:
    last = (case["status"], case["code"]) if "code" in case else case["status"]
    return [*case.get("before", []), last], case["connection"]


@pytest.fixture(scope="module")
def _bench(tmp_path_factory, upstream):
    grant = {"base_url": upstream.origin, "allow": ["GET /v1/items", "POST /v1/items"]}
    profiles = {"items": {**grant, "max_calls": 100_000, "max_concurrent": 2 * BATCH}}
    with serving(tmp_path_factory.mktemp("requests"), profiles) as house:
        words = {"host": f"127.0.0.1:{house.port}"}
        words |= {"token": house.open_run("items").token, "other_token": house.open_run("items").token}
        with Wire.to(house.port) as pulse:
            yield Bench(house, upstream, words, pulse)


@pytest.fixture
def bench(_bench, upstream):
    upstream.forget()
    return _bench


@pytest.mark.parametrize("case", REQUESTS, ids=name_of)
def test_each_gets_its_one_answer_and_nothing_else_reaches_the_api(bench, case):
    with bench.wire() as wire:
        wire.send(bench.bytes_of(case))
        assert bench.outcome(wire, case) == expected(case)
    assert bench.sent() == case["upstream"]
    if case["status"] != 200 and "before" not in case and not case.get("begun"):
        assert bench.upstream.received == b""
    assert b"admin" not in bench.upstream.received


def test_the_answer_is_the_same_when_every_byte_comes_alone(bench):
    """All at once, a byte each in turn: what is answered early is not sent to its end."""
    wrong = {}
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(bench.wire()) for _ in SHORT_ONES]
        texts = [bench.bytes_of(case) for case in SHORT_ONES]
        for place in range(max(map(len, texts))):
            for wire, text in zip(wires, texts, strict=True):
                if place < len(text) and not wire.ended:
                    wire.send(text[place : place + 1])
                    wire.more(wait=False)
            bench.settle()
        for wire, case in zip(wires, SHORT_ONES, strict=True):
            if (outcome := bench.outcome(wire, case)) != expected(case):
                wrong[name_of(case)] = outcome
    assert wrong == {}
    assert sorted(bench.sent()) == sorted(line for case in SHORT_ONES for line in case["upstream"])


@pytest.mark.parametrize("group", GROUPS)
def test_the_answer_is_the_same_wherever_the_bytes_are_cut_in_two(bench, group):
    """But within the line and the two headers that all of them begin with."""
    cases = [case for case in SHORT_ONES if case["group"] == group]
    work = [(case, text, cut) for case in cases for text in [bench.bytes_of(case)] for cut in cuts(bench, text)]
    wrong = {}
    for first in range(0, len(work), BATCH):
        with contextlib.ExitStack() as stack:
            batch = [(stack.enter_context(bench.wire()), *one) for one in work[first : first + BATCH]]
            for wire, _, text, cut in batch:
                wire.send(text[:cut])
            bench.settle()
            for wire, _, text, cut in batch:
                wire.send(text[cut:])
            for wire, case, _, cut in batch:
                if (outcome := bench.outcome(wire, case)) != expected(case):
                    wrong[name_of(case), cut] = outcome
    assert wrong == {}
    assert len(bench.sent()) == sum(len(case["upstream"]) for case, _, _ in work)


def cuts(bench: Bench, text: bytes) -> range:
    """Where to cut: not within what is the same in all, but within the first of them."""
    usual = bench.bytes_of(
        {"send": ["GET /p/items/v1/items HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}"]}
    )
    same = 0
    for method in (b"GET ", b"POST "):
        whole = method + usual.removeprefix(b"GET ")
        if text.startswith(whole):
            same = len(whole)
    return range(max(1, same), len(text))
