"""For any bytes: a call is refused, or it is exactly these bytes on a granted route.

The reference here is written from the rules, route by route, and shares no code with the matcher but the constants
of the grammar.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote, unquote_to_bytes

import pytest
from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st

from config.match import DeniedError
from config.problems import ProblemError
from config.query import check_query, compile_query
from config.target import split_target
from tests.config.grants_of import matcher

PARAMS = {"p": "[a-z.:]+", "q": "[a-z]+"}
GIVEN = {"p": "a", "q": "bb"}

SEGMENTS = ["a", "b", "bb", "A", "a.b", "x.json", "a:b", ".a"]
TEMPLATES = [*SEGMENTS, "*", "*", "*", "{p}", "{q}", "x{p}", "*.json", "a*", "*.*", "*:b", "{p}.b"]
WIRE = [*SEGMENTS, "xa", "y.json", "b:b", "(a)", "a%20b", "a%2Fb", "a%2Fbb", "%C3%A9", "%41", "%2E%2E", "a%2fb", "%zz"]
ODD = ["", ".", "..", "...", "é", "a;b", "a b", "%00", "%2E", "a%2F..", "%252E", "%E2%84%AA", "%2Fa", "a#", "a\\"]

methods = st.sampled_from(["GET", "HEAD", "POST"])
templates = st.builds(
    lambda method, segments, slash: f"{method} /" + "/".join(segments) + ("/" if slash and segments else ""),
    methods,
    st.lists(st.sampled_from(TEMPLATES), max_size=3),
    st.booleans(),
)


def entry(template, wide, encoded):
    return {"route": template, "wide": wide, "encoded": encoded} if "*" in template else template


entries = st.builds(entry, templates, st.booleans(), st.sampled_from([False, False, True, ["%2F", "%2E"], ["%3A"]]))
targets = st.builds(
    lambda segments, slash: "/" + "/".join(segments) + ("/" if slash else ""),
    st.lists(st.sampled_from(WIRE) | st.sampled_from(ODD), max_size=3),
    st.booleans(),
)
grants = st.builds(
    lambda allow, catalog: (
        list({text(item): item for item in allow}.values()),
        list(dict.fromkeys(catalog)),
    ),
    st.lists(entries, max_size=8),
    st.lists(templates, max_size=5),
)


def text(item):
    return item if isinstance(item, str) else item["route"]


# --- the reference ---


def well_formed(path):
    """Rules 1 and 2 of exact wire."""
    if not re.fullmatch(r"(?:/(?:[A-Za-z0-9\-._~!$&'()*+,=:@]|%[0-9A-F]{2})*)+", path, re.ASCII):
        return False
    *inner, _ = segments = path[1:].split("/")
    return "" not in inner and all(map(segment_well_formed, segments))


def segment_well_formed(segment):
    for escape in re.findall("%..", segment):
        if re.fullmatch(r"[A-Za-z0-9\-_~]", unquote(escape)):
            return False
    seen = segment
    while set(seen) != {"."}:
        if seen != segment and any(hollow(part) for part in re.split(r"[/\\]", seen)):
            return False
        try:
            further = unquote_to_bytes(seen).decode()
        except UnicodeDecodeError:
            return False
        if any(unicodedata.category(mark) == "Cc" for mark in further):
            return False
        if further == seen:
            return True
        seen = further
    return False


def hollow(part):
    return not re.split("[;?#]", part)[0].strip(".")


def star_takes(value, item):
    options = {} if isinstance(item, str) else item
    marks = "-._~@+=" + (":!$&'()*," if options.get("wide") else "")
    encoded = options.get("encoded", False)
    listed = set(encoded) if isinstance(encoded, list) else set()
    tokens = re.findall(r"%..|.", value)
    for token in tokens:
        if len(token) == 3:
            mark = unquote_to_bytes(token)
            needed = mark[0] >= 0x80 or mark.decode() in ' "<>[]^`{|}'
            if not encoded or not (needed or token in listed):
                return False
        elif not (token.isascii() and token.isalnum()) and token not in marks:
            return False
    return bool(tokens) and set(value) != {"."}


def segment_takes(template, segment, item):
    named = re.fullmatch(r"(.*)\{(.)\}(.*)", template)
    if named:
        return segment == named[1] + GIVEN[named[2]] + named[3]
    pieces = template.split("*")
    if len(pieces) == 1:
        return segment == template
    if len(pieces) == 2:
        found = re.fullmatch(f"{re.escape(pieces[0])}(.+){re.escape(pieces[1])}", segment)
        return bool(found) and star_takes(found[1], item)
    return any(
        segment[cut:].startswith(pieces[1])
        and star_takes(segment[len(pieces[0]) : cut], item)
        and star_takes(segment[cut + len(pieces[1]) : len(segment) - len(pieces[2])], item)
        for cut in range(len(segment))
    )


def kind(template):
    """Position order: smaller is more specific."""
    literal = len(re.sub(r"\*|\{.\}", "", template))
    if "{" in template:
        return 1, -literal
    if "*" in template:
        return (2, -literal) if template != "*" else (3, 0)
    return 0, 0


def fold(segment):
    if "%" in segment:
        return unicodedata.normalize("NFKC", unquote(segment)).casefold()
    return segment.lower()


def documents(template, segment):
    pieces = re.sub(r"\{.\}", "*", template).lower().split("*")
    pattern = "(?s:.+)".join(map(re.escape, pieces))
    return re.fullmatch(pattern, segment) is not None


def decide(allow, catalog, method, target):
    """Return ("granted", template) or the refusal's code."""
    if not well_formed(target):
        return "target-malformed"
    segments = target[1:].split("/")
    matching = []
    for item in allow:
        granted_method, path = text(item).split(" ")
        parts = path[1:].split("/")
        if (
            granted_method == method
            and len(parts) == len(segments)
            and all(segment_takes(part, segment, item) for part, segment in zip(parts, segments, strict=True))
        ):
            matching.append((parts, item))
    if not matching:
        return "not-granted"
    parts, item = min(matching, key=lambda match: [(*kind(part), part) for part in match[0]])
    for written in catalog:
        documented_method, documented_path = written.split(" ")
        same = documented_method == method or {documented_method, method} == {"GET", "HEAD"}
        starred = re.sub(r"\{.\}", "*", documented_path)
        if (
            same
            and f"{method} {starred}" not in {text(other) for other in allow}
            and reserves(starred, parts, segments, item)
        ):
            return "route-reserved"
    return "granted", text(item)


