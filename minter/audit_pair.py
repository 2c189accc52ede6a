"""Two files of the same log, compared at a start: after it they hold the same lines.

After a crash, or while one of them could not be written, one may end earlier or in the middle of a line. It gets what
the other has. Two files that go on differently after a common beginning are a contradiction that only a person can
judge: nothing is changed then.
"""

from __future__ import annotations

import os
from typing import Any, Final

from config.errors import ConfigurationError, Fault
from minter.audit_file import AuditUnavailable, LogFile
from minter.audit_segments import ends_of, finished, lines, lines_backwards, record
from minter.audit_verify import Head, line_hash

#: An unfinished end is what one group of commits wrote; a file that breaks further from its end was changed.
MAX_TORN: Final = 4 << 20
_CHUNK: Final = 1 << 20


def pair(first: LogFile, second: LogFile) -> None:
    """Make both files alike, up to an unfinished end that both may have.

    Errors: ``ConfigurationError`` when they contradict each other; :class:`AuditUnavailable` when one cannot be
    written.
    """
    _follow(first, second)
    ends = [_end(file) for file in (first, second)]
    same = _common(first, second, min(ends))
    line = _line_at(first, same)
    goes_on = [_record_at(file, line, end) is not None for file, end in zip((first, second), ends, strict=True)]
    if all(goes_on):
        raise _contradiction("they go on differently after a common beginning")
    # Both alike, or neither goes on: what is unfinished is cut from both.
    source, target = (second, first) if goes_on[1] else (first, second)
    if _end(target) - line > MAX_TORN:
        raise _contradiction("one of them breaks long before its end")
    try:
        os.ftruncate(target.fd, line)
        for offset in range(line, _end(source), _CHUNK):
            data = source.read(offset, offset + _CHUNK)
            if os.write(target.fd, data) != len(data):
                raise AuditUnavailable("the audit log's second place cannot be completed")
        os.fsync(target.fd)
    except OSError:
        raise AuditUnavailable("the audit log's second place cannot be completed") from None


def _follow(first: LogFile, second: LogFile) -> None:
    """Let the second file begin anew where the first has: a crash came between the two."""
    other = _record_at(second, 0, _end(second))
    base = _base(first)
    if base is None or other is None or other["seq"] > base.seq:
        return
    for offset, line in lines_backwards(second.fd, _end(second)):
        found = record(line)
        if found is not None and Head(found["seq"], line_hash(line)) == base:
            os.ftruncate(second.fd, offset + len(line) + 1)
            second.begin_anew(other["seq"], base.seq)
            return
        if _end(second) - offset > MAX_TORN:
            break
    raise _contradiction("one of them begins where the other does not end")


def _base(file: LogFile) -> Head | None:
    """Return the line that the file continues: the last of a finished file; None when it is the first there is."""
    begins = _record_at(file, 0, _end(file))
    if begins is not None:
        return Head(begins["seq"] - 1, begins["prev"]) if begins["seq"] > 1 else None
    old = finished(file.path)
    ends = ends_of(old[-1].path) if old else None
    return Head(ends[1]["seq"], line_hash(ends[2])) if ends else None


def _common(first: LogFile, second: LogFile, end: int) -> int:
    """Return how many bytes from the beginning are the same in both."""
    for offset in range(0, end, _CHUNK):
        stop = min(end, offset + _CHUNK)
        one, two = first.read(offset, stop), second.read(offset, stop)
        if one != two:
            return offset + next(n for n, (a, b) in enumerate(zip(one, two, strict=True)) if a != b)
    return end


def _line_at(file: LogFile, offset: int) -> int:
    """Return where the line begins that the byte at an offset belongs to."""
    at = offset
    while at > 0:
        start = max(0, at - _CHUNK)
        found = file.read(start, at).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        at = start
    return 0


def _record_at(file: LogFile, offset: int, end: int) -> dict[str, Any] | None:
    line = next((line for _, line in lines(file.fd, offset, end)), None)
    return None if line is None else record(line)


def _end(file: LogFile) -> int:
    return os.fstat(file.fd).st_size


def _contradiction(what: str) -> ConfigurationError:
    hint = "keep both, find out which one is right (minter audit verify FILE), and move the other away"
    return ConfigurationError([Fault("audit_log.second", f"the two files contradict each other: {what}", hint)])
