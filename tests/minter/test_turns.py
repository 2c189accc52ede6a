"""Taking turns: nobody waits for another's queue, and nothing is lost or done twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minter.turns import Turns

KINDS = st.sampled_from(["a", "b", "c"])
GROUPS = st.tuples(KINDS, st.sampled_from(["p", "q"]))


def taken(turns, count, may=lambda _group: True):
    found = []
    for _ in range(count):
        group = turns.next(may)
        if group is None:
            break
        found.append(turns.take(group))
    return found


@given(st.lists(st.tuples(GROUPS, st.booleans()), max_size=60))
def test_everything_that_waits_is_taken_once(things):
    turns = Turns()
    for number, (group, fresh) in enumerate(things):
        turns.put(group, number, fresh=fresh)
    assert len(turns) == len(things)
    assert sorted(taken(turns, len(things) + 5)) == list(range(len(things)))
    assert len(turns) == 0
    assert turns.next(lambda _group: True) is None


@given(st.integers(1, 200), st.integers(1, 5))
def test_a_kind_with_one_thing_waits_for_no_more_than_one_of_each_other_kind(long, others):
    turns = Turns()
    for number in range(long):
        turns.put(("long", "p"), ("long", number), fresh=False)
    for kind in range(others):
        turns.put((f"k{kind}", "p"), (f"k{kind}", 0), fresh=False)
    assert {kind for kind, _ in taken(turns, others + 1)} == {"long", *(f"k{kind}" for kind in range(others))}


def test_profiles_of_a_kind_take_turns_within_the_kinds_own_turn():
    turns = Turns()
    for number in range(4):
        turns.put(("a", "p"), f"ap{number}", fresh=False)
    turns.put(("a", "q"), "aq", fresh=False)
    turns.put(("b", "p"), "bp", fresh=False)
    assert taken(turns, 4) == ["ap0", "bp", "aq", "ap1"]


def test_what_has_just_come_and_what_has_waited_longest_take_turns():
    turns = Turns()
    for number in range(3):
        turns.put(("a", "p"), f"old{number}", fresh=False)
        turns.put(("a", "p"), f"new{number}", fresh=True)
    assert taken(turns, 6) == ["new0", "old0", "new1", "old1", "new2", "old2"]


def test_a_group_that_may_not_is_passed_over_and_keeps_its_place():
    turns = Turns()
    turns.put(("a", "p"), 1, fresh=False)
    turns.put(("b", "p"), 2, fresh=False)
    assert taken(turns, 9, may=lambda group: group[0] != "a") == [2]
    assert turns.of(("a", "p")) == 1
    assert taken(turns, 9) == [1]
