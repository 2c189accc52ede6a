"""Scrubbing: wherever a secret stands in a body, however it is written and however it arrives, it does not come out.

An input is a line, and a body. The line is a letter and the secret: ``i`` for a body as it is, ``g`` and ``d`` for one
to be opened as gzip and deflate. In a body as it is ``{b64}`` and other names of :data:`WRITTEN` stand for the secret
written in that way. What comes out is compared with a search through the whole body at once.
"""

from __future__ import annotations

import gzip
import html
import itertools
import json
import random
import re
import zlib
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from functools import lru_cache
from urllib.parse import quote, quote_plus

from broker.scrub.coding import MAX_PIECE, Decoder, decoder_for
from broker.scrub.forms import forms_of
from broker.scrub.needles import Needles
from broker.scrub.stream import Stream
from config.problems import ProblemError
from config.secret import SHORTEST_SCRUBBED, Secret

USER = b"user:"
#: What a credential may be made of at all (``broker/placements``).
USABLE = re.compile(rb"[!-~](?:[ -~]*[!-~])?")
#: How an API may write a secret: what it writes, and what of it must not come out.
WRITTEN: dict[bytes, Callable[[bytes], bytes]] = {
    b"raw": lambda secret: secret,
    b"pair": lambda secret: USER + secret,
    b"url": lambda secret: quote(secret, safe="").encode(),
    b"path": lambda secret: quote(secret).encode(),
    b"form": lambda secret: quote_plus(secret).encode(),
    b"lower": lambda secret: re.sub(rb"%..", lambda escape: escape[0].lower(), quote(secret, safe="").encode()),
    b"json": lambda secret: json.dumps(secret.decode(), ensure_ascii=False)[1:-1].encode(),
    b"html": lambda secret: html.escape(secret.decode()).encode(),
    b"hex": lambda secret: secret.hex().encode(),
    b"b64": b64encode,
    b"b64url": urlsafe_b64encode,
    b"basic": lambda secret: b64encode(USER + secret),
    b"within": lambda secret: b64encode(b"a" + secret + b"b"),
    b"deep": lambda secret: urlsafe_b64encode(b"ab" + secret + b"abc"),
}
WRITING = re.compile(rb"\{(" + b"|".join(WRITTEN) + rb")\}")
#: Bytes before the secret in what is written in base64.
BEFORE = {b"b64": 0, b"b64url": 0, b"basic": len(USER), b"within": 1, b"deep": 2}

LONG = b"sk-live/0123456789+abc=&<x>"
SEEDS = [
    b"i" + LONG + b"\nyour key is {raw}, thanks",
    *(b"i" + LONG + b'\n{"a": "{' + name + b'}"}\n' for name in WRITTEN),
    b"ihunter2hunter2\nhunter2hunter2hunter2hunter2",
    b"iaaaaaaaaaaaa\naaaaaaaaaaaaaaaaaaaaaaaaa\naaaaaaaaaaa",
    b"ihunter2hunter2\ndata: {raw}\n\ndata: hunter2\rhunter2{raw}{b64}",
    b'iwith"quote\\and/slash\n{json}{raw}{html}',
    b"ishort\nshort {raw}",
    b"ipass word with blanks\n{form}{url}{raw}",
    b"ghunter2hunter2\n" + gzip.compress(b"you sent hunter2hunter2", mtime=0),
    b"ghunter2hunter2\n" + gzip.compress(b"one hunter2", mtime=0) + gzip.compress(b"hunter2, two", mtime=0),
    b"ghunter2hunter2\n" + gzip.compress(bytes(1 << 18), mtime=0),
    b"ghunter2hunter2\n" + gzip.compress(b"cut", mtime=0)[:-5],
    b"dhunter2hunter2\n" + zlib.compress(b"you sent hunter2hunter2"),
    b"dhunter2hunter2\n" + zlib.compress(b"you sent hunter2hunter2")[2:-4],
    b"dhunter2hunter2\n" + zlib.compress(b"you sent nothing") + b"and more",
]
TOKENS = [
    *(b"{" + name + b"}" for name in WRITTEN),
    *(
        b"\n",
        b"\r",
        b"=",
        b"%",
        b"\\",
        b"hunter2",
        LONG,
        b"*",
        b"user:",
        b"+",
        b"/",
        b"-",
        b"_",
        b'"',
        b"&amp;",
        b"%2F",
    ),
    *(gzip.compress(b"", mtime=0), b"\x1f\x8b\x08", b"\x78\x9c", b"\x03\x00"),
]


def one_input(data: bytes) -> None:
    line, _, body = data.partition(b"\n")
    coding, secret = line[:1], line[1:]
    if not USABLE.fullmatch(secret):
        return
    needles = needles_of(secret)
    if coding == b"i":
        plain = WRITING.sub(lambda name: WRITTEN[name[1]](secret), body)
        check_stream(needles, secret, plain)
        check_header(needles, secret, plain)
    elif coding in (b"g", b"d"):
        check_coding(needles, b"gzip" if coding == b"g" else b"deflate", body)


@lru_cache(maxsize=512)
def needles_of(secret: bytes) -> Needles:
    needles = Needles.of({"token": Secret(secret.decode())}, [USER + secret])
    check_forms(needles, secret)
    return needles


@lru_cache(maxsize=512)
def searched_for(secret: bytes) -> list[bytes]:
    return [form for value in (secret, USER + secret) if len(value) >= SHORTEST_SCRUBBED for form in forms_of(value)]


