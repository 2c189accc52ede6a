"""The file that a backup is: whole or not there, and never believed where it is not what it says."""

from __future__ import annotations

import pytest

from config.errors import ConfigurationError
from minter import backup, backup_file, restore
from minter.backup_file import Manifest
from tests.minter.lease_world import World


@pytest.fixture
async def taken(tmp_path, clock):
    """A backup of a minter that was stopped, beside it."""
    world = World(tmp_path / "minter", clock)
    await world.start()
    await world.lease()
    await world.stop()
    world.config = world.folder / "minter.toml"
    world.config.write_text('grants = "grants.json"\n')
    world.backup = tmp_path / "b.tar"
    backup.take(world.settings, world.config, world.backup, clock=clock, copied=lambda: None)
    return world


def forge(world, name):
    """Change a member so that it has the size that the manifest says, and no longer the digest."""
    whole = world.backup.read_bytes()
    with backup_file.opened(world.backup) as found:
        content = b"".join(found._chunks(name))
    world.backup.write_bytes(whole.replace(content, b"#" * len(content)))


def test_a_member_that_is_not_what_the_manifest_says_is_not_left_where_it_was_to_go(taken, tmp_path):
    forge(taken, "minter.toml")
    with pytest.raises(ConfigurationError, match="not what the manifest says"):
        restore.first_settings(taken.backup, tmp_path / "new" / "minter.toml")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_backup_whose_configuration_was_changed_is_refused_before_anything_is_moved(taken, clock):
    before = sorted(taken.folder.rglob("*"))
    forge(taken, "grants.json")
    (taken.folder / "grants.json").unlink()
    order = restore.Order(settings=taken.settings, config=taken.config, replace=True)
    with pytest.raises(ConfigurationError, match="not what the manifest says"):
        restore.restore(taken.backup, order, clock=clock)
    assert {*before} - {*taken.folder.rglob("*")} == {taken.folder / "grants.json"}
    assert not list(taken.folder.rglob("*.restoring"))


def test_nothing_is_overwritten(taken, tmp_path):
    there = tmp_path / "there"
    there.write_text("mine")
    with backup_file.opened(taken.backup) as found, pytest.raises(FileExistsError):
        found.extract("grants.json", there)
    with pytest.raises(FileExistsError):
        backup_file.write(there, Manifest(**_empty()), {})
    assert there.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir() if ".half" in path.name) == []


def _empty():
    fields = dict.fromkeys(("program", "created_at", "installation", "schema"), "")
    return {"format": 1, "head": None, "sealing": None, "members": [], "left_out": [], **fields}
