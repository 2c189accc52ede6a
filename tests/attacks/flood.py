"""What a flood is measured by: a process's memory and open files."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def measured(text: str) -> None:
    """Say what came out; seen with ``pytest -s``. No test asserts a time."""
    sys.stdout.write(f"\nMEASURED {text}\n")
