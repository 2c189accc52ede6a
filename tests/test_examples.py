"""The examples in docstrings run as they are printed."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHOWING = [
    str(path.relative_to(ROOT))
    for package in ("config", "minter", "broker")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("path", SHOWING)
def test_an_example_gives_what_it_says(path):
    module = importlib.import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    assert doctest.testmod(module).failed == 0
