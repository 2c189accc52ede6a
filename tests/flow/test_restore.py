"""Backup, loss of all but the keys, restore, confirmation: both programs as processes (ops/runbooks/restore.md)."""

from __future__ import annotations

import base64
import json
import shutil
import signal
import subprocess
import tarfile

import pytest

from tests.flow.test_main_job import profile
from tests.worlds.service import BIN, CANARY

pytestmark = pytest.mark.flow


@pytest.fixture
def made(service, api):
    """Both programs at work, with a lease on loan."""
    api.on("GET", "/v1/items")
    signed = {**profile(api), "token": {"type": "jwt", "key": "signer", "audience": api.origin}}
    service.prepare({"api": profile(api), "signed": signed})
    service.start()
    return service


def call(service, run, profile="api"):
    return service.call(run, "GET", "/v1/items", profile=profile).status


def lose_everything(service):
    """Kill the minter and lose its machine; what is kept apart is the sealing key and the secrets in files."""
    service.stop("minter", signal.SIGKILL)
    kept = (service.root / "state/sealing.key").read_bytes()
    for name in ("minter.db", "audit.jsonl"):
        assert (service.root / "state" / name).exists()
    for path in (service.root / "state").iterdir():
        if not path.name.startswith("broker"):
            path.unlink()
    for name in ("minter.toml", "grants.json", "brokers.json"):
        (service.root / name).unlink()
    return kept


def put_back(service, kept):
    key = service.root / "state/sealing.key"
    key.touch(0o600)
    key.write_bytes(kept)


def state(service):
    return {lease["run_id"]: lease["state"] for lease in service.leases()}


