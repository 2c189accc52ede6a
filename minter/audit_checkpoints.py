"""When checkpoints of the audit log are signed, and where they are kept. They never hold up what they vouch for.

A checkpoint is made every so many lines, every so many seconds when something was written, when somebody asks, when
another key begins to sign, and at an orderly stop. Its places lie outside the log: a file of its own, the system's
log, the state, and wherever whoever asks keeps the answer. One that cannot be made or kept stops nothing; it shows in
readiness, in the metrics and in the program's log.

Before a key signs for the first time the log names it (``audit.signer``). When it replaces another, that one signs
once more, over the line that names it: so a verifier that believes the old one has a reason to believe the new one.
"""

from __future__ import annotations

import os
import queue
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from config.clock import Clock
from config.errors import ConfigurationError, Fault
from config.load import sync_directory
from config.settings import AuditSettings
from minter import failpoints
from minter.audit_checkpoint import Checkpoint, CheckpointError, parse, sign
from minter.audit_events import Event
from minter.audit_file import AuditUnavailable, name_of_error
from minter.audit_syslog import Syslog
from minter.audit_verify import Head
from minter.signing import SigningError, SigningKey

Signer = Callable[[], SigningKey | None]

#: How long a stop waits for the last one.
_STOP_S: Final = 5.0
_TAIL: Final = 8192
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_log = structlog.get_logger()


class NoCheckpointError(Exception):
    """A checkpoint was asked for and could not be made; the message says why."""


def file_of(settings: AuditSettings, log: Path) -> Path:
    """Return the file that the checkpoints of a log are kept in."""
    return Path(settings.checkpoint_file) if settings.checkpoint_file else log.with_name(log.name + ".checkpoints")


@dataclass(frozen=True, slots=True)
class _Wanted:
    head: Head
    key: SigningKey
    answer: Future[Checkpoint]


