"""A credential is found in an answer however it is usually written there, and is masked byte for byte."""

from __future__ import annotations

import base64
import html
import itertools
import json
import re
from urllib.parse import quote, quote_plus

import pytest

from broker.scrub import Needles
from config.problems import ProblemError
from config.secret import Secret

PLAIN = "sk-live-4eC39HqLyjWDarjtT1zdp7dc"
#: Something of everything that some encoder escapes.
ODD = "p&<q>'r\"s/t+u=v`w?x~y#z!(0)*1,2;3:4@5$6%7\\8 9[a]{b}|^_.-"


def of(*values: str, extra: tuple[bytes, ...] = ()) -> Needles:
    return Needles.of({str(number): Secret(value) for number, value in enumerate(values)}, extra)


def escaped(text: str, characters: str, form: str) -> str:
    """Escape as JSON does, and ``characters`` as ``form`` says."""
    return "".join(
        form.format(ord(one)) if one in characters else {'"': '\\"', "\\": "\\\\"}.get(one, one) for one in text
    )


def entities(text: str, more: dict[str, str]) -> str:
    return "".join({"&": "&amp;", "<": "&lt;", ">": "&gt;", **more}.get(one, one) for one in text)


#: Who writes so, and how.
WRITERS = {
    "as it is": lambda text: text,
    "Python quote": quote,
    "Python quote, all": lambda text: quote(text, safe=""),
    "Java, Go: a form": quote_plus,
    "escapes in lower case": lambda text: re.sub("%..", lambda found: found[0].lower(), quote(text, safe="")),
    "JavaScript encodeURIComponent": lambda text: quote(text, safe="!'()*"),
    "JavaScript encodeURI": lambda text: quote(text, safe="!'()*;/?:@&=+$,#"),
    "JSON": json.dumps,
    "JSON in PHP": lambda text: json.dumps(text).replace("/", "\\/"),
    "JSON in Go": lambda text: escaped(text, "<>&", "\\u{:04x}"),
    "JSON in Gson": lambda text: escaped(text, "<>&'=", "\\u{:04x}"),
    "JSON in .NET": lambda text: escaped(text, "<>&'\"+`", "\\u{:04X}"),
    "JSON in PHP, all flags": lambda text: escaped(text, "<>&'\"", "\\u{:04X}").replace("/", "\\/"),
    "HTML in Python": html.escape,
    "HTML in Python, text": lambda text: html.escape(text, quote=False),
    "HTML in Jinja": lambda text: html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
    "HTML in PHP": lambda text: html.escape(text).replace("&#x27;", "&#039;"),
    "HTML in PHP, as it was": lambda text: html.escape(text).replace("&#x27;", "'"),
    "HTML in Go": lambda text: entities(text, {'"': "&#34;", "'": "&#39;", "+": "&#43;"}),
    "HTML in lodash": lambda text: entities(text, {'"': "&quot;", "'": "&#39;"}),
    "HTML in Mustache": lambda text: entities(
        text, {'"': "&quot;", "'": "&#39;", "/": "&#x2F;", "`": "&#x60;", "=": "&#x3D;"}
    ),
    "HTML in Handlebars": lambda text: entities(text, {'"': "&quot;", "'": "&#x27;", "`": "&#x60;", "=": "&#x3D;"}),
    "XML": lambda text: html.escape(text).replace("&#x27;", "&apos;"),
    "hexadecimal": lambda text: text.encode().hex(),
    "hexadecimal, upper case": lambda text: text.encode().hex().upper(),
}


