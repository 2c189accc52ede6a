"""The directory that specgen writes into: what may be replaced there, and what is stale.

``catalog.json`` names the digest of every file that was written with it. A file whose content is not one of ours is
somebody's work: ``grants.json`` is kept, because operators edit it, and any other is not replaced unless that is asked
for. The catalog is written last, so that a run that was cut short is finished by the next one.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from broker.specgen.catalog import digest, is_catalog
from broker.specgen.document import without_waiting
from broker.specgen.texts import one_line
from config import load
from config.console.terminal import count

CATALOG: Final = "catalog.json"
GRANTS: Final = "grants.json"

_MODE: Final = 0o644
_SHOWN_LINES: Final = 6
_SHOWN_WIDTH: Final = 140
_LARGEST: Final = 256 << 20
_ONLY_ORDER: Final = "is stale, but for the order of its lines, brackets and digests the same"
_WORD: Final = re.compile(r"\w")
_DIGEST: Final = re.compile(r'": "sha256:[0-9a-f]{64}",?$')


@dataclass(frozen=True, slots=True)
class Difference:
    """A file that is not what it would be now. ``lines`` say how, marked ``-`` (there) and ``+`` (would be there)."""

    name: str
    what: str
    lines: tuple[str, ...] = ()


class Directory:
    """A directory as it is now. Errors of every method: ``OSError``."""

    def __init__(self, path: Path) -> None:
        """Read nothing yet; the directory may be missing."""
        self.path = path

    def foreign(self, files: Mapping[str, bytes]) -> list[str]:
        """Return the names of files that are there, that we did not write and that differ from ``files``."""
        written = self._digests()
        found = []
        for name, data in files.items():
            there = self._read(name)
            ours = name == CATALOG and there is not None and is_catalog(there)
            if there is not None and there != data and not ours and written.get(name) != digest(there):
                found.append(name)
        return found

    def write(self, files: Mapping[str, bytes]) -> list[str]:
        """Write the files that differ and return their names. Nothing is written half."""
        self.path.mkdir(parents=True, exist_ok=True)
        changed = [name for name, data in files.items() if self._read(name) != data]
        for name in sorted(changed, key=lambda name: name == CATALOG):
            load.write_atomic(self.path / name, files[name], mode=_MODE)
        return changed

    def differences(self, files: Mapping[str, bytes], profile: str) -> list[Difference]:
        """Return what is stale or missing. Of a ``grants.json`` that was edited only the catalog is compared."""
        kept = GRANTS in self.foreign({GRANTS: files[GRANTS]})
        found = []
        for name, data in files.items():
            there = self._read(name)
            if there is None:
                found.append(Difference(name, "is missing"))
            elif kept and name == GRANTS:
                found += self.kept_catalog(files, profile)
            elif there != data:
                lines = tuple(_changes(_lines(there), _lines(data)))
                found.append(Difference(name, "is stale" if lines else _ONLY_ORDER, lines))
        return found

    def kept_catalog(self, files: Mapping[str, bytes], profile: str) -> Iterator[Difference]:
        """Yield how the catalog in the operator's own ``grants.json`` differs, if it does.

        A catalog that is not the document's reserves nothing for a route that is new, so wildcards may grant it.
        """
        try:
            listed = json.loads(self._read(GRANTS) or b"")["profiles"][profile]["catalog"]
        except (ValueError, KeyError, TypeError, RecursionError):
            listed = None
        catalog = json.loads(files[CATALOG])["catalog"]
        if isinstance(listed, list) and listed != catalog:
            what = f"was edited, and the catalog of {profile} in it is not this document's; {CATALOG} has it"
            yield Difference(GRANTS, what, tuple(_changes(map(json.dumps, listed), map(json.dumps, catalog))))

    def _digests(self) -> Mapping[str, Any]:
        there = self._read(CATALOG)
        if there is None or not is_catalog(there):
            return {}
        files = json.loads(there)["specgen"].get("files")
        return files if isinstance(files, dict) else {}

    def _read(self, name: str) -> bytes | None:
        path = self.path / name
        try:
            with open(path, "rb", opener=without_waiting) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise OSError(errno.EINVAL, "not a regular file", str(path))
                return file.read(_LARGEST)
        except FileNotFoundError:
            return None


def _lines(data: bytes) -> list[str]:
    """Return what is worth showing of a file: no brackets, and no digests, which say only that another file differs."""
    lines = data.decode(errors="replace").splitlines()
    return [line for line in lines if _WORD.search(line) and not _DIGEST.search(line)]


def _changes(there: Iterable[str], wanted: Iterable[str]) -> Iterator[str]:
    """Yield a bounded number of lines that say how two texts differ, in the time that reading them takes."""
    old, new = Counter(there), Counter(wanted)
    gone, added = list(old - new), list(new - old)
    start = 0
    if len(gone) == len(added) == 1:
        # One line, and perhaps a very long one: from shortly before the first character that differs.
        pairs = enumerate(zip(gone[0], added[0], strict=False))
        start = max(next((at for at, (one, other) in pairs if one != other), 0) - _SHOWN_WIDTH // 2, 0)
    for mark, lines in (("-", gone), ("+", added)):
        for line in lines[:_SHOWN_LINES]:
            yield f"{mark} {'...' if start else ''}{one_line(line[start:], _SHOWN_WIDTH)}"
        if len(lines) > _SHOWN_LINES:
            yield f"{mark} and {count(len(lines) - _SHOWN_LINES, 'line')} more"
