"""The minter's verifier and the stand-alone one judge the same vectors in the same way."""

from __future__ import annotations

import filecmp
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from minter import audit_state, audit_verify
from minter.audit_checkpoint import parse_all
from minter.audit_segments import lines_of, named
from minter.audit_verify import Head
from tests.vectors.audit import make

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "tests/vectors/audit/v1"
BEFORE = ROOT / "tests/vectors/audit/v0/audit.jsonl"
VERIFIER = ROOT / "ops/verify-audit/verify.py"
CASES = json.loads((VECTORS / "cases.json").read_text())


def load_verifier():
    spec = importlib.util.spec_from_file_location("verify_audit", VERIFIER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


standalone = load_verifier()


def by_the_minter(case):
    folder = VECTORS / case["name"]
    files = [folder / name for name in case["files"]]
    data = (folder / "checkpoints.jsonl").read_bytes() if case["checkpoints"] else b""
    good, faults = parse_all(data.split(b"\n"))
    end = named(files[-1])
    head = case.get("head")
    report = audit_verify.verify(
        lines_of(files),
        installation=case.get("installation"),
        head=Head(int(head.split(":")[0]), head.split(":")[1]) if head else None,
        checkpoints=[one for one in good if end is None or one.seq <= end[1]],
        forged=[fault.seq for fault in faults if fault.seq],
        pins=case.get("keys", ()),
    )
    found = {"ok": report.bad is None, "proven_seq": report.proven.seq if report.proven else None}
    if report.bad is not None:
        found |= {"bad_seq": report.bad.seq, "reason": report.bad.reason}
    return found


def by_the_other(case):
    folder = VECTORS / case["name"]
    data = (folder / "checkpoints.jsonl").read_bytes() if case["checkpoints"] else b""
    head = case.get("head")
    found = standalone.verify(
        [str(folder / name) for name in case["files"]],
        standalone.read_checkpoints(data)[0],
        case.get("keys", ()),
        (int(head.split(":")[0]), head.split(":")[1]) if head else None,
        case.get("installation"),
    )
    shown = {"ok": found["ok"], "proven_seq": found["proven"]["seq"] if found["proven"] else None}
    if found["bad"]:
        shown |= {"bad_seq": found["bad"]["seq"], "reason": found["bad"]["reason"]}
    return shown


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_both_verifiers_find_in_a_vector_what_is_in_it(case):
    ours, theirs = by_the_minter(case), by_the_other(case)
    assert ours == theirs
    assert ours.items() >= case["expected"].items()


def test_both_verifiers_say_where_in_the_last_of_several_files_a_cut_is(tmp_path):
    shutil.copytree(VECTORS / "good-files", tmp_path / "state")
    log, checkpoints = tmp_path / "state/audit.jsonl", tmp_path / "state/checkpoints.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:2]))
    ours = audit_state.examine([log], None, checkpoints=[checkpoints])
    files = [str(path) for path in tmp_path.glob("state/audit.jsonl*")]
    theirs = standalone.verify(files, standalone.read_checkpoints(checkpoints.read_bytes())[0])["bad"]
    assert (ours.bad_file, ours.bad_line, ours.report.bad.reason) == (log, 3, "cut")
    assert (theirs["file"], theirs["line"], theirs["reason"]) == (str(log), 3, "cut")


def test_the_vectors_have_every_reason_and_are_many():
    reasons = {case["expected"]["reason"] for case in CASES if not case["expected"]["ok"]}
    assert reasons == set(audit_verify.Reason.__args__)
    assert sum(not case["expected"]["ok"] for case in CASES) >= 30


def test_the_vectors_are_what_their_maker_makes(tmp_path):
    make.main(tmp_path)
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert made == {path.relative_to(VECTORS) for path in VECTORS.rglob("*") if path.is_file()}
    assert all(filecmp.cmp(tmp_path / path, VECTORS / path, shallow=False) for path in made)


def test_a_log_of_the_time_before_checkpoints_verifies_as_it_did():
    report = audit_verify.verify(lines_of([BEFORE]), installation="0123456789abcdef0123456789abcdef")
    assert (report.bad, report.lines, report.proven) == (None, 14, None)
    assert [code for _, code in report.notable] == ["audit.healed", "clock.went-back"]
    found = standalone.verify([str(BEFORE)], [])
    assert (found["ok"], found["last"]["hash"]) == (True, report.head.hash)


@pytest.mark.parametrize("place", range(0, BEFORE.stat().st_size, 97))
def test_both_verifiers_find_the_same_edit_anywhere(tmp_path, place):
    data = bytearray(BEFORE.read_bytes())
    data[place] ^= 0x15
    path = tmp_path / "audit.jsonl"
    path.write_bytes(bytes(data))
    head = audit_verify.verify(lines_of([BEFORE])).head
    ours = audit_verify.verify(lines_of([path]), head=head)
    theirs = standalone.verify([str(path)], [], head=(head.seq, head.hash))
    assert ours.bad is not None
    assert (ours.bad.seq, ours.bad.reason) == (theirs["bad"]["seq"], theirs["bad"]["reason"])


def test_the_stand_alone_verifier_imports_nothing_of_ours_and_runs_as_a_file(tmp_path):
    copy = tmp_path / "verify.py"
    copy.write_bytes(VERIFIER.read_bytes())
    case = VECTORS / "rewritten-end"
    command = [sys.executable, "-I", str(copy), str(case / "audit.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "not proven: that the log was not rewritten" in done.stdout
    command += ["--checkpoints", str(case / "checkpoints.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 7
    assert "audit.jsonl line 10 (seq 10)" in done.stdout
    done = subprocess.run([*command, "nowhere"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    source = VERIFIER.read_text()
    assert not any(f"{word} {package}" in source for word in ("import", "from") for package in ("minter", "config"))
