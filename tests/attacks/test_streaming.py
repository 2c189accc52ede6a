"""Bodies pass as they come, both ways: nothing waits for an end, nothing piles up, and who goes away is let go."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
import zlib
from pathlib import Path

import pytest

from tests.attacks.house import serving
from tests.worlds.outcomes import asking, call, until
from tests.worlds.rule_breaker import says

pytestmark = pytest.mark.flow

LIVE = "/v1/items/live"
ROUTES = ["GET /v1/items/*", "POST /v1/items/*"]
MIB = 1 << 20
#: What the kernel holds for the broker between a sender and a reader that does not read.
KERNEL = sum(int(Path(f"/proc/sys/net/ipv4/tcp_{kind}mem").read_text().split()[2]) for kind in "rw")
PROFILES = ["masked", "plain"]


@pytest.fixture(scope="module")
def _house(tmp_path_factory, running):
    at = {"base_url": running.origin, "allow": ROUTES, "max_calls": 10_000}
    large = {**at, "max_request": "1GiB", "max_response": "1GiB"}
    profiles = {
        "masked": {**large, "scrub": "mask"},
        "plain": {**large, "scrub": "off"},
        "single": {**at, "max_concurrent": 1},
        "many": {**at, "max_concurrent": 100},
    }
    with serving(tmp_path_factory.mktemp("streaming"), profiles, broker_extra="max_runs = 1000") as made:
        yield made


@pytest.fixture
def house(_house, running):
    running.forget()
    return _house


def resident(house) -> int:
    status = Path(f"/proc/{house.processes['broker'].pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def descriptors(house) -> int:
    return len(list(Path(f"/proc/{house.processes['broker'].pid}/fd").iterdir()))


def send_until_stuck(sock: socket.socket, most: int) -> int:
    """Send until nobody has taken a byte for a second; return how many were taken."""
    sock.settimeout(1.0)
    piece, sent = bytes(MIB), 0
    with contextlib.suppress(TimeoutError):
        while sent < most:
            sent += sock.send(piece)
    sock.settimeout(20)
    return sent


# --- nothing waits ---


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("framing", ["Transfer-Encoding: chunked", "Content-Length: 11"])
def test_the_first_piece_of_an_upload_arrives_before_the_last_is_sent(house, api, framing, profile):
    arrived = threading.Event()
    pieces = [b"5\r\nhello\r\n", b"6\r\n world\r\n0\r\n\r\n"] if "chunked" in framing else [b"hello", b" world"]

    def read(peer, _request):
        begin = peer.exactly(len(pieces[0]))
        assert begin == pieces[0]
        arrived.set()
        assert peer.exactly(len(pieces[1])) == pieces[1]
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")

    api.on_head(LIVE.encode(), read)
    run = house.open_run(profile)
    with asking(house, house.head(run, profile, "POST", LIVE, framing) + b"\r\n" + pieces[0]) as sock:
        assert arrived.wait(10)
        sock.sendall(pieces[1])
        assert until(sock, b"\r\n\r\ndone").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("framing", ["chunks", "length", "close"])
def test_the_first_line_of_an_answer_arrives_before_the_last_is_sent(house, api, framing, profile):
    arrived = threading.Event()
    coding = {"chunks": b"Transfer-Encoding: chunked\r\n", "length": b"Content-Length: 12\r\n", "close": b""}[framing]

    def answer(peer, _request):
        wrap = (lambda piece: b"%x\r\n%s\r\n" % (len(piece), piece)) if framing == "chunks" else bytes
        peer.send(b"HTTP/1.1 200 OK\r\n" + coding + b"\r\n" + wrap(b"hello\n"))
        assert arrived.wait(10)
        peer.send(wrap(b"world\n") + (b"0\r\n\r\n" if framing == "chunks" else b""))
        if framing == "close":
            peer.sock.close()

    api.on(LIVE.encode(), answer)
    run = house.open_run(profile)
    with asking(house, house.head(run, profile, "GET", LIVE, "Connection: close") + b"\r\n") as sock:
        until(sock, b"hello\n")
        arrived.set()
        rest = b""
        while piece := sock.recv(65536):
            rest += piece
    assert b"world\n" in rest


def test_an_answer_and_an_upload_pass_each_other(house, api):
    """Each side sends its next piece only when it has the other's."""

    def echo(peer, _request):
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            size = int(peer.line(b"\r\n"), 16)
            piece = peer.exactly(size + 2)
            peer.send(b"%x\r\n%s" % (size, piece))
        assert peer.line(b"0\r\n\r\n")
        peer.send(b"0\r\n\r\n")

    api.on_head(LIVE.encode(), echo)
    run = house.open_run("plain")
    pieces = [b"8\r\npiece %02d\r\n" % number for number in range(20)]
    upload = iter([*pieces[1:], b"0\r\n\r\n"])
    head = house.head(run, "plain", "POST", LIVE, "Transfer-Encoding: chunked") + b"\r\n"
    with asking(house, head + pieces[0]) as sock:
        until(sock, b"\r\n\r\n")
        for piece in pieces:
            assert until(sock, b"\r\n") + until(sock, b"\r\n") == piece
            sock.sendall(next(upload))
        assert until(sock, b"0\r\n\r\n") == b"0\r\n\r\n"


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("line_break", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_events_arrive_within_fifty_milliseconds(house, api, profile, line_break):
    """Forty events ten milliseconds apart, whatever ends their lines. The two slowest may have met a busy machine."""
    sent: list[float] = []

    def events(peer, _request):
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        pause = threading.Event()
        for number in range(40):
            event = b"data: %04d%s" % (number, line_break)
            sent.append(time.perf_counter())
            peer.send(b"%x\r\n%s\r\n" % (len(event), event))
            pause.wait(0.01)
        peer.send(b"0\r\n\r\n")

    api.on(LIVE.encode(), events)
    run = house.open_run(profile)
    took = []
    with asking(house, house.head(run, profile, "GET", LIVE) + b"\r\n") as sock:
        until(sock, b"\r\n\r\n")
        for number in range(40):
            until(sock, b"data: %04d%s" % (number, line_break))
            took.append(time.perf_counter() - sent[number])
    assert sorted(took)[-3] < 0.05, took


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_events_of_a_compressed_stream_are_opened_one_by_one_as_they_are_sent(house, api, coding):
    """An API that compresses whatever it was asked flushes its compressor behind each event; the next waits for it."""
    seen = threading.Semaphore(0)

    def events(peer, _request):
        compressor = zlib.compressobj(wbits=16 + zlib.MAX_WBITS if coding == "gzip" else zlib.MAX_WBITS)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream\r\nContent-Encoding: %s\r\n" % coding.encode()
        peer.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for number in range(20):
            piece = compressor.compress(b"data: %04d\n\n" % number) + compressor.flush(zlib.Z_SYNC_FLUSH)
            peer.send(b"%x\r\n%s\r\n" % (len(piece), piece))
            assert seen.acquire(timeout=10)
        piece = compressor.flush()
        peer.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(piece), piece))

    api.on(LIVE.encode(), events)
    run = house.open_run("masked")
    with asking(house, house.head(run, "masked", "GET", LIVE) + b"\r\n") as sock:
        assert b"content-encoding" not in until(sock, b"\r\n\r\n").lower()
        for number in range(20):
            until(sock, b"data: %04d\n\n\r\n" % number)
            seen.release()
        assert until(sock, b"0\r\n\r\n") == b"0\r\n\r\n"


