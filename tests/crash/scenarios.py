"""What a minter is driven through while a failpoint waits for it: together they reach every point.

A scenario has a part before the point is armed (``prepare``) and one after (``drive``). A request that gets no answer
because the minter died raises :class:`GoneError`, and the drive is over. What a request is answered is not looked at
here: a point that no scenario reaches fails its test, and what must hold after a kill stands in ``invariants.py``.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from minter.data_keys import USED_S
from tests.worlds import first_schema
from tests.worlds.killable import STATIC, GoneError, Killable, Received

__all__ = ["SCENARIOS", "GoneError", "Scenario", "order"]


@dataclass(frozen=True)
class Scenario:
    """``parts``: the first words of the points that it is for; those of others it is tried for last.

    ``serves``: the point is armed in the service, which runs while the scenario is driven; else it is armed in the
    command that ``drive`` runs.
    """

    drive: Callable[[Killable], object]
    parts: tuple[str, ...]
    prepare: Callable[[Killable], object] = lambda _world: None
    serves: bool = True

    @property
    def name(self) -> str:
        return self.drive.__name__


def rotate(world: Killable, alias: str, step: str, **fields: object) -> None:
    world.admin("POST", f"/v1/keys/{alias}/rotate", {"step": step, **fields})


def lent(world: Killable, profile: str, run_id: str) -> Received:
    got = world.lease(profile, run_id)
    assert isinstance(got, Received), (profile, got)
    if profile == "issued":
        assert world.use(got.value) == 200
    return got


def lending(world: Killable) -> None:
    """Mint, hand out again, renew, end one by one, end runs; with an issuer that fails in each way."""
    run = world.run_id()
    for profile in ("issued", "static", "jwt"):
        lent(world, profile, run)
        lent(world, profile, run)
    one = lent(world, "issued", world.run_id())
    world.admin("DELETE", f"/v1/leases/{one.lease_id}")
    for mode in ("drop", "down", "refuse"):
        failing = world.run_id()
        world.issuer.fail(mode, "make")
        world.lease("issued", failing)
        world.issuer.mend()
        # The run goes on; what may have been made for it stays a suspect.
        lent(world, "issued", failing)
    world.issuer.fail("down", "delete")
    world.end_run(run)
    world.issuer.mend()
    given_up = world.run_id()
    lent(world, "issued", given_up)
    world.issuer.fail("forbid", "delete")
    world.end_run(given_up)
    irrevocable = "SELECT id FROM leases WHERE state = 'irrevocable'"
    world.until(lambda: world.query(irrevocable), "the issuer said that it never will")
    for (lease_id,) in world.query(irrevocable):
        world.admin("POST", f"/v1/leases/{lease_id}/forget", {"reason": "the issuer forbids it"})
    world.issuer.mend()
    renewed = world.run_id()
    for profile in ("issued", "static"):
        lent(world, profile, renewed)
    world.pass_time(580)
    for profile in ("issued", "static"):
        lent(world, profile, renewed)
    world.ask("minter", "POST", f"/v1/runs/{run}/record", RECORD)
    world.end_run(renewed)
    world.until(lambda: not world.query("SELECT 1 FROM leases WHERE state = 'revoking'"), "what ended is deleted")
    lent(world, "issued", world.run_id())
    world.pass_time(601)
    world.until(lambda: not world.query("SELECT 1 FROM leases WHERE state = 'active'"), "the last lease expires")


RECORD = {"caller": "agent", "ended": "caller", "calls": 1, "denied": 0, "shed": 0}


def rotating(world: Killable) -> None:
    """Rotate a key of each use, with leases that were made with it."""
    run = world.run_id()
    for profile in ("issued", "static", "jwt"):
        lent(world, profile, run)
    rotate(world, "issuer-root", "start")
    lent(world, "issued", world.run_id())
    rotate(world, "issuer-root", "finish", force=True)
    rotate(world, "api", "start", value=STATIC + "2")
    lent(world, "static", world.run_id())
    rotate(world, "api", "finish")
    rotate(world, "signer", "start", force=True)
    lent(world, "jwt", world.run_id())
    rotate(world, "signer", "finish", force=True)
    rotate(world, "audit-signer", "start", force=True)
    rotate(world, "audit-signer", "finish", force=True)
    rotate(world, "sealing-key", "start", force=True)
    rotate(world, "sealing-key", "finish", force=True)
    world.until(lambda: not unfinished(world, "sealing-key"), "the old sealing key is gone")
    lent(world, "issued", world.run_id())
    before = world.query("SELECT max(id) FROM data_keys")
    world.pass_time(USED_S)
    world.until(lambda: world.query("SELECT min(id) FROM data_keys") > before, "another data key has taken over")


def unfinished(world: Killable, alias: str) -> list[tuple[object, ...]]:
    return world.query("SELECT 1 FROM key_versions WHERE alias = ? AND phase IN ('prepared', 'retiring')", alias)


def reloading(world: Killable) -> None:
    """Take a profile away under a live lease, change another, and give both back."""
    run = world.run_id()
    for profile in ("issued", "static", "jwt"):
        lent(world, profile, run)
    world.grant("issued")
    world.admin("POST", "/v1/reload")
    world.grant(allow=("GET /use", "GET /other"))
    world.admin("POST", "/v1/reload")
    lent(world, "issued", run)


def auditing(world: Killable) -> None:
    """Let the log go on in new files and be signed, under mints."""
    lent(world, "issued", world.run_id())
    world.admin("POST", "/v1/audit/checkpoint", {})
    world.admin("POST", "/v1/audit/rotate", {})
    lent(world, "static", world.run_id())
    world.admin("POST", "/v1/audit/rotate", {})
    lent(world, "issued", world.run_id())


def keeping(world: Killable) -> None:
    """Have keys come and go while the service runs."""
    lent(world, "issued", world.run_id())
    for alias, step, fields in (
        ("made", "create", {"settings": {"source": "sealed:made", "use": "signing"}}),
        ("given", "import", {"settings": {"source": "sealed:given"}, "value": STATIC + "given"}),
        ("made", "retire", {}),
        ("made", "destroy", {}),
        ("given", "retire", {}),
        ("given", "destroy", {}),
    ):
        world.admin("POST", f"/v1/keys/{alias}/{step}", fields)
    lent(world, "issued", world.run_id())


# --- states that were there before ---


@functools.cache
def _first_schema() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "minter.db"
        first_schema.empty(path)
        return path.read_bytes()


#: Alembic serves one thread of a process.
_one_at_a_time = threading.Lock()


def old_state(world: Killable) -> None:
    """Make a state of the first released schema, with leases in it."""
    path = world.root / "state/minter.db"
    path.touch(0o600)
    with _one_at_a_time:
        path.write_bytes(_first_schema())
    now = world.now()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for profile, state in (("static", "active"), ("issued", "active"), ("issued", "intent")):
            run_id = world.run_id()
            row = {
                "id": "lse_" + run_id.removeprefix("run_"),
                "broker": "b1",
                "run_id": run_id,
                "caller": "agent",
                "profile": profile,
                "params_digest": "hmac-sha256:0",
                "origin": world.issuer.origin,
                "grant_digest": world.grants.profiles[profile].digest,
                "kind": world.grants.profiles[profile].token["type"],
                "state": state,
                "created_at": now,
                "expires_at": now + 500,
                "boot_expires_at": 500.0,
                "boot_id": "before",
                "run_ends_at": now + 500,
                "token": msgspec.json.encode(world.grants.profiles[profile].token, order="sorted").decode(),
            }
            names = ", ".join(row)
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO leases ({names}) VALUES ({marks})", tuple(row.values()))  # noqa: S608
            world.inherited.add(str(row["id"]))
            if profile == "issued":
                world.issuer.answer(
                    "make", f"mb-{row['id']}", world.issuer.root, {"name": f"mb-{row['id']}", "ttl_s": 500}
                )


def upgrading(world: Killable) -> None:
    """Start on a state of the first released schema."""
    lent(world, "issued", world.run_id())


def backed_up(world: Killable) -> None:
    """Leave a backup with live leases, and a minter that is stopped."""
    assert world.start()
    run = world.run_id()
    for profile in ("issued", "static", "jwt"):
        lent(world, profile, run)
    done = world.run("backup", "backup.tar")
    assert done.returncode == 0, done.stderr
    world.stop()


def restoring(world: Killable) -> None:
    """Put a backup back in the place of the state; a command that was killed is given again."""
    done = world.run("restore", "backup.tar", "--replace", failpoint=world.failpoint)
    if done.returncode == -signal.SIGKILL:
        done = world.run("restore", "backup.tar", "--replace")
        assert done.returncode == 0, done.stderr
        raise GoneError


def restored(world: Killable) -> None:
    backed_up(world)
    assert world.run("restore", "backup.tar", "--replace").returncode == 0


def confirming(world: Killable) -> None:
    """Believe a restored state."""
    world.lease("issued", world.run_id())
    world.admin("DELETE", "/v1/quarantine")
    lent(world, "issued", world.run_id())


SCENARIOS = (
    Scenario(lending, ("mint", "store", "revoke", "orphan", "forget")),
    Scenario(rotating, ("rotate", "seal", "rewrap")),
    Scenario(reloading, ("reload",)),
    Scenario(auditing, ("audit",)),
    Scenario(keeping, ("key",)),
    Scenario(upgrading, ("migrate",), prepare=old_state),
    Scenario(confirming, ("restore",), prepare=restored),
    Scenario(restoring, ("restore",), prepare=backed_up, serves=False),
)


def order(point: str) -> list[Scenario]:
    """Return the scenarios in the order in which they are tried for a point; of a later time of it only its own."""
    name, _, time = point.partition(":")
    part = name.split(".", maxsplit=1)[0]
    own = [scenario for scenario in SCENARIOS if part in scenario.parts]
    others = [scenario for scenario in SCENARIOS if scenario not in own]
    return own + ([] if time not in ("", "1") else others)
