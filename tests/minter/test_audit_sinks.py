"""Two places for every line: what one of them does to the other, and to whoever waits."""

from __future__ import annotations

import errno
import os
import time

import pytest

from config.errors import ConfigurationError
from minter import audit_sinks
from minter.audit import AuditUnavailable
from minter.audit_segments import finished
from minter.audit_verify import Head
from tests.minter.audit_world import (
    NOW,
    Gate,
    Receiver,
    codes,
    grow,
    open_log,
    pinned,
    records,
    report_of,
    second_of,
    whole,
)

SHORT = 0.2


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "elsewhere" / "copy.jsonl"


@pytest.fixture
def system(tmp_path):
    receiver = Receiver(tmp_path / "log")
    yield receiver
    receiver.socket.close()


def both(copy, policy="all", **settings):
    return {"second": f"file:{copy}", "policy": policy, "timeout": SHORT, **settings}


def no_room(_fd, _data):
    raise OSError(errno.ENOSPC, "no room")


def eager(log):
    """Let a place that failed be tried again at once."""
    log._sinks.retry_s = 0.0
    return log


@pytest.mark.parametrize("policy", ["all", "any"])
def test_both_files_hold_the_same_lines(path, copy, policy):
    log = open_log(path, **both(copy, policy))
    head = grow(log, 5)
    log.close()
    assert path.read_bytes() == copy.read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o600
    assert report_of(copy, head=head).bad is None


@pytest.mark.parametrize("which", [0, 1])
def test_with_all_one_place_that_fails_is_enough_that_nothing_counts(path, copy, which):
    log = open_log(path, **both(copy))
    before = grow(log, 2)
    target = log._sinks.targets[which][1]
    real, target._write = target._write, no_room
    for _ in range(3):
        with pytest.raises(AuditUnavailable, match="ENOSPC"):
            log.append([pinned(7)], now=NOW + 2)
    assert log.head() == (before.seq, before.hash)
    target._write = real
    head = grow(log, 1, 3)
    log.close()
    assert path.read_bytes() == copy.read_bytes()
    # What the place that worked had of it was cut off, and that is told.
    assert codes(path) == ["audit.opened", "key.pinned", "key.pinned", "audit.healed", "key.pinned"]
    assert "key-7" not in path.read_text()
    assert report_of(path, head=head).bad is None


@pytest.mark.parametrize("which", [0, 1])
def test_with_all_a_place_that_hangs_costs_the_timeout_once_and_then_nothing(path, copy, which):
    log = open_log(path, **both(copy))
    grow(log, 1)
    gate = Gate(log._sinks.targets[which][1])
    gate.open.clear()
    began = time.monotonic()
    with pytest.raises(AuditUnavailable, match="did not answer in time"):
        log.append([pinned(7)], now=NOW + 2)
    assert SHORT <= time.monotonic() - began < SHORT * 5
    began = time.monotonic()
    for _ in range(5):
        with pytest.raises(AuditUnavailable, match="hangs"):
            log.append([pinned(7)], now=NOW + 2)
    assert time.monotonic() - began < SHORT
    gate.open.set()
    for _ in range(200):
        try:
            log.append([pinned(8)], now=NOW + 3)
            break
        except AuditUnavailable:
            time.sleep(0.01)
    head = Head(*log.head())
    log.close()
    assert path.read_bytes() == copy.read_bytes()
    assert report_of(path, head=head).bad is None
    assert "key-7" not in path.read_text()


def test_with_all_a_place_that_is_late_each_time_is_not_waited_for_by_everybody_in_a_row(path, copy):
    log = open_log(path, **both(copy))
    grow(log, 1)
    gate = Gate(log._sinks.targets[1][1])
    gate.open.clear()
    with pytest.raises(AuditUnavailable, match="did not answer in time"):
        log.append([pinned(7)], now=NOW + 2)
    gate.open.set()
    worker = log._sinks._places[1].worker
    for _ in range(500):
        if not worker.busy():
            break
        time.sleep(0.01)
    # It has answered by now, and will be late again.
    gate.open.clear()
    began = time.monotonic()
    with pytest.raises(AuditUnavailable, match="hangs"):
        log.append([pinned(7)], now=NOW + 2)
    assert time.monotonic() - began < SHORT
    gate.open.set()
    log.close()


