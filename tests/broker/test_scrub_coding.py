"""Compressed answers are opened in bounded memory, or refused."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest

from broker.scrub import decoder_for
from broker.scrub.coding import MAX_MEMBERS, MAX_PIECE
from config.problems import ProblemError

BODY = b"".join(b'{"id": %d, "text": "some words"}\n' % number for number in range(5_000))


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


CODINGS = {
    "gzip": (b"gzip", gzip.compress),
    "x-gzip": (b" X-Gzip ", gzip.compress),
    "deflate": (b"deflate", zlib.compress),
    "deflate, small window": (b"deflate", lambda data: (z := zlib.compressobj(wbits=9)).compress(data) + z.flush()),
    "raw deflate": (b"Deflate", raw_deflate),
}


def opened(coding: bytes, *pieces: bytes) -> bytes:
    decoder = decoder_for(coding)
    assert decoder is not None
    out = []
    for piece in pieces:
        for came in decoder.feed(piece):
            assert 0 < len(came) <= MAX_PIECE
            out.append(came)
    decoder.finish()
    return b"".join(out)


@pytest.fixture(params=CODINGS)
def coding(request):
    return CODINGS[request.param]


@pytest.mark.parametrize("size", [1, 1000, 10**6])
def test_a_compressed_body_is_opened(coding, size):
    name, pack = coding
    packed = pack(BODY)
    assert opened(name, *(packed[at : at + size] for at in range(0, len(packed), size))) == BODY


def test_an_empty_compressed_body_is_empty(coding):
    name, pack = coding
    assert opened(name, pack(b"")) == b""
    assert opened(name) == b""  # some send the header over nothing
    assert opened(name, b"") == b""


def test_a_body_that_breaks_off_is_told_from_one_that_ends(coding):
    name, pack = coding
    packed = pack(BODY[:1000])
    for end in range(1, len(packed)):
        with pytest.raises(ProblemError, match="upstream-broke-off"):
            opened(name, packed[:end])


def test_what_stands_behind_the_end_is_refused(coding):
    name, pack = coding
    packed = pack(b"body")
    for pieces in ([packed + b"garbage"], [packed, b"garbage"], [packed, b"\0\0"]):
        with pytest.raises(ProblemError, match="upstream-malformed"):
            opened(name, *pieces)


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
def test_what_is_not_compressed_is_refused(coding):
    with pytest.raises(ProblemError, match="upstream-malformed") as refused:
        opened(coding, b'{"plain": "json"}' * 10)
    assert "json" not in str(refused.value)


def test_a_body_whose_checksum_is_wrong_is_refused():
    packed = bytearray(gzip.compress(BODY))
    packed[-8] ^= 1
    with pytest.raises(ProblemError, match="upstream-malformed"):
        opened(b"gzip", bytes(packed))


def test_a_dictionary_that_nobody_agreed_on_is_refused():
    packer = zlib.compressobj(zdict=b"words")
    with pytest.raises(ProblemError, match="upstream-malformed"):
        opened(b"deflate", packer.compress(b"words") + packer.flush())


def test_gzip_members_one_behind_the_other_are_one_body():
    packed = gzip.compress(b"one ") + gzip.compress(b"") + gzip.compress(b"two ") + gzip.compress(b"three")
    assert opened(b"gzip", packed) == b"one two three"
    assert opened(b"gzip", *(packed[at : at + 1] for at in range(len(packed)))) == b"one two three"


def test_a_gzip_body_of_very_many_parts_is_refused():
    member = gzip.compress(b"")
    assert opened(b"gzip", member * MAX_MEMBERS) == b""
    with pytest.raises(ProblemError, match="upstream-malformed"):
        opened(b"gzip", member * (MAX_MEMBERS + 1))


@pytest.mark.parametrize("coding", [b"", b"identity", b" Identity "])
def test_what_is_not_coded_needs_no_decoder(coding):
    assert decoder_for(coding) is None


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"compress", b"gzip, gzip", b"identity, gzip", b"gzip,", b"\xff"])
def test_any_other_coding_is_refused(coding):
    with pytest.raises(ProblemError, match="upstream-coding-unsupported") as refused:
        decoder_for(coding)
    assert refused.value.status == 502


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw deflate"])
def test_a_bomb_is_never_there_as_a_whole_and_can_be_left_in_the_midst_of_it(coding):
    name, pack = CODINGS[coding]
    bomb = pack(bytes(200_000_000))
    decoder = decoder_for(name)
    assert decoder is not None
    tracemalloc.start()
    try:
        came = 0
        for piece in decoder.feed(bomb):
            came += len(piece)
            if came > 32 * 1024 * 1024:
                break
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert came < 33 * 1024 * 1024
    assert peak < 1024 * 1024