def reserves(documented_path, parts, segments, item):
    documented = documented_path[1:].removesuffix("/").split("/") if documented_path != "/" else []
    readings = [[(fold(segment), part) for part, segment in zip(parts, segments, strict=True) if segment or part]]
    if isinstance(item, dict) and isinstance(item["encoded"], list) and "%2F" in item["encoded"]:
        readings.append([(piece, part) for folded, part in readings[0] for piece in re.split(r"[/\\]", folded)])
    return any(
        len(documented) == len(reading)
        and all(documents(template, folded) for template, (folded, _) in zip(documented, reading, strict=True))
        and any(kind(template) < kind(part) for template, (_, part) in zip(documented, reading, strict=True))
        for reading in readings
    )


# --- the properties ---


def outcome(built, method, target):
    try:
        return "granted", built.match(method, target.encode(), GIVEN).rule.text
    except DeniedError as refused:
        if refused.code in ("route-not-granted", "encoding-not-granted"):
            return "not-granted"
        return refused.code


@st.composite
def calls(draw):
    """A grants file and a call that is likely on one of its routes, and likely on a reserved one."""
    allow, catalog = draw(grants)
    target = draw(targets)
    method = draw(methods)
    templates_near = [text(item) for item in allow] + catalog
    if templates_near and draw(st.integers(0, 3)):
        method, _, path = draw(st.sampled_from(templates_near)).partition(" ")
        filled = re.sub(r"\{(.)\}", lambda name: GIVEN.get(name[1], "x"), path)
        target = re.sub(r"\*", lambda _: draw(st.sampled_from(WIRE)), filled)
    return allow, catalog, method, target