def test_one_file_alone_that_hangs_costs_the_timeout_and_no_more(path):
    log = open_log(path, timeout=SHORT)
    gate = Gate(log._file)
    gate.open.clear()
    began = time.monotonic()
    with pytest.raises(AuditUnavailable):
        log.append([pinned()], now=NOW)
    assert time.monotonic() - began < SHORT * 5
    gate.open.set()
    log.close()


@pytest.mark.parametrize("which", [0, 1])
def test_with_any_the_other_place_is_enough_and_the_one_that_failed_gets_what_it_missed(path, copy, which):
    log = eager(open_log(path, **both(copy, "any")))
    grow(log, 2)
    target = log._sinks.targets[which][1]
    real, target._write = target._write, no_room
    grow(log, 5, 2)
    assert list(log.problems()) == [("first", "second")[which]]
    assert "ENOSPC" in next(iter(log.problems().values()))
    target._write = real
    head = grow(log, 2, 7)
    assert log.problems() == {}
    log.close()
    assert path.read_bytes() == copy.read_bytes()
    told = [(r["code"], r["sink"]) for r in records(path) if r["code"].startswith("audit.sink")]
    name = ("first", "second")[which]
    assert told == [("audit.sink-failed", name), ("audit.sink-restored", name)]
    assert report_of(path, head=head).bad is None


@pytest.mark.parametrize("which", [0, 1])
def test_with_any_a_place_that_hangs_is_passed_over_and_catches_up(path, copy, which):
    log = eager(open_log(path, **both(copy, "any")))
    grow(log, 1)
    gate = Gate(log._sinks.targets[which][1])
    gate.open.clear()
    began = time.monotonic()
    grow(log, 20, 1)
    assert time.monotonic() - began < SHORT * 5
    gate.open.set()
    number = 21
    while log.problems():
        time.sleep(0.01)
        grow(log, 1, number)
        number += 1
        assert number < 500
    log.close()
    assert path.read_bytes() == copy.read_bytes()
    assert report_of(path).bad is None


def test_with_any_both_failing_is_a_failure(path, copy):
    log = eager(open_log(path, **both(copy, "any")))
    before = grow(log, 1)
    real = [target._write for _, target in log._sinks.targets]
    for _, target in log._sinks.targets:
        target._write = no_room
    with pytest.raises(AuditUnavailable):
        log.append([pinned()], now=NOW + 1)
    assert log.head() == (before.seq, before.hash)
    for (_, target), write in zip(log._sinks.targets, real, strict=True):
        target._write = write
    grow(log, 1, 2)
    log.close()
    assert path.read_bytes() == copy.read_bytes()


def test_a_place_that_lacks_much_is_completed_beside_the_appends(path, copy, monkeypatch):
    monkeypatch.setattr(audit_sinks, "PIECE", 2000)
    log = eager(open_log(path, **both(copy, "any")))
    target = second_of(log)
    real, target._write = target._write, no_room
    grow(log, 50)
    target._write = real
    number = 50
    while log.problems():
        time.sleep(0.005)
        grow(log, 1, number)
        number += 1
        assert number < 1000
    log.close()
    assert path.read_bytes() == copy.read_bytes()


def test_a_log_that_lacks_lines_somewhere_does_not_go_on_in_a_new_file_before_it_has_them(path, copy):
    log = eager(open_log(path, **both(copy, "any")))
    target = second_of(log)
    real, target._write = target._write, no_room
    grow(log, 3)
    log.rotate()
    grow(log, 2, 3)
    assert finished(path) == []
    target._write = real
    head = grow(log, 3, 5)
    log.close()
    assert len(finished(path)) == len(finished(copy)) == 1
    assert whole(path) == whole(copy)
    assert report_of(copy, head=head).bad is None


@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_ends_earlier_or_in_a_line_is_completed_at_a_start(path, copy, which):
    log = open_log(path, **both(copy))
    known = grow(log, 3)
    log.close()
    data = path.read_bytes()
    short = (path, copy)[which]
    for end in [*range(0, len(data), 7), len(data)]:
        short.write_bytes(data[:end])
        log = open_log(path, known=known, **both(copy))
        assert log.head() == (known.seq, known.hash)
        log.close()
        assert path.read_bytes() == copy.read_bytes() == data


def test_ends_that_were_torn_in_both_files_are_cut_from_both(path, copy):
    log = open_log(path, **both(copy))
    known = grow(log, 2)
    log.close()
    for file, torn in ((path, b'{"alias":"k'), (copy, b'{"alias":"kxyz')):
        with file.open("ab") as end:
            end.write(torn)
    log = open_log(path, known=known, now=NOW + 5, **both(copy))
    log.close()
    assert path.read_bytes() == copy.read_bytes()
    assert codes(path)[-1] == "audit.healed"
    assert report_of(path, head=known).bad is None


