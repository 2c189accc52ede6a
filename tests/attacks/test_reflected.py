"""APIs that send the credential back: facts/peers.md section 3, cases 27, 28, 30 and I4, and compressed bodies.

Each case runs with ``off`` too: there the credential does come back, so that a case that sent none would be seen.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import html
import json
import re
import threading
import zlib
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.attacks.house import serving
from tests.worlds.outcomes import asking, call, until
from tests.worlds.rule_breaker import says, whole
from tests.worlds.service import CANARY

pytestmark = pytest.mark.flow

EVIL = "/v1/items/evil"
#: What every encoder has something to do with.
ODD = 'se"cr\\et/<&>+=%~ key-0123456789'
SHORT = "ab12xyz"
MIB = 1 << 20
SECRETS = {"api": CANARY, "odd": ODD, "short": SHORT}


@pytest.fixture(scope="module")
def _house(tmp_path_factory, running):
    at = {
        "base_url": running.origin,
        "allow": ["GET /v1/items/*", "POST /v1/items/*", "HEAD /v1/items/*"],
        "max_calls": 50_000,
        "response_headers": ["x-many", "location"],
        "request_headers": ["accept-encoding"],
    }
    header = {"scheme": "header", "name": "x-goog-api-key"}
    profiles = {}
    for mode in ("mask", "refuse", "off"):
        profiles[mode] = {**at, "scrub": mode}
        profiles[f"odd-{mode}"] = {**at, "scrub": mode, "token": {"type": "static", "key": "odd"}, "placement": header}
        profiles[f"short-{mode}"] = {**at, "scrub": mode, "token": {"type": "static", "key": "short"}}
        profiles[f"basic-{mode}"] = {**at, "scrub": mode, "placement": {"scheme": "basic", "user": "x-access-token"}}
    profiles["default"] = at
    profiles["tight"] = {**at, "max_response": 1000}
    profiles["tight-off"] = {**at, "max_response": 1000, "scrub": "off"}
    extra = "\n".join(f'[keys.{name}]\nsource = "file:secrets/{name}.key"' for name in ("odd", "short"))
    root = tmp_path_factory.mktemp("reflected")
    with serving(root, profiles, start=False, broker_extra="max_runs = 1000", minter_extra=extra) as made:
        for name in ("odd", "short"):
            file = made.root / f"secrets/{name}.key"
            file.touch(0o600)
            file.write_text(SECRETS[name] + "\n")
        made.start()
        yield made


@pytest.fixture
def house(_house, running):
    running.forget()
    return _house


def ask(house, profile, method="GET", target=EVIL, **more):
    """Make a call in a run of its own. What comes back with ``off`` is not kept for the search at the end."""
    kept = len(house.replies)
    seen = call(house, house.open_run(profile), method, target, profile=profile, **more)
    if profile.endswith("off"):
        del house.replies[kept:]
    return seen


def resident(house) -> int:
    status = Path(f"/proc/{house.processes['broker'].pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


FORMS = {
    "as it is": lambda secret: secret,
    "behind its scheme": lambda secret: f"Authorization: Bearer {secret}\r\n",
    "in a JSON text": lambda secret: json.dumps({"authorization": f"Bearer {secret}"}),
    "percent-encoded": lambda secret: quote(secret, safe=""),
    "percent-encoded in lower case": lambda secret: re.sub(
        "%..", lambda found: found[0].lower(), quote(secret, safe="")
    ),
    "in a path": lambda secret: "/a/" + quote(secret),
    "in HTML": lambda secret: f"<pre>{html.escape(secret)}</pre>",
    "in base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "in base64 behind one byte": lambda secret: base64.b64encode(b"x" + secret.encode()).decode(),
    "in base64 behind two bytes": lambda secret: base64.b64encode(b"xy" + secret.encode()).decode(),
    "in base64 as a pair": lambda secret: base64.b64encode(f"user:{secret}:more".encode()).decode(),
    "in base64url": lambda secret: base64.urlsafe_b64encode(f"ab?>{secret}".encode()).decode(),
    "in hexadecimal digits": lambda secret: secret.encode().hex(),
}


def readings(text: str) -> str:
    """Return what a reader can make of a text: as it is, decoded, and every base64 of it at every alignment."""
    read = [text, html.unescape(text), re.sub("%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), text)]
    read.extend(json.loads(word) for word in re.findall(r'"(?:[^"\\]|\\.)*"', text))
    for word in re.findall(r"[A-Za-z0-9+/_-]{16,}", text):
        plain = word.replace("-", "+").replace("_", "/")
        for skip in range(4):
            part = plain[skip : len(plain) - ((len(plain) - skip) % 4 == 1)]
            read.append(base64.b64decode(part + "=" * (-len(part) % 4)).decode("latin-1"))
    hexadecimal = re.findall(r"(?:[0-9a-fA-F]{2}){8,}", text)
    read.extend(bytes.fromhex(word).decode("latin-1") for word in hexadecimal)
    return "\n".join(read)


# --- in bodies ---


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", ["api", "odd"])
def test_a_credential_in_a_body_does_not_come_back(house, api, key, form):
    """Infisical/agent-vault#258; mnfst/llm-gateway#2814 (27)."""
    body = f"begin {FORMS[form](SECRETS[key])} end\n".encode()
    prefix = "" if key == "api" else f"{key}-"
    api.on(EVIL.encode(), says(whole(body)))
    seen = ask(house, f"{prefix}off")
    assert seen.body == body
    assert SECRETS[key] in readings(seen.body.decode())
    seen = ask(house, f"{prefix}mask")
    assert (seen.status, seen.complete, len(seen.body)) == (200, True, len(body))
    assert b"*" in seen.body
    assert SECRETS[key] not in readings(seen.body.decode())
    assert ask(house, f"{prefix}refuse").code in ("credential-reflected", "cut")


