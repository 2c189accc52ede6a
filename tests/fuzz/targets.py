"""Targets and routes: for any grants and any bytes, a call is refused, or it is these very bytes on a granted route.

An input is a grants file in short, an empty line, and a call::

    + GET /a/*          a route of allow; w: with wide characters, e: with escapes, l: with the dangerous ones listed
    - GET /a/b          a route of the catalog

    GET /a/b            method, blank, target: all the bytes that are left
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

from config.errors import ConfigurationError
from config.match import DeniedError, Matcher
from config.problems import ProblemError
from config.routes import METHODS
from config.target import DANGEROUS, split_target
from tests.config.grants_of import matcher
from tests.properties.rules import GIVEN, decide, well_formed

PARAMS = {"p": "[a-z.:]+", "q": "[a-z]+"}
OPTIONS: dict[str, dict[str, Any]] = {
    "+": {},
    "w": {"wide": True},
    "e": {"encoded": True},
    "l": {"encoded": sorted(DANGEROUS)},
}
SEEDS = [
    b"+ GET /v1/items\n\nGET /v1/items",
    b"+ GET /a/*\n+ GET /*/b\n- GET /a/b/\n\nGET /a/b",
    b"l GET /*\n- GET /*/b\n\nGET /a%2Fb",
    b"+ GET /*\n- HEAD /ADMIN\n\nGET /admin",
    b"+ GET /*/x\n+ GET /a*/x\n+ GET /ab*/x\n\nGET /abc/x",
    b"+ GET /a*b\n\nGET /a..b",
    b"l GET /*\n\nGET /%61dmin",
    b"e GET /*\n- GET /kelvin\n\nGET /%E2%84%AAelvin",
    b"w GET /files/*:merge\n+ GET /files/{p}.json\n\nGET /files/a:b:merge",
    b"+ GET /x{q}/*.*\n- GET /xbb/a.*\n\nGET /xbb/a.b",
    b"+ POST /a*b*c\n\nPOST /abbbc",
    b"+ POST /a*b*c\n\nPOST /*babbbc",
    b"w GET /files/*:merg*\n- GET /files/{p}.json\n\nGET /files/a:b:merge",
    b"l GET /*/*\n\nGET /..%2F..%2Fetc",
    b"l GET /*\n\nGET /%252E%252E",
    b"+ GET /*/*\n\nGET /../..",
    b"l GET /*\n\nGET /..%3Bx",
    b"+ GET /\n\nGET /?",
    b"+ GET /a/\n\nGET /a//",
    b"+ GET /*\n\nGET http://evil.test/a",
    b"+ GET /*\n\nGET /a\r\nHost: evil.test",
]
TOKENS = [
    *(f"{mark} {method} /".encode() for mark in "+wel-" for method in ("GET", "HEAD")),
    *(b"\n\n", b"\nGET /", b"\nHEAD /", b"/*", b"*.", b"{p}", b"{q}", b"/a", b"bb", b"//", b"/./", b"/../", b"..;"),
    *(escape.encode() for escape in sorted(DANGEROUS)),
    *(b"%41", b"%2f", b"%252F", b"%C3%A9", b"%E2%84%AA", b"%00", b"%0A", b"%20", b"%7C", b"%", b"\\", b"?", b"#"),
]


def one_input(data: bytes) -> None:
    head, _, call = data.partition(b"\n\n")
    method, _, raw = call.partition(b" ")
    check_split(raw)
    allow, catalog = read_grants(head)
    built = compiled(head)
    name = method.decode("latin-1")
    if built is None or name not in METHODS:
        return
    decided = outcome(built, name, raw)
    path, mark, _ = raw.partition(b"?")
    expected = decide(allow, catalog, name, path.decode("latin-1"))
    if mark and decided == "target-malformed":
        # The reference reads paths; what makes a query malformed is said in check_split.
        return
    if mark and isinstance(expected, tuple):
        expected = "query-not-granted"
    assert decided == expected, f"decided {decided}, by the rules {expected}"


def outcome(built: Matcher, method: str, raw: bytes) -> Any:
    """Return ("granted", template) or the refusal's code, as the reference does."""
    try:
        return "granted", built.match(method, raw, GIVEN).rule.text
    except DeniedError as refused:
        granted = {rule.text for rule in built.profile.allow}
        if not granted.issuperset(refused.members.get("nearest", ())):
            raise AssertionError("what is near is none of the granted routes") from refused
        return "not-granted" if refused.code in ("route-not-granted", "encoding-not-granted") else refused.code


def check_split(raw: bytes) -> None:
    """A target is refused, or every part of it is the bytes that came and no server can read another path in it."""
    try:
        target = split_target(raw)
    except ProblemError as refused:
        if refused.code != "target-malformed" or well_formed(raw.decode("latin-1")):
            raise AssertionError("a well-formed path is refused, or for another reason") from refused
        return
    path, mark, query = raw.partition(b"?")
    assert (target.raw, target.path, target.query) == (raw, path, query if mark else None)
    assert b"/" + b"/".join(target.segments) == path
    assert well_formed(path.decode("latin-1"))
    assert not mark or (query and re.fullmatch(rb"(?:[A-Za-z0-9\-._~!$&'()*+,=:@/?\[\]]|%[0-9A-Fa-f]{2})+", query))
    for reading in every_reading(path):
        parts = re.split(rb"[/\\]", reading[1:])
        assert all(parts[:-1])
        assert not any(part and not re.split(rb"[;?#]", part)[0].strip(b".") for part in parts)
        assert not re.search("[\x00-\x1f\x7f-\x9f]", reading.decode())
    if mark:
        assert not re.search("[\x00-\x1f\x7f-\x9f]", unquote_to_bytes(query).decode())


def every_reading(path: bytes) -> list[bytes]:
    """Return the path as it came and decoded once, twice and so on."""
    readings = [path]
    while (further := unquote_to_bytes(readings[-1])) != readings[-1]:
        readings.append(further)
    return readings


def read_grants(head: bytes) -> tuple[list[Any], list[str]]:
    allow, catalog = [], []
    for line in head.decode("latin-1").split("\n"):
        mark, _, route = line.partition(" ")
        if mark == "-":
            catalog.append(route)
        elif mark in OPTIONS:
            allow.append({"route": route, **OPTIONS[mark]} if OPTIONS[mark] else route)
    return allow, catalog


@lru_cache(maxsize=256)
def compiled(head: bytes) -> Matcher | None:
    """Return the matcher of a grants file, or None when the file is refused."""
    allow, catalog = read_grants(head)
    try:
        return matcher(allow=allow, catalog=catalog, params=PARAMS)
    except ConfigurationError:
        return None
