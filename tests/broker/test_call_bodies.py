"""Bodies and answers: streamed, bounded, never sent twice, cut where they break off."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.calling import World, eventually, profile, world
from tests.worlds.recording import OK


@pytest.fixture
async def w(tmp_path):
    async with world(tmp_path) as made:
        yield made


@pytest.fixture
async def unscrubbed(tmp_path):
    """Pieces without line breaks are held back where answers are scrubbed."""
    async with world(tmp_path, scrub="off") as made:
        yield made


async def broken(code) -> bytes:
    """Read an answer that is expected to break off after its head; return what came of the body."""
    with pytest.raises(asyncio.IncompleteReadError) as error:
        await code.reply()
    return error.value.partial


async def turns() -> None:
    """Let the loop go round often enough for what was written on loopback to be read."""
    for _ in range(100):
        await asyncio.sleep(0)


# --- from the code to the API ---


async def test_a_body_arrives_with_its_length(w: World):
    assert (await w.call("POST", "/v1/items", {"Content-Type": "x/y"}, b"abc")).status == 200
    [request] = w.api.requests
    assert request.body == b"abc"
    assert request.values(b"content-length") == [b"3"]
    assert request.values(b"transfer-encoding") == []


async def test_a_length_with_leading_zeros_is_not_handed_on_as_it_is_written(w: World):
    """To a reader that takes a leading zero for octal the body ends earlier, and the rest is the next request."""
    data = w.request("POST", "/v1/items").replace(b"\r\n\r\n", b"\r\nContent-Length: 010\r\n\r\n0123456789")
    w.api.says(b"HTTP/1.1 200 OK\r\nContent-Length: 010\r\n\r\n0123456789")
    reply = await w.raw(data)
    assert (reply.header("content-length"), reply.body) == ("10", b"0123456789")
    [request] = w.api.requests
    assert (request.values(b"content-length"), request.body) == ([b"10"], b"0123456789")


async def test_a_post_without_a_body_says_so(w: World):
    data = w.request("POST", "/v1/items").replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n")
    assert (await w.raw(data)).status == 200
    assert w.api.requests[0].values(b"content-length") == [b"0"]
    assert w.api.requests[0].values(b"content-type") == []


async def test_a_body_streams_piece_by_piece_in_both_directions(unscrubbed: World):
    """The API sees the first piece before the code has sent the second, and answers into the upload."""
    w = unscrubbed

    async def early(_request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")

    w.api.on_head = early
    code = await w.connect()
    head = w.request("POST", "/v1/items").replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
    await code.send(head + b"5\r\nfirst\r\n")
    await w.api.until(lambda api: b"first" in api.everything())
    assert (await code.head()).status == 200
    assert await code.chunk() == b"hi"
    await code.send(b"6\r\nsecond\r\n0\r\n\r\n")
    await w.api.until(lambda api: len(api.requests) == 1)
    assert w.api.requests[0].body == b"firstsecond"


async def test_two_mebibytes_with_expect_100_continue_arrive_25(tmp_path):
    async with world(tmp_path, max_request="4MiB") as w:
        code = await w.connect()
        body = bytes(range(256)) * 8192
        await code.send(w.request("POST", "/v1/items", {"Expect": "100-continue", "Content-Length": str(len(body))}))
        async with asyncio.timeout(2):
            assert (await code.head()).status == 100
            sending = asyncio.create_task(code.send(body))
            assert (await code.reply()).status == 200
            await sending
        assert w.api.requests[0].body == body
        assert w.api.requests[0].values(b"expect") == []
        assert w.rows[0]["bytes_sent"] == len(body)


async def test_who_waits_for_100_continue_and_is_refused_is_never_told_to_go_on(tmp_path):
    """What it sends now may be its body or the next request (RFC 9110 section 10.1.1): only an end tells which."""
    async with world(tmp_path, max_request=10) as w:
        for method, target, length, status in (
            ("POST", "/v1/items", "11", 413),
            ("POST", "/v1/other", "5", 403),
            ("POST", "/v1/../items", "5", 400),
        ):
            code = await w.connect()
            await code.send(w.request(method, target, {"Expect": "100-continue", "Content-Length": length}))
            reply = await code.reply()
            assert (reply.status, reply.header("connection")) == (status, "close")
            await code.send(w.request())
            assert await code.rest() == b""
        assert w.api.raw == []


async def test_a_body_one_byte_over_the_limit_is_413_and_nothing_is_sent_26(tmp_path):
    async with world(tmp_path, max_request=10) as w:
        reply = await w.call("POST", "/v1/items", body=b"x" * 11)
        assert (reply.status, reply.code, reply.problem["limit"]) == (413, "request-too-large", 10)
        assert (w.api.raw, w.minter.asked) == ([], [])
        assert (await w.call("POST", "/v1/items", body=b"x" * 10)).status == 200


async def test_a_chunked_body_over_the_limit_never_becomes_a_complete_request(tmp_path):
    async with world(tmp_path, max_request=10) as w:
        head = w.request("POST", "/v1/items").replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        whole = await w.raw(head + b"b\r\nhello world\r\n0\r\n\r\n")
        assert (whole.status, whole.code) == (413, "request-too-large")
        assert (w.api.raw, w.minter.asked) == ([], [])
        code = await w.connect()
        await code.send(head + b"5\r\nhello\r\n")
        await w.api.until(lambda api: b"hello" in api.everything())
        await code.send(b"6\r\n world\r\n0\r\n\r\n")
        reply = await code.reply()
        assert (reply.status, reply.code, reply.problem["limit"]) == (413, "request-too-large", 10)
        await w.api.until(lambda api: api.gone == 1)
        assert w.api.requests == []
        assert b"world" not in w.api.everything()
        assert not w.api.everything().endswith(b"0\r\n\r\n")
        assert [(row["status"], row["delivered"]) for row in w.rows] == [(413, False), (413, True)]
        code.writer.close()


async def test_a_lease_that_comes_near_its_end_while_the_code_begins_its_body_is_not_used(w: World):
    await w.watch()
    await w.call("GET", "/v1/items")
    code = await w.connect()
    await code.send(w.request("POST", "/v1/items", {"Transfer-Encoding": "chunked"}))
    await eventually(lambda: len(w.open_calls))
    w.clock.advance(880)
    await code.send(b"5\r\nhello\r\n0\r\n\r\n")
    assert (await code.reply()).status == 200
    assert len(w.minter.asked) == 2
    code.writer.close()


@pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked", b"Content-Length: 20"])
async def test_a_body_that_the_code_breaks_off_never_becomes_a_complete_request(w: World, framing):
    code = await w.connect()
    head = w.request("POST", "/v1/items").replace(b"\r\n\r\n", b"\r\n" + framing + b"\r\n\r\n")
    await code.send(head + b"5\r\nhello\r\n")
    await w.api.until(lambda api: b"hello" in api.everything())
    code.writer.close()
    await w.api.until(lambda api: api.gone == 1)
    assert w.api.requests == []
    assert not w.api.everything().endswith(b"0\r\n\r\n")
    await w.settled()
    assert w.rows[0]["status"] == 0


async def test_an_answer_that_comes_before_the_body_ends_is_handed_on_and_its_connection_not_used_again(w: World):
    async def early(_request, writer):
        writer.write(b"HTTP/1.1 413 Too much\r\nContent-Length: 2\r\n\r\nno")

    w.api.on_head = early
    code = await w.connect()
    head = w.request("POST", "/v1/items").replace(b"\r\n\r\n", b"\r\nContent-Length: 20\r\n\r\n")
    await code.send(head + b"hello")
    reply = await code.reply()
    assert (reply.status, reply.body) == (413, b"no")
    await w.api.until(lambda api: api.gone == 1)
    assert w.api.requests == []
    code.writer.close()


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_body_where_an_api_may_overlook_it_cannot_become_the_next_request(w: World, method):
    """An API that does not read a GET's body would take it for the next request on the connection, another run's."""
    smuggled = b"GET /v1/admin HTTP/1.1\r\nHost: x\r\n\r\n"
    assert (await w.call(method, "/v1/items/7", body=smuggled)).status == 200
    assert (await w.call("GET", "/v1/items")).status == 200
    assert [len(raw) > 0 for raw in w.api.raw] == [True, True]
    assert w.api.requests[0].body == smuggled


async def test_hundreds_of_calls_on_one_connection_work_56(tmp_path):
    async with world(tmp_path, max_calls=300) as w:
        code = await w.connect()
        for _ in range(200):
            await code.send(w.request("GET", "/v1/items"))
            assert (await code.reply()).status == 200
        code.writer.close()
        assert len(w.api.raw) == 1


# --- from the API to the code ---


async def test_events_are_seen_as_they_are_sent_50(w: World):
    seen = asyncio.Event()

    async def events(_request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(5):
            seen.clear()
            writer.write(b"9\r\ndata: %d\n\n\r\n" % number)
            await seen.wait()
        writer.write(b"0\r\n\r\n")

    w.api.answer = events
    code = await w.connect()
    await code.send(w.request("GET", "/v1/items"))
    head = await code.head()
    assert head.header("content-type") == "Text/Event-Stream"
    for number in range(5):
        assert await code.chunk() == b"data: %d\n\n" % number
        seen.set()
    assert await code.chunk() == b""
    code.writer.close()


async def test_an_answer_waits_while_the_code_does_not_read(tmp_path):
    """Sixteen mebibytes do not pile up here when nobody takes them."""
    async with world(tmp_path, max_response="32MiB") as w:
        sent = 0

        async def flood(_request, writer):
            nonlocal sent
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 16777216\r\n\r\n")
            for _ in range(256):
                writer.write(bytes(65536))
                await writer.drain()
                sent += 65536

        w.api.answer = flood
        code = await w.connect()
        await code.send(w.request("GET", "/v1/items"))
        await code.reader.readuntil(b"\r\n\r\n")
        before = -1
        while sent != before:
            before = sent
            await turns()
        assert 0 < sent < 12 * 1024 * 1024
        assert len(await code.reader.readexactly(16777216)) == 16777216
        code.writer.close()


async def test_head_keeps_the_length_and_has_no_body_52(w: World):
    w.api.says(b"HTTP/1.1 200 OK\r\nContent-Length: 1488324\r\nContent-Type: a/b\r\n\r\n")
    code = await w.connect()
    for _ in range(2):
        await code.send(w.request("HEAD", "/v1/items"))
        reply = await code.reply(head=True)
        assert (reply.status, reply.header("content-length")) == (200, "1488324")
    assert len(w.api.raw) == 1
    code.writer.close()


@pytest.mark.parametrize(
    ("answer", "status", "length"),
    [
        (b"HTTP/1.1 204 No\r\n\r\n", 204, None),
        (b"HTTP/1.1 304 Not\r\nETag: x\r\nContent-Length: 9\r\n\r\n", 304, "9"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, "0"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: </a>\r\n\r\nHTTP/1.1 204 No\r\n\r\n", 204, None),
    ],
)
async def test_answers_without_a_body_leave_the_connection_whole(w: World, answer, status, length):
    w.api.says(answer)
    code = await w.connect()
    for _ in range(2):
        await code.send(w.request("GET", "/v1/items"))
        reply = await code.reply()
        assert (reply.status, reply.header("content-length"), reply.body) == (status, length, b"")
    assert len(w.api.raw) == 1
    code.writer.close()


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_a_body_that_ends_with_the_connection_is_handed_on_whole(w: World, version):
    w.api.says(b"HTTP/" + version + b" 200 OK\r\n\r\nall of it", then_close=True)
    reply = await w.call("GET", "/v1/items")
    assert (reply.status, reply.body) == (200, b"all of it")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n5\r\nhel",
    ],
)
async def test_an_answer_that_breaks_off_is_cut_so_that_the_code_notices(w: World, answer, capfd):
    w.api.says(answer, then_close=True)
    code = await w.connect()
    await code.send(w.request("GET", "/v1/items"))
    await broken(code)
    await w.settled()
    assert "unexpected-error" not in "".join(capfd.readouterr())
    assert [(row["status"], row["delivered"]) for row in w.rows] == [(200, True)]
    assert len(w.api.requests) == 1


@pytest.mark.parametrize(("method", "sent"), [("GET", 2), ("HEAD", 2), ("DELETE", 1), ("POST", 1)])
async def test_a_call_on_a_connection_that_had_carried_one_is_sent_again_once_if_it_changes_nothing(
    w: World, method, sent
):
    target = "/v1/items/7" if method == "DELETE" else "/v1/items"
    assert (await w.call(method, target)).status == 200
    w.api.says(b"", then_close=True)
    code = await w.connect()
    await code.send(w.request(method, target))
    reply = await code.reply(head=method == "HEAD")
    assert reply.status == 502
    if method != "HEAD":
        assert reply.code == "upstream-broke-off"
    assert len(w.api.requests) == 1 + sent
    assert (w.rows[1]["status"], w.rows[1]["delivered"]) == (502, True)
    code.writer.close()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_call_on_a_connection_of_its_own_is_sent_once(w: World, method):
    w.api.says(b"", then_close=True)
    assert (await w.call(method, "/v1/items")).status == 502
    assert len(w.api.requests) == 1


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_call_of_whose_answer_one_byte_came_is_sent_once(w: World, method):
    assert (await w.call(method, "/v1/items")).status == 200
    w.api.says(b"H", then_close=True)
    assert (await w.call(method, "/v1/items")).status == 502
    assert len(w.api.requests) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 700 What\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 099 What\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 000 What\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nETag: " + b"x" * 40_000 + b"\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-A: 1\r\n" * 300 + b"Content-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nETag: a\x07b\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_an_answer_that_is_nonsense_is_502_and_says_nothing_of_it(w: World, answer):
    w.api.says(answer)
    reply = await w.call("GET", "/v1/items")
    assert (reply.status, reply.code) == (502, "upstream-malformed")
    assert b"What" not in reply.body
    assert len(w.api.requests) == 1
    w.api.says(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert (await w.call("GET", "/v1/items")).status == 200


async def test_an_answer_that_nobody_asked_for_is_not_given_to_the_next_call(w: World):
    async def twice(_request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst")
        await turns()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")

    w.api.answer = twice
    assert (await w.call("GET", "/v1/items")).body == b"first"
    w.api.says(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext")
    await turns()
    reply = await w.call("GET", "/v1/items")
    assert reply.body == b"next"
    assert len(w.api.raw) == 2


async def test_an_answer_longer_than_allowed_is_refused_before_it_begins_or_cut_while_it_runs(tmp_path):
    async with world(tmp_path, max_response=10) as w:
        w.api.says(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world")
        reply = await w.call("GET", "/v1/items")
        assert (reply.status, reply.code, reply.problem["limit"]) == (502, "response-too-large", 10)
        w.api.says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nhello world\r\n0\r\n\r\n")
        assert (await w.call("GET", "/v1/items")).code == "response-too-large"

        go_on = asyncio.Event()

        async def in_two(_request, writer):
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nh\n\r\n")
            await go_on.wait()
            writer.write(b"9\r\nllo world\r\n0\r\n\r\n")

        w.api.answer = in_two
        code = await w.connect()
        await code.send(w.request("GET", "/v1/items"))
        assert (await code.head()).status == 200
        go_on.set()
        assert not (await code.rest()).endswith(b"0\r\n\r\n")
        w.api.says(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world")
        assert (await w.call("HEAD", "/v1/items")).header("content-length") == "11"
        w.api.says(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello worl")
        assert (await w.call("GET", "/v1/items")).body == b"hello worl"


# --- going away, taking too long ---


async def test_a_code_that_goes_away_ends_the_call_to_the_api(w: World):
    """Before the answer's head: the API waits for nobody."""
    stuck = asyncio.Event()

    async def never(_request, _writer):
        await stuck.wait()

    w.api.answer = never
    code = await w.connect()
    await code.send(w.request("GET", "/v1/items"))
    await w.api.until(lambda api: len(api.requests) == 1)
    w.clock.advance(0.3)
    w.open_calls.sweep()
    code.writer.close()
    await w.settled()
    assert [(row["status"], row["delivered"]) for row in w.rows] == [(0, True)]
    assert w.run.profiles["api"].in_flight == 0


