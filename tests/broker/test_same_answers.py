"""An answer with the head of the last one, which is not read again: it must come to the same as if it were."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.broker.test_upstream_connection import SMALL, Call, connected, turns

OTHER_BODY = SMALL.replace(b"hello", b"olleh")
LONGER = SMALL.replace(b"Content-Length: 5", b"Content-Length: 6")
OTHER_STATUS = SMALL.replace(b"200 OK", b"503 OK")
CLOSING = SMALL.replace(b"Content-Type", b"Connection: close\r\nContent-Type")
OLD = SMALL.replace(b"HTTP/1.1", b"HTTP/1.0")
TWICE = SMALL.replace(b"Content-Length: 5", b"Content-Length: 5\r\nContent-Length: 6")
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
#: Its body is an answer.
AROUND = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(SMALL) + SMALL
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"

ANSWERS = st.sampled_from(
    [
        SMALL,
        OTHER_BODY,
        LONGER + b"!",
        OTHER_STATUS,
        EMPTY,
        CHUNKS,
        INTERIM + SMALL,
        SMALL + b"\r\n",
        SMALL + b"HTTP",
        SMALL[:-1],
        CLOSING,
        OLD,
        TWICE,
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{}\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\na\r\n\r\nb",
    ]
)
#: An answer, where it is cut in two (or not), and whether it answers HEAD.
TURNS = st.lists(st.tuples(st.just(SMALL) | ANSWERS, st.none() | st.integers(1, 90), st.booleans()), max_size=6)


@given(answers=TURNS)
@example(answers=[(SMALL, None, False), (SMALL, None, False), (SMALL, None, True)])
@example(answers=[(SMALL, None, False), (SMALL + b"\r\n", None, False)])
@example(answers=[(SMALL, None, False), (SMALL + b"HTTP", None, False)])
@example(answers=[(SMALL, None, False), (SMALL[:-1], None, False)])
@example(answers=[(OLD, None, False), (OLD, None, False)])
@example(answers=[(SMALL, None, False), (INTERIM, None, False)])
@example(answers=[(INTERIM + SMALL, None, False), (INTERIM + SMALL, None, False)])
@example(answers=[(EMPTY, None, False), (EMPTY, None, False)])
@example(answers=[(SMALL, 20, False), (SMALL[20:], None, False)])
@example(answers=[(SMALL, None, False), (AROUND, AROUND.index(SMALL), False)])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_connection_that_remembers_says_what_one_says_that_does_not(answers):
    assert asyncio.run(_said(answers, remembers=True)) == asyncio.run(_said(answers, remembers=False))


async def _said(answers, *, remembers):
    said = []
    async with connected() as w:
        for answer, cut, head_only in answers:
            if w.connection.closed:
                break
            call = w.call(head_only=head_only)
            if not remembers:
                w.connection._known = b""
            await w.say(*([answer[:cut], answer[cut:]] if cut is not None and cut < len(answer) else [answer]))
            head = call.head and (call.head.status, call.head.headers, call.head.length, call.head.bodiless)
            said.append((head, call.body, call.outcome, w.connection.closed, w.pool.released, w.connection.used))
            if not call.outcome:
                break
    return said


async def test_an_answer_of_the_same_head_is_not_read_again(monkeypatch):
    async with connected() as w:
        w.call()
        await w.say(SMALL)
        parser, unfed = w.connection._parser, object()  # which would fail if it were fed
        w.connection._parser = unfed
        call = w.call()
        await w.say(OTHER_BODY)
        assert (call.outcome, call.body, call.head.status) == ("complete", b"olleh", 200)
        assert w.pool.released == 2
        assert w.connection._parser is unfed
        w.connection._parser = parser
        call = w.call()
        await w.say(LONGER + b"!")
        assert (call.outcome, call.body) == ("complete", b"hello!")


async def test_a_large_head_is_read_each_time():
    large = SMALL.replace(b"Content-Type", b"X-Large: " + b"a" * 2048 + b"\r\nContent-Type")
    async with connected() as w:
        w.call()
        await w.say(large)
        assert (w.pool.released, w.connection._known) == (1, b"")


async def test_a_receiver_that_leaves_at_the_head_of_a_known_answer_hears_no_more():
    async with connected() as w:
        w.call()
        await w.say(SMALL)
        call = Call(at=lambda told: w.connection.abandon() if told == "head" else None)
        w.call(call)
        await w.say(SMALL)
        assert (call.body, call.outcome, w.connection.closed, w.pool.released) == (b"", "", True, 1)


async def test_a_receiver_that_fails_at_a_known_answer_loses_the_connection(capfd):
    def fail(told):
        if told == "piece":
            raise ZeroDivisionError("sekret-words")

    async with connected() as w:
        w.call()
        await w.say(SMALL)
        call = Call(at=fail)
        w.call(call)
        await w.say(SMALL)
        await turns()
        assert (call.outcome, call.stale, w.connection.closed) == ("internal-error", False, True)
    assert "sekret-words" not in "".join(capfd.readouterr())