class Checkpoints:
    """Signs and keeps them, on a thread of its own.

    ``signer`` returns the key that signs now, ``previous`` one that signed before, by its key id, as long as it is
    there. Both are called from the store's writer thread. ``appended`` and ``announce`` belong to that thread; the
    rest may be called from any.
    """

    def __init__(
        self,
        settings: AuditSettings,
        *,
        log: Path,
        installation: str,
        clock: Clock,
        signer: Signer,
        previous: Callable[[str], SigningKey | None] = lambda _kid: None,
        syslog: str = "",
    ) -> None:
        """Begin. Errors: ``ConfigurationError`` when the file of checkpoints is a link or cannot be opened."""
        self.path = file_of(settings, log)
        self._settings = settings
        self._installation = installation
        self._clock = clock
        self._signer = signer
        self._previous = previous
        self._syslog = Syslog(syslog, tag="minter-audit-checkpoint") if settings.checkpoint_syslog else None
        self._fd = _open(self.path)
        #: The last one that is kept in the file.
        self.last: Checkpoint | None = _last_in(self._fd)
        #: Why the last one could not be made or kept; empty when it was.
        self.problem = ""
        #: That the file names a line which the log does not have: the log was put back, or the file.
        self.ahead = ""
        self._named = self.last.kid if self.last is not None else ""
        self._key: SigningKey | None = None
        self._naming: SigningKey | None = None
        self._head: Head | None = None
        self._asked = self.last.seq if self.last is not None else 0
        self._made_at = clock.boottime()
        self._queue: queue.SimpleQueue[_Wanted | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="audit-checkpoints", daemon=True)
        self._thread.start()

    # --- the log's listener: the store's writer thread ---

    def announce(self) -> Sequence[Event]:
        """Return what the log is to say before its next lines: that another key signs from here on."""
        key = self._signer()
        self._naming = key if key is not None and key.kid != self._named else None
        if self._naming is None:
            self._key = key or self._key
            return ()
        fields = {"kid": key.kid, "fingerprint": key.fingerprint, "algorithm": key.algorithm} if key else {}
        return [Event("audit.signer", fields)]

    def appended(self, head: Head) -> None:
        """Take note of a line that is on disk; ask for a checkpoint when one is due."""
        if self._head is None and head.seq <= self._asked:
            # Only the file says so: the log is an older one, or the file is another's. It must not keep us silent.
            self.ahead = f"the file of checkpoints names line {self._asked}, and the log ends at {head.seq}"
            _log.error("audit-checkpoints-ahead", problem=self.ahead)
            self._asked, self.last = 0, None
        self._head = head
        if self._naming is not None:
            before = self._key or (self._previous(self._named) if self._named else None)
            if before is not None:
                self._ask(head, before)
            self._key, self._named, self._naming = self._naming, self._naming.kid, None
            self._ask(head, self._key)
        elif head.seq - self._asked >= self._settings.checkpoint_records and self._key is not None:
            self._ask(head, self._key)

    # --- from any thread ---

    def tick(self) -> None:
        """Ask for one when something was written and the last was asked for too long ago."""
        head, key = self._head, self._key
        if head is None or key is None or head.seq <= self._asked:
            return
        if self._clock.boottime() - self._made_at >= float(self._settings.checkpoint_every):
            self._ask(head, key)

    def make(self) -> Future[Checkpoint]:
        """Ask for one now. The future's error: :class:`NoCheckpointError`."""
        head, key = self._head, self._key
        if head is None or key is None:
            answer: Future[Checkpoint] = Future()
            answer.set_exception(NoCheckpointError("no key to sign with is loaded, or nothing is written yet"))
            return answer
        return self._ask(head, key)

    def age_s(self) -> float:
        """Return for how long lines have waited for a checkpoint, in seconds; 0 when none does."""
        last = self.last.seq if self.last is not None else 0
        if self._head is None or self._head.seq <= last:
            return 0.0
        return max(0.0, self._clock.boottime() - self._made_at)

    def shown(self) -> Mapping[str, Any] | None:
        """Return the last checkpoint as reports show it."""
        last = self.last
        return None if last is None else {"seq": last.seq, "hash": last.hash, "at": last.at, "kid": last.kid}

    def close(self) -> None:
        """Make a last one and end. What hangs is left behind."""
        if self._head is not None and self._key is not None and self._head.seq > self._asked:
            self._ask(self._head, self._key)
        self._queue.put(None)
        self._thread.join(_STOP_S)
        if not self._thread.is_alive():
            os.close(self._fd)
            if self._syslog is not None:
                self._syslog.close()

    def _ask(self, head: Head, key: SigningKey) -> Future[Checkpoint]:
        self._asked, self._made_at = head.seq, self._clock.boottime()
        wanted = _Wanted(head, key, Future())
        self._queue.put(wanted)
        return wanted.answer

    # --- the thread ---

    def _run(self) -> None:
        while (wanted := self._queue.get()) is not None:
            try:
                made = self._make(wanted)
            except (SigningError, NoCheckpointError) as error:
                self.problem = str(error)
                _log.error("audit-checkpoint-failed", problem=self.problem)
                wanted.answer.set_exception(NoCheckpointError(self.problem))
            except Exception as error:  # noqa: BLE001 - the thread outlives whatever one checkpoint meets
                self.problem = type(error).__name__
                _log.exception("audit-checkpoint-failed")
                wanted.answer.set_exception(NoCheckpointError(self.problem))
            else:
                wanted.answer.set_result(made)

    def _make(self, wanted: _Wanted) -> Checkpoint:
        made = sign(wanted.head, installation=self._installation, now=self._clock.now(), key=wanted.key)
        failpoints.reached("audit.checkpoint-signed")
        try:
            self._keep(made.line)
        except OSError as error:
            raise NoCheckpointError(f"the file of checkpoints cannot be written ({name_of_error(error)})") from None
        failpoints.reached("audit.checkpoint-written")
        self.last, self.problem = made, ""
        if self._syslog is not None:
            try:
                self._syslog.append(made.line)
            except AuditUnavailable as error:
                # It is signed and in its file; only this place lacks it.
                self.problem = str(error)
                _log.error("audit-checkpoint-not-in-syslog", problem=self.problem)
        return made

    def _keep(self, line: bytes) -> None:
        status = os.fstat(self._fd)
        try:
            named = self.path.lstat()
        except OSError:
            named = None
        if named is None or not os.path.samestat(status, named):
            # Taken away by somebody who collects them: the next ones go into a new one.
            # Opened before the old one is closed: a number that is closed twice may be somebody else's by then.
            old, self._fd = self._fd, _open(self.path)
            os.close(old)
            status = os.fstat(self._fd)
        end = status.st_size
        if end and os.pread(self._fd, 1, end - 1) != b"\n":
            # What a power loss left of a line stays a line of its own, which no reader takes for a checkpoint.
            line = b"\n" + line
        if os.write(self._fd, line + b"\n") != len(line) + 1:
            raise OSError("short write")
        os.fsync(self._fd)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = not path.exists()
        fd = os.open(path, _FLAGS, 0o600)
        if new:
            sync_directory(path.parent)
    except OSError as error:
        what = f"the file cannot be opened ({name_of_error(error)})"
        raise ConfigurationError([Fault("audit_log.checkpoint_file", what)]) from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        os.close(fd)
        what = "must be a file of the minter's user that others cannot write"
        raise ConfigurationError([Fault("audit_log.checkpoint_file", what, "chmod go-w")])
    return fd


def _last_in(fd: int) -> Checkpoint | None:
    end = os.fstat(fd).st_size
    try:
        lines = os.pread(fd, _TAIL, max(0, end - _TAIL)).split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        try:
            return parse(line)
        except CheckpointError:
            continue
    return None