@pytest.mark.parametrize("status", [200, 401, 500])
def test_an_api_that_echoes_all_headers_shows_none_of_the_credential(house, api, status):
    def echo(peer, request):
        body = request.raw
        peer.send(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))

    api.on(EVIL.encode(), echo)
    for placement, form in (("", CANARY), ("basic-", base64.b64encode(f"x-access-token:{CANARY}".encode()).decode())):
        assert form.encode() in ask(house, f"{placement}off").body
        seen = ask(house, f"{placement}mask")
        assert seen.status == status
        assert b"*" * 8 in seen.body
        assert CANARY not in readings(seen.body.decode())
    assert ask(house, "default").body == ask(house, "mask").body


@pytest.mark.parametrize("form", ["as it is", "in base64", "percent-encoded"])
@pytest.mark.parametrize("coding", ["chunks", "segments"])
def test_a_credential_that_is_cut_in_two_anywhere_does_not_come_back(house, api, coding, form):
    text = FORMS[form](ODD).encode()
    run = house.open_run("odd-mask")
    with house.connection() as connection:
        for at in range(len(text) + 1):
            first, second = b"begin " + text[:at], text[at:] + b" end"

            def halves(peer, _request, first=first, second=second):
                if coding == "chunks":
                    peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    for piece in (first, second):
                        peer.drip(b"%x\r\n%s\r\n" % (len(piece), piece), 1000)
                    peer.send(b"0\r\n\r\n")
                else:
                    peer.drip(whole(first + second), len(whole(first + second)) - len(second))

            target = f"{EVIL}-{at}"
            api.on(target.encode(), halves)
            connection.request("GET", f"/p/odd-mask{target}", headers={"Authorization": f"Bearer {run.token}"})
            body = connection.getresponse().read()
            assert len(body) == len(first + second)
            assert ODD not in readings(body.decode()), at
            assert body.startswith(b"begin ***"), at


@pytest.mark.parametrize("size", [990, 999, 1000 - len(CANARY), 1001 - len(CANARY)])
def test_a_credential_at_the_limit_of_an_answer_is_masked_before_it_is_cut(house, api, size):
    """runvendo/vendo#151 (30): no prefix of the secret is left where the answer is cut."""
    body = b"x" * (size - 1) + b"\n" + CANARY.encode() + b"y" * 100
    chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    for drip in (len(chunks), 64, 7):
        api.on(EVIL.encode(), lambda peer, _request, drip=drip: peer.drip(chunks, drip))
        for profile in ("tight", "tight-off"):
            seen = ask(house, profile)
            assert seen.code in ("cut", "response-too-large")
            assert len(seen.body) <= 1000 or seen.code == "response-too-large"
            assert profile == "tight-off" or CANARY[:3].encode() not in seen.body


def test_a_part_of_the_credential_at_which_an_answer_breaks_off_does_not_come_back(house, api):
    for length in range(1, len(CANARY) + 1):
        data = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbegin\n" + CANARY[:length].encode()
        api.on(EVIL.encode(), says(data, then_close=True))
        seen = ask(house, "mask")
        assert (seen.code, seen.body) == ("cut", b"begin\n")


def test_a_host_call_shows_none_of_it_either(house, api):
    api.on(EVIL.encode(), lambda peer, request: peer.send(whole(request.raw)))
    for profile, shown in (("off", True), ("mask", False), ("refuse", None)):
        run = house.open_run(profile)
        kept = len(house.replies)
        reply = house.http(
            "POST",
            "/v1/call",
            headers={"Authorization": f"Bearer {run.token}", "Content-Type": "application/json"},
            body=json.dumps({"profile": profile, "method": "GET", "path": EVIL}).encode(),
        )
        if profile == "off":
            del house.replies[kept:]
        assert (CANARY.encode() in reply.body) is bool(shown)
        if profile == "refuse":
            assert b"credential-reflected" in reply.body


