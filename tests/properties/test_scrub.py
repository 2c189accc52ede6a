"""For any body, cut anywhere: every needle is masked, nothing else changes, and the pace tells nothing."""

from __future__ import annotations

import gzip
import itertools
import re
import zlib

from hypothesis import event, example, given
from hypothesis import strategies as st

from broker.scrub import Needles, Stream, decoder_for
from broker.scrub.forms import forms_of
from config.secret import Secret

#: Two letters, so that needles overlap each other and themselves, and line breaks between.
NEEDLES = st.lists(st.text("ab", min_size=1, max_size=9).map(str.encode), min_size=1, max_size=4)
BODIES = st.text("ab\n", max_size=60).map(str.encode)
CUTS = st.lists(st.integers(0, 60), max_size=8)
#: A needle with asterisks could be made by masking what is beside them.
SECRETS = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="*"), min_size=8, max_size=60
)
FILL = st.binary(max_size=80).map(lambda fill: fill.replace(b"*", b"+"))


def pieces_of(body: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    return [body[begin:end] for begin, end in itertools.pairwise(places)]


def scrub(needles: Needles, pieces: list[bytes]) -> list[bytes]:
    stream = Stream(needles, refuse=False)
    return [*map(stream.feed, pieces), stream.finish()]


def by_the_book(needles: list[bytes], body: bytes) -> bytes:
    """Mask every byte of every occurrence."""
    covered = {
        place
        for needle in needles
        for start in range(len(body))
        if body.startswith(needle, start)
        for place in range(start, start + len(needle))
    }
    return bytes(ord("*") if place in covered else byte for place, byte in enumerate(body))


@given(NEEDLES, BODIES, CUTS)
@example([b"abab"], b"ababab", [3])
@example([b"aba"], b"ababa", [2])
@example([b"aab", b"abbb"], b"aabbb", [2, 3])
def test_however_a_body_is_cut_each_occurrence_is_masked_and_nothing_else(needles, body, cuts):
    passed = b"".join(scrub(Needles(needles), pieces_of(body, cuts)))
    assert passed == by_the_book(needles, body)
    event("masked" if b"*" in passed else "untouched")


@given(NEEDLES, BODIES, CUTS)
def test_the_pace_is_that_of_a_body_of_the_same_lines_without_a_match(needles, body, cuts):
    without = re.sub(rb"[^\n]", b"c", body)
    made = Needles(needles)
    paces = [[len(passed) for passed in scrub(made, pieces_of(one, cuts))] for one in (body, without)]
    assert paces[0] == paces[1]


@given(SECRETS, FILL, FILL, CUTS, st.data())
def test_no_form_of_a_secret_gets_past_and_what_stands_around_it_does(secret, before, behind, cuts, data):
    forms = sorted(forms_of(secret.encode()))
    body = before + data.draw(st.sampled_from(forms)) + behind
    made = Needles.of({"value": Secret(secret)})
    passed = b"".join(scrub(made, pieces_of(body, cuts)))
    assert len(passed) == len(body)
    assert not any(form in passed for form in forms)
    assert passed == by_the_book(forms, body)
    assert passed == made.mask(body)


@given(st.binary(max_size=2000), CUTS, st.sampled_from(["gzip", "deflate", "raw"]))
def test_a_compressed_body_is_opened_however_it_is_cut(body, cuts, coding):
    if coding == "gzip":
        packed = gzip.compress(body)
    else:
        packer = zlib.compressobj(wbits=-zlib.MAX_WBITS if coding == "raw" else zlib.MAX_WBITS)
        packed = packer.compress(body) + packer.flush()
    decoder = decoder_for(b"gzip" if coding == "gzip" else b"deflate")
    assert decoder is not None
    passed = b"".join(out for piece in pieces_of(packed, cuts) for out in decoder.feed(piece))
    decoder.finish()
    assert passed == body
