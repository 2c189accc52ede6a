"""What specgen makes of the example's document, by the command that a person would give."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from broker.specgen.document import read_document
from broker.specgen.granted import granted_operations
from broker.specgen.model import Api, Choices
from broker.specgen.operations import read_api
from ops.demo import DemoError, settings
from ops.demo.users import ROOT

DOCUMENT: Final = Path(__file__).parent / "agent-memory.openapi.json"
COMMAND: Final = (
    "broker",
    "specgen",
    str(DOCUMENT.relative_to(ROOT)),
    "-o",
    str(settings.FOLDER.relative_to(ROOT)),
    "--grants",
    str(settings.GRANTS.relative_to(ROOT)),
)


def generate(*, check: bool) -> str:
    """Write the files, or only compare them; return what specgen said.

    Errors: :class:`DemoError` when files are stale, an operation is not carried, or the operator's catalog is not the
    document's.
    """
    script = Path(sys.executable).parent / COMMAND[0]
    command = [sys.executable, str(script), *COMMAND[1:], *(["--check"] if check else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise DemoError(f"{' '.join(COMMAND)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    listed = json.loads((settings.FOLDER / "catalog.json").read_text())["catalog"]
    if list(settings.CATALOG) != listed:
        raise DemoError(f"{settings.GRANTS.name}: its catalog is not the document's; catalog.json beside it is")
    return done.stderr


def read() -> Api:
    """Read the document as the command does."""
    return read_api(read_document(DOCUMENT), Choices())


def granted(api: Api) -> set[str]:
    """Return the identifiers of the operations that the operator granted."""
    return {found.operation.identifier for found in granted_operations(api.operations, settings.ALLOW)}


def report() -> dict[str, Any]:
    """Return specgen's report."""
    told: dict[str, Any] = json.loads((settings.FOLDER / "report.json").read_text())
    return told
