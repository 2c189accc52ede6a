"""A state as the first released schema kept it: leases in every state, and in the clear what is sealed since.

Made by the first step's own code, not kept as a file: what it holds can be read here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config

import minter.migrations
from minter.store import engine_for

STATES = ("intent", "active", "revoking", "revoked", "expired", "orphan_suspect", "irrevocable")


@dataclass(frozen=True)
class First:
    """What stands in the clear in it."""

    fingerprint_key: bytes
    params_key: bytes
    leases: dict[str, str]


def empty(path: Path) -> None:
    """Make the first schema's tables."""
    config = Config()
    config.set_main_option("script_location", str(Path(minter.migrations.__file__).parent))
    path.touch(0o600)
    engine = engine_for(path)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    engine.dispose()


def filled(path: Path, *, now: float, boot_id: str, source_ref: str, secret: str, token: dict[str, object]) -> First:
    """Fill it as a minter would have that lent one static key, ``secret``, to a run per state of a lease."""
    empty(path)
    first = First(secrets.token_bytes(32), secrets.token_bytes(32), {})
    fingerprint = hmac.new(first.fingerprint_key, secret.encode(), hashlib.sha256).hexdigest()[:16]
    with closing(sqlite3.connect(path)) as state, state:
        meta = {
            "installation": secrets.token_hex(16),
            "highest_wall": repr(now - 60),
            "fingerprint_key": first.fingerprint_key.hex(),
            "params_key": first.params_key.hex(),
        }
        state.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        state.execute(
            "INSERT INTO custody_keys (alias, created_at, uses) VALUES ('api', ?, ?)", (now - 86400, len(STATES))
        )
        state.execute(
            "INSERT INTO key_versions (alias, version, phase, source_ref, fingerprint, created_at, activated_at) "
            "VALUES ('api', 1, 'active', ?, ?, ?, ?)",
            (source_ref, fingerprint, now - 86400, now - 86400),
        )
        for number, name in enumerate(STATES):
            lease_id = f"lse_{number:022d}"
            first.leases[name] = lease_id
            over = name in ("revoked", "expired")
            row = {
                "id": lease_id,
                "broker": "broker-1",
                "run_id": f"run_{number:022d}",
                "caller": "support-agent",
                "profile": "api",
                "params_digest": "hmac-sha256:" + hmac.new(first.params_key, b"{}", hashlib.sha256).hexdigest(),
                "origin": "https://api.example.com",
                "grant_digest": "sha256:" + "0" * 64,
                "kind": "static",
                "state": name,
                "how": "key_still_valid" if over else "",
                "fingerprint": fingerprint,
                "created_at": now - 600,
                "expires_at": now - 60 if over else now + 3000,
                "boot_expires_at": 1e9,
                "boot_id": boot_id,
                "run_ends_at": now + 3000,
                "key_alias": "api",
                "key_version": 1,
                "key_versions": '["api@1"]',
                "token": json.dumps(token, sort_keys=True, separators=(",", ":")),
                "attempts": 6 if name == "irrevocable" else 0,
                "next_attempt_at": now + 1800 if name in ("revoking", "irrevocable") else None,
                "ended_at": now - 60 if over else None,
                "end_reason": "expired" if over else "",
            }
            marks = ", ".join("?" * len(row))
            state.execute(f"INSERT INTO leases ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))  # noqa: S608
    return first
