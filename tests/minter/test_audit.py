"""The audit log: what stands in it, what a failing disk does to it, and how it is taken over."""

import errno
import json
import os

import pytest

from config.errors import ConfigurationError
from minter import audit_verify
from minter.audit import EVENTS, AuditLog, AuditUnavailable, Event, Head, read_after
from minter.audit_events import FIELDS

NOW = 1_893_456_000.0
PINNED = Event("key.pinned", {"alias": "cf-parent", "origins": ["https://api.example.com"]})


def open_log(path, *, known=None, installation="inst-1", now=NOW, **options):
    return AuditLog(path, installation=installation, known=known, now=now, **options)


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


def codes_of(path):
    return [json.loads(line)["code"] for line in lines_of(path)]


def check(path, **options):
    with path.open("rb") as file:
        return audit_verify.verify(file, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


class Disk:
    """A disk that fails when told to: ``keep`` bytes of the next write reach it, then ``error``."""

    def __init__(self):
        self.keep = None
        self.error = None
        self.sync_error = None

    def write(self, fd, data):
        if self.keep is None:
            return os.write(fd, data)
        written = os.write(fd, data[: self.keep]) if self.keep else 0
        if self.error:
            raise OSError(self.error, "injected")
        return written

    def sync(self, fd):
        if self.sync_error:
            raise OSError(self.sync_error, "injected")
        os.fsync(fd)

    def heal(self):
        self.keep = self.error = self.sync_error = None


def test_a_record_is_one_canonical_line_with_its_number_time_and_the_hash_of_the_line_before(path):
    log = open_log(path)
    log.append([PINNED], now=NOW + 1.5)
    first, second = lines_of(path)
    assert json.loads(first) == {
        "at": "2030-01-01T00:00:00.000Z",
        "code": "audit.opened",
        "installation": "inst-1",
        "prev": audit_verify.genesis("inst-1"),
        "seq": 1,
    }
    assert second == (
        b'{"alias":"cf-parent","at":"2030-01-01T00:00:01.500Z","code":"key.pinned",'
        b'"origins":["https://api.example.com"],"prev":"%s","seq":2}\n' % audit_verify.line_hash(first[:-1]).encode()
    )
    assert log.head() == (2, audit_verify.line_hash(second[:-1]))
    assert check(path, installation="inst-1", head=Head(*log.head())).bad is None


def test_the_file_is_appended_to_and_only_its_owner_can_open_it(path):
    log = open_log(path)
    assert path.stat().st_mode & 0o777 == 0o600
    import fcntl

    assert fcntl.fcntl(log._file.fd, fcntl.F_GETFL) & os.O_APPEND


@pytest.mark.parametrize(
    "code_and_fields",
    [
        ("lease.stolen", {}),
        ("key.pinned", {"path": "/v1/x"}),
        ("key.pinned", {"alias": b"bytes"}),
        ("key.pinned", {"origins": "one"}),
        ("key.pinned", {"origins": [1]}),
        ("lease.mint-failed", {"attempts": True}),
        ("lease.mint-failed", {"attempts": 1.5}),
        ("lease.minted", {"expires_at": float("inf")}),
        ("lease.minted", {"expires_at": float("nan")}),
        ("lease.minted", {"expires_at": -1}),
        ("lease.minted", {"expires_at": 1e12}),
        ("clock.went-back", {"behind_s": float("nan")}),
    ],
)
def test_a_code_a_field_or_a_type_outside_the_allow_list_is_refused_without_its_value(code_and_fields):
    with pytest.raises(ValueError) as raised:
        Event(*code_and_fields)
    assert "/v1/x" not in str(raised.value)


def test_every_event_and_every_field_is_documented_and_used():
    assert all(kind.doc.endswith(".") for kind in EVENTS.values())
    assert all(doc for _, doc in FIELDS.values())
    assert {name for kind in EVENTS.values() for name in kind.fields} == FIELDS.keys()


def test_no_field_has_the_name_of_a_member_that_every_line_has(path):
    log = open_log(path)
    log.append([Event("service.stopped", {})], now=NOW)
    assert not json.loads(lines_of(path)[-1]).keys() & FIELDS.keys()


HOSTILE = [
    "two\r\nlines",
    '","code":"forged',
    "\x1b[31mred\x1b[0m",
    "nul\x00del\x7fc1\x9b",
    "\u202eevil\u2066",
    "sep\u2028para\u2029nel\x85",
    "lone \ud800 surrogate",
    "x" * 5000,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_one_printable_line(path, text):
    log = open_log(path)
    log.append([Event("lease.refused", {"caller": text, "problem": "caller-not-allowed"})], now=NOW)
    assert path.read_bytes().count(b"\n") == 2
    line = lines_of(path)[1][:-1]
    assert all(0x20 <= byte < 0x7F for byte in line)
    assert json.loads(line)["code"] == "lease.refused"
    assert json.loads(line)["caller"].startswith(text[:1024])
    assert len(line) < 7000
    assert check(path, head=Head(*log.head())).bad is None


def test_an_event_that_would_make_a_line_too_long_for_any_reader_is_cut_to_one_that_is_not(path):
    """A broker chooses the words of a run's record, and every byte of them may become six."""
    log = open_log(path)
    routes = ["\x7f" * 1024] * 600
    log.append([Event("run.recorded", {"by_route": routes, "denied_by": routes, "calls": 7})], now=NOW)
    known = Head(*log.head())
    log.close()
    assert max(map(len, lines_of(path))) <= audit_verify.MAX_LINE
    assert json.loads(lines_of(path)[1])["calls"] == 7
    log = open_log(path, known=known)
    log.append([PINNED], now=NOW)
    assert check(path, head=Head(*log.head())).bad is None


@pytest.mark.parametrize("cause", [errno.ENOSPC, errno.EIO, errno.EROFS, None])
@pytest.mark.parametrize("kept", [0, 1, 40, 10_000])
def test_a_failed_write_records_nothing_and_the_next_append_heals_it_openly(path, cause, kept):
    disk = Disk()
    log = open_log(path, write=disk.write, sync=disk.sync)
    before = log.head()
    disk.keep, disk.error = kept, cause
    if kept == 10_000:
        # Everything reached the disk but the disk could not say so.
        disk.keep, disk.sync_error = None, cause or errno.EIO
    with pytest.raises(AuditUnavailable) as raised:
        log.append([PINNED, PINNED], now=NOW + 1)
    assert errno.errorcode[disk.error or disk.sync_error or errno.ENOSPC] in str(raised.value)
    assert log.head() == before
    disk.heal()
    log.append([PINNED], now=NOW + 2)
    expected = ["audit.opened", "audit.healed", "key.pinned"] if kept else ["audit.opened", "key.pinned"]
    assert codes_of(path) == expected
    report = check(path, head=Head(*log.head()))
    assert report.bad is None
    assert [code for _, code in report.notable] == (["audit.healed"] if kept else [])


def test_a_disk_that_fails_while_the_log_is_mended_loses_no_word_of_it(path):
    disk = Disk()
    log = open_log(path, write=disk.write, sync=disk.sync)
    disk.keep, disk.error = 30, errno.EIO
    for _ in range(3):
        with pytest.raises(AuditUnavailable):
            log.append([PINNED], now=NOW)
    disk.heal()
    log.append([PINNED], now=NOW)
    assert codes_of(path) == ["audit.opened", "audit.healed", "key.pinned"]
    assert json.loads(lines_of(path)[1])["torn_bytes"] == 30


def test_a_log_cut_at_any_byte_is_healed_at_open_and_verifies(path):
    """Power loss: whatever part of the last group of lines reached the disk."""
    log = open_log(path)
    log.append([PINNED], now=NOW + 1)
    known = Head(*log.head())
    synced = path.stat().st_size
    log.append([PINNED, PINNED], now=NOW + 2)
    log.close()
    whole = path.read_bytes()
    for end in range(synced, len(whole) + 1):
        path.write_bytes(whole[:end])
        again = open_log(path, known=known, now=NOW + 3)
        again.append([PINNED], now=NOW + 4)
        report = check(path, installation="inst-1", head=known)
        again.close()
        assert report.bad is None, end
        finished = whole[synced:end].count(b"\n")
        torn = whole[synced:end].rpartition(b"\n")[2]
        assert [code for _, code in report.notable] == (["audit.healed"] if torn else [])
        assert report.lines == 2 + finished + bool(torn) + 1


@pytest.mark.parametrize("end", [b"\0" * 4000, b"\0" * 300 + b'{"x":1}\n', b'{"at":"', b"\xff\xfe\n"])
def test_an_end_of_zeros_or_rubbish_behind_the_known_line_is_cut_off(path, end):
    log = open_log(path)
    log.append([PINNED], now=NOW)
    known = Head(*log.head())
    log.close()
    with path.open("ab") as file:
        file.write(end)
    log = open_log(path, known=known)
    assert codes_of(path) == ["audit.opened", "key.pinned", "audit.healed"]
    assert json.loads(lines_of(path)[2])["torn_bytes"] == len(end)
    log.append([PINNED], now=NOW)
    assert check(path, head=Head(*log.head())).bad is None


def test_a_first_line_cut_by_a_power_loss_is_begun_again(path):
    open_log(path).close()
    whole = path.read_bytes()
    for end in (1, 5, len(whole) - 1):
        path.write_bytes(whole[:end])
        open_log(path).close()
        assert codes_of(path) == ["audit.opened", "audit.healed"]
        assert check(path).bad is None


def test_a_file_that_is_no_audit_log_is_refused_and_left_alone(path):
    path.write_bytes(b"precious notes\n")
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="not an audit log"):
        open_log(path)
    assert path.read_bytes() == b"precious notes\n"


def grown(path, count=5):
    log = open_log(path)
    for n in range(count):
        log.append([PINNED], now=NOW + n)
    known = Head(*log.head())
    log.close()
    return known


def test_a_log_that_was_cut_before_the_known_line_is_not_continued(path):
    known = grown(path)
    path.write_bytes(b"".join(lines_of(path)[:3]))
    with pytest.raises(ConfigurationError, match="line 6, which the state knows"):
        open_log(path, known=known)
    assert len(lines_of(path)) == 3


def test_a_log_that_is_gone_is_not_begun_anew(path):
    known = grown(path)
    path.unlink()
    with pytest.raises(ConfigurationError, match="not in the log"):
        open_log(path, known=known)


@pytest.mark.parametrize("left", [0, 3])
def test_an_operator_who_accepts_a_loss_has_it_recorded(path, left):
    known = grown(path)
    path.write_bytes(b"".join(lines_of(path)[:left]))
    log = open_log(path, known=known, accepted_by=7, now=NOW + 9)
    assert codes_of(path)[-1] == "audit.loss-accepted"
    assert json.loads(lines_of(path)[-1])["lost_hash"] == known.hash
    assert json.loads(lines_of(path)[-1])["uid"] == 7
    report = check(path, head=Head(*log.head()))
    assert report.bad is None
    assert "audit.loss-accepted" in [code for _, code in report.notable]


def test_a_log_that_breaks_far_from_its_end_is_evidence_and_is_not_mended(path):
    known = grown(path)
    with path.open("ab") as file:
        file.write(b"x" * (5 << 20))
    size = path.stat().st_size
    with pytest.raises(ConfigurationError, match="long before the end"):
        open_log(path, known=known)
    assert path.stat().st_size == size


def test_the_log_of_another_installation_is_refused(path):
    grown(path)
    with pytest.raises(ConfigurationError, match="another installation"):
        open_log(path, installation="inst-2")


def test_a_second_writer_is_refused(path):
    log = open_log(path)
    with pytest.raises(ConfigurationError, match="another process"):
        open_log(path)
    log.close()
    open_log(path).close()


def test_a_log_that_others_can_open_or_that_is_a_link_is_refused(path, tmp_path):
    open_log(path).close()
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="others cannot open"):
        open_log(path)
    path.chmod(0o600)
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    with pytest.raises(ConfigurationError, match="ELOOP"):
        open_log(link)


