"""The JSON Schema of the grants file, generated from its types: ``python -m config.schema`` prints it.

``config/grants.schema.json`` is that output, for editors; a test fails when the two differ.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any

import msgspec

from config.errors import Fault
from config.grantsfile import GrantsSource
from config.validation import schema_faults


@cache
def grants_schema() -> dict[str, Any]:
    """Return the schema (JSON Schema 2020-12)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "grants.json",
        **msgspec.json.schema(GrantsSource),
    }


def grants_faults(document: Any, *, where: str) -> list[Fault]:
    """Return what the schema has against ``document``: full path, what was expected, what was probably meant."""
    return schema_faults(grants_schema(), document, where=where)


def text() -> str:
    """Return the schema as the file has it."""
    return json.dumps(grants_schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
