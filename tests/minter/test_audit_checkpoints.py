"""Checkpoints: when they are signed, where they are kept, whom a verifier believes, and what they never stop."""

from __future__ import annotations

import json
import os
import signal

import pytest

from config.clock import FakeClock
from config.errors import ConfigurationError
from config.settings import AuditSettings
from minter import audit_checkpoints, failpoints, signing
from minter.audit import AuditLog
from minter.audit_checkpoint import DOMAIN, CheckpointError, parse, parse_all, sign
from minter.audit_checkpoints import Checkpoints, NoCheckpointError
from minter.audit_verify import Head
from minter.signing import SigningError
from tests.minter.audit_world import NOW, Receiver, codes, grow, pinned, records, report_of

OURS, NEXT = (signing.load(signing.generate("EdDSA"), "EdDSA", keyed_fingerprint="") for _ in range(2))


class World:
    """A log and its checkpoints; ``key`` signs, ``before`` is what is left of those that signed."""

    def __init__(self, folder):
        self.path = folder / "audit.jsonl"
        self.clock = FakeClock(NOW)
        self.key = OURS
        self.before = {}
        self.log = None

    def open(self, *, known=None, syslog="", **settings):
        options = AuditSettings(**settings)
        self.log = AuditLog(self.path, installation="inst-1", known=known, now=NOW, settings=options)
        self.checkpoints = Checkpoints(
            options,
            log=self.path,
            installation="inst-1",
            clock=self.clock,
            signer=lambda: self.key,
            previous=self.before.get,
            syslog=syslog,
        )
        self.log.listen(self.checkpoints)
        return self

    def kept(self):
        """Return the checkpoints in the file, once what was asked for is made."""
        self.checkpoints.make().exception(10)
        return self.read()[:-1]

    def read(self):
        return parse_all(self.checkpoints.path.read_bytes().split(b"\n"))[0]

    def restart(self, **settings):
        known = Head(*self.log.head())
        self.log.close()
        return self.open(known=known, **settings)

    def report(self, **options):
        return report_of(self.path, checkpoints=self.read(), **options)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_a_checkpoint_signs_what_it_is_for_and_the_line(world):
    made = sign(Head(7, "ab" * 32), installation="inst-1", now=NOW, key=OURS)
    body = json.loads(made.line)
    assert list(body) == ["at", "hash", "installation", "key", "kid", "seq", "signature", "v"]
    assert (body["seq"], body["v"], body["kid"], made.fingerprint) == (7, 1, OURS.kid, OURS.fingerprint)
    assert parse(made.line) == made
    assert DOMAIN.endswith(b"\n")
    other = signing.load(signing.generate("ES256"), "ES256", keyed_fingerprint="")
    with pytest.raises(SigningError):
        sign(Head(7, "ab" * 32), installation="inst-1", now=NOW, key=other)


@pytest.mark.parametrize("name", ["at", "hash", "installation", "key", "kid", "seq", "signature", "v"])
def test_no_member_of_a_checkpoint_can_be_changed_or_left_out(name):
    body = json.loads(sign(Head(7, "ab" * 32), installation="inst-1", now=NOW, key=OURS).line)
    other = json.loads(sign(Head(8, "cd" * 32), installation="inst-2", now=NOW + 1, key=NEXT).line)
    other["v"] = 2
    for changed in ({**body, name: other[name]}, {n: v for n, v in body.items() if n != name}):
        with pytest.raises(CheckpointError):
            parse(json.dumps(changed, sort_keys=True, separators=(",", ":")).encode())


def test_one_is_made_after_so_many_lines(world):
    world.open(checkpoint_records=10)
    grow(world.log, 35)
    # The first line after the key was loaded names it, and is signed at once.
    assert [one.seq for one in world.kept()] == [3, 13, 23, 33]
    world.log.close()
    report = world.report(pins=[OURS.kid])
    assert (report.bad, report.proven.seq, report.pinned) == (None, 37, True)


def test_one_is_made_after_so_long_when_something_was_written(world):
    world.open(checkpoint_every=60)
    grow(world.log, 1)
    assert [one.seq for one in world.kept()] == [3]
    before = len(world.read())
    world.clock.advance(120)
    world.checkpoints.tick()
    assert len(world.kept()) == before
    grow(world.log, 1)
    world.clock.advance(59)
    world.checkpoints.tick()
    assert world.checkpoints.age_s() == 59
    world.clock.advance(1)
    world.checkpoints.tick()
    world.checkpoints.make().result(10)
    assert world.checkpoints.last.seq == 4
    assert world.checkpoints.age_s() == 0
    world.log.close()


