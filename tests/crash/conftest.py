from __future__ import annotations

import pytest

from tests.worlds.issuer import Issuer
from tests.worlds.killable import Killable


@pytest.fixture
def issuer():
    with Issuer() as running:
        yield running


@pytest.fixture
def minter(tmp_path, issuer):
    made = Killable(tmp_path, issuer)
    made.prepare()
    try:
        yield made
    finally:
        made.end()