async def test_a_code_that_goes_away_in_the_middle_of_an_answer_ends_the_call_to_the_api(w: World):
    async def endless(_request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"2\r\nhi\r\n")
            await writer.drain()
            await turns()

    w.api.answer = endless
    code = await w.connect()
    await code.send(w.request("GET", "/v1/items"))
    assert (await code.head()).status == 200
    code.writer.close()
    await w.api.until(lambda api: api.gone == 1)
    await w.settled()


async def test_an_api_that_does_not_answer_in_time_is_504(w: World):
    stuck = asyncio.Event()

    async def never(_request, _writer):
        await stuck.wait()

    w.api.answer = never
    call = asyncio.create_task(w.call("GET", "/v1/items"))
    await w.api.until(lambda api: len(api.requests) == 1)
    w.clock.advance(60)
    w.open_calls.sweep()
    assert not call.done()
    w.clock.advance(0.5)
    w.open_calls.sweep()
    reply = await call
    assert (reply.status, reply.code) == (504, "upstream-timeout")


async def test_a_call_after_the_machine_slept_is_not_cut_for_the_time_that_it_slept(w: World):
    """The boot clock goes on in a suspended machine, and a call may come before anybody has looked at it again."""
    awake = asyncio.Event()

    async def later(_request, writer):
        await awake.wait()
        writer.write(OK)

    w.api.answer = later
    w.clock.advance(600)
    call = asyncio.create_task(w.call("GET", "/v1/items"))
    await w.api.until(lambda api: len(api.requests) == 1)
    w.open_calls.sweep()
    awake.set()
    assert (await call).status == 200


