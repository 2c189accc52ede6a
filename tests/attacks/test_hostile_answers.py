"""APIs that answer against the rules of HTTP, or to do harm: what the code sees of it, and what the next call sees.

Each case is a call whose answer is hostile, with a healthy call of the same run behind it: that one must get its own
answer. A call is sent once, but for a bodyless GET or HEAD on a used connection that turned out dead.
"""

from __future__ import annotations

import contextlib
import re
import ssl
import threading
import time
from pathlib import Path

import pytest
import trustme

from tests.attacks.house import serving
from tests.worlds.outcomes import asking, call, until
from tests.worlds.rule_breaker import RuleBreaker, says, whole

pytestmark = pytest.mark.flow

EVIL = "/v1/items/evil"
ROUTES = [f"{method} /v1/items/*" for method in ("GET", "HEAD", "POST", "DELETE")]
#: Short, so that what takes too long is seen to, and long enough for a healthy answer on a busy machine.
TIMEOUT_S = 2.0
MALFORMED, BROKE_OFF, TOO_LARGE, TIMEOUT, CUT = (
    "upstream-malformed",
    "upstream-broke-off",
    "response-too-large",
    "upstream-timeout",
    "cut",
)
MIB = 1 << 20


@pytest.fixture(scope="module")
def lonely():
    """An API that keeps no connection, as nothing that it answers is well."""
    with RuleBreaker() as api:
        yield api


@pytest.fixture(scope="module")
def tls():
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with RuleBreaker(context) as api:
        yield authority, api


@pytest.fixture(scope="module")
def _house(tmp_path_factory, running, lonely, tls):
    authority, tls_api = tls
    root = tmp_path_factory.mktemp("hostile")
    trusted = tmp_path_factory.mktemp("trust") / "ca.pem"
    authority.cert_pem.write_to_path(str(trusted))
    at = {"base_url": running.origin, "allow": ROUTES, "max_calls": 50_000, "response_headers": ["x-many"]}
    profiles = {
        "items": at,
        "plain": {**at, "scrub": "off", "request_headers": ["accept-encoding"]},
        "large": {**at, "max_response": "2GiB"},
        "tls": {**at, "base_url": tls_api.origin},
        "lonely": {**at, "base_url": lonely.origin},
    }
    upstream = (
        f'[upstream]\nheader_timeout = "{TIMEOUT_S:.0f}s"\nidle_timeout = "{TIMEOUT_S:.0f}s"\nca_file = "{trusted}"'
    )
    with serving(root, profiles, broker_extra=f"max_runs = 1000\n{upstream}") as made:
        yield made


@pytest.fixture
def house(_house, running, lonely, tls):
    running.forget()
    lonely.forget()
    tls[1].forget()
    return _house


@pytest.fixture
def run(house):
    return house.open_run("items")


def healthy(house, run, times: int = 2) -> None:
    """Calls after a hostile one get answers of their own."""
    for number in range(times):
        seen = call(house, run, "GET", f"/v1/items/after-{number}")
        assert (seen.status, seen.body, seen.complete) == (200, b"/v1/items/after-%d" % number, True)


def resident(house) -> int:
    """What the broker holds in memory, in bytes."""
    status = Path(f"/proc/{house.processes['broker'].pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def chunked(body: bytes) -> bytes:
    """Return an answer in chunks, from behind its head's first line break."""
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body


# --- what frames an answer ---


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5.0\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551621\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: \r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked;a=b\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: \x0bchunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
        b"HTTP/1.1 200 OK\r\nX-Many: a\r\n Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding : chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\n: 5\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nETag: a\x00b\r\nContent-Length: 5\r\n\r\nhello",
    ],
    ids=lambda head: head.split(b"\r\n\r\n")[0][17:].decode("latin-1"),
)
def test_an_answer_that_ends_in_two_places_or_in_none_is_502(house, api, run, head):
    api.on(EVIL.encode(), says(head, then_close=True))
    seen = call(house, run, "GET", EVIL)
    assert (seen.status, seen.code) == (502, MALFORMED)
    assert api.count(EVIL.encode()) == 1
    healthy(house, run)