def test_one_is_made_at_an_orderly_stop(world):
    world.open()
    head = grow(world.log, 5)
    world.log.close()
    assert (world.read()[-1].seq, world.read()[-1].hash) == (head.seq, head.hash)


def test_the_log_names_its_signer_once_and_again_after_the_file_of_checkpoints_was_lost(world):
    world.open()
    grow(world.log, 2)
    world.restart()
    grow(world.log, 2, 2)
    assert codes(world.path).count("audit.signer") == 1
    (named,) = [record for record in records(world.path) if record["code"] == "audit.signer"]
    assert (named["kid"], named["fingerprint"]) == (OURS.kid, OURS.fingerprint)
    known = Head(*world.log.head())
    world.log.close()
    world.checkpoints.path.unlink()
    world.open(known=known)
    grow(world.log, 2, 4)
    world.log.close()
    assert codes(world.path).count("audit.signer") == 2


@pytest.mark.parametrize("restarted", [False, True])
def test_a_verifier_that_believes_the_old_signer_is_led_to_the_new_one(world, restarted):
    world.open()
    grow(world.log, 2)
    world.key, world.before = NEXT, {OURS.kid: OURS}
    if restarted:
        world.restart()
    grow(world.log, 2, 2)
    world.log.close()
    assert [one.kid for one in world.read()][-3:] == [OURS.kid, NEXT.kid, NEXT.kid]
    report = world.report(pins=[OURS.fingerprint])
    assert (report.bad, report.proven.kid) == (None, NEXT.kid)


def test_a_signer_that_the_old_one_did_not_vouch_for_is_believed_only_when_it_is_named(world):
    world.open()
    grow(world.log, 2)
    world.key = NEXT
    world.restart()
    grow(world.log, 2, 2)
    world.log.close()
    assert world.report(pins=[OURS.kid]).bad.reason == "signer"
    assert world.report(pins=[OURS.kid, NEXT.kid]).bad is None


def test_without_a_key_nothing_is_signed_and_nothing_stops(world):
    world.key = None
    world.open()
    grow(world.log, 5)
    with pytest.raises(NoCheckpointError, match="no key"):
        world.checkpoints.make().result(10)
    world.log.close()
    assert world.read() == []
    assert "audit.signer" not in codes(world.path)


def test_a_file_of_checkpoints_that_cannot_be_written_stops_nothing_and_is_said(world, monkeypatch):
    world.open(checkpoint_records=1)
    grow(world.log, 1)
    world.kept()
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[: len(data) // 2]))
    with pytest.raises(NoCheckpointError, match="cannot be written"):
        world.checkpoints.make().result(10)
    assert "cannot be written" in world.checkpoints.problem
    monkeypatch.undo()
    head = grow(world.log, 1)
    world.checkpoints.make().result(10)
    assert (world.checkpoints.problem, world.checkpoints.last.seq) == ("", head.seq)
    world.log.close()
    good, faults = parse_all(world.checkpoints.path.read_bytes().split(b"\n"))
    assert good[-1].seq == head.seq
    assert [fault.seq for fault in faults] == [0]


def test_a_checkpoint_is_synced_before_it_counts(world, monkeypatch):
    world.open()
    grow(world.log, 1)
    world.kept()
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((fd, world.checkpoints.last.seq)))
    before = world.checkpoints.last.seq
    grow(world.log, 1)
    world.checkpoints.make().result(10)
    assert synced == [(world.checkpoints._fd, before)]
    monkeypatch.undo()
    world.log.close()


def test_the_name_of_a_new_file_of_checkpoints_is_durable(world, tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(audit_checkpoints, "sync_directory", synced.append)
    world.open()
    assert synced == [tmp_path]
    world.restart()
    assert synced == [tmp_path]


def test_a_file_of_checkpoints_that_was_moved_away_is_begun_anew(world, tmp_path):
    world.open(checkpoint_records=1)
    grow(world.log, 2)
    world.kept()
    taken = world.checkpoints.path.rename(tmp_path / "taken")
    grow(world.log, 2, 2)
    world.log.close()
    assert taken.read_bytes()
    assert world.read()[-1].seq == world.log.head()[0]


def test_a_file_of_checkpoints_that_cannot_be_begun_anew_is_tried_again_and_no_other_file_is_closed(world, tmp_path):
    world.open()
    grow(world.log, 1)
    world.kept()
    path, collected = world.checkpoints.path, tmp_path / "collected"
    path.rename(collected)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NoCheckpointError):
        world.checkpoints.make().result(10)
    path.unlink()
    # Whatever the process opens next may get the number of a file that was closed.
    other = os.open(collected, os.O_RDONLY)
    try:
        assert world.checkpoints.make().result(10) in world.read()
        assert os.path.samestat(os.fstat(other), collected.stat())
    finally:
        os.close(other)


