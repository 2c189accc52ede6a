from __future__ import annotations

import pytest

from config import strictjson
from config.errors import ConfigurationError


def faults(data: bytes) -> list[str]:
    try:
        return [str(fault) for fault in strictjson.parse(data, where="f.json")[1]]
    except ConfigurationError as error:
        return [str(fault) for fault in error.faults]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b'{"a": {"b": 1, "b": 2}}', "f.json: a.b: stands twice in the object"),
        (b'{"a": [{"x": 1, "x": 1}]}', "f.json: a[0].x: stands twice in the object"),
        (b'{"a": NaN}', "f.json: a: not a number that JSON has"),
        (b'{"a": -Infinity}', "f.json: a: not a number that JSON has"),
        (b'{"a": 1e999}', "f.json: a: not a number that JSON has"),
        (b'{"a": "\\ud800"}', "f.json: a: holds half of a surrogate pair"),
        (b'{"a": ' + b"9" * 5000 + b"}", "f.json: holds a number with too many digits"),
        (b"[" * 33 + b"0" + b"]" * 33, "f.json: " + "[0]" * 33 + ": nested deeper than 32"),
        (b"[" * 200_000, "f.json: nested deeper than 32"),
        (b"{", "f.json: not JSON: Expecting property name enclosed in double quotes, line 1 column 2"),
        (b"", "f.json: not JSON: Expecting value, line 1 column 1"),
        (b"{} x", "f.json: not JSON: Extra data, line 1 column 4"),
        (b'{"a": "\xff"}', "f.json: not UTF-8, at byte 7"),
        (b"\xef\xbb\xbf{}", "f.json: starts with a byte-order mark; remove it"),
        (b"\xff\xfe{\x00}\x00", "f.json: not UTF-8, at byte 0"),
        (b" " * (strictjson.MAX_BYTES + 1), f"f.json: the file is larger than {strictjson.MAX_BYTES} bytes"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_two_readers_could_read_differently_is_a_fault_with_its_place(data, fault):
    assert faults(data) == [fault]


def test_all_faults_are_named_at_once():
    assert len(faults(b'{"a": NaN, "b": {"c": 1, "c": 2}, "d": "\\udfff"}')) == 3


def test_canonical_json_does_not_depend_on_how_it_was_written():
    first, _ = strictjson.parse(b'{"b": [1, 2.5, "\\u00e9"], "a": null}', where="x")
    second, _ = strictjson.parse('{"a":null,"b":[1,2.5,"é"]}'.encode(), where="x")
    assert strictjson.canonical(first) == strictjson.canonical(second) == '{"a":null,"b":[1,2.5,"é"]}'.encode()
