"""The fuzz targets at work: every seed, and some hundreds of mixtures of seeds, tokens and stray bytes."""

from __future__ import annotations

import importlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.__main__ import NAMES

TARGETS = {name: importlib.import_module(f"tests.fuzz.{name}") for name in NAMES}
SEEDS = [(name, number) for name, target in TARGETS.items() for number in range(len(target.SEEDS))]


def mixtures(target):
    """A seed with up to three of its places replaced: by a token, by stray bytes, by a piece of another seed."""
    piece = st.sampled_from(target.SEEDS).flatmap(
        lambda seed: st.tuples(st.integers(0, len(seed)), st.integers(0, 16)).map(
            lambda cut: seed[cut[0] : cut[0] + cut[1]]
        )
    )
    change = st.tuples(
        st.integers(0, 400), st.integers(0, 8), st.sampled_from(target.TOKENS) | st.binary(max_size=4) | piece
    )
    return st.builds(changed, st.sampled_from(target.SEEDS), st.lists(change, min_size=1, max_size=3))


def changed(data, changes):
    for place, dropped, put in changes:
        at = place % (len(data) + 1)
        data = data[:at] + put + data[at + dropped :]
    return data


@pytest.mark.parametrize(("name", "number"), SEEDS)
def test_every_invariant_holds_for_a_seed(name, number):
    TARGETS[name].one_input(TARGETS[name].SEEDS[number])


@pytest.mark.parametrize("name", NAMES)
def test_every_invariant_holds_for_mixtures_of_the_seeds(name):
    target = TARGETS[name]

    @settings(max_examples=300, deadline=None)
    @given(mixtures(target))
    def holds(data):
        target.one_input(data)

    holds()