def test_the_file_of_checkpoints_is_the_minters_alone_and_may_be_elsewhere(world, tmp_path):
    place = tmp_path / "outside" / "checkpoints.jsonl"
    world.open(checkpoint_file=str(place))
    grow(world.log, 1)
    world.log.close()
    assert place.stat().st_mode & 0o777 == 0o600
    place.unlink()
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="ELOOP"):
        world.open(known=Head(*world.log.head()), checkpoint_file=str(place))


def test_checkpoints_are_in_the_systems_log_and_are_read_from_there(world, tmp_path):
    receiver = Receiver(tmp_path / "log")
    world.open(syslog=str(receiver.path), checkpoint_syslog=True)
    grow(world.log, 3)
    world.log.close()
    lines = receiver.lines()
    assert lines[0].startswith(b"<85>minter-audit-checkpoint: {")
    assert parse_all(lines) == (world.read(), [])
    receiver.stop()


def test_a_system_log_that_is_away_stops_no_checkpoint(world, tmp_path):
    world.open(syslog=str(tmp_path / "nowhere"), checkpoint_syslog=True)
    head = grow(world.log, 1)
    made = world.checkpoints.make().result(10)
    assert (made.seq, "system's log" in world.checkpoints.problem) == (head.seq, True)
    world.log.close()


def rewritten(path):
    """Rewrite a whole log: another story, every number and hash right."""
    path.unlink()
    log = AuditLog(path, installation="inst-1", known=None, now=NOW)
    log.append([pinned(n) for n in range(100, 108)], now=NOW)
    log.close()


def test_a_rewritten_whole_is_convicted_by_the_file_of_checkpoints_or_by_one_kept_elsewhere(world):
    world.open(checkpoint_records=2)
    grow(world.log, 6)
    elsewhere = world.checkpoints.make().result(10)
    world.log.close()
    rewritten(world.path)
    assert world.report().bad.reason == "checkpoint"
    # Whoever rewrote it has deleted the minter's own file as well: the log alone shows nothing.
    assert report_of(world.path).bad is None
    assert report_of(world.path).proven is None
    report = report_of(world.path, checkpoints=[elsewhere])
    assert (report.bad.reason, report.bad.seq) == ("checkpoint", elsewhere.seq)


def test_what_was_signed_at_any_line_convicts_whoever_changes_one_before(world):
    world.open(checkpoint_records=1)
    grow(world.log, 6)
    world.log.close()
    checkpoints = world.read()
    rewritten(world.path)
    for one in checkpoints:
        if one.seq > 1:
            assert report_of(world.path, checkpoints=[one]).bad is not None


@pytest.mark.parametrize("point", ["audit.checkpoint-signed", "audit.checkpoint-written"])
def test_a_crash_around_a_checkpoint_leaves_a_log_that_verifies_and_a_signer_that_is_believed(tmp_path, point):
    for nth in (1, 2, 3):
        folder = tmp_path / str(nth)
        folder.mkdir()
        child = os.fork()
        if not child:
            try:
                failpoints.arm({failpoints.VARIABLE: f"{point}:{nth}"})
                world = World(folder).open(checkpoint_records=2)
                grow(world.log, 20)
                world.log.close()
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        world = World(folder).open(checkpoint_records=2)
        head = grow(world.log, 5, 20)
        world.log.close()
        report = world.report(pins=[OURS.kid])
        assert (report.bad, report.proven.seq) == (None, head.seq)


def test_a_log_that_was_put_back_under_newer_checkpoints_is_said_and_is_signed_on(world):
    world.open(checkpoint_records=3)
    grow(world.log, 2)
    older = world.path.read_bytes()
    known = Head(*world.log.head())
    grow(world.log, 40)
    world.kept()
    world.log.close()
    world.path.write_bytes(older)
    world.open(known=known, checkpoint_records=3)
    before = len(world.read())
    grow(world.log, 3)
    assert "names line" in world.checkpoints.ahead
    assert len(world.kept()) > before
    assert world.checkpoints.last.seq <= world.log.head()[0]


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_the_file_of_checkpoints_does_not_hang_a_start(world, tmp_path):
    os.mkfifo(tmp_path / "audit.jsonl.checkpoints")
    with pytest.raises(ConfigurationError, match="a file of the minter's user"):
        world.open()
    world.log.close()


def test_a_file_of_checkpoints_that_others_can_write_is_refused(world, tmp_path):
    kept = tmp_path / "audit.jsonl.checkpoints"
    kept.touch()
    kept.chmod(0o620)
    with pytest.raises(ConfigurationError, match="others cannot write"):
        world.open()
    world.log.close()
