"""The audit log: one canonical JSON line per custody event, appended, chained by hash and synced before it counts.

Rules of this module:

1. :meth:`AuditLog.append` writes all of its events and syncs them, or raises :class:`AuditUnavailable`; what it had
   written by then is cut off before anything else is appended, and ``audit.healed`` says so.
2. An unfinished end that a power loss left is recognised at open and cut off in the same way: lines after the last
   one that is known to have been synced, from the first that does not belong to the chain.
3. A log that lacks a line its installation knows is never continued silently.
4. While it runs, the log is ours alone, in its place: one that is shorter than we left it, or is no longer the file
   of that name, stops everything until it is back. What another program put behind our last line is cut off again.
5. At a size, or when asked, it goes on in a new file whose first line continues the chain.

The form of a line and the check of a whole log are in ``minter/audit_verify.py``; a file in ``minter/audit_file.py``,
several places for every line in ``minter/audit_sinks.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from config.clock import parse_rfc3339, rfc3339
from config.errors import ConfigurationError, Fault
from config.settings import AuditSettings
from minter import failpoints
from minter.audit_events import EVENTS, Event, EventType, Value
from minter.audit_file import AuditUnavailable, LogFile, NotAnewError, sync_data
from minter.audit_pair import MAX_TORN, pair
from minter.audit_segments import ends_of, finished, lines, lines_backwards, read_after, record
from minter.audit_sinks import Sinks, Target
from minter.audit_syslog import Syslog
from minter.audit_verify import MAX_LINE, Head, canonical, genesis, line_hash

__all__ = ["EVENTS", "MAX_TORN", "AuditLog", "AuditUnavailable", "Event", "EventType", "Head", "Value", "read_after"]

#: A longer text in a field is cut; the allow list has no field that needs more.
MAX_TEXT: Final = 1024
MAX_ITEMS: Final = 512
#: In an event whose line would be longer than any may be.
_SHORT_TEXT: Final = 128
_FEW_ITEMS: Final = 64
#: Smaller steps back are the clock being steered, and the log's instants have milliseconds anyhow.
CLOCK_STEP_S: Final = 0.001

#: A batch is tried so often when something must be cut off before it.
_ATTEMPTS: Final = 4
_CHUNK: Final = 1 << 16
_BEGINNING: Final = b'{"at":"'
_DEFAULTS: Final = AuditSettings()

_log = structlog.get_logger()


class Listener(Protocol):
    """Who is told of every batch that counts: :class:`minter.audit_checkpoints.Checkpoints`."""

    def announce(self) -> Sequence[Event]: ...
    def appended(self, head: Head) -> None: ...
    def close(self) -> None: ...


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
        settings: AuditSettings = _DEFAULTS,
        accepted_by: int | None = None,
        write: Callable[[int, bytes], int] = os.write,
        sync: Callable[[int], None] = sync_data,
    ) -> None:
        """Open the log, make it when it is missing, heal its end.

        ``known`` is the last line that the state knows was synced. ``accepted_by``: the user who decided to go on with
        a log that lacks it, which is recorded (see ``minter/audit_loss.py``). Errors: ``ConfigurationError`` when the
        file is unsafe, in use, another installation's or cut; :class:`AuditUnavailable` when it cannot be written.
        """
        self.path = path
        self.installation = installation
        self._settings = settings
        self._limit = settings.max_size
        #: The numbers of the lines that go into a finished file at the next append.
        self._anew: tuple[int, int] | None = None
        self._wanted = False
        self._seq, self._prev = 0, genesis(installation)
        #: The number of the file's first line.
        self._begins = 1
        self._last_now = 0.0
        self._listener: Listener | None = None
        #: Events about the log itself that stand before whatever is appended next.
        self._first: list[Event] = []
        self._file = LogFile(path, write=write, sync=sync)
        targets: list[tuple[str, Target]] = [("first", self._file)]
        try:
            second = _second(settings)
            if second is not None:
                targets.append(("second", second))
            if isinstance(second, LogFile):
                pair(self._file, second)
            lost = self._take_over(known, accepted_by)
        except BaseException:
            for _, target in targets:
                target.close()
            raise
        self._sinks = Sinks(targets, settings.policy, float(settings.timeout))
        try:
            if self._seq == 0:
                self._first.append(Event("audit.opened", {"installation": installation}))
            elif self._file.size == 0:
                self._first.append(Event("audit.continued", {"installation": installation}))
            self._first += lost
            self._append((), now)
        except BaseException:
            self._sinks.close()
            raise

    def append(self, events: Sequence[Event], *, now: float) -> None:
        """Write the events and sync them.

        Errors: :class:`AuditUnavailable`, and then none of them is in the log.
        """
        self._append(events, now)

    def head(self) -> tuple[int, str]:
        """Return number and hash of the last synced line."""
        return self._seq, self._prev

    def rotate(self) -> None:
        """Go on in a new file from the next append on. From any thread."""
        self._wanted = True

    def listen(self, listener: Listener) -> None:
        """Tell somebody of every batch from now on; the log closes it."""
        self._listener = listener

    def problems(self) -> dict[str, str]:
        """Return the places that lack lines, with the reason. From any thread."""
        return self._sinks.problems()

    def close(self) -> None:
        """Close every place and let go of its lock."""
        if self._listener is not None:
            self._listener.close()
        self._sinks.close()

    # --- an append ---

    def _append(self, events: Sequence[Event], now: float) -> None:
        for _ in range(_ATTEMPTS):
            if not self._sinks.settled():
                self._tell_of_torn()
            announced = self._listener.announce() if self._listener is not None else ()
            batch = [*self._first, *announced, *events]
            if not batch:
                return
            anew = self._to_begin_anew()
            data, seq, prev = self._chained([*self._continued(anew), *batch], now)
            failpoints.reached("audit.computed")
            try:
                delivered = self._sinks.deliver(data, anew=anew)
            except NotAnewError as error:
                # The log is not at fault: it goes on where it is, and tries again when it has grown.
                _log.warning("audit-not-rotated", problem=str(error))
                self._wanted, self._anew = False, None
                self._limit += max(self._settings.max_size // 8, _CHUNK)
                continue
            if delivered:
                self._counted(seq, prev, now, anew)
                return
        raise AuditUnavailable("another program writes to the audit log")

    def _chained(self, batch: Sequence[Event], now: float) -> tuple[bytes, int, str]:
        if self._last_now - now >= CLOCK_STEP_S:
            behind_s = round(self._last_now - now, 3)
            place = sum(event.code in OF_THE_LOG for event in batch)
            batch = [*batch[:place], Event("clock.went-back", {"behind_s": behind_s}), *batch[place:]]
        at, seq, prev = rfc3339(now), self._seq, self._prev
        written: list[bytes] = []
        for event in batch:
            seq += 1
            line = _line(event, {"at": at, "code": event.code, "prev": prev, "seq": seq})
            prev = line_hash(line)
            written += (line, b"\n")
        return b"".join(written), seq, prev

    def _counted(self, seq: int, prev: str, now: float, anew: tuple[int, int] | None) -> None:
        if anew is not None:
            self._begins, self._anew, self._wanted = self._seq + 1, None, False
            self._limit = self._settings.max_size
        self._seq, self._prev, self._last_now = seq, prev, now
        self._first.clear()
        for change in self._sinks.changes:
            code = "audit.sink-failed" if change.problem else "audit.sink-restored"
            _log.warning(code, sink=change.sink, problem=change.problem)
            self._first.append(Event(code, {"sink": change.sink}))
        self._sinks.changes.clear()
        if self._listener is not None:
            self._listener.appended(Head(seq, prev))

    def _tell_of_torn(self) -> None:
        kept = [event for event in self._first if event.code != "audit.healed"]
        told = {torn.sha256: torn for torn in self._sinks.torn}
        self._sinks.torn.clear()
        self._first = kept + [
            Event("audit.healed", {"torn_bytes": torn.bytes, "torn_sha256": torn.sha256}) for torn in told.values()
        ]

    def _to_begin_anew(self) -> tuple[int, int] | None:
        """Return what goes into a finished file now, when the log is to go on in a new one."""
        full = self._settings.max_size > 0 and self._sinks.size >= self._limit
        if self._anew is None and (full or self._wanted) and self._seq > self._begins and self._sinks.in_step():
            self._anew = self._begins, self._seq
        return self._anew

    def _continued(self, anew: tuple[int, int] | None) -> list[Event]:
        return [] if anew is None else [Event("audit.continued", {"installation": self.installation})]

    # --- a start ---

    def _take_over(self, known: Head | None, accepted_by: int | None) -> list[Event]:
        """Find the last line that stands. Return what is to be recorded about a loss."""
        fd = self._file.fd
        end = os.fstat(fd).st_size
        self._begin(end)
        lost: list[Event] = []
        if known is not None and not self._knows(known, end):
            if accepted_by is None:
                raise _lost(f"line {known.seq}, which the state knows, is not in the log")
            fields: dict[str, Value] = {"lost_seq": known.seq, "lost_hash": known.hash, "uid": accepted_by}
            lost.append(Event("audit.loss-accepted", fields))
            self._anchor(end, lambda _line: True)
        for start, line in lines(fd, self._file.size, end):
            found = record(line)
            if found is None or (found["seq"], found["prev"]) != (self._seq + 1, self._prev):
                break
            self._stand_on(start, line, found)
        if end - self._file.size > MAX_TORN:
            raise _lost(f"the chain breaks after line {self._seq}, long before the end")
        return lost

    def _begin(self, end: int) -> None:
        """Read whose log it is and where the file begins: with the first line, or behind the last finished file."""
        first = os.pread(self._file.fd, min(end, _CHUNK), 0)
        line, newline, _ = first.partition(b"\n")
        found = record(line) if newline else None
        # Zeros are what some file systems leave of a first line that a power loss cut.
        if found is None and first.strip(b"\0") and not first.startswith(_BEGINNING[: len(first)]):
            raise ConfigurationError([Fault("audit", "the file is not an audit log", "name another file")])
        if found is not None:
            self._check_owner(found)
            if found["code"] == "audit.continued" and found["seq"] > 1:
                self._seq, self._prev = found["seq"] - 1, found["prev"]
                self._begins = found["seq"]
            return
        old = finished(self.path)
        if old:
            ends = ends_of(old[-1].path)
            if ends is None or ends[1]["seq"] != old[-1].last:
                raise _lost(f"{old[-1].path.name} does not end with the line that it is named after")
            begun, ended, last = ends
            self._check_owner(begun)
            self._seq, self._prev = ended["seq"], line_hash(last)
            self._last_now = parse_rfc3339(ended["at"])
            self._begins = self._seq + 1

    def _check_owner(self, first: dict[str, Any]) -> None:
        if first.get("installation") != self.installation:
            raise ConfigurationError(
                [Fault("audit", "the log belongs to another installation", "give this one a log of its own")]
            )

    def _knows(self, known: Head, end: int) -> bool:
        """Say whether a line is in the log; stand on it when it is in the file that the log goes on in."""
        base = self._prev
        if self._anchor(end, lambda line: line_hash(line) == known.hash):
            return True
        if known == Head(self._seq, self._prev):
            return True
        # The log went on in a new file, or several, after the state was told of its end for the last time.
        for segment in reversed(finished(self.path)):
            ends = ends_of(segment.path)
            if ends is None or line_hash(ends[2]) != base or known.seq > ends[1]["seq"]:
                return False
            if known.seq >= segment.first:
                return _holds(segment.path, known)
            base = ends[0]["prev"]
            if known == Head(segment.first - 1, base):
                return True
        return False

    def _anchor(self, end: int, wanted: Callable[[bytes], bool]) -> bool:
        for start, line in lines_backwards(self._file.fd, end):
            if wanted(line):
                found = record(line)
                if found is not None:
                    self._stand_on(start, line, found)
                    return True
        return False

    def _stand_on(self, start: int, line: bytes, found: dict[str, Any]) -> None:
        self._seq, self._prev, self._file.size = found["seq"], line_hash(line), start + len(line) + 1
        self._last_now = parse_rfc3339(found["at"])


#: Events that stand before what a batch tells: they are of the log itself.
OF_THE_LOG: Final = frozenset(
    {
        "audit.opened",
        "audit.continued",
        "audit.healed",
        "audit.loss-accepted",
        "audit.sink-failed",
        "audit.sink-restored",
        "audit.signer",
    }
)
#: What the log writes without being told to.
BY_ITSELF: Final = OF_THE_LOG | {"clock.went-back"}


def _second(settings: AuditSettings) -> Target | None:
    if not settings.second:
        return None
    scheme, _, place = settings.second.partition(":")
    if scheme == "file" and place:
        return LogFile(Path(place))
    if scheme == "syslog":
        return Syslog(place, timeout_s=float(settings.timeout))
    raise ConfigurationError([Fault("audit_log.second", "expected file:PATH or syslog:")])


def _holds(path: Path, known: Head) -> bool:
    with path.open("rb") as file:
        return any(line_hash(line.removesuffix(b"\n")) == known.hash for line in file)


def _line(event: Event, members: dict[str, Any]) -> bytes:
    line = canonical(_harmless(event) | members)
    if len(line) > MAX_LINE:
        # Escapes make six bytes of one. No verifier would take the line, and no start would go on behind it.
        line = canonical(_harmless(event, items=_FEW_ITEMS, text=_SHORT_TEXT) | members)
    return line


def _harmless(event: Event, *, items: int = MAX_ITEMS, text: int = MAX_TEXT) -> dict[str, Any]:
    """Return the event's fields as they are written: cut to a bounded length, instants as RFC 3339."""
    fields: dict[str, Any] = {}
    for name, value in event.fields.items():
        if isinstance(value, str):
            fields[name] = _cut(value, text)
        elif isinstance(value, list):
            fields[name] = [_cut(item, text) for item in value[:items]]
        elif value is not None:
            # An int or a float here: the allow list knows no other type whose name ends so.
            fields[name] = rfc3339(value) if name.endswith("_at") else value
    return fields


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "..."


def _lost(what: str) -> ConfigurationError:
    hint = "it was cut, changed or replaced: put it back; if it is lost for good, see minter audit accept-loss"
    return ConfigurationError([Fault("audit", what, hint)])