# --- in headers ---


@pytest.mark.parametrize("form", ["as it is", "percent-encoded", "in base64", "in base64 as a pair", "in a path"])
@pytest.mark.parametrize("key", ["api", "odd"])
def test_a_credential_in_a_header_does_not_come_back(house, api, key, form):
    """maximhq/bifrost#3954 (28): under its own name, and in a Location."""
    text = FORMS[form](SECRETS[key]).encode()
    more = b"X-Many: %s\r\nX-Many: Bearer %s\r\nLocation: https://a.test/?key=%s\r\nETag: %s\r\nx-goog-api-key: %s\r\n"
    api.on(EVIL.encode(), says(whole(b"hello", more % ((text,) * 5))))
    prefix = "" if key == "api" else f"{key}-"
    for method in ("GET", "HEAD"):
        seen = ask(house, f"{prefix}off", method)
        assert [value.count(text.decode()) for value in seen.values("x-many")] == [1, 1]
        seen = ask(house, f"{prefix}mask", method)
        assert (seen.status, len(seen.values("x-many"))) == (200, 2)
        assert seen.values("location")[0].startswith("https://a.test/?key=")
        assert seen.values("x-goog-api-key") == []
        assert SECRETS[key] not in readings("\n".join(value for _, value in seen.headers))
        seen = ask(house, f"{prefix}refuse", method)
        assert (seen.status, method == "HEAD" or seen.code) == (502, method == "HEAD" or "credential-reflected")


def test_a_short_credential_is_masked_where_a_header_is_it_and_nowhere_else(house, api):
    """I4: in bodies it would stand in many words that have nothing to do with it."""
    body = b"words with ab12xyz in them\n"
    more = b"X-Many: ab12xyz\r\nX-Many: Bearer ab12xyz\r\nX-Many: see ab12xyzzy\r\n"
    api.on(EVIL.encode(), says(whole(body, more)))
    assert ask(house, "short-off").values("x-many") == ["ab12xyz", "Bearer ab12xyz", "see ab12xyzzy"]
    seen = ask(house, "short-mask")
    assert seen.values("x-many") == ["*******", "Bearer *******", "see ab12xyzzy"]
    assert seen.body == body


# --- compressed ---


def deflated(body: bytes, bits: int) -> bytes:
    compressor = zlib.compressobj(wbits=bits)
    return compressor.compress(body) + compressor.flush()


BODY = f"begin {CANARY} end\n".encode() * 50
CODED = {
    "gzip": (b"gzip", gzip.compress(BODY)),
    "GZIP": (b"GZIP", gzip.compress(BODY)),
    "x-gzip": (b"x-gzip", gzip.compress(BODY)),
    "gzip in two members": (b"gzip", gzip.compress(BODY[:70]) + gzip.compress(BODY[70:])),
    "deflate": (b"deflate", deflated(BODY, zlib.MAX_WBITS)),
    "raw deflate": (b"deflate", deflated(BODY, -zlib.MAX_WBITS)),
    "identity": (b"identity", BODY),
}


@pytest.mark.parametrize("coded", CODED)
@pytest.mark.parametrize("drip", [1, 100, 1 << 20])
def test_a_compressed_body_is_opened_and_masked_or_passes_untouched(house, api, coded, drip):
    coding, body = CODED[coded]
    answer = whole(body, b"Content-Encoding: %s\r\n" % coding)
    api.on(EVIL.encode(), lambda peer, _request: peer.drip(answer, drip))
    seen = ask(house, "off")
    assert (seen.values("content-encoding"), seen.values("content-length")) == ([coding.decode()], [str(len(body))])
    assert seen.body == body
    seen = ask(house, "mask")
    assert (seen.status, seen.complete) == (200, True)
    assert [value for value in seen.values("content-encoding") if value != "identity"] == []
    assert seen.body == BODY.replace(CANARY.encode(), b"*" * len(CANARY))
    assert ask(house, "refuse").code in ("cut", "credential-reflected")


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"compress", b"gzip, gzip", b"gzip, br", b"aes128gcm", b"what"])
def test_a_body_that_cannot_be_opened_is_502_unless_nothing_is_scrubbed(house, api, coding):
    api.on(EVIL.encode(), says(whole(b"\x0b\x02\x80hello\x03", b"Content-Encoding: %s\r\n" % coding)))
    assert ask(house, "off").body == b"\x0b\x02\x80hello\x03"
    for profile in ("mask", "refuse"):
        seen = ask(house, profile)
        assert (seen.status, seen.code) == (502, "upstream-coding-unsupported")
    twice = b"Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n"
    api.on(EVIL.encode(), says(whole(gzip.compress(gzip.compress(BODY)), twice)))
    assert ask(house, "mask").code == "upstream-coding-unsupported"


