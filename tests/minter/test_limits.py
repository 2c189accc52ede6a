from __future__ import annotations

from minter.limits import Rate


def test_a_bucket_gives_its_burst_at_once_and_then_so_many_a_second(clock):
    rate = Rate(clock, per_s=2, burst=3)
    assert [rate.wait_s("a") for _ in range(4)] == [0, 0, 0, 0.5]
    clock.advance(0.5)
    assert [rate.wait_s("a") for _ in range(2)] == [0, 0.5]
    clock.advance(3600)
    assert [rate.wait_s("a") for _ in range(4)] == [0, 0, 0, 0.5]


def test_keys_have_buckets_of_their_own(clock):
    rate = Rate(clock, per_s=1, burst=1)
    assert [rate.wait_s("a"), rate.wait_s("b"), rate.wait_s("a")] == [0, 0, 1]


def test_a_clock_that_was_set_neither_opens_nor_closes_a_bucket(clock):
    rate = Rate(clock, per_s=1, burst=1)
    rate.wait_s("a")
    clock.wall += 86_400
    assert rate.wait_s("a") == 1
    clock.wall -= 2 * 86_400
    assert rate.wait_s("a") == 1
    clock.boot -= 500
    assert rate.wait_s("a") == 1


def test_no_more_keys_are_kept_than_allowed_and_the_longest_unused_goes_first(clock):
    rate = Rate(clock, per_s=1, burst=1, keys=2)
    rate.wait_s("a")
    rate.wait_s("b")
    rate.wait_s("a")
    rate.wait_s("c")
    assert len(rate._buckets) == 2
    assert rate.wait_s("a") > 0
