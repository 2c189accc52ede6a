"""The audit log as a backup has it: every file of it and its checkpoints, copied while it grows, verified, put back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from config.settings import MinterSettings
from minter import audit_checkpoint, audit_segments, backup_file
from minter.audit_checkpoint import Checkpoint, CheckpointError
from minter.audit_checkpoints import file_of
from minter.audit_verify import Head, Report
from minter.audit_verify import verify as verify_lines

_CHUNK: Final = 1 << 20
#: The log's name in the folder that it is copied to; its finished files have theirs behind it.
_COPY: Final = "log"


def checkpoint_file(settings: MinterSettings) -> Path:
    """Return where the minter keeps its checkpoints itself."""
    return file_of(settings.audit_log, Path(settings.audit))


def place_of(settings: MinterSettings, name: str) -> Path:
    """Return where a member of a backup that is part of the log belongs."""
    if name == backup_file.CHECKPOINTS:
        return checkpoint_file(settings)
    return _beside(Path(settings.audit), name.removeprefix(backup_file.LOG))


def copy(settings: MinterSettings, folder: Path) -> dict[str, Path]:
    """Copy the log into ``folder``, the finished files first, whole lines only; return the copies by member.

    Errors: ``OSError``.
    """
    audit = Path(settings.audit)
    copied: dict[str, Path] = {}
    for segment in audit_segments.segments(audit):
        behind = segment.path.name.removeprefix(audit.name)
        copied[backup_file.LOG + behind] = _copy_lines(segment.path, folder / (_COPY + behind))
    checkpoints = checkpoint_file(settings)
    if checkpoints.is_file():
        copied[backup_file.CHECKPOINTS] = _copy_lines(checkpoints, folder / "checkpoints")
    return copied


def copy_of(folder: Path, name: str) -> Path:
    """Return where a member of a backup that is part of the log is kept in ``folder``."""
    return folder / ("checkpoints" if name == backup_file.CHECKPOINTS else _COPY + name.removeprefix(backup_file.LOG))


def verify(folder: Path, *, installation: str, head: Head | None, checkpoints: Sequence[Checkpoint] = ()) -> Report:
    """Verify the log that was copied into ``folder``. Errors: ``OSError``."""
    paths = [segment.path for segment in audit_segments.segments(folder / _COPY)]
    lines = audit_segments.lines_of(paths)
    return verify_lines(lines, installation=installation, head=head, checkpoints=checkpoints)


def known(folder: Path) -> list[Checkpoint]:
    """Return the minter's own checkpoints that were copied into ``folder``. Errors: ``OSError``."""
    path = copy_of(folder, backup_file.CHECKPOINTS)
    if not path.exists():
        return []
    with path.open("rb") as file:
        return audit_checkpoint.parse_all(file)[0]


def read_checkpoints(path: Path) -> list[Checkpoint]:
    """Read checkpoints that were kept elsewhere. Errors: ``OSError``; ``CheckpointError`` for one that is none."""
    with path.open("rb") as file:
        good, faults = audit_checkpoint.parse_all(file)
    if faults or not good:
        raise faults[0] if faults else CheckpointError("it holds no checkpoint")
    return good


def _beside(path: Path, behind: str) -> Path:
    return path.with_name(path.name + behind)


def _copy_lines(path: Path, to: Path) -> Path:
    rest = b""
    with path.open("rb") as source, to.open("xb") as target:
        while chunk := source.read(_CHUNK):
            # What is being written at this moment is no line yet.
            lines, feed, rest = (rest + chunk).rpartition(b"\n")
            target.write(lines + feed)
    return to
