"""Two clocks end a loan: whichever is first. Exactly at the end is ended."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.clock import Deadline, FakeClock, parse_rfc3339, rfc3339
from config.durations import parse_duration
from config.load import program_clock, write_atomic

DAY = 86_400.0


def test_a_loan_ends_exactly_at_its_end_on_either_clock():
    clock = FakeClock()
    deadline = Deadline.after(clock, 60)
    clock.advance(59)
    assert not deadline.ended(clock)
    clock.advance(1)
    assert deadline.ended(clock)


def test_a_wall_clock_that_jumps_back_a_day_does_not_prolong_a_loan():
    clock = FakeClock()
    deadline = Deadline.after(clock, 60)
    clock.wall -= DAY
    clock.advance(60)
    assert deadline.ended(clock)


def test_a_wall_clock_that_jumps_forward_a_day_ends_a_loan_early():
    clock = FakeClock()
    deadline = Deadline.after(clock, 60)
    clock.wall += DAY
    assert deadline.ended(clock)


def test_after_a_reboot_the_wall_clock_decides_and_the_highest_time_seen_counts():
    clock = FakeClock()
    deadline = Deadline.after(clock, 60)
    clock.boot, clock.boot_name = 1.0, "boot-2"
    assert not deadline.ended(clock)
    assert deadline.ended(clock, highest_wall=deadline.expires_at)


@given(jump=st.floats(-DAY, DAY), passed=st.floats(0, 120))
def test_no_jump_prolongs_a_loan(jump, passed):
    clock = FakeClock()
    deadline = Deadline.after(clock, 60)
    clock.wall += jump
    clock.advance(passed)
    assert deadline.ended(clock) or passed < 60


def test_instants_are_written_in_utc_with_milliseconds_and_read_back():
    assert rfc3339(1_893_456_000.5) == "2030-01-01T00:00:00.500Z"
    assert parse_rfc3339("2030-01-01T01:00:00.5+01:00") == 1_893_456_000.5
    with pytest.raises(ValueError):
        parse_rfc3339("2030-01-01T00:00:00")


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("15m", 900), ("24h", 86400), ("90d", 7_776_000), (5, 5), (0.5, 0.5)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "15", "m", "-5s", "1.5h", "5 m", "5M", "٥m", -1, float("nan"), float("inf"), True]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError):
        parse_duration(text)


def test_a_test_clock_file_moves_a_program_and_is_read_anew_when_replaced(tmp_path):
    path = tmp_path / "clock.json"
    path.write_text(json.dumps({"wall": 3600, "boot": 0}))
    clock, used = program_clock({"MINTER_TEST_CLOCK": str(path)}, "MINTER_")
    real, unused = program_clock({}, "MINTER_")
    assert used == path
    assert unused is None
    assert 3500 < clock.now() - real.now() < 3700
    write_atomic(path, json.dumps({"wall": -3600, "boot": 7200, "boot_id": "other"}).encode())
    assert -3700 < clock.now() - real.now() < -3500
    assert 7100 < clock.boottime() - real.boottime() < 7300
    assert clock.boot_id() == "other"
