"""The units and the settings that stand in them fit each other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from config.listeners import Listener
from config.load import load_settings
from config.server import bind, release
from config.settings import BrokerSettings, MinterSettings

UNITS = Path(__file__).resolve().parents[2] / "ops/systemd"

#: Any id but root's: what counts is which groups are the same.
GROUPS = {"minter-broker": 64801, "broker": 64802}


def unit(program):
    text = (UNITS / f"{program}.service").read_text()
    values = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    settings = re.findall(r"^#   ([\w.-]+ = .*)$", text, re.MULTILINE)
    return values, "\n".join(settings)


@pytest.mark.parametrize(("program", "type_"), [("minter", MinterSettings), ("broker", BrokerSettings)])
def test_the_settings_of_a_unit_load_and_stay_in_its_directories(tmp_path, program, type_):
    values, text = unit(program)
    (tmp_path / "x.toml").write_text(text)
    settings = load_settings(type_, tmp_path / "x.toml", {})
    assert settings.state.startswith(f"sqlite:/var/lib/{values['StateDirectory']}/")
    assert all(one.startswith(f"unix:/run/{values['RuntimeDirectory']}/") for one in settings.admin_listen)


def test_every_credential_that_the_settings_of_the_minters_unit_name_is_given_by_it(tmp_path):
    _, text = unit("minter")
    (tmp_path / "x.toml").write_text(text)
    keys = load_settings(MinterSettings, tmp_path / "x.toml", {}).keys.values()
    named = {key.source.removeprefix("credential:") for key in keys if key.source.startswith("credential:")}
    given = re.findall(r"^LoadCredentialEncrypted=([^:]+):", (UNITS / "minter.service").read_text(), re.MULTILINE)
    assert named == {"sealing-key"} == set(given)


@pytest.mark.parametrize("unit_file", sorted(path.name for path in UNITS.glob("*.service")))
def test_a_unit_exposes_little(unit_file):
    """What is left: the host's root directory, sockets, networks; and real user ids, which peers are known by."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd is not here")
    argv = [program, "security", "--offline=true", "--threshold=20", "--no-pager", str(UNITS / unit_file)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    if "nknown" in done.stderr or "nrecognized" in done.stderr:
        pytest.skip("this systemd looks at no unit that is not installed")
    assert done.returncode == 0, done.stdout[-500:]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory to another group")
@pytest.mark.parametrize(("program", "type_"), [("minter", MinterSettings), ("broker", BrokerSettings)])
def test_the_sockets_of_a_unit_can_be_bound_in_the_directory_that_systemd_makes(tmp_path, program, type_):
    values, text = unit(program)
    (tmp_path / "x.toml").write_text(text)
    settings = load_settings(type_, tmp_path / "x.toml", {})
    made = tmp_path / values["RuntimeDirectory"]
    made.mkdir()
    os.chown(made, -1, GROUPS[values["Group"]])
    made.chmod(int(values["RuntimeDirectoryMode"], 8))
    group = GROUPS[settings.socket_group] if isinstance(settings, MinterSettings) else None
    wanted = [(one, None) for one in settings.admin_listen]
    wanted += [(one, group) for one in settings.listen if one.startswith("unix:")]
    for address, of in wanted:
        release(bind(Listener.parse(address.replace("/run", str(tmp_path), 1)), group=of))
    assert (made.stat().st_gid == GROUPS["minter-broker"]) == (program == "minter")
