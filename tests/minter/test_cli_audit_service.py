"""``minter audit`` against a running minter: checkpoints kept elsewhere, a new file, search; and doctor's word."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from minter.audit_segments import finished
from tests.worlds.api import Api
from tests.worlds.console import Console
from tests.worlds.service import BIN, Service


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with Api() as api:
        api.on("GET", "/v1/items")
        service = Service(tmp_path_factory.mktemp("minter"))
        service.minter_extra = '[audit_log]\nsecond = "file:other/copy.jsonl"\npolicy = "any"\ncheckpoint_records = 5\n'
        service.prepare(
            {
                "api": {
                    "base_url": api.origin,
                    "allowed_callers": ["support-agent"],
                    "allow": ["GET /v1/items"],
                    "token": {"type": "static", "key": "api"},
                }
            }
        )
        service.start()
        try:
            yield service
            service.assert_canary_absent()
        finally:
            service.end()


@pytest.fixture
def console(service):
    return Console(service.root, {"MINTER_ALLOW_ROOT": "1", "BROKER_ALLOW_ROOT": "1"})


def test_a_log_is_verified_up_to_a_checkpoint_that_a_reviewer_keeps(service, console):
    run = service.open_run("api")
    assert service.call(run, "GET", "/v1/items", profile="api").status == 200
    made = console("minter", "audit", "checkpoint")
    assert made.status == 0, made.err
    checkpoint = json.loads(made.out)
    kept = service.root / "kept.txt"
    kept.write_text(made.out)
    done = console("minter", "audit", "verify", "--checkpoint", kept, "--key", checkpoint["kid"])
    assert done.status == 0, done.err
    assert f"proven up to the checkpoint of seq {checkpoint['seq']}" in done.err
    assert "to be sure" not in done.err
    # A log of another story: what the minter itself keeps is gone, what the reviewer keeps convicts it.
    forged = service.root / "forged.jsonl"
    text = (service.root / "state/audit.jsonl").read_text()
    forged.write_text(text.replace('"caller":"support-agent"', '"caller":"support-agenx"'))
    done = console("minter", "audit", "verify", forged, "--checkpoint", kept, "--json")
    assert (done.status, done.json["ok"]) == (7, False)
    assert console("minter", "audit", "verify", forged, "--key", "nobody").status == 7


def test_the_log_goes_on_in_a_new_file_when_asked_and_at_a_signal(service, console):
    path = service.root / "state/audit.jsonl"
    before = len(finished(path))
    assert console("minter", "audit", "rotate").status == 0
    assert len(finished(path)) == before + 1
    service.processes["minter"].send_signal(signal.SIGUSR1)
    service.until(lambda: len(finished(path)) == before + 2, "the log goes on in a new file")
    copy = service.root / "other/copy.jsonl"
    service.until(lambda: finished(copy)[-1].last == finished(path)[-1].last, "the other one follows")
    verified = console("minter", "audit", "verify", "--json")
    assert (verified.status, len(verified.json["files"]), verified.json["missing"]) == (0, before + 3, [])
    asked = console("minter", "audit", "search", "--code", "audit.rotation-asked", "--json").out.splitlines()
    assert ["uid" in json.loads(line) for line in asked] == [True, False]
    exported = console("minter", "audit", "export").out.splitlines()
    assert [json.loads(line)["seq"] for line in exported] == list(range(1, len(exported) + 1))
    found = console("minter", "doctor", "--json").json["findings"]
    checks = {(one["check"], one["where"]): one for one in found}
    assert checks["service", "audit-places"]["level"] == "ok"
    assert checks["audit", str(path)]["level"] == "ok"


def test_events_are_searched_by_what_they_are_about(service, console):
    def search(*arguments):
        done = console("minter", "audit", "search", "--json", *arguments)
        assert done.status == 0, done.err
        return [json.loads(line) for line in done.out.splitlines()]

    minted = search("--code", "lease.minted")
    assert minted
    assert {event["code"] for event in search("--lease", minted[0]["lease_id"])} >= {"lease.requested", "lease.minted"}
    assert search("--key", "api", "--code", "lease.minted") == minted
    assert search("--run", "run_nobody") == []
    assert search("--until", minted[0]["at"], "--code", "lease.minted") == []
    assert console("minter", "audit", "search", "--code", "lease.stolen").status == 2
    shown = console("minter", "audit", "tail", "-n", "2")
    assert shown.out.startswith("SEQ\tAT\tEVENT\tWHAT\n")
    assert [len(row) for row in shown.rows] == [4, 4]
    assert console("minter", "audit", "events").out.startswith("EVENT\tMEANING\tFIELDS\n")


def test_a_reader_that_follows_sees_what_is_written_from_now_on(service, console):
    argv = [str(BIN / "minter"), "audit", "tail", "-n", "1", "--follow", "--json"]
    with subprocess.Popen(argv, cwd=service.root, env=console.env(), stdout=subprocess.PIPE, text=True) as follower:
        first = json.loads(follower.stdout.readline())
        run = service.open_run("api")
        assert service.call(run, "GET", "/v1/items", profile="api").status == 200
        second = json.loads(follower.stdout.readline())
        follower.terminate()
    assert second["seq"] == first["seq"] + 1


def test_a_minter_that_stopped_has_signed_its_last_line(service, console):
    service.stop("minter")
    verified = console("minter", "audit", "verify", "--json").json
    service.start("minter")
    assert verified["ok"]
    assert verified["proven"]["seq"] == verified["head"]["seq"]
    first = (service.root / "other/copy.jsonl").read_bytes()
    assert (service.root / "state/audit.jsonl").read_bytes().startswith(first[:1000])
