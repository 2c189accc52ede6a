"""What is committed and not in the log yet outlives the process that owed it, and is written once."""

from __future__ import annotations

import shutil

import pytest

from config.clock import FakeClock
from config.problems import ProblemError
from minter import owed
from minter.audit import BY_ITSELF, AuditUnavailable, read_after
from minter.audit_events import Event
from tests.minter.vault import Vault


def pinned(alias: str) -> Event:
    return Event("key.pinned", {"alias": alias, "origins": ["https://api.example.com"]})


def expired(lease_id: str) -> Event:
    return Event("lease.revoke-failed", {"lease_id": lease_id, "attempts": 1, "next_attempt_at": 1_893_456_000.5})


def tell(*events: Event):
    return lambda _connection: (None, events)


def aliases(vault: Vault) -> list[str]:
    return [line["alias"] for line in read_after(vault.audit.path, 0, 1000) if line["code"] == "key.pinned"]


@pytest.fixture
async def vault(tmp_path):
    folder = tmp_path / "vault"
    folder.mkdir(mode=0o700)
    made = Vault(folder, FakeClock())
    made.open()
    yield made
    await made.stop()


@pytest.fixture
async def died(vault, tmp_path):
    """Return the same installation as a process that dies now would leave it."""
    later = []

    def now() -> Vault:
        folder = tmp_path / f"later-{len(later)}"
        shutil.copytree(vault.directory, folder)
        one = Vault(folder, vault.clock)
        one.open()
        later.append(one)
        return one

    yield now
    for one in later:
        await one.stop()


async def test_what_the_log_did_not_take_is_written_after_the_next_start_and_before_anything_new(vault, died):
    await vault.store.write(tell(pinned("a")))
    append = vault.audit.append

    def full(*_events, **_now):
        raise AuditUnavailable("no space is left")

    vault.audit.append = full
    for alias in ("b", "c"):
        with pytest.raises(ProblemError, match="audit-unavailable"):
            await vault.store.write(tell(pinned(alias)))
    later = died()
    await later.store.write(tell(pinned("d")))
    assert aliases(later) == ["a", "b", "c", "d"]
    # And by the process itself, had it lived.
    vault.audit.append = append
    await vault.store.write(tell(pinned("d")))
    assert aliases(vault) == ["a", "b", "c", "d"]


async def test_what_the_log_has_is_not_written_twice(vault, died):
    await vault.store.write(tell(pinned("a"), expired("lse_1")))
    later = died()
    assert later.store.owed == 0
    await later.store.write(tell(pinned("b")))
    assert aliases(later) == ["a", "b"]
    again = [line for line in read_after(later.audit.path, 0, 1000) if line["code"] == "lease.revoke-failed"]
    assert len(again) == 1


async def test_of_a_batch_that_the_log_has_in_part_the_rest_is_owed(vault):
    def keep(connection):
        owed.keep(connection, [pinned("a"), expired("lse_1"), pinned("b"), pinned("b")], seq=vault.audit.head()[0])
        return None, ()

    await vault.store.write(keep)
    vault.audit.append([pinned("a"), expired("lse_1"), pinned("b")], now=vault.clock.now())
    missing = await vault.store.read(
        lambda found: owed.left(found, lambda seq, limit: read_after(vault.audit.path, seq, limit))
    )
    assert [(event.code, event.fields["alias"]) for event in missing] == [("key.pinned", "b")]


async def test_what_was_kept_and_cannot_be_read_is_said_in_the_log(vault, died):
    def full(*_events, **_now):
        raise AuditUnavailable("no space is left")

    vault.audit.append = full
    with pytest.raises(ProblemError, match="audit-unavailable"):
        await vault.store.write(tell(pinned("b")))
    spoil = "UPDATE owed_events SET events = x'00'"
    await vault.store.write(lambda connection: (connection.exec_driver_sql(spoil) and None, ()))
    later = died()
    await later.store.write(tell(pinned("d")))
    assert aliases(later) == ["d"]
    assert len(later.events("audit.events-lost")) == 1


async def test_nothing_is_kept_of_what_was_undone(vault):
    def work(_connection):
        raise ProblemError("not-ready")

    with pytest.raises(ProblemError):
        await vault.store.write(work)
    assert await vault.store.read(lambda found: found.exec_driver_sql("SELECT 1 FROM owed_events").all()) == []


async def test_a_clean_stop_owes_nothing(vault, tmp_path):
    await vault.store.write(tell(pinned("a")))
    await vault.stop()
    vault.open()
    assert await vault.store.read(lambda found: found.exec_driver_sql("SELECT 1 FROM owed_events").all()) == []


# --- an older state under a newer log ---


async def unknown(vault: Vault) -> tuple[int, int] | None:
    return await vault.store.read(
        lambda found: owed.unknown_to(found, lambda seq, limit: read_after(vault.audit.path, seq, limit), BY_ITSELF)
    )


async def test_a_process_that_died_knows_all_of_its_log(vault, died):
    assert await unknown(died()) is None
    await vault.store.write(tell(pinned("a"), pinned("b")))
    assert await unknown(died()) is None
    # Its transaction forgets what the log has, and has nothing of its own to tell.
    await vault.store.write(tell())
    assert await unknown(died()) is None
    await vault.store.write(tell(expired("lse_1")))
    await vault.store.write(tell())
    await vault.store.write(tell(pinned("x" * 2000)))
    assert await unknown(died()) is None
    await vault.stop()
    assert await unknown(died()) is None


async def test_an_older_state_is_found_by_what_its_log_has_since(vault, tmp_path):
    await vault.store.write(tell(pinned("a")))
    await vault.stop()
    before = (vault.directory / "minter.db").read_bytes()
    vault.open()
    await vault.store.write(tell(pinned("b"), pinned("c")))
    await vault.stop()
    (vault.directory / "minter.db").write_bytes(before)
    vault.open()
    assert await unknown(vault) == (2, 2)
