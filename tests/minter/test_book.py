"""The book: who takes a lease ends it; what is current; and that a packed row comes back whole."""

from __future__ import annotations

import dataclasses
import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minter.book import SLICE, Book
from minter.lease_rows import STATES, LeaseRow
from minter.packing import pack, unpack

TEXT = st.text(max_size=40)
INSTANT = st.floats(min_value=0, max_value=1e11)
VALUES = {
    "str": TEXT,
    "float": INSTANT,
    "int": st.integers(0, 2**40),
    "State": st.sampled_from(STATES),
    "None": st.none(),
}
ROWS = st.builds(
    LeaseRow,
    **{
        field.name: st.one_of(*(VALUES[name] for name in field.type.split(" | ")))
        for field in dataclasses.fields(LeaseRow)
    },
)


def row(id_, *, broker="b1", run_id="run_1", profile="p", kind="static"):
    return LeaseRow(
        id=id_,
        broker=broker,
        run_id=run_id,
        caller="agent",
        profile=profile,
        params_digest="hmac-sha256:0",
        origin="https://api.example.com",
        grant_digest="sha256:0",
        kind=kind,
        state="active",
        created_at=1.0,
        expires_at=2.0,
        boot_expires_at=2.0,
        boot_id="boot",
        run_ends_at=2.0,
        token="{}",
    )


@pytest.fixture
def book():
    return Book()


def add(book, id_, **fields):
    return book.add(row(id_, **fields))


def ids(leases):
    return [live.id for live in leases]


@given(one=ROWS)
def test_a_packed_row_comes_back_as_it_was(one):
    again = unpack(one.id, pack(one))
    assert dataclasses.asdict(again) == dataclasses.asdict(one)


@pytest.mark.parametrize(
    "digest",
    [
        "hmac-sha256:" + "0f" * 32,
        "hmac-sha256:" + "0F" * 32,
        "hmac-sha256:0",
        "hmac-sha256:",
        "0f",
        "hmac-sha256:00 0f",
    ],
)
def test_a_digest_comes_back_as_it_was_written(digest):
    one = dataclasses.replace(row("a"), params_digest=digest)
    assert unpack("a", pack(one)).params_digest == digest


def test_a_change_to_a_row_that_was_asked_for_does_not_change_the_lease(book):
    live = add(book, "a")
    live.row.state = "revoked"
    assert book.get("a").row.state == "active"


def test_a_lease_is_taken_once(book):
    live = add(book, "a")
    again = book.get("a")
    assert ids(book.take([live, again])) == ["a"]
    assert book.take([again]) == []
    assert "a" not in book
    assert (book.get("a"), book.current(("b1", "run_1", "p")), book.of_run("b1", "run_1")) == (None, None, [])


def test_a_runs_leases_are_found_by_their_profile(book):
    add(book, "a")
    add(book, "b", profile="q")
    assert ids(book.of_run("b1", "run_1")) == ["a", "b"]
    assert book.current(("b1", "run_1", "q")).id == "b"
    assert book.current(("b1", "run_1", "r")) is None


def test_two_brokers_whose_runs_have_the_same_id_do_not_see_each_others_leases(book):
    own, _other = add(book, "a"), add(book, "b", broker="b2")
    assert ids(book.of_run("b1", "run_1")) == ["a"]
    assert book.current(("b2", "run_1", "p")).id == "b"
    book.take([own])
    assert ids(book.of_run("b2", "run_1")) == ["b"]
    assert book.current(("b1", "run_1", "p")) is None


def test_a_lease_that_was_replaced_stays_live_and_never_becomes_current_again(book):
    add(book, "a")
    newer = add(book, "b")
    assert book.current(("b1", "run_1", "p")).id == "b"
    book.take([newer])
    assert "a" in book
    assert book.current(("b1", "run_1", "p")) is None


def test_leases_are_counted_by_broker_and_profile_and_by_kind(book):
    lives = [add(book, "a"), add(book, "b", run_id="run_2"), add(book, "c", profile="q", kind="jwt")]
    assert (book.count("b1", "p"), book.count("b1", "q"), book.count("b2", "p")) == (2, 1, 0)
    assert book.by_kind() == {"static": 2, "jwt": 1}
    book.take(lives[1:])
    assert (len(book), book.count("b1", "p"), book.count("b1", "q")) == (1, 1, 0)
    assert book.by_kind() == {"static": 1}


def test_a_walk_sees_the_leases_of_its_beginning_that_are_still_live(book):
    lives = [add(book, str(number), run_id=f"run_{number}") for number in range(SLICE + 3)]
    walk = book.slices()
    first = next(walk)
    book.take(lives[-1:])
    add(book, "later")
    assert ids(first) == [str(number) for number in range(SLICE)]
    assert [ids(some) for some in walk] == [[str(SLICE), str(SLICE + 1)]]


def test_the_garbage_collector_does_not_look_into_the_book(book):
    add(book, "a")
    add(book, "b")
    assert not any(gc.is_tracked(value) for value in (book._by_id, book._by_run))
