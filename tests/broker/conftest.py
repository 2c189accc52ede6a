"""Which event loops the tests of this folder run on."""

from __future__ import annotations

import asyncio

import uvloop

#: What runs on both: the broker's loop is uvloop, that of ``broker exec`` asyncio's own.
BOTH = frozenset({"test_pool.py", "test_upstream_connection.py"})


def pytest_asyncio_loop_factories(item):
    own = {"asyncio": asyncio.new_event_loop}
    return own | {"uvloop": uvloop.new_event_loop} if item.path.name in BOTH else own