# --- nothing piles up ---


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_an_answer_waits_at_the_api_while_the_code_does_not_read(house, api, framing, profile):
    size = 64 * MIB
    taken: list[int] = []
    stuck, reading = threading.Event(), threading.Event()

    def flood(peer, _request):
        if framing == "length":
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        else:
            peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % size)
        taken.append(send_until_stuck(peer.sock, size))
        stuck.set()
        assert reading.wait(10)
        for at in range(taken[0], size, MIB):
            peer.send(bytes(min(MIB, size - at)))
        if framing == "chunks":
            peer.send(b"\r\n0\r\n\r\n")

    api.on(LIVE.encode(), flood)
    run = house.open_run(profile)
    before = resident(house)
    version = b"HTTP/1.1" if framing == "length" else b"HTTP/1.0"
    head = house.head(run, profile, "GET", LIVE).replace(b"HTTP/1.1", version)
    with asking(house, head + b"\r\n", buffer=65536) as sock:
        assert until(sock, b"\r\n\r\n").split(b" ")[1] == b"200"
        assert stuck.wait(20)
        assert taken[0] < KERNEL + 4 * MIB
        assert resident(house) - before < 8 * MIB
        reading.set()
        received = 0
        while received < size:
            received += len(sock.recv(min(MIB, size - received)))
        assert resident(house) - before < 8 * MIB


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_an_upload_waits_at_the_code_while_the_api_does_not_read(house, api, framing, profile):
    size = 64 * MIB
    reading, received = threading.Event(), list[int]()

    def slow(peer, _request):
        assert reading.wait(20)
        if framing == "length":
            received.append(len(peer.exactly(size)))
        else:
            while piece := int(peer.line(b"\r\n"), 16):
                received.append(len(peer.exactly(piece + 2)) - 2)
            assert peer.line(b"\r\n") == b"\r\n"
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")

    api.on_head(LIVE.encode(), slow)
    run = house.open_run(profile)
    before = resident(house)
    coding = f"Content-Length: {size}" if framing == "length" else "Transfer-Encoding: chunked"
    with asking(house, house.head(run, profile, "POST", LIVE, coding) + b"\r\n", buffer=65536) as sock:
        if framing == "chunks":
            sock.sendall(b"%x\r\n" % size)
        sent = send_until_stuck(sock, size)
        assert 0 < sent < KERNEL + 4 * MIB
        assert resident(house) - before < 8 * MIB
        reading.set()
        for at in range(sent, size, MIB):
            sock.sendall(bytes(min(MIB, size - at)))
        if framing == "chunks":
            sock.sendall(b"\r\n0\r\n\r\n")
        assert until(sock, b"\r\n\r\ndone").startswith(b"HTTP/1.1 200 ")
    assert sum(received) == size
    assert resident(house) - before < 8 * MIB