GZIP = gzip.compress(BODY)


@pytest.mark.parametrize(
    "body",
    [
        GZIP[:-1],
        GZIP[:-8],
        GZIP[:30],
        GZIP[:5],
        GZIP + b"garbage",
        GZIP + b"\x00",
        GZIP[:-8] + b"\x00" * 8,
        GZIP[:20] + b"\xff" * 20 + GZIP[40:],
        BODY,
        b"\x1f\x8b\x08\x00",
    ],
    ids=[
        "one byte short",
        "without its trailer",
        "half",
        "half a head",
        "garbage behind",
        "a zero behind",
        "a wrong sum",
        "a wrong middle",
        "not compressed",
        "four bytes",
    ],
)
def test_a_body_that_is_not_compressed_as_it_says_is_never_complete(house, api, body):
    api.on(EVIL.encode(), says(whole(body, b"Content-Encoding: gzip\r\n")))
    seen = ask(house, "mask")
    assert seen.code in ("cut", "upstream-malformed", "upstream-broke-off")
    assert CANARY.encode() not in seen.body
    api.on(EVIL.encode(), says(whole(b"hello\n")))
    assert ask(house, "mask").body == b"hello\n"


def test_a_head_describes_what_a_get_would_bring(house, api):
    """While answers are scrubbed: neither the coding nor the length of a body that would be opened, nor one of 502."""
    for coding, length in ((b"gzip", None), (b"deflate", None), (b"identity", "5")):
        api.on(EVIL.encode(), says(b"HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\nContent-Length: 5\r\n\r\n" % coding))
        assert ask(house, "off", "HEAD").values("content-encoding") == [coding.decode()]
        seen = ask(house, "mask", "HEAD")
        assert (seen.status, seen.values("content-length")) == (200, [length] if length else [])
        assert [value for value in seen.values("content-encoding") if value != "identity"] == []
    api.on(EVIL.encode(), says(b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 5\r\n\r\n"))
    assert ask(house, "off", "HEAD").status == 200
    assert ask(house, "mask", "HEAD").status == 502


def bomb() -> bytes:
    """Return a gibibyte of zeros in one gzip member: the same deflated block again and again."""
    compressor = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    block = compressor.compress(bytes(MIB)) + compressor.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + block * 1024


@pytest.mark.parametrize("drip", [65536, 1 << 21])
def test_a_gibibyte_of_zeros_is_cut_at_the_limit_in_bounded_memory(house, api, drip):
    body = bomb()
    assert len(body) < 2 * MIB
    api.on(EVIL.encode(), lambda peer, _request: peer.drip(whole(body, b"Content-Encoding: gzip\r\n"), drip))
    before = resident(house)
    seen = ask(house, "mask")
    assert (seen.status, seen.code) == (200, "cut")
    assert len(seen.body) <= 32 * MIB
    assert seen.body.count(0) == len(seen.body)
    assert resident(house) - before < 16 * MIB


def test_a_bomb_waits_while_nobody_reads_and_others_are_served(house, api):
    answer = whole(bomb(), b"Content-Encoding: gzip\r\n")
    api.on(EVIL.encode(), says(answer))
    run = house.open_run("mask")
    before = resident(house)
    with contextlib.ExitStack() as waiting:
        for _ in range(10):
            data = house.head(run, "mask", "GET", EVIL) + b"\r\n"
            until(waiting.enter_context(asking(house, data, buffer=65536)), b"\r\n\r\n")
        for _ in range(50):
            assert ask(house, "mask", target="/v1/items/other").body == b"/v1/items/other"
        # Ten answers of which each may fill the kernel's buffers and one of ours.
        assert resident(house) - before < 40 * MIB


def test_empty_members_without_end_are_cut(house, api):
    gone = threading.Event()

    def members(peer, _request):
        with contextlib.suppress(OSError):
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n")
            while True:
                peer.send(gzip.compress(b"") * 1000)
        gone.set()

    api.on(EVIL.encode(), members)
    assert ask(house, "mask").code in ("cut", "upstream-malformed")
    assert gone.wait(10)


# --- what is asked for ---


def test_neither_compression_nor_a_part_is_asked_for_while_answers_are_scrubbed(house, api):
    """A part of an answer may hold a part of the credential."""
    asked = [("Range", "bytes=0-9"), ("Accept-Encoding", "gzip, br"), ("If-None-Match", "x")]
    for profile in ("mask", "refuse", "off"):
        api.forget()
        assert ask(house, profile, headers=asked).status == 200
        [request] = api.requests
        scrubbing = profile != "off"
        assert request.values(b"range") == ([] if scrubbing else [b"bytes=0-9"])
        assert request.values(b"accept-encoding") == ([b"identity"] if scrubbing else [b"gzip, br"])
        assert request.values(b"if-none-match") == [b"x"]
