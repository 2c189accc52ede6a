"""The places that take every line of the audit log, and how many of them must.

Each place has a thread of its own: one that hangs (a disk, a network file system) costs whoever appends no more than
the timeout, and after that nothing, until it answers again.

``all``: a batch counts when every place has taken it. When one has not, it counts nowhere: the files that have it cut
it off before the next one. ``any``: a batch counts when one place has taken it. A place that has not is *behind*; it
gets what it lacks, in order, read from the other file, before it counts as a place again. While only the system's log
takes lines, what the file lacks is kept in memory, up to a bound: beyond it nothing counts.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from minter.audit_file import AuditUnavailable, LogFile, NotAnewError, Torn

#: What a place that is behind gets at once, in bytes. More is copied beside the appends, piece by piece.
PIECE: Final = 4 << 20
#: What is kept for a file while only the system's log takes lines.
MAX_KEPT: Final = 8 << 20


class Target(Protocol):
    """What a place can do; see :class:`minter.audit_file.LogFile`."""

    size: int

    def append(self, data: bytes, anew: tuple[int, int] | None = None) -> Torn | None: ...  # noqa: D102
    def count(self, size: int) -> None: ...  # noqa: D102
    def settle(self) -> Torn | None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class _Worker:
    """A long-lived thread that does one thing at a time. What took too long is waited for by nobody."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._busy = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, job: Callable[[], Any]) -> None:
        self._busy = True
        self._jobs.put(job)

    def busy(self) -> bool:
        if self._busy:
            try:
                self._done.get_nowait()
            except queue.Empty:
                return True
            self._busy = False
        return False

    def result(self, timeout_s: float) -> Any:
        """Return what the job returned, or raise what it raised; ``TimeoutError`` when it is not done by then."""
        try:
            result = self._done.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            raise TimeoutError from None
        self._busy = False
        if isinstance(result, BaseException):
            raise result
        return result

    def stop(self, timeout_s: float) -> bool:
        """End the thread; say whether it did in time."""
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                result = error
            self._done.put(result)