def test_the_drill_a_lost_minter_is_restored_looked_at_and_confirmed(made):
    before = made.open_run()
    assert call(made, before) == 200
    made.run("minter", "backup", "b.tar")
    assert (made.root / "b.tar").stat().st_mode & 0o777 == 0o600
    after = made.open_run()
    assert call(made, after) == 200
    kept = lose_everything(made)

    restored = made.run("minter", "restore", "b.tar").stderr.decode()
    assert "missing: put the sealing key (version 1" in restored
    # Without the sealing key there is no start, and no new key is made for a state that has one.
    done = subprocess.run(
        [str(BIN / "minter"), "serve"], cwd=made.root, env=made.env(), capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 3, done.stderr
    assert b"sealing-key" in done.stderr
    assert not (made.root / "state/sealing.key").exists()

    put_back(made, kept)
    made.start("minter")
    # In quarantine: what the backup calls live is shown and not lent; nothing is ended.
    assert state(made) == {before.run_id: "active"}
    made.until(lambda: call(made, before) == 503, "the broker drops what it held")
    assert call(made, made.open_run()) == 503
    assert made.run("minter", "leases", "revoke", "--all", check=False).returncode == 75
    assert made.run("minter", "rotate", "signer", "--step", "begin", check=False).returncode != 0
    assert state(made) == {before.run_id: "active"}
    doctor = made.run("minter", "doctor", check=False)
    assert b"quarantine" in doctor.stdout
    said = made.run("minter", "restore", "--confirm", "--dry-run").stderr.decode()
    assert "1 lease of the backup would end" in said
    assert "nothing was done" in said
    # It outlives a restart.
    made.stop("minter")
    made.start("minter")
    said = made.run("minter", "restore", "--confirm").stderr.decode()
    assert "the quarantine is lifted" in said
    assert state(made) == {}
    ended = made.audited("restore.confirmed")
    assert [(event["count"], event["suspects"]) for event in ended] == [(1, 0)]

    # The broker's runs outlived the minter: both get a new credential.
    for run in (before, after):
        made.until(lambda run=run: call(made, run) == 200, "a run goes on")
    made.run("minter", "audit", "verify")
    assert made.run("minter", "restore", "--confirm", check=False).returncode == 6


def test_a_backup_reveals_nothing_without_the_sealing_key_and_does_not_hold_it(made):
    sealing = (made.root / "state/sealing.key").read_bytes().strip()
    secrets = [CANARY.encode(), sealing, base64.b64decode(sealing), base64.b64decode(sealing).hex().encode()]
    secrets += [line for line in (made.root / "secrets/signer").read_bytes().splitlines() if b"-----" not in line]
    runs = [made.open_run(), made.open_run("signed")]
    for run, name in zip(runs, ("api", "signed"), strict=True):
        assert call(made, run, name) == 200
    made.run("minter", "keys", "import", "kept", "--origin", "https://kept.test", stdin=b"sekret-of-a-sealed-key\n")
    secrets.append(b"sekret-of-a-sealed-key")
    made.run("minter", "backup", "b.tar")
    everything = (made.root / "b.tar").read_bytes()
    with tarfile.open(made.root / "b.tar") as tar:
        names = tar.getnames()
        contents = {name: tar.extractfile(name).read() for name in names}
    everything += b"".join(contents.values())
    # The configuration's tokens are digests; those that were handed out are in nothing that is backed up.
    secrets += [made.caller_token.encode(), *(run.token.encode() for run in runs)]
    secrets += [(made.root / "run/broker.credential").read_bytes().strip()]
    for secret in secrets:
        assert secret not in everything
    assert names == ["manifest.json", "state.db", "audit/log", *names[3:]]
    manifest = json.loads(contents["manifest.json"])
    assert any("sealing-key" in one for one in manifest["left_out"])
    assert any("api.key" in one for one in manifest["left_out"])


def test_a_backup_is_taken_again_and_again_while_mints_go_on_and_each_verifies(made):
    for number in range(5):
        for _ in range(5):
            assert call(made, made.open_run("signed"), "signed") == 200
        made.run("minter", "backup", f"b{number}.tar")
        # The log goes on in a new file: the finished ones are in the next backup too.
        made.run("minter", "audit", "rotate")
    with tarfile.open(made.root / "b4.tar") as tar:
        assert len([name for name in tar.getnames() if name.startswith("audit/log")]) == 5
    assert made.run("minter", "backup", "b0.tar", check=False).returncode == 6
    made.stop("minter")
    made.run("minter", "backup", "stopped.tar")
    made.run("minter", "restore", "b4.tar", "--replace")
    made.start("minter")
    made.run("minter", "restore", "--confirm")
    made.run("minter", "audit", "verify")
    assert made.audited("restore.confirmed")


def test_a_backup_that_was_changed_or_cut_is_refused_and_nothing_is_restored(made):
    made.run("minter", "backup", "b.tar")
    kept = lose_everything(made)
    put_back(made, kept)
    whole = (made.root / "b.tar").read_bytes()
    middle = whole.index(b"SQLite format 3") + 5000
    cases = {
        "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "cut": whole[: len(whole) // 2],
        "none": b"not a backup at all" * 1000,
        "log": whole.replace(b'"code":"service.started"', b'"code":"service.stopped"', 1),
    }
    for name, data in cases.items():
        (made.root / f"{name}.tar").write_bytes(data)
        done = made.run("minter", "restore", f"{name}.tar", check=False)
        assert done.returncode == 3, (name, done.stderr)
        assert not (made.root / "minter.toml").exists()
        assert sorted(path.name for path in (made.root / "state").iterdir() if "broker" not in path.name) in (
            ["sealing.key"],
            ["minter.db.lock", "sealing.key"],
        )


def test_a_rolled_back_log_is_found_by_a_checkpoint_that_was_kept_elsewhere(made):
    checkpoints = made.root / "state/audit.jsonl.checkpoints"
    made.run("minter", "backup", "old.tar")
    for _ in range(3):
        assert call(made, made.open_run("signed"), "signed") == 200
    made.stop("minter")
    made.start("minter")
    assert checkpoints.exists()
    shutil.copy(checkpoints, made.root / "kept-elsewhere")
    kept = lose_everything(made)
    put_back(made, kept)
    done = made.run("minter", "restore", "old.tar", "--checkpoint", "kept-elsewhere", check=False)
    assert done.returncode == 7, done.stderr
    assert b"was cut" in done.stderr
    assert not (made.root / "state/minter.db").exists()
    # A backup is always older than the last checkpoint: an operator may go on, by naming what is lost.
    lost = done.stderr.decode().partition("--lost ")[2].partition(",")[0]
    for wrong in (str(int(lost) - 1), str(int(lost) + 1)):
        argv = ("restore", "old.tar", "--checkpoint", "kept-elsewhere", "--lost", wrong)
        assert made.run("minter", *argv, check=False).returncode == 7
    made.run("minter", "restore", "old.tar", "--checkpoint", "kept-elsewhere", "--lost", lost)
    made.start("minter")
    made.run("minter", "restore", "--confirm")
    (event,) = made.audited("restore.confirmed")
    signed = json.loads((made.root / "kept-elsewhere").read_bytes().splitlines()[-1])
    assert (event["lost_seq"], event["lost_hash"]) == (signed["seq"], signed["hash"]) == (int(lost), signed["hash"])


def test_a_checkpoint_that_was_kept_elsewhere_fits_a_backup_though_the_signer_was_rotated(made):
    """Only its own checkpoints say who signed after whom; who signed since, only the lost lines do."""
    for _ in range(2):
        made.run("minter", "rotate", "audit-signer", "--compromised")
    (made.root / "fits").write_bytes(made.run("minter", "audit", "checkpoint").stdout)
    made.run("minter", "backup", "b.tar")
    made.run("minter", "rotate", "audit-signer")
    (made.root / "newer").write_bytes(made.run("minter", "audit", "checkpoint").stdout)
    put_back(made, lose_everything(made))
    done = made.run("minter", "restore", "b.tar", "--checkpoint", "newer", check=False)
    assert (done.returncode, b"was cut" in done.stderr) == (7, True), done.stderr
    made.run("minter", "restore", "b.tar", "--checkpoint", "fits")


def test_what_a_backup_lacks_can_be_accepted_and_what_contradicts_a_checkpoint_cannot(made):
    """The log of another history, with good hashes of its own: only a signature that was kept shows it."""
    made.run("minter", "backup", "b.tar")
    made.stop("minter")
    kept = (made.root / "state/audit.jsonl.checkpoints").read_bytes()
    (made.root / "kept-elsewhere").write_bytes(kept.replace(b'"seq":', b'"seq":1', 1))
    argv = ("restore", "b.tar", "--replace", "--checkpoint", "kept-elsewhere")
    assert made.run("minter", *argv, check=False).returncode == 7
    (made.root / "kept-elsewhere").write_bytes(b"")
    assert made.run("minter", *argv, check=False).returncode == 7


def test_another_sealing_key_is_refused_before_anything_is_placed(made):
    made.run("minter", "backup", "b.tar")
    lose_everything(made)
    put_back(made, b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n")
    done = made.run("minter", "restore", "b.tar", check=False)
    assert done.returncode == 3
    assert b"this backup opens with version 1, fingerprint" in done.stderr
    assert not (made.root / "state/minter.db").exists()


def test_a_state_that_is_there_is_refused_or_moved_aside_and_a_running_minters_never_touched(made):
    made.run("minter", "backup", "b.tar")
    assert made.run("minter", "restore", "b.tar", "--replace", check=False).returncode == 3
    made.stop("minter")
    log = (made.root / "state/audit.jsonl").read_bytes()
    assert made.run("minter", "restore", "b.tar", check=False).returncode == 6
    assert (made.root / "state/audit.jsonl").read_bytes() == log
    made.run("minter", "restore", "b.tar", "--replace")
    (aside,) = (made.root / "state").glob("replaced-*")
    assert (aside / "audit.jsonl").read_bytes() == log
    assert {"minter.db", "audit.jsonl"} <= {path.name for path in aside.iterdir()}
    made.start("minter")
    made.run("minter", "restore", "--confirm")


def test_a_restore_that_is_killed_anywhere_keeps_the_minter_from_starting_and_is_made_again(made):
    run = made.open_run()
    assert call(made, run) == 200
    made.run("minter", "backup", "b.tar")
    made.stop("minter")
    for point in ("restore.staged", "restore.aside", "restore.log-placed", "restore.state-placed"):
        env = {**made.env(), "MINTER_TEST_FAILPOINT": point}
        argv = [str(BIN / "minter"), "restore", "b.tar", "--replace"]
        done = subprocess.run(argv, cwd=made.root, env=env, capture_output=True, check=False, timeout=60)
        assert done.returncode == -signal.SIGKILL, done.stderr
        done = subprocess.run(
            [str(BIN / "minter"), "serve"], cwd=made.root, env=made.env(), capture_output=True, check=False, timeout=60
        )
        assert (done.returncode, b"a restore of it was cut off" in done.stderr) == (3, True), done.stderr
        made.run("minter", "restore", "b.tar")
        left = [path.name for path in (made.root / "state").iterdir()]
        assert [name for name in left if name.startswith(".restore") or name.endswith(".restoring")] == []
    made.start("minter")
    assert state(made) == {run.run_id: "active"}
    made.run("minter", "restore", "--confirm")
    made.run("minter", "audit", "verify")


@pytest.mark.parametrize("point", ["restore.confirmed", "restore.settled"])
def test_a_confirmation_that_is_killed_is_finished_by_the_next_start(made, point):
    run = made.open_run()
    assert call(made, run) == 200
    made.run("minter", "backup", "b.tar")
    made.stop("minter")
    made.run("minter", "restore", "b.tar", "--replace")
    made.environ["MINTER_TEST_FAILPOINT"] = point
    made.start("minter")
    del made.environ["MINTER_TEST_FAILPOINT"]
    assert made.run("minter", "restore", "--confirm", check=False).returncode == 75
    assert made.processes.pop("minter").wait(20) == -signal.SIGKILL
    made.start("minter")
    assert state(made) == {}
    assert len(made.audited("restore.confirmed")) == 1
    made.until(lambda: call(made, run) == 200, "the run goes on")
