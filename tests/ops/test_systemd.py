"""The units and the settings that stand in them fit each other."""

from __future__ import annotations

import os
import re
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
    settings = re.findall(r"^#   (\w+ = .*)$", text, re.MULTILINE)
    return values, "\n".join(settings)


@pytest.mark.parametrize(("program", "type_"), [("minter", MinterSettings), ("broker", BrokerSettings)])
def test_the_settings_of_a_unit_load_and_stay_in_its_directories(tmp_path, program, type_):
    values, text = unit(program)
    (tmp_path / "x.toml").write_text(text)
    settings = load_settings(type_, tmp_path / "x.toml", {})
    assert settings.state.startswith(f"sqlite:/var/lib/{values['StateDirectory']}/")
    assert all(one.startswith(f"unix:/run/{values['RuntimeDirectory']}/") for one in settings.admin_listen)


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
