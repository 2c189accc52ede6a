"""The audit log: lines verified in a second by both verifiers, and what an append costs by the number of places."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from config.settings import AuditSettings
from minter import audit_checkpoint, audit_state, signing
from minter.audit import AuditLog
from minter.audit_events import Event
from minter.audit_verify import Head

RECORDS = 1_000_000
BATCH = 500
#: Lines between two checkpoints, as the settings have them.
EVERY = AuditSettings().checkpoint_records
APPENDS = 400
_NOW = 1_893_456_000.0


def measure(base: Path, *, records: int = RECORDS) -> None:
    """Print how long both verifiers take for so many lines, and what an append costs."""
    base = base / "audit"
    base.mkdir()
    path, checkpoints = _written(base, records)
    size = sum(segment.stat().st_size for segment in base.glob("audit.jsonl*") if "checkpoints" not in segment.name)
    print(f"\nverify {records} records ({size / 1e6:.0f} MB), a checkpoint every {EVERY}:")
    started, cpu = time.perf_counter(), time.process_time()
    found = audit_state.examine([path], None, checkpoints=[checkpoints])
    took, cpu = time.perf_counter() - started, time.process_time() - cpu
    if found.report.bad is not None or found.report.lines < records or found.report.proven is None:
        raise SystemExit(f"it does not verify: {found.report.bad}")
    print(f"  minter audit verify: {took:.1f} s, {cpu:.1f} s of CPU, {cpu / records * 1e6:.1f} us a record")
    verifier = _stand_alone()
    started, cpu = time.perf_counter(), time.process_time()
    signed, _ = verifier.read_checkpoints(checkpoints.read_bytes())
    other: dict[str, Any] = verifier.verify([str(one) for one in found.files], signed)
    took, cpu = time.perf_counter() - started, time.process_time() - cpu
    if not other["ok"] or other["lines"] != found.report.lines:
        raise SystemExit(f"it does not verify: {other['bad']}")
    print(f"  ops/verify-audit:    {took:.1f} s, {cpu:.1f} s of CPU, {cpu / records * 1e6:.1f} us a record")
    for name, second in (("one file", ""), ("two files", f"file:{base / 'second' / 'copy.jsonl'}")):
        took_s = _appends(base / name.replace(" ", "-"), second)
        print(f"  an append of 32 events, synced, {name}: median {took_s * 1e6:.0f} us")


def _written(base: Path, records: int) -> tuple[Path, Path]:
    """Write a log as the minter does, checkpoints included, without its syncs."""
    path, checkpoints = base / "audit.jsonl", base / "audit.jsonl.checkpoints"
    key = signing.load(signing.generate("EdDSA"), "EdDSA", keyed_fingerprint="")
    log = AuditLog(path, installation="0" * 32, known=None, now=_NOW, sync=lambda _fd: None)
    named = {"kid": key.kid, "fingerprint": key.fingerprint, "algorithm": "EdDSA"}
    log.append([Event("audit.signer", named)], now=_NOW)
    signed = 0
    with checkpoints.open("wb") as file:
        for number in range(0, records, BATCH):
            now = _NOW + number / 1000
            log.append(list(_events(number, min(BATCH, records - number))), now=now)
            head = Head(*log.head())
            if head.seq - signed >= EVERY:
                made = audit_checkpoint.sign(head, installation="0" * 32, now=now, key=key)
                file.write(made.line + b"\n")
                signed = head.seq
    log.close()
    return path, checkpoints


def _events(start: int, count: int) -> Iterator[Event]:
    for number in range(start, start + count):
        yield Event(
            "lease.minted",
            {
                "lease_id": f"lse_{number:022}",
                "run_id": f"run_{number:022}",
                "broker": "broker",
                "caller": "support-agent",
                "profile": "agent-memory",
                "kind": "static",
                "origin": "https://api.example.com",
                "grant_digest": "sha256:" + "0" * 64,
                "params_digest": "hmac-sha256:" + "0" * 64,
                "fingerprint": "0" * 16,
                "expires_at": _NOW + number,
                "key_alias": "cf-parent",
                "key_version": 1,
                "key_versions": ["cf-parent@1"],
            },
        )


def _appends(folder: Path, second: str) -> float:
    settings = AuditSettings(second=second)
    log = AuditLog(folder / "audit.jsonl", installation="0" * 32, known=None, now=_NOW, settings=settings)
    events = list(_events(0, 32))
    took = []
    for number in range(APPENDS):
        started = time.perf_counter()
        log.append(events, now=_NOW + number)
        took.append(time.perf_counter() - started)
    log.close()
    return statistics.median(took)


def _stand_alone() -> ModuleType:
    path = Path(__file__).parents[1] / "verify-audit" / "verify.py"
    spec = importlib.util.spec_from_file_location("verify_audit", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
