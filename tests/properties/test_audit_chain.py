"""Whatever is done to a log whose last line is known, the verifier finds it; whatever was logged, it verifies."""

import io
import json
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minter import audit_verify
from minter.audit import AuditLog, Event
from minter.audit_verify import Head, canonical, line_hash, verify

NOW = 1_893_456_000.0

texts = st.text(max_size=30) | st.sampled_from(["\u2028", "\ud800", "\r\n", "\x1b[1m", "\u202e", "\x7f"])
events = st.builds(
    lambda caller, calls: Event("run.recorded", {"caller": caller, "calls": calls}), texts, st.integers()
)


def written(batches):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "audit.jsonl"
        log = AuditLog(path, installation="inst-1", known=None, now=NOW)
        for n, batch in enumerate(batches):
            log.append(batch, now=NOW + n)
        log.close()
        return path.read_bytes(), Head(*log.head())


def split(data):
    """Split as a binary file does: at line feeds alone."""
    return list(io.BytesIO(data))


def chained(records):
    """Write records whose hashes are all right."""
    prev = records[0]["prev"]
    lines = []
    for record in records:
        line = canonical({**record, "prev": prev})
        prev = line_hash(line)
        lines.append(line + b"\n")
    return lines


# Made once: the attacks are what varies.
LOG, HEAD = written([[Event("key.pinned", {"alias": f"k{n}", "origins": ["https://a.example"]})] for n in range(12)])
LINES = split(LOG)
OTHER_LINES = split(written([[Event("key.pinned", {"alias": "other", "origins": []})] for _ in range(12)])[0])
index = st.integers(0, len(LINES) - 1)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def found(lines, head=HEAD):
    return verify(lines, installation="inst-1", head=head).bad is not None


@given(st.lists(st.lists(events, min_size=1, max_size=3), max_size=4))
@settings(max_examples=50, deadline=None)
def test_whatever_was_logged_verifies_and_is_one_printable_line_each(batches):
    data, head = written(batches)
    assert verify(split(data), installation="inst-1", head=head).bad is None
    assert data.count(b"\n") == 1 + sum(map(len, batches))
    assert all(byte == 0x0A or 0x20 <= byte < 0x7F for byte in data)


@given(st.integers(0, len(LOG) - 1), st.integers(1, 255))
def test_every_edit_of_a_byte_is_found(place, flip):
    edited = bytearray(LOG)
    edited[place] ^= flip
    assert found(split(bytes(edited)))


@given(st.integers(0, len(LOG)), st.binary(min_size=1, max_size=20))
def test_every_insertion_is_found(place, inserted):
    lines = split(LOG[:place] + inserted + LOG[place:])
    # Behind the known line a verifier sees what the minter would have written next; but rubbish is not that.
    assert found(lines)


@given(st.integers(0, len(LOG) - 1), st.integers(1, len(LOG)))
def test_every_removal_of_bytes_is_found_a_cut_at_the_end_included(start, length):
    assert found(split(LOG[:start] + LOG[start + length :]))


@given(index, st.integers(1, 12))
def test_every_removal_of_lines_is_found(start, count):
    assert found(LINES[:start] + LINES[start + count :])


@given(index, index)
def test_every_duplicate_is_found(source, place):
    assert found([*LINES[:place], LINES[source], *LINES[place:]])


@given(st.permutations(range(len(LINES))))
def test_every_reorder_is_found(order):
    assume(order != list(range(len(LINES))))
    assert found([LINES[n] for n in order])


@given(index, index, st.booleans())
def test_every_splice_of_another_log_of_the_same_installation_is_found(first, last, insert):
    first, last = min(first, last), max(first, last)
    # Line 0 of both logs is the same: a splice of it alone changes nothing.
    assume(insert or last > 0)
    end = first if insert else last + 1
    assert found(LINES[:first] + OTHER_LINES[first : last + 1] + LINES[end:])


@given(index, st.sampled_from(["alias", "at", "code"]))
def test_a_rewrite_that_recomputes_every_hash_behind_it_is_found_by_the_known_line(place, name):
    records = [json.loads(line) for line in LINES]
    records[place][name] = {"at": "2031-01-01T00:00:00.000Z", "code": "key.rebound", "alias": "forged"}[name]
    lines = chained(records)
    assert found(lines)
    if place > 0:
        # Without a known line this is what a chain alone cannot show.
        assert verify(lines, installation="inst-1").bad is None


@given(index)
def test_lines_behind_the_known_one_are_checked_by_the_chain(place):
    known = Head(place + 1, line_hash(LINES[place][:-1]))
    assert not found(LINES, known)
    assert found([*LINES, LINES[-1]], known)
    assert found([*LINES[:-2], LINES[-1]], known)


@given(st.integers(1, len(LINES) - 1), st.integers(-3, 3))
def test_a_number_that_does_not_count_on_is_found_though_every_hash_is_right(place, step):
    assume(step != 0)
    records = [json.loads(line) for line in LINES]
    records[place]["seq"] += step
    assert verify(chained(records), installation="inst-1").bad is not None


def outcome(line):
    try:
        return json.dumps(audit_verify.parse_line(line), sort_keys=True)
    except ValueError:
        return None


@given(
    st.dictionaries(st.text(max_size=6), values, max_size=4),
    st.sampled_from(["canonical", "spaced", "utf-8", "of the other library"]),
)
@settings(max_examples=300, deadline=None)
def test_the_fast_way_to_read_a_line_takes_exactly_what_the_other_takes(fields, spelling):
    record = {**fields, "at": "2030-01-01T00:00:00.000Z", "code": "c", "prev": "p", "seq": 1}
    if spelling == "canonical":
        line = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
    elif spelling == "of the other library":
        try:
            line = msgspec.json.encode(record, order="sorted")
        except (ValueError, OverflowError):
            return
    elif spelling == "spaced":
        line = json.dumps(record, sort_keys=True).encode()
    else:
        line = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    fast = outcome(line)
    plain, audit_verify._plain = audit_verify._plain, lambda _line: None
    try:
        assert fast == outcome(line)
    finally:
        audit_verify._plain = plain


@pytest.mark.parametrize("value", [b"1e16", b"1e-7", b"0.0", b'"\x7f"', b"1E400", b"18446744073709551616", b"-0"])
def test_what_the_libraries_spell_in_two_ways_is_left_to_the_slow_one(value):
    line = b'{"a":%s,"at":"2030-01-01T00:00:00.000Z","code":"c","prev":"p","seq":1}' % value
    fast = outcome(line)
    plain, audit_verify._plain = audit_verify._plain, lambda _line: None
    try:
        assert fast == outcome(line)
    finally:
        audit_verify._plain = plain


@given(st.integers(0, len(LINES[3]) - 2), st.binary(max_size=3))
def test_the_fast_way_takes_no_spelling_that_the_other_refuses(place, inserted):
    line = LINES[3][:-1]
    line = line[:place] + inserted + line[place + 1 :]
    fast = outcome(line)
    plain, audit_verify._plain = audit_verify._plain, lambda _line: None
    try:
        assert fast == outcome(line)
    finally:
        audit_verify._plain = plain
