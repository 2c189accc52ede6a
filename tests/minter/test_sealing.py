"""Sealing: what opens where, and what does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.secret import Secret
from minter.sealing import (
    Sealed,
    Sealer,
    SealError,
    key_place,
    lease_place,
    new_data_key,
    new_sealing_key,
    read_sealing_key,
    sealing_fingerprint,
    unwrap,
    wrap,
)

CANARY = "canary-of-the-sealed"


@pytest.fixture
def sealer():
    sealer = Sealer()
    sealer.use(1, new_data_key(), current=True)
    return sealer


def test_nothing_is_sealed_before_a_data_key_is_loaded():
    with pytest.raises(SealError, match="no data key"):
        Sealer().seal(key_place("a", 1), b"x")


def test_a_credential_comes_back_field_by_field_and_stands_nowhere_in_the_clear(sealer):
    sealed = sealer.seal_credential(
        lease_place("lse_1", "static", "b1", 7.5), {"value": Secret(CANARY), "user": Secret("u")}
    )
    assert CANARY.encode() not in sealed.blob
    opened = sealer.open_credential(lease_place("lse_1", "static", "b1", 7.5), sealed)
    assert {name: secret.reveal() for name, secret in opened.items()} == {"value": CANARY, "user": "u"}


def test_the_same_value_never_looks_the_same_twice(sealer):
    assert len({sealer.seal(key_place("a", 1), b"x").blob for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "place",
    [
        lease_place("lse_2", "static"),
        lease_place("lse_1", "jwt"),
        lease_place("lse_1", "static", "b1"),
        key_place("lse_1", 1),
        ("lease", "lse_1"),
        ("lease", "lse_1static"),
    ],
    ids=str,
)
def test_a_value_that_is_moved_does_not_open(sealer, place):
    sealed = sealer.seal(lease_place("lse_1", "static"), b"x")
    with pytest.raises(SealError):
        sealer.open(place, sealed)


def test_a_version_that_is_put_back_under_a_later_one_does_not_open(sealer):
    old = sealer.seal(key_place("signer", 1), b"old")
    with pytest.raises(SealError):
        sealer.open(key_place("signer", 2), old)


def test_a_value_does_not_open_under_the_number_of_another_data_key(sealer):
    key = new_data_key()
    sealer.use(2, key)
    sealer.use(3, key)
    sealer.use(2, key, current=True)
    sealed = sealer.seal(key_place("a", 1), b"x")
    with pytest.raises(SealError):
        sealer.open(key_place("a", 1), Sealed(3, sealed.blob))
    with pytest.raises(SealError, match="not loaded"):
        sealer.open(key_place("a", 1), Sealed(4, sealed.blob))


@given(st.binary(max_size=64), st.data())
def test_no_changed_byte_goes_unnoticed(plain, data):
    sealer = Sealer()
    sealer.use(1, new_data_key(), current=True)
    blob = bytearray(sealer.seal(key_place("a", 1), plain).blob)
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SealError):
        sealer.open(key_place("a", 1), Sealed(1, bytes(blob)))
    cut = data.draw(st.integers(0, len(blob) - 1))
    with pytest.raises(SealError):
        sealer.open(key_place("a", 1), Sealed(1, bytes(blob[:cut])))


def test_the_current_data_key_is_not_dropped_and_another_one_that_is_opens_nothing(sealer):
    sealed = sealer.seal(key_place("a", 1), b"x")
    with pytest.raises(ValueError, match="current"):
        sealer.drop(1)
    sealer.use(2, new_data_key(), current=True)
    assert sealer.reseal(key_place("a", 1), sealed).data_key == 2
    sealer.drop(1)
    with pytest.raises(SealError):
        sealer.open(key_place("a", 1), sealed)


def test_a_data_key_opens_with_its_own_sealing_key_number_and_version_alone():
    key, other, data_key = (read_sealing_key(new_sealing_key()) for _ in range(3))
    wrapped = wrap(key, sealing_version=1, number=7, data_key=data_key)
    assert data_key not in wrapped
    assert unwrap(key, sealing_version=1, number=7, wrapped=wrapped) == data_key
    for sealing_key, version, number in ((other, 1, 7), (key, 2, 7), (key, 1, 8)):
        with pytest.raises(SealError):
            unwrap(sealing_key, sealing_version=version, number=number, wrapped=wrapped)


@pytest.mark.parametrize("text", ["", "abc", "A" * 44, "QUJD" * 10, "QUJD" * 11 + "AA=="])
def test_what_is_no_sealing_key_is_refused_without_being_shown(text):
    with pytest.raises(SealError, match="32 bytes") as refused:
        read_sealing_key(Secret(text))
    assert not text or text not in str(refused.value)


def test_two_sealing_keys_have_two_fingerprints_that_show_neither():
    one, two = new_sealing_key(), new_sealing_key()
    assert sealing_fingerprint(one) == sealing_fingerprint(Secret(one.reveal())) != sealing_fingerprint(two)
    assert sealing_fingerprint(one) not in one.reveal()
