"""Queries: for any rules and any bytes, a query is refused, or every parser reads from it what the rules take.

An input is rules in short, a line each, an empty line, and a query (all the bytes that are left)::

    any n=any           a rule of one word: "any", "int", "{p}" or a constant
    list n=a,b          a list of constants
    re n=[a-z]+         a pattern
    need n              any text, and it must be there
    more n              any text, and it may be repeated
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, unquote, unquote_plus, unquote_to_bytes

from config.params import compile_pattern
from config.problems import ProblemError
from config.query import QueryRules, check_query, compile_query
from config.target import split_target

GIVEN = {"p": "a", "q": "b+b"}
SEEDS = [
    b"any n=any\n\nn=1",
    b"any n=int\n\nn=-0",
    b"any n=int\n\nn=+1",
    b"need n\nmore m\n\nm=1&m=2",
    b"list n=a b,a+b\n\nn=a+b",
    b"list n=a+b\n\nn=a+b",
    b"re n=[a-z ]*\n\nn=a%20b+c",
    b"any n={p}\nany m={q}\n\nn=a&m=b%2Bb",
    b"any filter[a]=any\n\nfilter%5Ba%5d=1",
    b"any n<=any\n\nn%3C=1",
    b"any n=\n\nn",
    b"any n=any\n\nn",
    b"any n=any\n\nn=1&n=1",
    b"any n=any\n\nn=[1]",
    b"any n=any\n\nn=1;m=2",
    b"any n=any\n\nn=1&&",
    b"any n=any\n\n%6E=1",
    b"any n=any\n\nn=%00",
    b"any n=any\n\nn=%C3%28",
    b"any n=k\n\nn=%6B",
]
TOKENS = [
    *(
        b"any ",
        b"list ",
        b"re ",
        b"need ",
        b"more ",
        b"=any\n",
        b"=int\n",
        b"={p}\n",
        b"={q}\n",
        b"=[a-z ]*\n",
        b"\n\n",
    ),
    *(
        b"&",
        b"=",
        b"n=",
        b"&n=",
        b"m",
        b"+",
        b"%2B",
        b"%20",
        b"%5B",
        b"%5d",
        b"[",
        b"]",
        b"%3C",
        b"%3e",
        b"<",
        b"%26",
        b"%3D",
        b";",
        b"%3B",
    ),
    *(b"?", b"#", b"%00", b"%0A", b"%C3%A9", b"%C3", b"%6e", b"9999999999999999999", b"-0", b"-1", b"0x1"),
]


def one_input(data: bytes) -> None:
    head, _, query = data.partition(b"\n\n")
    rules, reference = compiled(head)
    if rules is None:
        return
    code = decided(rules, query)
    if code == "target-malformed":
        assert not well_formed(query), "a well-formed query is refused as malformed"
        return
    assert well_formed(query)
    expected = "granted" if taken(reference, query) else "query-not-granted"
    assert code == expected, f"decided {code}, by the rules {expected}"
    if code == "granted":
        assert_parsers_agree(query, reference)


def decided(rules: QueryRules, query: bytes) -> str:
    try:
        target = split_target(b"/?" + query)
        assert target.query == query
        check_query(rules, target.query, GIVEN)
    except ProblemError as refused:
        return refused.code
    return "granted"


def assert_parsers_agree(query: bytes, reference: dict[str, Any]) -> None:
    """What common parsers read must be the granted names, as often as granted, whatever they make of ``+``."""
    text = query.decode("ascii")
    pairs = parse_qsl(text, keep_blank_values=True, errors="strict")
    assert len(pairs) == text.count("&") + 1
    # Another one: ``;`` separates as well, and a name is decoded.
    split = [part.partition("=") for part in re.split("[&;]", text)]
    assert [unquote_plus(name) for name, _, _ in split] == [name for name, _ in pairs]
    assert [unquote_plus(value) for _, _, value in split] == [value for _, value in pairs]
    for name, count in Counter(name for name, _ in pairs).items():
        assert name in reference
        assert count == 1 or reference[name]["repeat"]
    for name, _, value in split:
        for reading in (unquote(value), unquote_plus(value)):
            assert fits(reference[unquote(name)], reading)


# --- the rules, read one by one ---


def well_formed(query: bytes) -> bool:
    if not re.fullmatch(rb"(?:[A-Za-z0-9\-._~!$&'()*+,=:@/?\[\]]|%[0-9A-Fa-f]{2})+", query):
        return False
    try:
        text = unquote_to_bytes(query).decode()
    except UnicodeDecodeError:
        return False
    return re.search("[\x00-\x1f\x7f-\x9f]", text) is None


def taken(reference: dict[str, Any], query: bytes) -> bool:
    names = []
    for part in query.decode("ascii").split("&"):
        raw_name, equals, raw = part.partition("=")
        name = raw_name
        for escape, mark in (("%5b", "["), ("%5d", "]"), ("%3c", "<"), ("%3e", ">")):
            name = re.sub("(?i)" + escape, mark, name)
        rule = reference.get(name)
        if rule is None or "[" in raw or "]" in raw or not (equals or rule["takes"] == {""}):
            return False
        if not all(fits(rule, reading) for reading in (unquote(raw), unquote_plus(raw))):
            return False
        names.append(name)
    once = all(count == 1 or reference[name]["repeat"] for name, count in Counter(names).items())
    return once and all(name in names for name, rule in reference.items() if rule["required"])


def fits(rule: dict[str, Any], value: str) -> bool:
    takes = rule["takes"]
    if isinstance(takes, set):
        return value in takes
    return takes(value)


@lru_cache(maxsize=256)
def compiled(head: bytes) -> tuple[QueryRules | None, dict[str, Any]]:
    """Return the rules as the grants have them and as the reference reads them; None when they are refused."""
    given: dict[str, Any] = {}
    reference: dict[str, Any] = {}
    for line in head.decode("latin-1").split("\n"):
        mark, _, rest = line.partition(" ")
        name, _, value = rest.partition("=")
        if mark == "list":
            given[name] = value.split(",")
            takes: Any = set(value.split(","))
        elif mark == "re":
            given[name] = {"pattern": value}
            takes = value
        elif mark in ("need", "more"):
            given[name] = {"required": mark == "need", "repeat": mark == "more"}
            takes = lambda _: True  # noqa: E731
        elif mark == "any":
            given[name] = value
            takes = word(value)
        else:
            continue
        reference[name] = {"takes": takes, "required": mark == "need", "repeat": mark == "more"}
    rules, wrong = compile_query(given)
    if wrong:
        return None, {}
    for rule in reference.values():
        if isinstance(rule["takes"], str):
            rule["takes"] = compile_pattern(rule["takes"]).matches
    return rules, reference


def word(value: str) -> Any:
    if value == "any":
        return lambda _: True
    if value == "int":
        return lambda text: re.fullmatch("-?(0|[1-9][0-9]{0,18})", text) is not None
    if value in ("{p}", "{q}"):
        return {GIVEN[value[1]]}
    if re.fullmatch(r"\{[A-Za-z_][A-Za-z0-9_.-]{0,63}\}", value):
        return set()
    return {value}