async def test_a_long_upload_is_not_taken_for_a_silent_api(w: World):
    code = await w.connect()
    await code.send(w.request("POST", "/v1/items").replace(b"\r\n\r\n", b"\r\nContent-Length: 10\r\n\r\n"))
    for number in range(5):
        await code.send(b"ab")
        await eventually(
            lambda number=number: (w.run.open_calls and _open(w).bytes_sent == 2 * number + 2) or number == 4
        )
        w.clock.advance(50)
        w.open_calls.sweep()
    assert (await code.reply()).status == 200
    assert w.api.requests[0].body == b"ababababab"


def _open(w: World):
    [call] = w.run.open_calls
    return call


async def test_an_upload_that_the_api_does_not_take_is_504(tmp_path):
    async with world(tmp_path, max_request="64MiB") as w:
        stuck = asyncio.Event()

        async def stall(_request, _writer):
            await stuck.wait()

        w.api.on_head = stall
        code = await w.connect()
        await code.send(w.request("POST", "/v1/items").replace(b"\r\n\r\n", b"\r\nContent-Length: 50000000\r\n\r\n"))
        sending = asyncio.create_task(code.send(bytes(50_000_000)))
        await w.api.until(lambda api: len(api.raw) == 1)
        before = -1
        while _open(w).bytes_sent != before:
            before = _open(w).bytes_sent
            await turns()
        w.open_calls.sweep()
        w.clock.advance(61)
        w.open_calls.sweep()
        assert (await code.head()).status == 504
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        stuck.set()


