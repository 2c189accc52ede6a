"""The grants file of the seed loads unchanged, with the preamble beside it and nothing from elsewhere."""

from __future__ import annotations

import json
import os

import pytest

from config.errors import ConfigurationError
from config.load import load_grants, write_atomic

PROFILE = {"base_url": "https://api.example.com", "allowed_callers": ["a"], "allow": ["GET /x"]}


def write(folder, **changes):
    path = folder / "grants.json"
    path.write_text(json.dumps({"profiles": {"p": {**PROFILE, **changes}}}))
    return path


def test_a_preamble_beside_the_grants_file_is_read(tmp_path):
    (tmp_path / "preamble.js").write_text("var a = 1;")
    profile = load_grants(write(tmp_path, preamble_file="preamble.js")).profiles["p"]
    assert dict(profile.preambles) == {"preamble.js": b"var a = 1;"}


@pytest.mark.parametrize("name", ["../secret.js", "/etc/hostname", "link.js", "none.js"])
def test_a_preamble_from_elsewhere_or_missing_is_a_fault_with_its_place(tmp_path, name):
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "secret.js").write_text("sekret-AAAA1111")
    (folder / "link.js").symlink_to(tmp_path / "secret.js")
    with pytest.raises(ConfigurationError, match="preamble_file") as caught:
        load_grants(write(folder, preamble_file=name))
    assert "sekret" not in str(caught.value)


def test_a_missing_grants_file_is_a_fault(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_grants(tmp_path / "grants.json")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away needs root")
def test_a_file_that_root_replaces_stays_its_owners(tmp_path):
    path = tmp_path / "callers.json"
    path.write_text("{}")
    os.chown(path, 64901, 64902)
    write_atomic(path, b'{"callers": []}')
    assert (path.stat().st_uid, path.stat().st_gid) == (64901, 64902)
    assert path.read_text() == '{"callers": []}'


def test_what_a_killed_process_of_the_same_id_left_is_not_in_the_way(tmp_path):
    (tmp_path / f".callers.json.{os.getpid()}.tmp").write_text("half")
    write_atomic(tmp_path / "callers.json", b"{}")
    write_atomic(tmp_path / "callers.json", b"[]")
    assert (tmp_path / "callers.json").read_bytes() == b"[]"
