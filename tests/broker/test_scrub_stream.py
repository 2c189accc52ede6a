"""A body that comes in pieces goes on without the credential, as long as it is, and without waiting for more."""

from __future__ import annotations

import pytest

from broker.scrub import Needles, Stream
from config.problems import ProblemError
from config.secret import Secret

SECRET = b"sk-live-4eC39HqLyjWDarjtT1zdp7dc"
NEEDLES = Needles.of({"value": Secret(SECRET.decode())})
STARS = b"*" * len(SECRET)


def scrubbed(*pieces: bytes, refuse: bool = False) -> list[bytes]:
    stream = Stream(NEEDLES, refuse=refuse)
    return [*map(stream.feed, pieces), stream.finish()]


@pytest.mark.parametrize("border", range(len(SECRET) + 1))
def test_a_secret_across_the_border_of_two_pieces_is_masked(border):
    passed = scrubbed(b"x" * 500 + SECRET[:border], SECRET[border:] + b"y" * 500)
    assert b"".join(passed) == b"x" * 500 + STARS + b"y" * 500


def test_a_secret_that_comes_byte_by_byte_is_masked():
    body = b"{" + SECRET + b"}"
    assert b"".join(scrubbed(*(body[at : at + 1] for at in range(len(body))))) == b"{" + STARS + b"}"


def test_a_secret_at_the_very_end_is_masked():
    assert b"".join(scrubbed(b"x" * 1000 + SECRET)) == b"x" * 1000 + STARS


@pytest.mark.parametrize("end", range(1, len(SECRET) + 1))
def test_what_was_let_go_before_a_cut_has_no_part_of_the_secret(end):
    """Whoever counts the bytes and stops gets none of what is held back."""
    stream = Stream(NEEDLES, refuse=False)
    assert stream.feed(b"x" * 1000 + SECRET[:end]).strip(b"x") == b""


def test_a_piece_without_bytes_changes_nothing():
    body = b"x" * 100 + SECRET
    middle = len(body) - 10
    assert b"".join(scrubbed(b"", body[:middle], b"", b"", body[middle:], b"")) == b"x" * 100 + STARS


def test_after_a_masked_secret_that_went_on_in_part_the_rest_of_it_is_masked():
    longer = SECRET + b"-and-more-of-it-that-makes-it-much-longer-than-the-other"
    stream = Stream(Needles([SECRET, longer[20:]]), refuse=False)
    passed = [stream.feed(longer[:-1]), stream.feed(b""), stream.feed(longer[-1:]), stream.finish()]
    assert b"".join(passed) == b"*" * len(longer)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_line_that_is_complete_goes_on_at_once(end):
    stream = Stream(NEEDLES, refuse=False)
    event = b"data: {}" + end + end
    assert stream.feed(event) == event
    assert stream.feed(b"data: 1" + end + b"data: 2") == b"data: 1" + end
    assert stream.feed(end) == b"data: 2" + end


def test_of_a_line_that_is_not_complete_only_the_end_is_held_back():
    stream = Stream(NEEDLES, refuse=False)
    assert len(stream.feed(b"x" * 1000)) == 1000 - NEEDLES.hold
    assert len(stream.feed(b"x" * 1000)) == 1000
    assert len(stream.finish()) == NEEDLES.hold


def test_a_body_with_the_secret_goes_on_at_the_same_pace_as_one_without():
    with_it = b"x" * 300 + SECRET + b"y" * 300
    without = b"x" * 300 + b"z" * len(SECRET) + b"y" * 300
    for size in (1, 7, 32, 100, 331):
        paces = [
            [len(passed) for passed in scrubbed(*(body[at : at + size] for at in range(0, len(body), size)))]
            for body in (with_it, without)
        ]
        assert paces[0] == paces[1]


@pytest.mark.parametrize("border", range(1, len(SECRET)))
def test_to_refuse_is_to_stop_before_any_of_the_secret_has_gone_on(border):
    stream = Stream(NEEDLES, refuse=True)
    passed = stream.feed(b"x" * 500 + SECRET[:border])
    with pytest.raises(ProblemError, match="credential-reflected") as refused:
        stream.feed(SECRET[border:])
    assert refused.value.status == 502
    assert passed == b"x" * len(passed)
    assert SECRET.decode() not in str(refused.value)


def test_to_refuse_lets_other_answers_pass_as_they_are():
    body = b"x" * 500 + SECRET[:-1] + b"\n" + SECRET[1:]
    assert b"".join(scrubbed(body, refuse=True)) == body


def test_without_anything_to_look_for_nothing_is_held_back():
    stream = Stream(Needles([]), refuse=False)
    assert stream.feed(b"abc") == b"abc"
    assert stream.finish() == b""


def test_a_body_of_one_piece_is_masked_as_one_that_comes_in_pieces_and_waits_for_nothing():
    for body in (b"", b"a", SECRET, b"a" + SECRET, SECRET + b"\nb", b"x" * 5000 + SECRET + b"y"):
        stream = Stream(Needles([SECRET]), refuse=False)
        whole = Stream(Needles([SECRET]), refuse=False)
        assert whole.only(body) == stream.feed(body) + stream.finish()
        assert SECRET not in whole.only(body)
        assert whole.finish() == b""
    with pytest.raises(ProblemError, match="credential-reflected"):
        Stream(Needles([SECRET]), refuse=True).only(b"a" + SECRET)
