"""The log goes on in a new file: by size, when asked, and after a crash at any step of it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from config.errors import ConfigurationError
from minter import audit_file, failpoints
from minter.audit import AuditUnavailable
from minter.audit_search import Query, search
from minter.audit_segments import finished, last_seq, name_of, read_after
from minter.audit_verify import Head
from tests.minter.audit_world import NOW, codes, grow, open_log, pinned, records, report_of

POINTS = [name for name in failpoints.POINTS if name.startswith("audit.") and "checkpoint" not in name]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


def test_a_log_that_reaches_its_size_goes_on_in_a_new_file_and_verifies_as_one(path):
    log = open_log(path, max_size=1000)
    head = grow(log, 30)
    log.close()
    old = finished(path)
    assert len(old) >= 3
    assert old[0].path.name == f"audit.jsonl.{1:012}-{old[0].last:012}"
    assert all(one.path.stat().st_mode & 0o777 == 0o600 for one in old)
    report = report_of(path, head=head)
    assert (report.bad, report.head, report.lines) == (None, head, head.seq)
    first = json.loads(path.read_bytes().splitlines()[0])
    assert (first["code"], first["installation"], first["seq"]) == ("audit.continued", "inst-1", old[-1].last + 1)


def test_a_log_without_a_size_goes_on_in_one_file_until_it_is_asked(path):
    log = open_log(path, max_size=0)
    grow(log, 20)
    assert finished(path) == []
    log.rotate()
    grow(log, 1, 20)
    log.rotate()
    log.close()
    assert [(one.first, one.last) for one in finished(path)] == [(1, 21)]
    assert codes(path)[-2:] == ["audit.continued", "key.pinned"]
    assert report_of(path).bad is None


@pytest.mark.parametrize("known", [None, "head"])
def test_a_log_of_several_files_is_continued_at_the_next_start(path, known):
    log = open_log(path, max_size=1000)
    head = grow(log, 10)
    log.close()
    log = open_log(path, max_size=1000, known=head if known else None)
    assert log.head() == (head.seq, head.hash)
    head = grow(log, 10, 10)
    log.close()
    assert report_of(path, head=head).bad is None


def test_a_line_that_the_state_knows_may_stand_in_the_finished_file(path):
    """The state is told once a second: the log may have gone on in a new file since."""
    log = open_log(path)
    known = grow(log, 5)
    grow(log, 2, 5)
    log.rotate()
    head = grow(log, 1, 7)
    log.close()
    log = open_log(path, known=known)
    assert log.head() == (head.seq, head.hash)
    log.close()
    finished(path)[0].path.unlink()
    with pytest.raises(ConfigurationError, match="which the state knows"):
        open_log(path, known=known)


def test_a_finished_file_that_was_moved_away_is_not_missed_when_the_state_knows_a_later_line(path):
    log = open_log(path, max_size=1000)
    head = grow(log, 20)
    log.close()
    for one in finished(path):
        one.path.unlink()
    log = open_log(path, known=head)
    head = grow(log, 1)
    log.close()
    report = report_of(path, head=head)
    assert (report.bad, report.first > 1) == (None, True)


def test_the_file_that_the_log_went_on_in_may_not_vanish(path):
    log = open_log(path, max_size=1000)
    head = grow(log, 20)
    log.close()
    path.unlink()
    with pytest.raises(ConfigurationError, match="which the state knows"):
        open_log(path, known=head)


def test_records_are_read_and_searched_across_the_files(path):
    log = open_log(path, max_size=2000)
    head = grow(log, 50)
    log.close()
    all_of_it = records(path)
    for after in (0, 1, 17, 30, head.seq - 1):
        assert read_after(path, after, 5) == all_of_it[after : after + 5]
    assert last_seq(path) == head.seq
    page = search(path, Query(key="key-33"), after=0, limit=10)
    assert [event["alias"] for event in page.events] == ["key-33"]
    assert page.more_after is None
    page = search(path, Query(since=NOW + 20, until=NOW + 23, wanted=(("code", "key.pinned"),)), after=0, limit=10)
    assert [event["alias"] for event in page.events] == ["key-20", "key-21", "key-22"]


def test_a_search_looks_at_a_bounded_number_of_lines(path, monkeypatch):
    monkeypatch.setattr("minter.audit_search.LOOKED_AT", 10)
    log = open_log(path)
    grow(log, 25)
    log.close()
    page = search(path, Query(key="key-24"), after=0, limit=10)
    assert (page.events, page.more_after) == ([], 10)
    page = search(path, Query(key="key-24"), after=20, limit=10)
    assert len(page.events) == 1


def test_a_new_file_that_cannot_be_made_stops_nothing(path, monkeypatch):
    log = open_log(path, max_size=1000)

    def refuse(*_arguments):
        raise OSError(28, "no room")

    monkeypatch.setattr(audit_file.fcntl, "flock", refuse)
    head = grow(log, 20)
    assert (finished(path), report_of(path, head=head).bad) == ([], None)
    monkeypatch.undo()
    log._limit = 1000
    grow(log, 1, 20)
    assert len(finished(path)) == 1
    log.close()
    assert report_of(path).bad is None


def test_a_finished_files_name_that_is_taken_is_never_written_over(path):
    log = open_log(path)
    grow(log, 5)
    taken = name_of(path, 1, 6)
    taken.write_text("evidence")
    log.rotate()
    head = grow(log, 2, 5)
    log.close()
    assert taken.read_text() == "evidence"
    taken.unlink()
    assert report_of(path, head=head).bad is None
    assert "audit.continued" not in codes(path)


def test_a_new_file_that_does_not_get_its_name_leaves_the_log_in_the_one_it_has(path, monkeypatch):
    log = open_log(path)
    grow(log, 5)
    rename = Path.rename

    def refuse(self, target):
        if self.name.endswith(".next"):
            raise OSError(5, "injected")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    log.rotate()
    head = grow(log, 2, 5)
    assert finished(path) == []
    monkeypatch.undo()
    log.rotate()
    head = grow(log, 1, 7)
    log.close()
    assert len(finished(path)) == 1
    assert report_of(path, head=head).bad is None


def test_a_finished_file_may_be_moved_away_though_the_state_knows_its_last_line(path):
    """What it ends with stands in the first line of the next: nothing is lost from the chain."""
    log = open_log(path)
    known = grow(log, 5)
    log.rotate()
    head = grow(log, 2, 5)
    log.close()
    finished(path)[0].path.unlink()
    log = open_log(path, known=known)
    assert log.head() == (head.seq, head.hash)
    log.close()


@pytest.mark.parametrize("moved_away", [False, True])
def test_a_line_that_the_state_knows_may_stand_several_files_back(path, moved_away):
    log = open_log(path)
    known = grow(log, 5)
    for start in range(5, 11, 2):
        log.rotate()
        head = grow(log, 2, start)
    log.close()
    assert len(finished(path)) == 3
    if moved_away:
        # It ends with the known line, and the next one says so.
        finished(path)[0].path.unlink()
    log = open_log(path, known=known)
    assert log.head() == (head.seq, head.hash)
    log.close()


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_log_whose_files_do_not_follow_each_other_down_to_the_known_line_is_not_continued(path, changed):
    log = open_log(path)
    known = grow(log, 5)
    grow(log, 1, 5)
    for start in range(6, 12, 2):
        log.rotate()
        grow(log, 2, start)
    log.close()
    one = finished(path)[changed].path
    lines = one.read_bytes().splitlines(keepends=True)
    at = known.seq - 1 if changed == 0 else -1
    lines[at] = lines[at].replace(b"key-", b"kex-")
    one.write_bytes(b"".join(lines))
    with pytest.raises(ConfigurationError):
        open_log(path, known=known)


def test_the_names_of_finished_files_follow_each_other_across_restarts(path):
    known = None
    for start in range(0, 12, 3):
        log = open_log(path, known=known, now=NOW + start)
        known = grow(log, 3, start)
        log.rotate()
        known = grow(log, 1, start + 3)
        log.close()
    old = finished(path)
    assert len(old) == 4
    assert [one.first for one in old] == [1, *(one.last + 1 for one in old[:-1])]


def test_a_write_that_fails_in_the_new_file_is_healed_there(path):
    log = open_log(path)
    before = grow(log, 5)
    target = log._file
    real = target._write
    target._write = lambda fd, data: real(fd, data[:10])
    log.rotate()
    for _ in range(2):
        with pytest.raises(AuditUnavailable):
            log.append([pinned()], now=NOW + 6)
    assert log.head() == (before.seq, before.hash)
    target._write = real
    grow(log, 2, 6)
    log.close()
    assert [(one.first, one.last) for one in finished(path)] == [(1, 6)]
    assert codes(path)[6:] == ["audit.continued", "audit.healed", "key.pinned", "key.pinned"]
    assert report_of(path).bad is None


def crash(path, point, settings):
    """Run a log in a process that dies at a point; return the last line it was told is safe."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            failpoints.arm({failpoints.VARIABLE: point})
            log = open_log(path, **settings)
            for n in range(8):
                os.write(writer, json.dumps(log.head()).encode() + b"\n")
                if n in (3, 6):
                    log.rotate()
                log.append([pinned(n)], now=NOW + n)
            os.write(writer, json.dumps(log.head()).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = [Head(*json.loads(line)) for line in pipe]
    _, status = os.waitpid(child, 0)
    return told, os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("second", [False, True], ids=["one file", "two files"])
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_step_leaves_a_chain_that_the_next_start_continues(tmp_path, point, second):
    died = 0
    for nth in range(1, 12):
        folder = tmp_path / str(nth)
        folder.mkdir()
        path = folder / "audit.jsonl"
        settings = {"second": f"file:{folder / 'other' / 'copy.jsonl'}"} if second else {}
        told, killed = crash(path, f"{point}:{nth}", settings)
        died += killed
        known = told[-1] if told else None
        log = open_log(path, known=known, **settings)
        head = grow(log, 2, 20)
        log.close()
        for line in told:
            assert report_of(path, head=line).bad is None
        report = report_of(path, head=head)
        assert (report.bad, report.first) == (None, 1)
        assert "key.pinned" in codes(path)
        if second:
            copy = folder / "other" / "copy.jsonl"
            assert report_of(copy, head=head).bad is None
            assert copy.read_bytes() == path.read_bytes()
            assert codes(copy) == codes(path)
    assert died
