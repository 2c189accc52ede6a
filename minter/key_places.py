"""Where an operator's call may put a key, or find one: not where the minter keeps something else.

An operator's word reaches the files of the minter's user, which may be another user than the operator. So:

1. A place belongs to a key with all of its versions. A key at the place of another's next version would be that version
   one day: its value is known to whoever imported it.
2. A file is in a folder that the minter's own settings keep keys in; the log, the state and what the settings name are
   no keys. Elsewhere a file could become a program's, and destroying a key could delete what is none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from config.problems import ProblemError
from config.settings import MinterSettings
from minter.audit_checkpoints import file_of
from minter.sources import Sources
from minter.state_lock import state_path

#: Beside the grants, where ``minter init`` makes it.
FOLDER: Final = "secrets"


def check_file(ref: str, settings: MinterSettings, sources: Sources) -> None:
    """Refuse a file that no call may make a key of. Errors: ``body-malformed``."""
    path = sources.file(ref)
    if path is None:
        return
    if any(_is_or_belongs_to(path, own) for own in _own(settings)):
        raise ProblemError("body-malformed", f"{ref} is a file of the minter's own, or is kept for one")
    if path.parent not in _folders(settings, sources):
        what = (
            f"{ref} is in a folder that minter.toml keeps no key in: use sealed:NAME or {FOLDER}/, or declare it there"
        )
        raise ProblemError("body-malformed", what)


def _folders(settings: MinterSettings, sources: Sources) -> set[Path]:
    named = (sources.file(key.source) for key in settings.keys.values())
    found = {path.parent for path in named if path is not None}
    return found | {_real(Path(settings.grants).parent / FOLDER)}


def _own(settings: MinterSettings) -> Iterator[Path]:
    audit = Path(settings.audit)
    yield from map(_real, (state_path(settings.state), audit, file_of(settings.audit_log, audit)))
    tls = settings.tls
    names = [settings.grants, settings.brokers, tls.certificate, tls.key, tls.client_ca]
    yield from (_real(Path(name)) for name in names if name)
    references = [*settings.listen, *settings.admin_listen, *settings.public_listen, settings.audit_log.second]
    yield from _files_in(references)


def _files_in(references: Iterable[str]) -> Iterator[Path]:
    for reference in references:
        scheme, _, place = reference.partition(":")
        if scheme in ("unix", "file") and place:
            yield _real(Path(place))


def _is_or_belongs_to(path: Path, own: Path) -> bool:
    """Say whether a path is a file, or is named after it: a journal, a finished log, one that is being written."""
    return path.parent == own.parent and path.name.lstrip(".").startswith(own.name)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
