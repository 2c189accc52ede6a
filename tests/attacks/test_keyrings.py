"""Keyrings that are none, hang, or are a plain file: facts/peers.md D 49, facts/minters.md Q 24.

The minter is a real process without a desktop session, as on a server.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.attacks.house import serving
from tests.worlds.service import CANARY

pytestmark = pytest.mark.flow

PLAIN_FILE = '''
from keyring.backend import KeyringBackend

class PlaintextKeyring(KeyringBackend):
    """As keyrings.alt has it: preferred to the backend that always fails."""
    priority = 0.5
    def get_password(self, service, username):
        return "sekret-of-the-plain-file"
    def set_password(self, service, username, password):
        pass
'''
HANGS = "import threading\nthreading.Event().wait()\n"


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A minter whose one key lives in a keyring, not started."""
    grants = {"api": {"base_url": "https://api.test", "token": {"type": "static", "key": "ring"}, "allow": []}}
    with serving(
        tmp_path_factory.mktemp("keyring"),
        grants,
        start=False,
        minter_top="keyring_timeout = 1",
        minter_extra='[keys.ring]\nsource = "keyring:minter/ring"',
    ) as made:
        yield made


def installed(tmp_path, code):
    """Return a path on which a package with a keyring backend is installed."""
    package = tmp_path / "keyrings/alt"
    package.mkdir(parents=True)
    (package / "file.py").write_text(code)
    metadata = tmp_path / "keyrings_alt-5.0.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: keyrings.alt\nVersion: 5.0.2\n")
    (metadata / "entry_points.txt").write_text("[keyring.backends]\nfile = keyrings.alt.file\n")
    return str(tmp_path)


def test_a_machine_without_a_keyring_is_told_so_with_the_backend_and_a_way_out(house):
    """jaraco/keyring#569: no D-Bus. The start fails: nothing is served without its credential."""
    faults = house.fails("minter")
    assert "keys.ring (keyring:minter/ring)" in faults
    assert "keyring.backends.fail.Keyring" in faults
    assert "another source (file:, credential:)" in faults


def test_an_installed_plain_file_backend_is_refused_by_its_class(house, tmp_path):
    """jaraco/keyring#370, #117, #225: keyrings.alt, merely installed, took over without a word."""
    faults = house.fails("minter", PYTHONPATH=installed(tmp_path, PLAIN_FILE))
    assert "keys.ring (keyring:minter/ring)" in faults
    assert "the keyring backend keyrings.alt.file.PlaintextKeyring is refused" in faults
    assert "sekret-of-the-plain-file" not in faults


@pytest.mark.parametrize("backend", ["keyring.backends.null.Keyring", "keyring.backends.fail.Keyring", ""])
def test_a_backend_that_the_environment_chooses_is_refused_by_name(house, backend):
    """A null backend takes every secret and keeps none; an empty variable breaks the library's own choice."""
    faults = house.fails("minter", PYTHON_KEYRING_BACKEND=backend)
    assert f"the environment names the keyring backend {backend!r}" in faults
    assert "PYTHON_KEYRING_BACKEND must not be set" in faults


def test_a_keyring_that_blocks_is_not_waited_for(house, tmp_path):
    """always-further/nono#977; jaraco/keyring#477: it blocked for ten minutes; the limit is one second here."""
    faults = house.fails("minter", PYTHONPATH=installed(tmp_path, HANGS))
    assert "the keyring did not answer within 1 s" in faults
    assert "keys.ring (keyring:minter/ring)" in faults


def test_a_folder_of_backends_in_the_librarys_configuration_is_refused(house):
    """keyringrc.cfg puts ``keyring-path`` in front of everything that Python imports."""
    config = house.root / ".config/python_keyring"
    config.mkdir(parents=True)
    (config / "keyringrc.cfg").write_text("[backend]\nkeyring-path=/x/evil\n")
    try:
        faults = house.fails("minter", XDG_CONFIG_HOME=str(house.root / ".config"))
    finally:
        (config / "keyringrc.cfg").unlink()
    assert "keyringrc.cfg loads backends from a folder" in faults


#: Says that it was loaded, and hands out a value of its own.
PLANTED = """
import pathlib
from keyring.backend import KeyringBackend
pathlib.Path(__file__).with_name("loaded").touch()

class Keyring(KeyringBackend):
    priority = 9
    def get_password(self, service, username):
        return "sekret-of-the-planted"
    def set_password(self, service, username, password):
        pass
"""


def planted(tmp_path):
    """Return a folder with a backend that nobody installed."""
    folder = tmp_path / "planted"
    folder.mkdir()
    (folder / "planted.py").write_text(PLANTED)
    return folder


@pytest.mark.parametrize("way", ["environment", "default-keyring", "keyring-path"])
def test_a_planted_backend_is_refused_and_its_code_never_runs(house, tmp_path, way):
    """Where the folder is on the path already, a variable or a line of configuration is all that it takes."""
    folder = planted(tmp_path)
    environ = {"PYTHONPATH": str(folder), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    config = tmp_path / "config/python_keyring"
    config.mkdir(parents=True)
    lines = ["[backend]"]
    if way == "environment":
        environ["PYTHON_KEYRING_BACKEND"] = "planted.Keyring"
    else:
        lines += ["default-keyring=planted.Keyring"]
    if way == "keyring-path":
        lines += [f"keyring-path={folder}"]
        del environ["PYTHONPATH"]
    (config / "keyringrc.cfg").write_text("\n".join(lines) + "\n")
    # The library itself falls for each of them.
    taken = subprocess.run(
        [sys.executable, "-c", "import keyring; print(keyring.get_password('minter', 'ring'))"],
        env={**house.env(), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert taken.stdout.strip() == "sekret-of-the-planted", taken.stderr
    (folder / "loaded").unlink()
    faults = house.fails("minter", **environ)
    assert "keys.ring (keyring:minter/ring)" in faults
    assert "keyring backend" in faults or "keyringrc.cfg" in faults
    assert "sekret-of-the-planted" not in faults
    assert not (folder / "loaded").exists()


def test_without_any_keyring_the_other_sources_work(tmp_path):
    """jaraco/keyring#569: a key in the environment, and one in a file, on the same machine."""
    token = {"type": "static", "key": "variable"}
    with serving(
        tmp_path,
        {"api": {"base_url": "https://api.test", "token": token, "allow": []}},
        start=False,
        minter_extra='[keys.variable]\nsource = "env:API_KEY"',
    ) as made:
        made.environ = {"API_KEY": CANARY}
        made.start("minter")
        made.environ = {}
        assert {lease["state"] for lease in made.leases()} == set()
        keys = made.run("minter", "custody", "--json").stdout.decode()
        assert "variable" in keys
        assert made.stop("minter") == 0