@settings(max_examples=300, deadline=None)
@given(calls())
@example((["GET /a/*", "GET /*/b"], ["GET /a/b/"], "GET", "/a/b"))
@example(([entry("GET /*", False, ["%2F"])], ["GET /*/b"], "GET", "/a%2Fb"))
def test_the_matcher_decides_as_the_rules_read_one_by_one_do(call):
    allow, catalog, method, target = call
    built = matcher(allow=allow, catalog=catalog, params=PARAMS)
    decided = outcome(built, method, target)
    event(decided if isinstance(decided, str) else "granted")
    assert decided == decide(allow, catalog, method, target)


EVERY_ESCAPE = ["%25", "%2F", "%5C", "%2E", "%3B", "%3F", "%23"]
WILDEST = matcher(
    allow=[
        *({"route": "GET " + "/*" * count, "wide": True, "encoded": EVERY_ESCAPE} for count in range(1, 5)),
        {"route": "GET /", "query": {"a": "any", "b": {"repeat": True}}},
    ]
)

raw_targets = (
    st.binary(max_size=40)
    | st.binary(max_size=30).map(lambda tail: b"/" + tail)
    | st.text("/.%25EFCabc;?#&=\\+ \0\r\n", max_size=30).map(lambda tail: b"/" + tail.encode())
)


@settings(max_examples=1000, deadline=None)
@given(raw_targets)
@example(b"/a/%2E%2E/b")
@example(b"/..%2F..%2Fetc")
@example(b"/%252E%252E")
def test_whatever_the_bytes_no_server_can_read_a_granted_target_as_another_path(raw):
    """Even of the widest routes: no dots-only or empty segment, no control, however often it is decoded."""
    try:
        WILDEST.match("GET", raw, {})
    except DeniedError:
        return
    path, _, query = raw.partition(b"?")
    assert raw.startswith(b"/")
    assert raw.isascii()
    assert not set(raw) & set(b"#;\\ \x7f" + bytes(range(32)))
    while True:
        segments = re.split(rb"[/\\]", path[1:])
        assert all(segments[:-1])
        assert not any(segment and not segment.split(b";")[0].strip(b".") for segment in segments)
        further = unquote_to_bytes(path)
        assert not set(further) & set(range(32))
        if further == path:
            break
        path = further
    assert raw != b"/?"
    assert not query or {pair.partition(b"=")[0] for pair in query.split(b"&")} <= {b"a", b"b"}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=4), st.data())
def test_a_granted_literal_route_takes_exactly_its_own_bytes(segments, data):
    path = "/" + "/".join(segments)
    built = matcher(allow=[f"GET {path}"])
    assert built.match("GET", path.encode(), {})
    raw = bytearray(path.encode())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    assume(bytes(raw) != path.encode())
    try:
        built.match("GET", bytes(raw), {})
    except DeniedError:
        return
    raise AssertionError


QUERY_RULES, _ = compile_query(
    {"any": "any", "n": "int", "one": ["a b", "a+b", "x"], "c": "k", "re": {"pattern": "[a-z ]*", "repeat": True}}
)
pairs = st.tuples(
    st.sampled_from(["any", "n", "one", "c", "re", "N", "zz", ""]),
    st.sampled_from(["", "1", "-0", "01", "a+b", "a%20b", "a%2Bb", "x", "k", "K", "%6B", "%C3%A9", "a=b", "abc", "99"]),
)


@settings(max_examples=500, deadline=None)
@given(st.lists(pairs, min_size=1, max_size=4))
def test_a_query_is_taken_exactly_when_every_pair_fits_under_both_readings(given_pairs):
    fits = {
        "any": lambda _: True,
        "n": lambda value: re.fullmatch("-?(0|[1-9][0-9]{0,18})", value),
        "one": lambda value: value in ("a b", "a+b", "x"),
        "c": lambda value: value == "k",
        "re": lambda value: re.fullmatch("[a-z ]*", value),
    }
    names = [name for name, _ in given_pairs]
    expected = all(name in fits for name in names) and all(names.count(name) == 1 or name == "re" for name in names)
    expected = expected and all(
        fits[name](unquote(reading)) for name, value in given_pairs for reading in (value, value.replace("+", " "))
    )
    raw = "&".join(f"{name}={value}" for name, value in given_pairs).encode()
    split_target(b"/?" + raw)
    if expected:
        check_query(QUERY_RULES, raw, {})
    else:
        with pytest.raises(ProblemError):
            check_query(QUERY_RULES, raw, {})