def test_files_that_contradict_each_other_stop_a_start_and_are_left_alone(path, copy):
    log = open_log(path, **both(copy))
    known = grow(log, 2)
    log.close()
    # Each was written alone once.
    log = open_log(path, known=known, now=NOW + 5)
    log.append([pinned(8)], now=NOW + 6)
    log.close()
    log = open_log(copy, known=known, now=NOW + 5)
    log.append([pinned(9)], now=NOW + 6)
    log.close()
    before = path.read_bytes(), copy.read_bytes()
    with pytest.raises(ConfigurationError, match="contradict each other"):
        open_log(path, known=known, **both(copy))
    assert (path.read_bytes(), copy.read_bytes()) == before


def test_a_second_file_that_is_new_gets_what_the_first_has(path, copy):
    log = open_log(path, max_size=1000)
    known = grow(log, 10)
    log.close()
    log = open_log(path, known=known, now=NOW + 50, max_size=1000, **both(copy))
    head = grow(log, 10, 60)
    log.close()
    assert path.read_bytes() == copy.read_bytes()
    assert report_of(path, head=head).bad is None
    assert report_of(copy, head=head).bad is None


@pytest.mark.parametrize("second", ["ftp:x", "file:", "/var/log/x"])
def test_a_place_that_nobody_knows_is_a_fault(path, second):
    with pytest.raises(ConfigurationError, match=r"audit_log.second"):
        open_log(path, second=second)


# --- the system's log ---


def test_every_line_is_in_the_systems_log_too(path, system):
    log = open_log(path, second=f"syslog:{system.path}")
    grow(log, 3)
    log.close()
    lines = system.lines()
    assert all(line.startswith(b"<85>minter-audit: {") for line in lines)
    assert b"".join(line.partition(b": ")[2] + b"\n" for line in lines) == path.read_bytes()


def test_with_all_a_system_log_that_is_away_stops_everything_until_it_is_back(path, system):
    log = open_log(path, second=f"syslog:{system.path}", timeout=SHORT)
    system.stop()
    with pytest.raises(AuditUnavailable, match="system's log"):
        log.append([pinned()], now=NOW)
    system.start()
    head = grow(log, 1)
    log.close()
    assert report_of(path, head=head).bad is None
    assert system.seqs()[-1] == head.seq


def test_with_any_a_system_log_that_was_away_gets_what_it_missed_in_order(path, system):
    log = eager(open_log(path, second=f"syslog:{system.path}", policy="any", timeout=SHORT))
    system.lines()
    system.stop()
    grow(log, 4)
    system.start()
    head = grow(log, 2, 4)
    log.close()
    assert system.seqs() == list(range(2, head.seq + 1))


def test_a_system_log_that_nobody_reads_times_out(path, system):
    log = eager(open_log(path, second=f"syslog:{system.path}", policy="any", timeout=SHORT))
    began = time.monotonic()
    # The socket's queue fills: nobody reads it.
    for n in range(40):
        log.append([pinned(n) for _ in range(20)], now=NOW + n)
    assert time.monotonic() - began < 10
    assert "second" in log.problems()
    log.close()
    assert report_of(path).bad is None


def test_with_any_the_systems_log_carries_on_for_a_file_that_cannot_be_written_up_to_a_bound(path, system, monkeypatch):
    log = eager(open_log(path, second=f"syslog:{system.path}", policy="any"))
    grow(log, 1)
    real, log._file._write = log._file._write, no_room
    grow(log, 5, 1)
    assert system.seqs()[-1] == log.head()[0]
    log._file._write = real
    head = grow(log, 2, 6)
    assert report_of(path, head=head).bad is None
    monkeypatch.setattr(audit_sinks, "MAX_KEPT", 1000)
    log._file._write = no_room
    with pytest.raises(AuditUnavailable, match="lacks more lines"):
        grow(log, 20, 8)
    log._file._write = real
    head = grow(log, 2, 40)
    log.close()
    assert report_of(path, head=head).bad is None


def test_a_second_process_is_refused(path, copy):
    """The store has one writer; a lock of the file refuses a second process."""
    log = open_log(path, **both(copy))
    child = os.fork()
    if not child:
        try:
            open_log(path)
        except ConfigurationError:
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    log.close()
