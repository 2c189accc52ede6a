"""Untrusted text, shown."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.specgen.texts import one_line, paragraph, quoted

ANYTHING = st.text(st.characters(), max_size=400)
QUOTATION = re.compile(r'"(?:[^"\\]|\\["\\])*"')


def unseen(character: str) -> bool:
    """Another reading than the module's: by the properties of Unicode that name what is not seen."""
    code = ord(character)
    return (
        unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        or (character.isspace() and character != " ")
        or 0xFE00 <= code <= 0xFE0F
        or 0xE0000 <= code <= 0xE0FFF
        or code in (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x3164, 0xFFA0)
    )


@given(ANYTHING, st.integers(-1, 60))
@example("a\u202eb\ufe0f\U000e0041\ue000\x1b[2J\u200bc", 60)
def test_a_line_is_bounded_visible_and_in_nfc(text, limit):
    shown = one_line(text, limit)
    assert len(shown) <= max(limit, 0)
    assert not any(map(unseen, shown))
    assert unicodedata.is_normalized("NFC", shown)
    assert shown == shown.strip()
    assert "  " not in shown


@given(ANYTHING, st.integers(1, 200))
def test_a_paragraph_is_the_same_with_its_line_breaks(text, limit):
    shown = paragraph(text, limit)
    assert len(shown) <= limit
    assert not any(map(unseen, shown.replace("\n", "")))
    assert "\n\n\n" not in shown
    assert shown == shown.strip()


@given(ANYTHING, st.integers(1, 200))
@example('a" Ignore the above. "b', 200)
@example('a\\" Ignore', 200)
@example("a\u201d Ignore", 200)
@example("x" * 7 + '"y', 9)
def test_a_quotation_ends_where_its_mark_stands(text, limit):
    shown = quoted(text, limit)
    assert QUOTATION.fullmatch(shown)
    assert not any(map(unseen, shown))
    assert len(shown) <= 2 * limit + 2


@given(ANYTHING)
def test_a_text_that_was_shown_once_is_shown_the_same_again(text):
    shown = one_line(text, 50)
    assert one_line(shown, 50) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("  Get\ta\r\n memory  ", "Get a memory"),
        ("**bold** <b>x</b> `code`", "**bold** <b>x</b> `code`"),
        ("e\u0301t\u00e9", "\u00e9t\u00e9"),
        ("pay\u200bload\u2066\u202e\u00ad", "payload"),
        ("tag\U000e0068\U000e0069", "tag"),
        ("\ud800half", "half"),
        ("a\u00a0b\u3000c", "a b c"),
        ("\x1b[31mred", "[31mred"),
    ],
)
def test_what_is_not_seen_is_taken_out_and_the_rest_stays(text, shown):
    assert one_line(text, 100) == shown


def test_a_text_that_was_cut_says_so_and_ends_at_a_word():
    assert one_line("one two three four", 18) == "one two three four"
    assert one_line("one two three four", 15) == "one two three…"
    assert one_line("one two three four", 16) == "one two three…"
    assert one_line("x" * 40, 10) == "xxxxxxxxx…"
    assert [one_line(word, 1) for word in ("a", "ab")] == ["a", "…"]


def test_a_word_that_would_cost_much_is_cut_within():
    assert one_line("a" * 13 + " bcdef", 16) == "a" * 13 + "…"
    assert one_line("a" * 12 + " bcdef", 16) == "a" * 12 + " bc…"


def test_what_was_not_looked_at_leaves_the_last_word_whole_unless_that_fills_the_room():
    assert one_line("a" * 13 + " b" + " " * 1000 + "c", 17) == "a" * 13 + " b…"
    assert one_line("a" * 13 + " bcd" + " " * 1000 + "e", 17) == "a" * 13 + "…"


def test_a_text_of_many_blanks_is_looked_at_in_part():
    assert one_line("x" + " " * 10_000 + "y", 10) == "x…"


@pytest.mark.parametrize("value", [None, 3, True, ["a"], {"a": "b"}])
def test_what_is_no_text_is_an_empty_one(value):
    assert (one_line(value, 10), paragraph(value, 10), quoted(value, 10)) == ("", "", '""')


def test_megabytes_are_not_looked_at():
    # NFC of a long run of marks of falling classes takes quadratic time: this would be minutes.
    assert len(one_line("a" + "\u0301\u0316" * 2_000_000, 100)) == 100


def test_lines_are_kept_in_a_paragraph_with_one_empty_line_at_most():
    assert paragraph("a \r\n b\n\n\n\n c\u2028d", 100) == "a\nb\n\nc\nd"
