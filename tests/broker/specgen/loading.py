"""Loading a client of Python as the code does: a file of its own, imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def load(client: bytes, directory: Path) -> ModuleType:
    path = directory / "client.py"
    path.write_bytes(client)
    spec = importlib.util.spec_from_file_location("client", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