@pytest.mark.parametrize("secret", [PLAIN, ODD, "a+b/c=d+e/f==", "ten chars~"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_secret_is_masked_however_it_is_written(writer, secret):
    written = WRITERS[writer](secret).strip('"')
    body = f'{{"you": "{written}", "ok": true}}'.encode()
    assert of(secret).mask(body) == body.replace(written.encode(), b"*" * len(written))


@pytest.mark.parametrize("alphabet", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("secret", [PLAIN, ODD, "????>>>>~~~~", "8 bytes."])
@pytest.mark.parametrize("before", range(7))
@pytest.mark.parametrize("behind", range(4))
def test_in_base64_no_character_that_only_the_secret_decides_is_left(alphabet, secret, before, behind):
    encoded = alphabet(b"\xa5" * before + secret.encode() + b"\xa5" * behind)
    begin, end = before * 8, (before + len(secret)) * 8
    masked = of(secret).mask(encoded)
    for place, character in enumerate(masked):
        bits = range(place * 6, place * 6 + 6)
        inside = bits[0] >= begin and (bits[-1] < end or (behind == 0 and bits[0] < end))
        assert (character == ord("*")) == inside or encoded[place] == ord("=")


@pytest.mark.parametrize("user", ["", "u", "us", "x-access-token"])
def test_a_pair_of_basic_is_masked_as_a_whole(user):
    pair = f"{user}:{PLAIN}".encode()
    header = b"Basic " + base64.b64encode(pair)
    unpadded = header.rstrip(b"=")
    masked = of(PLAIN, extra=(pair,)).mask(header)
    assert masked == b"Basic " + b"*" * (len(unpadded) - 6) + header[len(unpadded) :]


def test_a_short_secret_is_masked_where_its_pair_is_long():
    needles = of("s3cret", extra=(b"service-account:s3cret",))
    assert b"s3cret" not in needles.mask(b"sent: service-account:s3cret.")


def test_every_field_is_masked():
    needles = of("first-secret", "second-secret")
    assert needles.mask(b"first-secret, second-secret") == b"************, *************"


def test_a_field_that_is_part_of_another_hides_nothing_of_it():
    needles = of("service-account", "service-account-9f8e7d")
    assert needles.mask(b"<service-account-9f8e7d>") == b"<" + b"*" * 22 + b">"
    assert needles.mask(b"<service-account>") == b"<" + b"*" * 15 + b">"


def test_matches_that_overlap_are_all_masked():
    needles = Needles([b"abcdefgh", b"ghijklmn", b"defdefdef"])
    assert needles.mask(b"1abcdefghijklmn2") == b"1**************2"
    assert needles.mask(b"defdefdefdef_def") == b"************_def"
    assert Needles([b"abcdeab"]).mask(b"abcdeabcdeab_cdeab") == b"************_cdeab"


@pytest.mark.parametrize("secret", ["a" * 12, "ab" * 6, "abc" * 5 + "ab", "aabaabaabaa", "abaababaabaab", "aabaaaab"])
def test_a_secret_that_repeats_itself_is_masked_wherever_it_stands(secret):
    for lead, more in itertools.product(range(4), range(30)):
        body = (b"abaab"[:lead] + b"-" + secret.encode() * 3 + secret.encode()[:more])[: 8 + more * 2]
        starts = [at for at in range(len(body)) if body.startswith(secret.encode(), at)]
        covered = {at + offset for at in starts for offset in range(len(secret))}
        assert of(secret).mask(body) == bytes(42 if at in covered else byte for at, byte in enumerate(body))


def test_a_secret_that_repeats_itself_is_one_match_where_an_answer_does():
    assert of("a" * 12).spans(b"-" + b"a" * 5000 + b"-" + b"a" * 12) == [(1, 5001), (5002, 5014)]
    assert of("ab" * 6).spans(b"ab" * 2500) == [(0, 5000)]
    assert of("abababac").mask(b"abababacacac") == b"********acac"


def test_what_holds_nothing_comes_back_as_the_object_it_is():
    needles = of(PLAIN, "short")
    body, headers = b"x" * 5000, [(b"etag", b'"1"'), (b"content-type", b"text/plain")]
    assert needles.mask(body) is body
    assert needles.mask_header(body) is body
    assert needles.mask_headers(headers) is headers
    assert not needles.found(body)


@pytest.mark.parametrize("near", [PLAIN[:-1], PLAIN[1:], PLAIN.swapcase(), PLAIN[::-1], "4eC39HqLyjWDarjtT1zdp7dc"])
def test_what_is_only_nearly_the_secret_passes(near):
    needles = of(PLAIN)
    assert needles.mask(near.encode()) == near.encode()
    assert not needles.found(near.encode())


def test_what_is_held_back_is_a_byte_less_than_the_longest_form():
    assert of("k" * 40).hold == 2 * 40 - 1  # in hexadecimal digits
    assert of("short").hold == 0


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        (b"abc123", b"******"),
        (b"Bearer abc123", b"Bearer ******"),
        (b"Token token abc123", b"Token token ******"),
        (b"Basic YWJjMTIz", b"Basic ********"),
        (PLAIN.encode() + b" abc123", b"*" * len(PLAIN) + b" ******"),
        (PLAIN.encode() + b" ", b"*" * len(PLAIN) + b" "),
        (b"abc1234", b"abc1234"),
        (b"xabc123", b"xabc123"),
        (b"abc123 was sent", b"abc123 was sent"),
        (b"Bearer " + PLAIN.encode(), b"Bearer " + b"*" * len(PLAIN)),
        (b"/back?key=" + PLAIN.encode() + b"&x=1", b"/back?key=" + b"*" * len(PLAIN) + b"&x=1"),
    ],
)
def test_in_a_header_a_short_secret_is_masked_where_it_is_the_last_word(value, masked):
    needles = of(PLAIN, "abc123", "")
    assert needles.mask_header(value) == masked
    assert needles.mask_headers([(b"a", b"1"), (b"b", value)]) == [(b"a", b"1"), (b"b", masked)]


def test_headers_that_stand_side_by_side_are_not_read_as_one():
    needles = Needles([b"abcdefgh"])
    headers = [(b"a", b"abcd"), (b"b", b"efgh"), (b"a", b"abcdefgh"), (b"a", b"abcdefgh")]
    assert needles.mask_headers(headers) == [
        (b"a", b"abcd"), (b"b", b"efgh"), (b"a", b"********"), (b"a", b"********")
    ]  # fmt: skip


def test_in_a_body_a_short_secret_is_not_looked_for():
    assert of("abc123").mask(b"abc123") == b"abc123"


def test_an_empty_field_masks_nothing():
    assert of("").mask_headers([(b"a", b""), (b"b", b"Bearer ")]) == [(b"a", b""), (b"b", b"Bearer ")]


@pytest.mark.parametrize("line_break", ["\n", "\r"])
def test_a_credential_with_a_line_break_is_refused_and_not_shown(line_break):
    with pytest.raises(ProblemError, match="credential-unusable") as refused:
        of(f"{PLAIN}{line_break}x")
    assert PLAIN not in str(refused.value)


def test_needles_show_nothing_of_the_secret():
    needles = of(PLAIN)
    assert PLAIN not in repr(needles) + str(needles)
    assert not hasattr(needles, "__dict__")