# --- who goes away ---


@pytest.mark.parametrize("moment", ["before the head", "after the head", "in the body", "in the upload"])
def test_a_code_that_goes_away_ends_the_call_and_frees_its_place(house, api, moment):
    begun, gone = threading.Event(), threading.Event()

    def answer(peer, _request):
        if moment in ("after the head", "in the body"):
            peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        if moment == "in the body":
            peer.send(b"6\r\nhello\n\r\n")
        begun.set()
        with contextlib.suppress(ConnectionError):
            while peer.sock.recv(65536):
                pass
        gone.set()

    api.on_head(LIVE.encode(), answer)
    run = house.open_run("single")
    if moment == "in the upload":
        data = house.head(run, "single", "POST", LIVE, "Content-Length: 100") + b"\r\nhello"
    else:
        data = house.head(run, "single", "GET", LIVE) + b"\r\n"
    with asking(house, data) as sock:
        assert begun.wait(10)
        if moment == "in the body":
            until(sock, b"hello\n")
        assert call(house, run, "GET", "/v1/items/other", profile="single").status == 429
    assert gone.wait(2)
    house.until(lambda: call(house, run, "GET", "/v1/items/other", profile="single").status == 200, "the place is free")


def test_fifty_streams_that_are_left_leave_no_descriptor(house, api):
    begun = threading.Semaphore(0)

    def stream(peer, _request):
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello\n\r\n")
        begun.release()
        peer.gone()

    api.on(LIVE.encode(), stream)
    run = house.open_run("many")
    before = descriptors(house)
    with contextlib.ExitStack() as left:
        for _ in range(50):
            left.enter_context(asking(house, house.head(run, "many", "GET", LIVE) + b"\r\n"))
            assert begun.acquire(timeout=10)
        assert descriptors(house) >= before + 90
    house.until(lambda: descriptors(house) <= before + 2, "descriptors are free")
    assert call(house, run, "GET", "/v1/items/next", profile="many").status == 200


# --- HTTP/1.0, and 100-continue ---


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_a_code_that_speaks_http_1_0_gets_no_chunks(house, api, connection):
    api.on(LIVE.encode(), says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello\n\r\n0\r\n\r\n"))
    run = house.open_run("plain")
    head = house.head(run, "plain", "GET", LIVE, f"Connection: {connection}").replace(b"HTTP/1.1", b"HTTP/1.0")
    answer, _, body = house.raw(head + b"\r\n").partition(b"\r\n\r\n")
    assert answer.split(b" ")[1] == b"200"
    assert b"transfer-encoding" not in answer.lower()
    assert body == b"hello\n"


def test_an_answer_that_breaks_off_is_a_reset_to_a_code_that_speaks_http_1_0(house, api):
    """Its only sign of the end is the end of the connection: a clean one would say that this was all."""

    def break_off(peer, _request):
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello\n\r\n")
        peer.sock.close()

    api.on(LIVE.encode(), break_off)
    run = house.open_run("plain")
    head = house.head(run, "plain", "GET", LIVE).replace(b"HTTP/1.1", b"HTTP/1.0")
    with asking(house, head + b"\r\n") as sock:
        until(sock, b"hello\n")
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


def test_a_code_that_waits_for_100_continue_is_told_to_go_on_and_may_be_answered_before(house, api):
    api.on_head(LIVE.encode(), says(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno", then_close=True))
    run = house.open_run("plain")
    for target, status in ((LIVE, b"413"), ("/v1/items/good", b"200")):
        head = house.head(run, "plain", "POST", target, "Expect: 100-continue", "Content-Length: 5")
        with asking(house, head + b"\r\n") as sock:
            first = until(sock, b"\r\n\r\n")
            if first.startswith(b"HTTP/1.1 100 "):
                sock.sendall(b"hello")
                first = until(sock, b"\r\n\r\n")
            assert first.split(b" ")[1] == status
    assert api.requests[-1].values(b"expect") == []
