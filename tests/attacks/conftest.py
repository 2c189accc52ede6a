"""One broker and minter for all cases on the wire, in front of an API that records every byte.

Each worker has its own, and each case opens a run of its own.
"""

from __future__ import annotations

import pytest

from config.clock import FakeClock
from tests.attacks.house import serving
from tests.attacks.upstream import Upstream
from tests.worlds.rule_breaker import RuleBreaker

ITEMS = ["GET /v1/items", "POST /v1/items", "GET /v1/items/*"]
CATALOG = ["DELETE /v1/items/*", "GET /v1/admin"]


@pytest.fixture(scope="session")
def upstream():
    with Upstream() as running:
        yield running


@pytest.fixture(scope="session")
def decoy():
    """Somebody else's server. Nothing may reach it."""
    with Upstream() as running:
        yield running


@pytest.fixture(scope="session")
def telemetry():
    """An API that a run may call and that has no key."""
    with Upstream() as running:
        yield running


@pytest.fixture(scope="session")
def _house(tmp_path_factory, upstream, decoy, telemetry):
    def at(**fields):
        return {"base_url": upstream.origin, "allow": ITEMS, "catalog": CATALOG, **fields}

    profiles = {
        "items": at(max_calls=2000),
        "wide": at(allow=["GET /v1/*", "GET /o/*"]),
        "encoded": at(allow=[{"route": "GET /o/*", "encoded": ["%2F"]}]),
        "partly": at(allow=["GET /v1/*", {"route": "GET /v1/public", "credential": False}], catalog=[]),
        "open": {"base_url": telemetry.origin, "allow": ["POST /v1/events"], "token": None},
        "large": at(max_request="4MiB"),
        "small": at(max_request=10, max_calls=2),
        "heads": at(allow=["GET /v1/items", "HEAD /v1/file"]),
        "basic": at(placement={"scheme": "basic", "user": "x-access-token"}),
        "header": at(placement={"scheme": "header", "name": "x-goog-api-key"}),
        "gone": {"base_url": "http://127.0.0.1:9", "allow": ITEMS},
    }
    proxy = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"), decoy.origin)
    with serving(
        tmp_path_factory.mktemp("house"),
        profiles,
        broker_extra='max_runs = 1000\nlog_level = "debug"',
        minter_top='log_level = "debug"',
        environ=proxy,
    ) as house:
        yield house


@pytest.fixture
def house(_house, upstream, decoy):
    upstream.forget()
    yield _house
    assert decoy.connections == 0


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture(scope="module")
def running():
    """An API that breaks the rules as a test says."""
    with RuleBreaker() as api:
        yield api


@pytest.fixture
def api(running):
    return running