def test_lines_that_somebody_else_appended_are_cut_off_and_named_by_their_hash(path):
    log = open_log(path)
    with path.open("ab") as file:
        file.write(b'{"forged":1}\n')
    log.append([PINNED], now=NOW)
    assert codes_of(path) == ["audit.opened", "audit.healed", "key.pinned"]


def replaced(path):
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o600)
    copy.rename(path)


def taken_aside(path):
    path.with_name("aside").hardlink_to(path)
    path.unlink()


@pytest.mark.parametrize(
    "attack",
    [
        lambda path: path.unlink(),
        lambda path: os.truncate(path, 10),
        lambda path: path.rename(path.with_name("audit.jsonl.1")),
        taken_aside,
        replaced,
    ],
)
def test_a_log_that_is_removed_moved_replaced_or_cut_under_a_running_minter_stops_it(path, attack):
    log = open_log(path)
    attack(path)
    with pytest.raises(AuditUnavailable, match=r"removed, moved or replaced|was cut"):
        log.append([PINNED], now=NOW)


def test_a_log_that_is_put_back_goes_on(path):
    log = open_log(path)
    aside = path.rename(path.with_name("audit.jsonl.1"))
    with pytest.raises(AuditUnavailable):
        log.append([PINNED], now=NOW)
    aside.rename(path)
    log.append([PINNED], now=NOW)
    assert codes_of(path) == ["audit.opened", "key.pinned"]


