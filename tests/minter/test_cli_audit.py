from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from minter.audit import AuditLog
from minter.audit_events import Event
from minter.audit_verify import Head
from minter.store import identity, migrate
from tests.worlds.console import Console

NOW = 1_893_456_000.0


@pytest.fixture
def console(tmp_path):
    (tmp_path / "minter.toml").write_text("")
    (tmp_path / "state").mkdir(mode=0o700)
    return Console(tmp_path)


@pytest.fixture
def log(console):
    """A log of three lines whose last one the state knows, as a minter leaves it."""
    path = console.root / "state/audit.jsonl"
    state = console.root / "state/minter.db"
    migrate(state)
    installation, _ = identity(state)
    log = AuditLog(path, installation=installation, known=None, now=NOW)
    for alias in ("one", "two"):
        log.append([Event("key.pinned", {"alias": alias, "origins": ["https://api.example.com"]})], now=NOW)
    remember(console, Head(*log.head()))
    log.close()
    return path


def remember(console, head):
    with closing(sqlite3.connect(console.root / "state/minter.db")) as database:
        database.execute("INSERT INTO audit_head (id, seq, hash, at) VALUES (1, ?, ?, ?)", (head.seq, head.hash, NOW))
        database.commit()


def test_a_whole_log_verifies_against_the_state(console, log):
    done = console("minter", "audit", "verify")
    assert done.status == 0, done.err
    assert "verifies: 3 lines, head 3 " in done.out
    assert "cannot be vouched for" not in done.err
    shown = console("minter", "audit", "verify", "--json").json
    assert (shown["ok"], shown["lines"], shown["checked_against_state"], shown["bad"]) == (True, 3, True, None)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: [lines[0], lines[1].replace(b"one", b"won"), lines[2]], 3),
        (lambda lines: [lines[0], lines[2]], 2),
        (lambda lines: [lines[0], lines[2], lines[1]], 2),
        (lambda lines: [*lines, lines[2]], 4),
        (lambda lines: lines[:2], 3),
        (lambda lines: [], 1),
        (lambda lines: [*lines[:2], lines[2][:-5]], 3),
    ],
    ids=["edited", "removed", "reordered", "repeated", "cut", "emptied", "torn"],
)
def test_every_change_ends_with_seven_and_names_the_line(console, log, change, line):
    log.write_bytes(b"".join(change(log.read_bytes().splitlines(keepends=True))))
    done = console("minter", "audit", "verify")
    assert done.status == 7
    assert f"does not verify: line {line}:" in done.err
    done = console("minter", "audit", "verify", "--json")
    assert done.status == 7
    assert (done.json["ok"], done.json["bad"]["line"]) == (False, line)


def test_a_last_line_that_was_rewritten_is_found_by_the_state(console, log):
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:2], lines[2].replace(b"two", b"owt")]))
    assert console("minter", "audit", "verify").status == 7


def test_a_copy_from_elsewhere_is_checked_by_itself_and_that_is_said(console, log):
    copy = console.root / "copy.jsonl"
    copy.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))
    (console.root / "minter.toml").unlink()
    done = console("minter", "audit", "verify", copy)
    assert done.status == 0
    assert "cannot be vouched for" in done.err


@pytest.mark.parametrize("arguments", [(), ("nowhere.jsonl",)])
def test_a_log_that_is_not_there_is_a_fault_of_configuration(console, arguments):
    done = console("minter", "audit", "verify", *arguments)
    assert (done.status, done.out) == (3, "")


def test_reading_from_a_minter_that_does_not_run_says_try_again(console):
    for command in (("tail",), ("export",)):
        done = console("minter", "audit", *command)
        assert (done.status, done.out) == (75, "")
        assert "minter serve" in done.err
