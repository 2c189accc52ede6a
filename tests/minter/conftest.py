from __future__ import annotations

import io

import pytest
import structlog

from config.clock import FakeClock


@pytest.fixture(scope="session", autouse=True)
def _quiet_logs():
    """Let logs go nowhere: rendering the tracebacks of faults that tests inject takes seconds."""
    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.KeyValueRenderer()], logger_factory=structlog.WriteLoggerFactory(io.StringIO())
    )
    yield
    structlog.configure(**before)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def world(tmp_path, clock):
    from tests.minter.lease_world import World

    world = await World(tmp_path / "minter", clock).start()
    yield world
    await world.stop()


@pytest.fixture
async def served(world):
    from tests.minter.lease_world import Served

    async with Served(world) as served:
        yield served