def test_a_line_that_lands_behind_another_programs_is_not_taken_for_written(path):
    other: list[bytes] = []

    def write(fd, data):
        # Another program is a moment faster.
        os.write(fd, b"".join(other))
        return os.write(fd, data)

    log = open_log(path, write=write)
    other.append(b'{"forged":1}\n')
    with pytest.raises(AuditUnavailable, match="another program writes"):
        log.append([PINNED], now=NOW)
    other.clear()
    log.append([PINNED], now=NOW)
    log.append([PINNED], now=NOW)
    assert codes_of(path) == ["audit.opened", "audit.healed", "key.pinned", "key.pinned"]
    assert check(path, head=Head(*log.head())).bad is None


def test_a_clock_that_goes_back_is_recorded_once_for_each_step(path):
    log = open_log(path)
    log.append([PINNED], now=NOW + 10)
    log.append([PINNED], now=NOW + 4)
    log.append([PINNED], now=NOW + 5)
    assert codes_of(path) == ["audit.opened", "key.pinned", "clock.went-back", "key.pinned", "key.pinned"]
    assert json.loads(lines_of(path)[2])["behind_s"] == 6.0
    log.close()
    open_log(path, now=NOW).append([PINNED], now=NOW)
    assert codes_of(path)[-2:] == ["clock.went-back", "key.pinned"]