@pytest.mark.parametrize(
    "line",
    [
        b"HTTP/0.9 200 OK",
        b"HTTP/1.2 200 OK",
        b"HTTP/2.0 200 OK",
        b"HTTP/2 200 OK",
        b"HTTP/3 200 OK",
        b"HTTP/1 200 OK",
        b"HTTP/11 200 OK",
        b"HTTP/1.1200 OK",
        b"http/1.1 200 OK",
        b"HTTPS/1.1 200 OK",
        b"ICY 200 OK",
        b"RTSP/1.0 200 OK",
        b"SSH-2.0-OpenSSH_9.9",
        b"GET / HTTP/1.1",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 99 OK",
        b"HTTP/1.1 000 OK",
        b"HTTP/1.1 101 Switching Protocols",
        b"HTTP/1.1 600 OK",
        b"HTTP/1.1 999 OK",
        b"HTTP/1.1 1000 OK",
        b"HTTP/1.1 2000 OK",
        b"HTTP/1.1 -200 OK",
        b"HTTP/1.1 +200 OK",
        b"HTTP/1.1 2x0 OK",
        b"HTTP/1.1 OK",
        b"HTTP/1.1",
        b"\x00\x01\x02\x03",
        b"\x16\x03\x01\x02\x00",
        b"<html>hello</html>",
    ],
)
def test_an_answer_of_another_version_or_status_than_there_is_is_502(house, api, run, line):
    api.on(EVIL.encode(), says(line + b"\r\nContent-Length: 5\r\n\r\nhello", then_close=True))
    seen = call(house, run, "GET", EVIL)
    assert (seen.status, seen.code) == (502, MALFORMED)
    assert api.count(EVIL.encode()) == 1
    healthy(house, run)


def test_an_interim_answer_of_an_unknown_status_is_never_the_answer(house, api, run):
    api.on(EVIL.encode(), says(b"HTTP/1.1 199 What\r\nContent-Length: 5\r\n\r\nhello", then_close=True))
    seen = call(house, run, "GET", EVIL)
    assert seen.status == 502
    assert seen.code in (MALFORMED, BROKE_OFF)
    healthy(house, run)


@pytest.mark.parametrize("status", [b"200", b"204", b"304", b"404", b"500", b"599"])
def test_bytes_behind_an_answer_reach_no_call(house, api, run, status):
    """Longer than it says, or with a body where there is none: the rest would be the next call's answer."""
    empty = b"" if status in (b"204", b"304") else b"Content-Length: 2\r\n"
    body = b"" if status in (b"204", b"304") else b"ok"
    stray = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray"
    api.on(EVIL.encode(), says(b"HTTP/1.1 %s X\r\n%s\r\n%s%s" % (status, empty, body, stray)))
    for _ in range(3):
        seen = call(house, run, "GET", EVIL)
        assert (seen.status, seen.body, seen.complete) == (int(status), body, True)
        healthy(house, run)
    assert len(api.carriers) == 4  # one for each hostile answer, which the calls before it had used


@pytest.mark.parametrize("status", [b"204", b"304"])
def test_a_length_where_there_is_no_body_is_not_waited_for_and_its_bytes_reach_no_call(house, api, run, status):
    api.on(EVIL.encode(), says(b"HTTP/1.1 %s X\r\nContent-Length: 5\r\n\r\nhello" % status))
    for _ in range(2):
        seen = call(house, run, "GET", EVIL)
        assert (seen.status, seen.body, seen.complete) == (int(status), b"", True)
        assert seen.values("content-length") == ([] if status == b"204" else ["5"])  # RFC 9110 section 8.6
        healthy(house, run)


def test_an_answer_to_a_head_with_a_body_is_read_as_one_without(house, api, run):
    api.on(EVIL.encode(), says(whole(b"a body that no HEAD has")))
    seen = call(house, run, "HEAD", EVIL)
    assert (seen.status, seen.values("content-length"), seen.body) == (200, ["23"], b"")
    healthy(house, run)


