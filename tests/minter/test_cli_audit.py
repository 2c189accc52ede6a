from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing

import pytest

from minter import audit_checkpoint, audit_verify, signing
from minter.audit import AuditLog
from minter.audit_events import Event
from minter.audit_verify import Head
from minter.state_lock import lock_state
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


def remember(console, head, *, again=False):
    with closing(sqlite3.connect(console.root / "state/minter.db")) as database:
        if again:
            database.execute("DELETE FROM audit_head")
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


DAMAGE = {
    "gone": (None, False),
    "emptied": (lambda lines: b"", False),
    "cut": (lambda lines: b"".join(lines[:2]), False),
    "cut in a line": (lambda lines: b"".join(lines[:2]) + lines[2][:-5], False),
    "last line rewritten": (lambda lines: b"".join([*lines[:2], lines[2].replace(b"two", b"owt")]), False),
    "rewritten": (lambda lines: b"".join([lines[0], lines[2].replace(b"two", b"owt")]), True),
    "other text": (lambda lines: b"precious notes\n", True),
    "buried": (lambda lines: b"".join(lines) + b"x" * (5 << 20), True),
}


@pytest.mark.parametrize(("damage", "aside"), DAMAGE.values(), ids=DAMAGE)
def test_an_operator_goes_on_after_a_loss_that_was_looked_at_and_the_log_says_so(console, log, damage, aside):
    lines = log.read_bytes().splitlines(keepends=True)
    lost = Head(3, audit_verify.line_hash(lines[2][:-1]))
    log.unlink()
    if damage is not None:
        log.touch(0o600)
        log.write_bytes(damage(lines))
    left = log.read_bytes() if damage else b""
    looked = console("minter", "audit", "accept-loss")
    assert looked.status == 7
    assert f"from line 3 ({lost.hash})" in looked.err
    assert "minter audit accept-loss --line 3" in looked.err
    assert console("minter", "audit", "accept-loss", "--line", "2").status == 6
    assert (log.read_bytes() if damage else b"") == left
    done = console("minter", "audit", "accept-loss", "--line", "3")
    assert done.status == 0, done.err
    kept = log.with_name("audit.jsonl.lost-3")
    assert kept.exists() == aside
    if aside:
        assert kept.read_bytes() == left
    verified = console("minter", "audit", "verify", "--json")
    assert (verified.status, verified.json["checked_against_state"]) == (0, True)
    (told,) = [line for line in map(json.loads, log.read_bytes().splitlines()) if line["code"] == "audit.loss-accepted"]
    assert (told["lost_seq"], told["lost_hash"], told["uid"]) == (3, lost.hash, os.getuid())
    again = console("minter", "audit", "accept-loss", "--line", "3")
    assert (again.status, "nothing is lost" in again.err) == (0, True)
    installation, known = identity(console.root / "state/minter.db")
    AuditLog(log, installation=installation, known=known, now=NOW).close()


def test_checkpoints_of_lines_whose_loss_was_accepted_are_kept_aside_with_them(console, log):
    """Else no later check of the minter's own would end well; who keeps one elsewhere still sees the loss."""
    key = signing.load(signing.generate("EdDSA"), "EdDSA", keyed_fingerprint="")
    lines = log.read_bytes().splitlines(keepends=True)
    installation = json.loads(lines[0])["installation"]
    head = Head(3, audit_verify.line_hash(lines[2][:-1]))
    made = audit_checkpoint.sign(head, installation=installation, now=NOW, key=key).line + b"\n"
    checkpoints = log.with_name("audit.jsonl.checkpoints")
    elsewhere = console.root / "elsewhere"
    for place in (checkpoints, elsewhere):
        place.write_bytes(made)
    with closing(sqlite3.connect(console.root / "state/minter.db")) as database:
        database.execute("INSERT INTO meta (name, value) VALUES ('audit_checkpoint', ?)", (made.decode().strip(),))
        database.commit()
    assert console("minter", "audit", "verify").status == 0
    log.write_bytes(b"".join(lines[:2]))
    assert console("minter", "audit", "verify").status == 7
    assert console("minter", "audit", "accept-loss", "--line", "3").status == 0
    assert log.with_name("audit.jsonl.checkpoints.lost-3").read_bytes() == made
    assert console("minter", "audit", "verify").status == 0
    assert console("minter", "audit", "verify", "--checkpoint", elsewhere).status == 7


def test_a_loss_is_not_accepted_while_a_minter_runs_nor_where_none_is(console, log):
    assert "nothing is lost" in console("minter", "audit", "accept-loss", "--line", "3").err
    held = lock_state(console.root / "state/minter.db")
    log.unlink()
    refused = console("minter", "audit", "accept-loss", "--line", "3")
    assert (refused.status, "in use by process" in refused.err) == (3, True)
    assert not log.exists()
    os.close(held)


def test_files_that_were_moved_away_are_named_and_what_vouches_for_them_is_said(console, log):
    installation, known = identity(console.root / "state/minter.db")
    again = AuditLog(log, installation=installation, known=known, now=NOW)
    for alias in ("three", "four"):
        again.rotate()
        again.append([Event("key.pinned", {"alias": alias, "origins": ["https://api.example.com"]})], now=NOW)
    remember(console, Head(*again.head()), again=True)
    again.close()
    first, second = (log.with_name(f"audit.jsonl.{one:012}-{last:012}") for one, last in ((1, 3), (4, 5)))
    assert console("minter", "audit", "verify", "--json").json["files"] == [str(first), str(second), str(log)]
    first.rename(console.root / "taken")
    done = console("minter", "audit", "verify")
    assert done.status == 0, done.err
    assert "lines 1 to 3 are in no file that is here; nothing vouches for them" in done.err
    assert "no checkpoint: that the log was not rewritten as a whole is not proven" in done.err
    (console.root / "taken").rename(first)
    second.write_bytes(second.read_bytes().replace(b"three", b"threx"))
    done = console("minter", "audit", "verify")
    assert done.status == 7
    assert f"{log} does not verify: line 1 (seq 6)" in done.err
    second.rename(console.root / "taken")
    done = console("minter", "audit", "verify")
    assert (done.status, "seq is 6 where 4 belongs" in done.err) == (7, True)


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
