"""The audit log: one canonical JSON line per custody event, appended, chained by hash and synced before it counts.

Rules of this module:

1. :meth:`AuditLog.append` writes all of its events and syncs them, or raises :class:`AuditUnavailable`; what it had
   written by then is cut off before anything else is appended, and ``audit.healed`` says so.
2. An unfinished end that a power loss left is recognised at open and cut off in the same way: lines after the last
   one that is known to have been synced, from the first that does not belong to the chain.
3. A log that lacks a line its installation knows is never continued silently.
4. While it runs, the log is ours alone, in its place: one that is shorter than we left it, or is no longer the file
   of that name, stops everything until it is back. What another program put behind our last line is cut off again.

The form of a line and the check of a whole log are in ``minter/audit_verify.py``.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from config.clock import parse_rfc3339, rfc3339
from config.errors import ConfigurationError, Fault
from config.load import sync_directory
from minter.audit_events import EVENTS, Event, EventType, Value
from minter.audit_verify import Head, canonical, genesis, line_hash, parse_line

__all__ = ["EVENTS", "AuditLog", "AuditUnavailable", "Event", "EventType", "Head", "Value", "read_after"]

#: A longer text in a field is cut; the allow list has no field that needs more.
MAX_TEXT: Final = 1024
MAX_ITEMS: Final = 512
#: Smaller steps back are the clock being steered, and the log's instants have milliseconds anyhow.
CLOCK_STEP_S: Final = 0.001

#: An unfinished end is what one group of commits wrote; a log that breaks further from its end was changed.
MAX_TORN: Final = 4 << 20

_CHUNK: Final = 1 << 16
_BEGINNING: Final = b'{"at":"'
# Without the times of the inode where the system can leave them out: the length is synced all the same.
_sync: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)


class AuditUnavailable(Exception):  # noqa: N818 - the state of the log, as operators and the problem table call it
    """The events were not recorded, so nothing may be released. The message names the cause, no event."""


class AuditLog:
    """The log, open for appending. One per installation; called on the store's writer thread only.

    ``write`` and ``sync`` are the system's own; a test puts a failing disk in their place.
    """

    def __init__(
        self,
        path: Path,
        *,
        installation: str,
        known: Head | None,
        now: float,
        accepted_by: int | None = None,
        write: Callable[[int, bytes], int] = os.write,
        sync: Callable[[int], None] = _sync,
    ) -> None:
        """Open the log, make it when it is missing, heal its end.

        ``known`` is the last line that the state knows was synced. ``accepted_by``: the user who decided to go on with
        a log that lacks it, which is recorded (see ``minter/audit_loss.py``). Errors: ``ConfigurationError`` when the
        file is unsafe, in use, another installation's or cut; :class:`AuditUnavailable` when it cannot be written.
        """
        self.path = path
        self._write = write
        self._sync = sync
        self._seq, self._prev, self._size = 0, genesis(installation), 0
        self._last_now = 0.0
        #: Events about the log itself that stand before whatever is appended next.
        self._first: list[Event] = []
        self._fd = _open(path)
        try:
            lost = self._take_over(installation, known, accepted_by)
            if self._seq == 0:
                self._first.append(Event("audit.opened", {"installation": installation}))
            self._heal()
            self._first += lost
            if self._first:
                self._append((), now)
        except BaseException:
            os.close(self._fd)
            raise

    def append(self, events: Sequence[Event], *, now: float) -> None:
        """Write the events and sync them.

        Errors: :class:`AuditUnavailable`, and then none of them is in the log.
        """
        self._heal()
        self._append(events, now)

    def head(self) -> tuple[int, str]:
        """Return number and hash of the last synced line."""
        return self._seq, self._prev

    def close(self) -> None:
        """Close the file and let go of its lock."""
        os.close(self._fd)

    def _append(self, events: Sequence[Event], now: float) -> None:
        batch = [*self._first, *events]
        if self._last_now - now >= CLOCK_STEP_S:
            behind_s = round(self._last_now - now, 3)
            batch.insert(len(self._first), Event("clock.went-back", {"behind_s": behind_s}))
        at, seq, prev = rfc3339(now), self._seq, self._prev
        lines: list[bytes] = []
        for event in batch:
            seq += 1
            line = canonical({**_harmless(event), "at": at, "code": event.code, "prev": prev, "seq": seq})
            prev = line_hash(line)
            lines += (line, b"\n")
        data = b"".join(lines)
        try:
            if self._write(self._fd, data) != len(data):
                raise OSError(errno.ENOSPC, "short write")  # noqa: TRY301 - one way out for every failure of the disk
            if os.lseek(self._fd, 0, os.SEEK_CUR) != self._size + len(data):
                # Behind what another program wrote a moment ago: it would be cut off together with that.
                raise AuditUnavailable("another program writes to the audit log")
            self._sync(self._fd)
        except OSError as error:
            raise AuditUnavailable(f"the audit log cannot be written ({_name(error)})") from None
        self._seq, self._prev, self._size = seq, prev, self._size + len(data)
        self._last_now = now
        self._first.clear()

    def _heal(self) -> None:
        """Cut off what lies behind the last synced line: nobody was told that it stands."""
        status = os.fstat(self._fd)
        if not self._in_its_place(status):
            raise AuditUnavailable("the audit log was removed, moved or replaced: put it back where it was")
        if status.st_size < self._size:
            raise AuditUnavailable("the audit log was cut by another program")
        if status.st_size == self._size:
            return
        torn = hashlib.sha256()
        for offset in range(self._size, status.st_size, _CHUNK):
            torn.update(os.pread(self._fd, _CHUNK, offset))
        try:
            os.ftruncate(self._fd, self._size)
        except OSError as error:
            raise AuditUnavailable(f"the audit log cannot be mended ({_name(error)})") from None
        fields: dict[str, Value] = {"torn_bytes": status.st_size - self._size, "torn_sha256": torn.hexdigest()}
        self._first = [*(e for e in self._first if e.code != "audit.healed"), Event("audit.healed", fields)]

    def _in_its_place(self, status: os.stat_result) -> bool:
        """Say whether a reviewer who opens the log by its name sees this file."""
        try:
            named = self.path.lstat()
        except OSError:
            return False
        return os.path.samestat(status, named)

    def _take_over(self, installation: str, known: Head | None, accepted_by: int | None) -> list[Event]:
        """Find the last line that stands. Return what is to be recorded about a loss."""
        end = os.fstat(self._fd).st_size
        self._check_owner(installation, end)
        lost: list[Event] = []
        if known is not None and not self._anchor(end, lambda line: line_hash(line) == known.hash):
            if accepted_by is None:
                raise _lost(f"line {known.seq}, which the state knows, is not in the log")
            fields: dict[str, Value] = {"lost_seq": known.seq, "lost_hash": known.hash, "uid": accepted_by}
            lost.append(Event("audit.loss-accepted", fields))
            self._anchor(end, lambda line: _record(line) is not None)
        for start, line in _lines(self._fd, self._size, end):
            record = _record(line)
            if record is None or (record["seq"], record["prev"]) != (self._seq + 1, self._prev):
                break
            self._stand_on(start, line, record)
        if end - self._size > MAX_TORN:
            raise _lost(f"the chain breaks after line {self._seq}, long before the end")
        return lost

    def _check_owner(self, installation: str, end: int) -> None:
        first = os.pread(self._fd, min(end, _CHUNK), 0)
        line, newline, _ = first.partition(b"\n")
        record = _record(line) if newline else None
        if record is not None and record.get("installation") != installation:
            raise ConfigurationError(
                [Fault("audit", "the log belongs to another installation", "give this one a log of its own")]
            )
        # Zeros are what some file systems leave of a first line that a power loss cut.
        if record is None and first.strip(b"\0") and not first.startswith(_BEGINNING[: len(first)]):
            raise ConfigurationError([Fault("audit", "the file is not an audit log", "name another file")])

    def _anchor(self, end: int, wanted: Callable[[bytes], bool]) -> bool:
        for start, line in _lines_backwards(self._fd, end):
            if wanted(line):
                record = _record(line)
                if record is not None:
                    self._stand_on(start, line, record)
                    return True
        return False

    def _stand_on(self, start: int, line: bytes, record: dict[str, Any]) -> None:
        self._seq, self._prev, self._size = record["seq"], line_hash(line), start + len(line) + 1
        self._last_now = parse_rfc3339(record["at"])


def read_after(path: Path, after: int, limit: int) -> list[dict[str, Any]]:
    """Return up to ``limit`` records with ``seq`` above ``after``, without reading what stands before them.

    A reader needs no lock: an unfinished end is left out.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return []
    try:
        end = os.fstat(fd).st_size
        low, high = 0, end
        # Offsets are searched by halves: the first whole line behind each tells on which side to go on.
        while high - low > _CHUNK:
            middle = (low + high) // 2
            line = next((line for _, line in _lines(fd, middle, end, whole=False)), None)
            record = _record(line) if line is not None else None
            if record is None or record["seq"] > after:
                high = middle
            else:
                low = middle
        records = []
        for _, line in _lines(fd, low, end, whole=low == 0):
            record = _record(line)
            if record is not None and record["seq"] > after:
                records.append(record)
                if len(records) == limit:
                    break
        return records
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = not path.exists()
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        raise ConfigurationError([Fault("audit", f"the log cannot be opened ({_name(error)})")]) from None
    try:
        _check_safe(os.fstat(fd))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError([Fault("audit", "another process writes this log")]) from None
        if new:
            sync_directory(path.parent)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_safe(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ConfigurationError(
            [Fault("audit", "the log must be a file of the minter's user that others cannot open", "chmod 0600")]
        )


def _harmless(event: Event) -> dict[str, Any]:
    """Return the event's fields as they are written: cut to a bounded length, instants as RFC 3339."""
    fields: dict[str, Any] = {}
    for name, value in event.fields.items():
        if isinstance(value, str):
            fields[name] = _cut(value)
        elif isinstance(value, list):
            fields[name] = [_cut(item) for item in value[:MAX_ITEMS]]
        elif value is not None:
            # An int or a float here: the allow list knows no other type whose name ends so.
            fields[name] = rfc3339(value) if name.endswith("_at") else value
    return fields


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        return parse_line(line)
    except ValueError:
        return None


def _lines(fd: int, start: int, end: int, *, whole: bool = True) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line without its line feed) of the finished lines; ``whole``: one begins at ``start``."""
    rest = b""
    at = start
    for offset in range(start, end, _CHUNK):
        *lines, rest = (rest + os.pread(fd, min(_CHUNK, end - offset), offset)).split(b"\n")
        for line in lines:
            if whole:
                yield at, line
            whole = True
            at += len(line) + 1


def _lines_backwards(fd: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line without its line feed) of the finished lines, the last first."""
    rest = b""
    finished = False
    at = end
    while at > 0:
        size = min(_CHUNK, at)
        at -= size
        rest, *lines = (os.pread(fd, size, at) + rest).split(b"\n")
        place = at + len(rest) + 1 + sum(len(line) + 1 for line in lines)
        for line in reversed(lines):
            place -= len(line) + 1
            if finished:
                yield place, line
            finished = True
    if finished:
        yield 0, rest


def _lost(what: str) -> ConfigurationError:
    hint = "it was cut, changed or replaced: put it back; if it is lost for good, see minter audit accept-loss"
    return ConfigurationError([Fault("audit", what, hint)])


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, type(error).__name__)