async def test_an_answer_that_pauses_for_too_long_is_cut(unscrubbed: World):
    w = unscrubbed
    stuck = asyncio.Event()

    async def stall(_request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe")
        await stuck.wait()

    w.api.answer = stall
    code = await w.connect()
    await code.send(w.request("GET", "/v1/items"))
    assert (await code.head()).status == 200
    await eventually(lambda: _open(w).bytes_back == 2)
    w.open_calls.sweep()
    w.clock.advance(301)
    w.open_calls.sweep()
    assert await code.rest() == b"he"


async def test_an_api_that_is_not_there_is_502_and_not_delivered_61(w: World):
    token = w.open_run({"api": profile("http://127.0.0.1:9")})
    reply = await w.call("GET", "/v1/items", {"Authorization": f"Bearer {token}"}, token=False)
    assert (reply.status, reply.code) == (502, "upstream-unreachable")
    run = list(w.runs.values())[-1]
    [row] = run.trace.kept.rows
    assert (row.status, row.delivered) == (502, False)


async def test_the_end_of_a_run_cuts_its_open_calls(unscrubbed: World):
    w = unscrubbed
    stuck = asyncio.Event()

    async def stall(request, writer):
        if request.line.startswith(b"POST"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe")
        await stuck.wait()

    w.api.answer = stall
    waiting, reading = await w.connect(), await w.connect()
    await waiting.send(w.request("GET", "/v1/items"))
    await reading.send(w.request("POST", "/v1/items", body=b"x"))
    assert (await reading.head()).status == 200
    await w.api.until(lambda api: len(api.requests) == 2)
    w.run.end("by-operator")
    assert (await waiting.reply()).code == "run-token-invalid"
    assert await reading.rest() == b"he"
    await w.api.until(lambda api: api.gone == 2)
    assert (await w.call("GET", "/v1/items")).code == "run-token-invalid"


async def test_a_call_that_the_end_of_the_broker_cuts_is_in_the_trace_as_the_code_saw_it(w: World):
    async def never(_request: object, _writer: object) -> None:
        await asyncio.Event().wait()

    w.api.answer = never
    code = await w.connect()
    await code.send(w.request())
    await w.api.until(lambda api: api.requests)
    [call] = w.run.open_calls
    call.asking.shut_down()  # as the server does once the time for draining is over
    reply = await code.reply()
    assert (reply.status, reply.code) == (503, "shutting-down")
    assert [(row["status"], row["delivered"]) for row in w.rows] == [(503, True)]