def test_records_are_read_from_any_number_on(path):
    log = open_log(path)
    log.append([Event("key.pinned", {"alias": f"k{n}", "origins": ["x" * 200]}) for n in range(3000)], now=NOW)
    for after in (0, 1, 1500, 2998, 3000):
        records = read_after(path, after, 3)
        assert [record["seq"] for record in records] == list(range(after + 1, min(after + 4, 3002)))
    assert read_after(path, 3001, 10) == []
    assert read_after(path.with_name("missing"), 0, 10) == []
    with path.open("ab") as file:
        file.write(b'{"at":"2030')
    assert read_after(path, 3000, 10)[-1]["seq"] == 3001


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"[]\n", "not an object"),
        (b"{}\n", "has no at"),
        (b'{"at":"x","code":"c","prev":"p","seq":true}\n', "has no seq"),
        (b'{"at":"x","code":"c","prev":"p","seq":1}\n', "not an instant"),
        (b'{"at": "x"}\n', "canonical"),
        (b'{"seq":1,"seq":1}\n', "canonical"),
        (b'{"a":"\xc3\xa4"}\n', "canonical"),
        (b"[" * 100_000 + b"\n", "not JSON"),
        (b'{"seq":' + b"1" * 10_000 + b"}\n", "not JSON"),
        (b"\xff\n", "not JSON"),
        (b"\n", "not JSON"),
        (b"x" * (audit_verify.MAX_LINE + 1) + b"\n", "too long"),
        (b'{"at":"2030-01-01T00:00:00.000Z","code":"key.pinned","prev":"p","seq":1}\n', "neither audit.opened"),
        (b'{"at":"2030', "unfinished"),
    ],
)
def test_the_verifier_says_why_a_line_is_none(line, why):
    report = audit_verify.verify([line])
    assert report.bad is not None
    assert report.bad.line == 1
    assert why in report.bad.why


def test_an_empty_log_and_a_foreign_one_do_not_verify(path):
    assert audit_verify.verify([]).bad is not None
    grown(path)
    assert "another installation" in check(path, installation="inst-2").bad.why
