"""Flow tests run both programs as real processes; each ends with a search for the marked secret."""

from __future__ import annotations

import pytest

from tests.worlds.api import Api
from tests.worlds.service import Service


@pytest.fixture
def api():
    with Api() as running:
        yield running


@pytest.fixture
def service(tmp_path):
    made = Service(tmp_path)
    try:
        yield made
        made.assert_canary_absent()
    finally:
        made.end()
        # Once more, with what was written while they ended.
        made.assert_canary_absent()