@dataclass(slots=True)
class _Place:
    name: str
    target: Target
    worker: _Worker
    #: Why the last batch is not in it; empty when it is.
    problem: str = ""
    #: It lacks lines that count.
    behind: bool = False
    retry_at: float = 0.0
    #: It did not answer in time, and is not asked before.
    hung_until: float = 0.0
    #: It can only be mended at the next start.
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A place that began to lack lines (``problem``), or that has them again (no ``problem``)."""

    sink: str
    problem: str


@dataclass(slots=True)
class Sinks:
    """The places of a log, the first of which is its file. Used by one thread."""

    targets: Sequence[tuple[str, Target]]
    policy: Literal["all", "any"]
    timeout_s: float
    #: A place that is behind and failed is left alone for so long.
    retry_s: float = 1.0
    #: What is to be recorded about the places; whoever records it empties it.
    changes: list[Change] = field(default_factory=list)
    torn: list[Torn] = field(default_factory=list)
    _places: list[_Place] = field(default_factory=list)
    _kept: bytearray = field(default_factory=bytearray)
    _kept_from: int = 0
    _end: int = 0
    #: The last batch failed: some place may have it.
    _doubt: bool = True

    def __post_init__(self) -> None:
        """Start the threads. Every place has the same lines by now."""
        self._places = [_Place(name, target, _Worker(f"audit-{name}")) for name, target in self.targets]
        self._end = self._places[0].target.size
        for place in self._places:
            place.target.size = self._end

    @property
    def size(self) -> int:
        """Where the lines that count end in the file."""
        return self._end

    def problems(self) -> dict[str, str]:
        """Return the places that lack lines, with the reason."""
        return {
            place.name: place.problem or "it lacks lines" for place in self._places if place.problem or place.behind
        }

    def in_step(self) -> bool:
        """Say whether every place has every line, so that the log can go on in a new file."""
        return not any(place.behind or place.broken or place.worker.busy() for place in self._places)

    def deliver(self, data: bytes, *, anew: tuple[int, int] | None = None) -> bool:
        """Write a batch. False: something was cut off first (see ``torn``) and nothing was written; ask again.

        ``anew``: with it the log begins a new file. Errors: :class:`AuditUnavailable`, and the batch does not count.
        """
        self._catch_up()
        self._doubt = True
        # The file first, alone, when a new one is begun: if that cannot be, no place does.
        steps = [self._places] if anew is None else [[place] for place in self._places]
        took: list[_Place] = []
        torn = False
        for places in steps:
            for place, outcome in self._run(places, lambda target: target.append(data, anew)):
                if isinstance(outcome, NotAnewError) and not took:
                    raise outcome
                if isinstance(outcome, Torn):
                    self.torn.append(outcome)
                    torn = True
                elif outcome is None:
                    took.append(place)
        enough = len(took) == len(self._places) if self.policy == "all" else bool(took)
        if enough:
            self._count(took, data, anew)
            self._doubt = False
            return True
        if torn:
            return False
        raise AuditUnavailable("; ".join(dict.fromkeys(place.problem for place in self._places if place.problem)))

    def settled(self) -> bool:
        """After a batch that failed, have every place cut off what it has of it. False: there was something to cut."""
        if self._doubt:
            self._doubt = False
            for _, outcome in self._run(self._places, lambda target: target.settle()):
                if isinstance(outcome, Torn):
                    self.torn.append(outcome)
        return not self.torn

    def close(self) -> None:
        """End the threads and close the places; a place that hangs is left as it is."""
        for place in self._places:
            if place.worker.stop(self.timeout_s):
                place.target.close()

    def _run(self, places: Sequence[_Place], job: Callable[[Target], Any]) -> list[tuple[_Place, Any]]:
        """Do something in several places at once; an outcome is what it returned or the problem."""
        started = []
        for place in places:
            if place.behind or place.broken:
                continue
            if place.worker.busy() or time.monotonic() < place.hung_until:
                place.problem = f"the {place.name} place of the audit log hangs"
                continue
            place.worker.start(functools.partial(job, place.target))
            started.append(place)
        deadline = time.monotonic() + self.timeout_s
        outcomes: list[tuple[_Place, Any]] = []
        for place in started:
            try:
                outcome = place.worker.result(deadline - time.monotonic())
                place.problem = ""
            except TimeoutError:
                # Whoever comes next is refused at once: in a row they would wait in a row.
                place.hung_until = time.monotonic() + self.retry_s
                outcome = AuditUnavailable(f"the {place.name} place of the audit log did not answer in time")
                place.problem = str(outcome)
            except AuditUnavailable as error:
                outcome, place.problem = error, str(error)
            except Exception as error:  # noqa: BLE001 - a place of ours that fails otherwise has failed
                outcome, place.problem = (
                    error,
                    f"the {place.name} place of the audit log failed ({type(error).__name__})",
                )
            outcomes.append((place, outcome))
        return outcomes

    def _count(self, took: Sequence[_Place], data: bytes, anew: tuple[int, int] | None) -> None:
        kept_only = not any(isinstance(place.target, LogFile) for place in took)
        if kept_only and len(self._kept) + len(data) > MAX_KEPT:
            raise AuditUnavailable("the file of the audit log lacks more lines than can be kept for it")
        if anew is not None:
            self._end = 0
        for place in took:
            place.target.count(len(data))
        for place in self._places:
            if place not in took and not place.behind:
                place.behind = True
                target = place.target
                # Its own end is of the finished file: what it lacks cannot be told by an offset.
                place.broken = anew is not None and isinstance(target, LogFile) and target.done != anew
                self.changes.append(Change(place.name, place.problem))
                if not self._kept:
                    self._kept_from = self._end
        if kept_only:
            self._kept += data
        self._end += len(data)

    # --- a place that is behind ---

    def _catch_up(self) -> None:
        for place in self._places:
            if not place.behind or place.broken or place.worker.busy() or time.monotonic() < place.retry_at:
                continue
            source = self._source_for(place)
            if source is None:
                continue
            at_once = self._end - place.target.size <= PIECE
            place.worker.start(functools.partial(_copy, place.target, source, self._end))
            if not at_once:
                # Beside the appends, which do not wait for it; the next one looks how far it has come.
                continue
            try:
                place.worker.result(self.timeout_s)
            except (TimeoutError, AuditUnavailable, OSError) as error:
                place.problem = str(error) or f"the {place.name} place of the audit log did not answer in time"
                place.retry_at = time.monotonic() + self.retry_s
                continue
            place.behind, place.problem = False, ""
            if not any(one.behind for one in self._places):
                self._kept.clear()
            self.changes.append(Change(place.name, ""))

    def _source_for(self, place: _Place) -> Callable[[int, int], bytes] | None:
        for other in self._places:
            if other is not place and isinstance(other.target, LogFile) and not other.behind:
                return other.target.read
        if place.target.size >= self._kept_from and self._kept:
            kept, start = bytes(self._kept), self._kept_from
            return lambda low, high: kept[low - start : high - start]
        return None


def _copy(target: Target, source: Callable[[int, int], bytes], end: int) -> None:
    """Give a place the bytes that it lacks up to ``end``, whole lines at a time."""
    target.settle()
    while target.size < end:
        piece = source(target.size, min(end, target.size + PIECE))
        piece = piece[: piece.rindex(b"\n") + 1]
        target.append(piece)
        target.count(len(piece))