def check_stream(needles: Needles, secret: bytes, body: bytes) -> None:
    """What comes out is what masking the whole body at once gives, whatever the pieces; when it comes says nothing."""
    expected = masked_at_once(secret, body)
    other = re.sub(rb"[^\r\n]", b"~", body)
    for pieces in ways_to_split(body):
        stream, blank = Stream(needles, refuse=False), Stream(needles, refuse=False)
        out = b""
        at = 0
        for piece in pieces:
            passed = stream.feed(piece)
            assert len(passed) == len(blank.feed(other[at : at + len(piece)])), "when bytes pass depends on a match"
            at += len(piece)
            out += passed
        assert len(body) - len(out) <= needles.hold
        out += stream.finish()
        assert out == expected, "it matters how the bytes come"
        check_refusing(needles, pieces, expected if expected != body else None)


def check_refusing(needles: Needles, pieces: list[bytes], masked: bytes | None) -> None:
    """A body that holds the secret is refused, and nothing of it has passed by then; another passes as it is."""
    stream = Stream(needles, refuse=True)
    out = b""
    try:
        for piece in pieces:
            out += stream.feed(piece)
        out += stream.finish()
    except ProblemError as refused:
        if refused.code != "credential-reflected" or masked is None or not masked.startswith(out):
            raise AssertionError("refused without a reason, or too late") from refused
        return
    # A secret of asterisks alone is not seen in what comes out.
    assert masked is None
    assert out == b"".join(pieces)


def check_forms(needles: Needles, secret: bytes) -> None:
    """However it is written, alone or among other text, nothing that says the whole of it stands in what comes out."""
    for name, write in WRITTEN.items():
        text = write(secret)
        told = told_by(name, secret, text)
        if len(told) < SHORTEST_SCRUBBED or not told.strip(b"*") or len(secret) < SHORTEST_SCRUBBED:
            continue
        for before in (b"", b'{"a": "', text):
            at = len(before) + text.index(told)
            assert needles.mask(before + text + b'"}')[at : at + len(told)] == b"*" * len(told), name
    for longest in sorted(searched_for(secret), key=len)[-1:]:
        stream = Stream(needles, refuse=False)
        out = b"".join(stream.feed(longest[at : at + 1]) for at in range(len(longest))) + stream.finish()
        assert out == b"*" * len(longest)


def told_by(name: bytes, secret: bytes, text: bytes) -> bytes:
    """Return the part of what is written that the secret alone decides."""
    if name not in BEFORE:
        return text
    before = BEFORE[name]
    return text[-(-before * 8 // 6) : (before + len(secret)) * 8 // 6]


def check_header(needles: Needles, secret: bytes, value: bytes) -> None:
    for header in (value, secret, b"Bearer " + secret):
        masked = needles.mask_header(header)
        assert len(masked) == len(header)
        if len(secret) >= SHORTEST_SCRUBBED and secret.strip(b"*"):
            assert secret not in masked
    if secret.strip(b"*") and b" " not in secret:
        assert needles.mask_header(b"Bearer " + secret) == b"Bearer " + b"*" * len(secret)


def masked_at_once(secret: bytes, body: bytes) -> bytes:
    result = bytearray(body)
    for form in searched_for(secret):
        at = body.find(form)
        while at >= 0:
            result[at : at + len(form)] = b"*" * len(form)
            at = body.find(form, at + 1)
    return bytes(result)


def check_coding(needles: Needles, coding: bytes, data: bytes) -> None:
    """What is opened is what the standard library opens; what it does not is refused; nothing comes out in one heap."""
    expected = opened_at_once(coding, data)
    for pieces in ways_to_split(data):
        decoder = decoder_for(coding)
        assert decoder is not None
        try:
            out = b"".join(open_all(decoder, pieces))
        except ProblemError as refused:
            if refused.code not in ("upstream-malformed", "upstream-broke-off") or expected is not None:
                raise AssertionError("what can be opened is refused") from refused
            continue
        assert out == expected
    if expected is not None:
        stream = Stream(needles, refuse=False)
        assert len(stream.feed(expected) + stream.finish()) == len(expected)


def open_all(decoder: Decoder, pieces: Iterable[bytes]) -> Iterable[bytes]:
    for piece in pieces:
        for opened in decoder.feed(piece):
            assert 0 < len(opened) <= MAX_PIECE
            yield opened
    decoder.finish()


def opened_at_once(coding: bytes, data: bytes) -> bytes | None:
    if not data:
        return b""
    if coding == b"gzip":
        out = b""
        while data:
            member = zlib.decompressobj(31)
            try:
                out += member.decompress(data)
            except zlib.error:
                return None
            if not member.eof:
                return None
            data = member.unused_data
        return out
    stream = zlib.decompressobj(15 if data[0] & 0x0F == 8 and data[0] >> 4 <= 7 else -15)
    try:
        out = stream.decompress(data)
    except zlib.error:
        return None
    return out if stream.eof and not stream.unused_data else None


def ways_to_split(data: bytes) -> list[list[bytes]]:
    places = random.Random(zlib.crc32(data))  # noqa: S311 - it must find the same places again
    cuts = sorted({0, len(data), *(places.randrange(len(data) + 1) for _ in range(4))})
    some = [data[start:end] for start, end in itertools.pairwise(cuts)]
    return [[data], [data[at : at + 1] for at in range(len(data))], re.findall(rb"[^\n]*\n|[^\n]+", data), some]
