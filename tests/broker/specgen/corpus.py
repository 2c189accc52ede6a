"""The documents that the whole of specgen is tried on: ours, and those of a directory that SPECGEN_DOCUMENTS names.

Ours are written from facts about published documents, a trap each. ``SPECGEN_DOCUMENTS=DIR make test`` adds real ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_OURS = Path(__file__).parent / "documents"
_DEMO = Path(__file__).parents[3] / "ops/demo/agent-memory.openapi.json"


def paths() -> list[Path]:
    """Return every document at hand."""
    return [path for path in (*_ours(), *_others()) if path.is_file()]


def _ours() -> Iterator[Path]:
    yield from sorted(_OURS.glob("*.openapi.*"))
    yield _OURS / "split" / "openapi.yaml"
    yield _DEMO


def _others() -> Iterator[Path]:
    named = os.environ.get("SPECGEN_DOCUMENTS")
    if named:
        yield from sorted(path for path in Path(named).iterdir() if path.suffix in (".json", ".yaml", ".yml"))