def test_a_get_behind_a_head_on_the_same_connection_has_its_body(house, api, run):
    api.on(EVIL.encode(), says(b"HTTP/1.1 200 OK\r\nContent-Length: 1488324\r\n\r\n"))
    for number in range(3):
        assert call(house, run, "HEAD", EVIL).values("content-length") == ["1488324"]
        target = f"/v1/items/get-{number}"
        assert call(house, run, "GET", target).body == target.encode()
    assert len(api.carriers) == 1
    api.on(b"/v1/items/chunks", says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"))
    assert call(house, run, "HEAD", "/v1/items/chunks").status == 200
    healthy(house, run)


# --- chunks ---


@pytest.mark.parametrize(
    "body",
    [
        b"x\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"5_0\r\nhello\r\n0\r\n\r\n",
        b"\r\nhello\r\n0\r\n\r\n",
        b";a=b\r\nhello\r\n0\r\n\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"5\rXhello\r\n0\r\n\r\n",
        b"5\x00\r\nhello\r\n0\r\n\r\n",
        b"5;a=\x00\r\nhello\r\n0\r\n\r\n",
        b"10000000000000005\r\nhello\r\n0\r\n\r\n",
        b"FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_a_chunk_whose_size_is_none_yields_no_body(house, api, run, body):
    """The status is there before the chunk is: the code sees that the answer broke off, or a 502."""
    api.on(EVIL.encode(), says(chunked(body), then_close=True))
    seen = call(house, run, "GET", EVIL)
    assert seen.code in (CUT, MALFORMED)
    assert b"hello" not in seen.body
    healthy(house, run)


@pytest.mark.parametrize(
    "body",
    [
        b"5\r\nhelloXX0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"5\r\nhello world\r\n0\r\n\r\n",
        b"6\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\r\nFFFFFFFFFFFFFFFF\r\nmore",
        b"5\r\nhello\r\n7FFFFFFFFFFFFFFF\r\nmore",
        b"5\r\nhello\r\n10000000000000000\r\nmore\r\n0\r\n\r\n",
        b"5\r\nhello\r\n0\r\nTrailer\r\n\r\n",
        b"5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n",
        b"5\r\nhello\r\n0\r\n",
        b"5\r\nhello\r\n0",
        b"5\r\nhello\r\n",
        b"5\r\nhello",
        b"5\r\nhel",
    ],
)
def test_chunks_that_end_badly_are_never_a_complete_answer(house, api, run, body):
    api.on(EVIL.encode(), says(chunked(body), then_close=True))
    seen = call(house, run, "GET", EVIL)
    assert seen.code in (CUT, MALFORMED)
    assert b"world" not in seen.body
    healthy(house, run)


@pytest.mark.parametrize(
    "body",
    [
        b"5;name=value\r\nhello\r\n0;x\r\n\r\n",
        b'5;a="b c"\r\nhello\r\n0\r\n\r\n',
        b"00000005\r\nhello\r\n000\r\n\r\n",
        b"5\r\nhello\r\n0\r\nX-Many: trailer\r\nSet-Cookie: a=b\r\nETag: c\r\n\r\n",
        b"5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_extensions_and_trailers_are_read_over_and_dropped(house, api, run, body):
    api.on(EVIL.encode(), says(chunked(body)))
    run_head = house.head(run, "items", "GET", EVIL, "Connection: close")
    received = house.raw(run_head + b"\r\n")
    assert b"hello" in received
    for word in (b"name", b"railer", b"ookie", b"X-Many"):
        assert word not in received
    healthy(house, run)
    assert len(api.carriers) == 1


ANSWERS = {
    "length": b"HTTP/1.1 200 OK\r\nX-Many: a\r\nContent-Length: 11\r\n\r\nhello world",
    "chunks": chunked(b'5;a="b"\r\nhello\r\n6\r\n world\r\n0\r\nX-Trailer: t\r\n\r\n'),
    "interim": b"HTTP/1.1 103 Early\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world",
}


@pytest.mark.parametrize("framing", ANSWERS)
def test_an_answer_means_the_same_wherever_it_is_cut_into_segments(house, api, run, framing):
    data = ANSWERS[framing]
    with house.connection() as connection:
        for at in range(1, len(data)):
            target = f"{EVIL}-{at}"
            api.on(target.encode(), lambda peer, _request, at=at: peer.drip(data, at))
            headers = {"Authorization": f"Bearer {run.token}"}
            connection.request("GET", f"/p/items{target}", headers=headers)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"hello world"), at


@pytest.mark.parametrize("end", ["FIN", "RST"])
@pytest.mark.parametrize("framing", ANSWERS)
def test_an_answer_that_ends_at_any_byte_is_whole_or_seen_to_be_cut(house, api, run, framing, end):
    data = ANSWERS[framing]
    for at in range(len(data) + 1):
        target = f"{EVIL}-{at}"

        def sudden(peer, _request, at=at):
            peer.send(data[:at])
            peer.reset() if end == "RST" else peer.sock.close()

        api.on(target.encode(), sudden)
        seen = call(house, run, "POST", target, body=b"x")
        if seen.complete and seen.status == 200:
            # What a reset takes with it depends on who was faster.
            assert seen.body == b"hello world", at
            assert at == len(data)
        else:
            assert seen.code in (CUT, BROKE_OFF), (at, seen)
            assert b"hello world".startswith(seen.body) or seen.code != CUT
            assert at < len(data) or end == "RST", at
        assert api.count(target.encode()) == 1
    healthy(house, run)


def test_a_body_that_ends_with_the_connection_ends_anywhere_but_not_with_a_reset(house, api, run):
    head = b"HTTP/1.1 200 OK\r\nX-Many: a\r\n\r\n"
    for at in range(len(head + b"hello") + 1):
        target = f"{EVIL}-{at}"
        api.on(target.encode(), says((head + b"hello")[:at], then_close=True))
        seen = call(house, run, "POST", target, body=b"x")
        if at < len(head):
            assert (seen.status, seen.code) == (502, BROKE_OFF), at
        else:
            assert (seen.status, seen.body, seen.complete) == (200, b"hello"[: at - len(head)], True), at
    seen_body = threading.Event()

    def reset(peer, _request):
        peer.send(head + b"hello\n")
        assert seen_body.wait(10)
        peer.reset()

    api.on(b"/v1/items/reset", reset)
    with asking(house, house.head(run, "items", "GET", "/v1/items/reset") + b"\r\n") as sock:
        until(sock, b"hello\n\r\n")
        seen_body.set()
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(100) == b""  # no last chunk
    healthy(house, run)


# --- too much, too slow ---


def test_a_gibibyte_that_is_announced_is_refused_and_not_read(house, api, run):
    sent = []

    def flood(peer, _request):
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
        with contextlib.suppress(OSError):
            for _ in range(1024):
                peer.send(bytes(MIB))
                sent.append(MIB)

    api.on(EVIL.encode(), flood)
    before = resident(house)
    seen = call(house, run, "GET", EVIL)
    assert (seen.status, seen.code) == (502, TOO_LARGE)
    healthy(house, run)
    assert sum(sent) < 64 * MIB
    assert resident(house) - before < 16 * MIB


@pytest.mark.parametrize("framing", ["chunks", "close"])
def test_an_answer_without_an_end_is_cut_at_the_limit_in_bounded_memory(house, api, run, framing):
    sent = []

    def flood(peer, _request):
        coding = b"Transfer-Encoding: chunked\r\n" if framing == "chunks" else b""
        peer.send(b"HTTP/1.1 200 OK\r\n" + coding + b"\r\n")
        piece = b"%x\r\n%s\r\n" % (MIB, bytes(MIB)) if framing == "chunks" else bytes(MIB)
        with contextlib.suppress(OSError):
            for _ in range(1024):
                peer.send(piece)
                sent.append(MIB)

    api.on(EVIL.encode(), flood)
    before = resident(house)
    seen = call(house, run, "GET", EVIL)
    assert (seen.status, seen.code) == (200, CUT)
    assert len(seen.body) <= 32 * MIB
    assert sum(sent) < 64 * MIB
    assert resident(house) - before < 16 * MIB
    healthy(house, run)


def test_a_gibibyte_that_is_allowed_passes_in_bounded_memory(house, api):
    run = house.open_run("large")

    def much(peer, _request):
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
        piece = bytes(MIB)
        for _ in range(1024):
            peer.send(piece)

    api.on(EVIL.encode(), much)
    before = resident(house)
    most = received = 0
    buffer = bytearray(4 * MIB)
    with asking(house, house.head(run, "large", "GET", EVIL) + b"\r\n") as sock:
        until(sock, b"\r\n\r\n")
        while received < 1 << 30:
            count = sock.recv_into(buffer)
            assert count
            received += count
            if received % (64 * MIB) < count:
                most = max(most, resident(house))
    assert most - before < 16 * MIB


def never_ending_header(peer):
    while True:
        peer.send(b"x" * 65536)


def never_ending_headers(peer):
    while True:
        peer.send(b"X-Many: 1\r\n" * 6000)


def never_ending_reason(peer):
    peer.send(b" ")
    never_ending_header(peer)


FLOODS = {
    "one header that never ends": (b"HTTP/1.1 200 OK\r\nETag: ", never_ending_header),
    "one name that never ends": (b"HTTP/1.1 200 OK\r\n", never_ending_header),
    "headers that never end": (b"HTTP/1.1 200 OK\r\n", never_ending_headers),
    "a reason that never ends": (b"HTTP/1.1 200", never_ending_reason),
    "a header of 10 MB": (
        b"HTTP/1.1 200 OK\r\nETag: " + b"x" * 10_000_000 + b"\r\nContent-Length: 0\r\n\r\n",
        lambda _: None,
    ),
    "200,000 headers": (
        b"HTTP/1.1 200 OK\r\n" + b"X-Many: 1\r\n" * 200_000 + b"Content-Length: 0\r\n\r\n",
        lambda _: None,
    ),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_head_that_is_too_large_is_cut_as_it_arrives(house, api, run, flood):
    begin, go_on = FLOODS[flood]
    cut = threading.Event()

    def answer(peer, _request):
        try:
            peer.send(begin)
            go_on(peer)
            assert peer.gone()
        except OSError:
            pass
        cut.set()

    api.on(EVIL.encode(), answer)
    before = resident(house)
    seen = call(house, run, "GET", EVIL)
    assert (seen.status, seen.code) == (502, MALFORMED)
    assert cut.wait(10)
    assert resident(house) - before < 16 * MIB
    healthy(house, run)


@pytest.mark.parametrize(
    "piece", [b"5;" + b"x" * 65536, b"5\r\nhello\r\n0\r\n" + b"X-Many: 1\r\n" * 6000], ids=["extension", "trailers"]
)
def test_what_comes_beside_chunks_is_cut_when_it_never_ends(house, api, run, piece):
    """As it arrives, and not only when time is up: each piece of it comes soon after the last."""
    cut = threading.Event()

    def answer(peer, _request):
        with contextlib.suppress(OSError):
            peer.send(chunked(piece))
            peer.drip(piece.rpartition(b"0\r\n")[2] * 1000, 60_000)
            peer.drip(b"x" * 1000, pause_s=TIMEOUT_S / 10)
        cut.set()

    api.on(EVIL.encode(), answer)
    before, began = resident(house), time.monotonic()
    seen = call(house, run, "GET", EVIL)
    assert seen.code in (CUT, MALFORMED)
    assert time.monotonic() - began < TIMEOUT_S
    assert cut.wait(10)
    assert resident(house) - before < 16 * MIB
    healthy(house, run)


@pytest.mark.parametrize("interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nLink: </a>\r\n\r\n"])
def test_interim_answers_that_never_end_are_cut(house, api, run, interim):
    cut = threading.Event()

    def answer(peer, _request):
        with contextlib.suppress(OSError):
            while True:
                peer.send(interim * 1000)
        cut.set()

    api.on(EVIL.encode(), answer)
    before = resident(house)
    seen = call(house, run, "GET", EVIL)
    assert (seen.status, seen.code) in ((502, MALFORMED), (504, TIMEOUT))
    assert cut.wait(10)
    assert resident(house) - before < 16 * MIB
    healthy(house, run)


@pytest.mark.parametrize("interim", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
def test_an_interim_answer_that_nobody_asked_for_is_read_over(house, api, run, interim):
    data = b"HTTP/1.1 %s\r\nLink: </a>\r\nX-Many: early\r\n\r\n" % interim
    api.on(EVIL.encode(), says(data + data + whole(b"hello", b"X-Many: late\r\n")))
    for _ in range(2):
        seen = call(house, run, "GET", EVIL)
        assert (seen.status, seen.body, seen.values("x-many"), seen.values("link")) == (200, b"hello", ["late"], [])
    assert len(api.carriers) == 1


def test_more_interim_answers_than_anybody_sends_are_no_answer(house, api, run):
    for number, status in ((16, 200), (17, 502)):
        api.on(EVIL.encode(), says(b"HTTP/1.1 103 Early\r\n\r\n" * number + whole(b"hello")))
        assert call(house, run, "GET", EVIL).status == status
    healthy(house, run)


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 20", b"HTTP/1.1 200 OK\r\nETag: "])
def test_a_head_that_drips_is_a_504_in_time(house, api, run, begin):
    """Each byte comes well within a pause that is allowed: what counts is when the head is here."""
    cut = threading.Event()

    def drip(peer, _request):
        peer.send(begin)
        with contextlib.suppress(OSError):
            peer.drip(b"HTTP/1.1 200 OK\r\nX-Many: "[len(begin) :] + b"x" * 1000, pause_s=TIMEOUT_S / 20)
        cut.set()

    api.on(EVIL.encode(), drip)
    began = time.monotonic()
    seen = call(house, run, "GET", EVIL)
    assert (seen.status, seen.code) == (504, TIMEOUT)
    assert TIMEOUT_S * 0.9 < time.monotonic() - began < TIMEOUT_S * 4
    assert cut.wait(10)
    healthy(house, run)


def test_a_body_that_pauses_too_long_is_cut_and_one_that_drips_within_the_pause_is_not(house, api, run):
    cut = threading.Event()

    def stop(peer, _request):
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello\n")
        assert peer.gone()
        cut.set()

    api.on(EVIL.encode(), stop)
    seen = call(house, run, "GET", EVIL)
    assert (seen.status, seen.body, seen.code) == (200, b"hello\n", CUT)
    assert cut.wait(10)

    def drip(peer, _request):
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n")
        peer.drip(b"fifteen letters", pause_s=TIMEOUT_S / 5)

    api.on(b"/v1/items/drip", drip)
    assert call(house, run, "GET", "/v1/items/drip").body == b"fifteen letters"


# --- answers at the wrong time ---


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
@pytest.mark.parametrize("framing", ["Content-Length: 20", "Transfer-Encoding: chunked"])
def test_an_answer_before_the_body_was_read_is_handed_on_and_its_connection_not_used_again(
    house, api, run, close, framing
):
    gone = threading.Event()

    def early(peer, _request):
        peer.send(b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n" + close + b"\r\nno")
        if close:
            peer.sock.shutdown(1)
        with contextlib.suppress(ConnectionError):
            while peer.sock.recv(65536):
                pass
        gone.set()

    api.on_head(EVIL.encode(), early)
    data = house.head(run, "items", "POST", EVIL, framing) + b"\r\n" + b"5\r\nhello\r\n"
    with asking(house, data) as sock:
        answer = until(sock, b"\r\n\r\nno")
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert gone.wait(10)
    healthy(house, run)
    assert len(api.carriers) == 2


def test_an_answer_on_an_idle_connection_reaches_no_call(house, api, run):
    unsolicited = threading.Event()
    gone = threading.Event()

    def twice(peer, request):
        peer.send(whole(request.target))
        assert unsolicited.wait(10)
        peer.send(whole(b"unsolicited"))
        assert peer.gone()
        gone.set()

    api.on(EVIL.encode(), twice)
    assert call(house, run, "GET", EVIL).body == EVIL.encode()
    unsolicited.set()
    assert gone.wait(10)
    healthy(house, run)
    assert len(api.carriers) == 2


def test_an_answer_before_the_request_moves_no_answer_to_another_call(house, api, run):
    """It may pass for the answer to the call that the connection was opened for, but what follows reaches nobody."""
    api.greet = lambda peer: peer.send(whole(b"unsolicited"))
    for number in range(20):
        target = f"/v1/items/early-{number}"
        seen = call(house, run, "GET", target)
        assert seen.status == 502 or seen.body in (target.encode(), b"unsolicited"), seen
        assert seen.status != 502 or seen.code in (MALFORMED, BROKE_OFF)


# --- connections that are used again ---


def test_a_connection_that_the_api_ends_is_not_used_again(house, api, run):
    api.on(EVIL.encode(), says(whole(b"hello", b"Connection: close\r\n")))
    for _ in range(3):
        assert call(house, run, "GET", EVIL).body == b"hello"
    assert len(api.carriers) == 3


@pytest.mark.parametrize(
    ("headers", "connections"), [(b"", 3), (b"Connection: keep-alive\r\n", 1), (b"Connection: close\r\n", 3)]
)
def test_a_connection_of_http_1_0_is_used_again_only_when_the_api_says_so(house, api, run, headers, connections):
    api.on(EVIL.encode(), says(whole(b"hello", headers).replace(b"HTTP/1.1", b"HTTP/1.0")))
    for _ in range(3):
        assert call(house, run, "GET", EVIL).body == b"hello"
    assert len(api.carriers) == connections


def dead(data: bytes, end: str):
    """A connection that carries a call, and dies of the next with these bytes of an answer."""

    def script(peer, _request):
        peer.send(data)
        peer.reset() if end == "RST" else peer.sock.close()

    return script


@pytest.mark.parametrize("end", ["FIN", "RST"])
@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("GET", None),
        ("HEAD", None),
        ("GET", b"x"),
        ("HEAD", b"x"),
        ("POST", None),
        ("POST", b"x"),
        ("DELETE", None),
        ("DELETE", b"x"),
    ],
)
def test_a_call_on_a_dead_connection_is_sent_again_once_if_it_can_do_no_harm(house, api, method, body, end):
    """And never a third time."""
    run = house.open_run("items")
    times = 2 if method in ("GET", "HEAD") and body is None else 1
    api.on_head(EVIL.encode(), dead(b"", end))
    healthy(house, run, 1)
    seen = call(house, run, method, EVIL, body=body)
    assert seen.status == 502
    assert method == "HEAD" or seen.code == BROKE_OFF
    assert api.count(EVIL.encode()) == times
    [_, row] = house.trace(run)["trace"]["rows"]
    assert (row["status"], row["delivered"]) == (502, True)
    assert house.trace(run)["trace"]["dropped"] == 0
    healthy(house, run)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_second_time_the_call_is_answered(house, api, run, method):
    carriers = set()

    def once(peer, _request):
        first = not carriers
        carriers.add(peer)  # before the code can see that anything happened
        if first:
            peer.sock.close()
        else:
            peer.send(whole(b"hello" if method == "GET" else b""))

    api.on(EVIL.encode(), once)
    healthy(house, run, 1)
    seen = call(house, run, method, EVIL)
    assert (seen.status, seen.complete) == (200, True)
    assert len(carriers) == api.count(EVIL.encode()) == 2
    assert len(house.trace(run)["trace"]["rows"]) == 2


@pytest.mark.parametrize("begin", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b"\r\n"])
def test_a_call_of_which_one_byte_was_answered_is_not_sent_again(house, api, run, begin):
    api.on(EVIL.encode(), dead(begin, "FIN"))
    healthy(house, run, 1)
    seen = call(house, run, "GET", EVIL)
    assert seen.status == 502
    assert seen.code in (BROKE_OFF, MALFORMED)
    assert api.count(EVIL.encode()) == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_a_call_on_a_new_connection_is_sent_once(house, lonely, method):
    run = house.open_run("lonely")
    lonely.on(EVIL.encode(), dead(b"", "FIN"))
    assert call(house, run, method, EVIL, profile="lonely").status == 502
    assert lonely.count(EVIL.encode()) == 1


def test_repeated_headers_stay_repeated_and_in_order(house, api, run):
    many = b"X-Many: a\r\nX-Many: b, c\r\nx-many: d\r\n"
    api.on(EVIL.encode(), says(whole(b"hello", many, b"X-Other: e\r\n")))
    seen = call(house, run, "GET", EVIL)
    assert seen.values("x-many") == ["a", "b, c", "d"]
    assert seen.values("x-other") == []


# --- TLS ---


@pytest.mark.parametrize("framing", ["close", "Content-Length: 5", "Content-Length: 11", "Transfer-Encoding: chunked"])
def test_without_the_end_of_tls_a_body_that_ends_with_the_connection_broke_off(house, tls, framing):
    """Whoever sits on the way can end a TCP connection, and cannot forge the close_notify of TLS."""
    _, api = tls
    run = house.open_run("tls")
    coding = b"" if framing == "close" else framing.encode() + b"\r\n"
    body = b"5\r\nhello\r\n" if "chunked" in framing else b"hello"
    api.on(EVIL.encode(), says(b"HTTP/1.1 200 OK\r\n" + coding + b"\r\n" + body, then_close=True))
    seen = call(house, run, "GET", EVIL, profile="tls")
    if framing == "Content-Length: 5":
        assert (seen.status, seen.body, seen.complete) == (200, b"hello", True)
    else:
        assert seen.code in (CUT, BROKE_OFF)

    def properly(peer, _request):
        peer.send(b"HTTP/1.1 200 OK\r\n\r\nhello")
        peer.sock.unwrap()

    api.on(b"/v1/items/proper", properly)
    seen = call(house, run, "GET", "/v1/items/proper", profile="tls")
    assert (seen.status, seen.body, seen.complete) == (200, b"hello", True)
