"""Settings load whole or not at all, and every fault is told with its place."""

from __future__ import annotations

import pytest

from config.errors import ConfigurationError
from config.listeners import Limits, affordable
from config.load import load_settings
from config.settings import (
    BrokerSettings,
    CommandSettings,
    KeySettings,
    LeaseLimits,
    ListenSettings,
    MinterSettings,
    TlsSettings,
    UpstreamSettings,
)


def test_an_empty_file_gives_the_defaults_with_paths_anchored_at_the_file(tmp_path):
    (tmp_path / "broker.toml").write_text("")
    settings = load_settings(BrokerSettings, tmp_path / "broker.toml", {})
    assert settings.listen == ["127.0.0.1:8090"]
    assert settings.grants == str(tmp_path / "grants.json")
    assert settings.state == f"sqlite:{tmp_path}/state/broker.db"
    assert settings.minter == f"unix:{tmp_path}/run/minter.sock"
    assert settings.minter_credential == f"file:{tmp_path}/run/broker.credential"


def test_absolute_paths_and_schemes_without_a_path_stay_as_they_are(tmp_path):
    (tmp_path / "minter.toml").write_text(
        'state = "sqlite:/var/lib/x.db"\n[keys.a]\nsource = "env:NAME"\n[keys.b]\nsource = "file:keys/b"\n'
    )
    settings = load_settings(MinterSettings, tmp_path / "minter.toml", {})
    assert settings.state == "sqlite:/var/lib/x.db"
    assert settings.keys["a"].source == "env:NAME"
    assert settings.keys["b"].source == f"file:{tmp_path}/keys/b"


def test_all_faults_are_told_at_once_with_what_was_probably_meant(tmp_path):
    (tmp_path / "minter.toml").write_text(
        'grantz = "x"\ndrain = true\n[keys.a]\npurpose = 5\n[lease_limits]\nmint_rate = "fast"\n'
    )
    with pytest.raises(ConfigurationError) as caught:
        load_settings(MinterSettings, tmp_path / "minter.toml", {})
    text = str(caught.value)
    assert "grantz: unknown name (did you mean grants?)" in text
    assert "drain: expected" in text
    assert "keys.a.purpose: expected a text, found a whole number" in text
    assert "keys.a.source: missing" in text
    assert "lease_limits.mint_rate: expected a whole number, found a text" in text


def test_a_value_in_the_wrong_place_is_never_repeated(tmp_path):
    (tmp_path / "broker.toml").write_text('max_runs = "sekret-AAAA1111"\ndrain = "sekret-AAAA1111"\n')
    with pytest.raises(ConfigurationError) as caught:
        load_settings(BrokerSettings, tmp_path / "broker.toml", {})
    assert "sekret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("BROKER_MAX_RUNS", "7", "max_runs", 7),
        ("BROKER_DRAIN", '"2m"', "drain", 120.0),
        ("BROKER_DRAIN", "2m", "drain", 120.0),
        ("BROKER_ALLOW_ROOT", "1", "allow_root", True),
        ("BROKER_ALLOW_ROOT", "false", "allow_root", False),
        ("BROKER_LISTEN", '["127.0.0.1:1"]', "listen", ["127.0.0.1:1"]),
        ("BROKER_PUBLIC_URL", "http://10.0.0.1:8090", "public_url", "http://10.0.0.1:8090"),
    ],
)
def test_each_value_can_be_overridden_from_the_environment(tmp_path, name, text, field, value):
    (tmp_path / "broker.toml").write_text("max_runs = 3\n")
    assert getattr(load_settings(BrokerSettings, tmp_path / "broker.toml", {name: text}), field) == value


@pytest.mark.parametrize(
    "type_",
    [
        BrokerSettings,
        MinterSettings,
        ListenSettings,
        UpstreamSettings,
        TlsSettings,
        KeySettings,
        CommandSettings,
        LeaseLimits,
    ],
)
def test_every_setting_is_explained_where_it_stands(type_):
    assert [name for name in type_.__struct_fields__ if f"``{name}``" not in type_.__doc__] == []


def test_the_brokers_own_limits_stand_beside_those_of_both_programs(tmp_path):
    (tmp_path / "broker.toml").write_text("[limits]\nmax_host_call_bytes = 5\nmax_headers = 6\n")
    limits = load_settings(BrokerSettings, tmp_path / "broker.toml", {}).limits
    assert (limits.max_host_call_bytes, limits.max_headers) == (5, 6)
    assert affordable(limits, 44, own=40, each=2).max_host_call_bytes == 5
    assert BrokerSettings().limits.max_host_call_bytes == 128 * 1024 * 1024
    assert "``max_host_call_bytes``" in type(limits).__doc__
    (tmp_path / "minter.toml").write_text("[limits]\nmax_host_call_bytes = 5\n")
    with pytest.raises(ConfigurationError, match="max_host_call_bytes"):
        load_settings(MinterSettings, tmp_path / "minter.toml", {})


def test_each_limit_of_the_settings_is_in_force():
    settings = ListenSettings(
        max_connections=1,
        max_header_bytes=2,
        max_headers=3,
        max_target_bytes=4,
        header_deadline="5s",
        body_deadline="6s",
        keep_alive="7s",
    )
    assert Limits.of(settings) == Limits(
        max_connections=1,
        header_bytes=2,
        header_count=3,
        target_bytes=4,
        header_s=5.0,
        body_idle_s=6.0,
        keep_alive_s=7.0,
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("broker.toml", "[upstream]\nconnect_timeout = 0\n"),
        ("broker.toml", '[limits]\nbody_deadline = "0s"\n'),
        ("minter.toml", "keyring_timeout = 0.0\n"),
        ("minter.toml", '[keys.a]\nsource = "env:A"\nrotate_every = "0d"\n'),
    ],
)
def test_a_time_limit_of_nothing_is_a_fault_and_not_no_limit(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match="expected more than zero seconds"):
        load_settings(BrokerSettings if name == "broker.toml" else MinterSettings, tmp_path / name, {})
    (tmp_path / name).write_text("drain = 0\n")
    assert load_settings(BrokerSettings, tmp_path / name, {}).drain == 0


@pytest.mark.parametrize(
    ("open_files", "connections"), [(-1, 2048), (1_048_576, 2048), (4136, 2048), (1024, 492), (44, 2), (3, 1)]
)
def test_connections_leave_the_program_the_files_that_it_needs(open_files, connections):
    assert affordable(ListenSettings(), open_files, own=40, each=2).max_connections == connections


def test_a_nested_value_is_overridden_with_two_underscores(tmp_path):
    (tmp_path / "minter.toml").write_text("")
    environ = {"MINTER_LEASE_LIMITS__MINT_RATE": "9", "MINTER_KEYS__A__SOURCE": "env:A", "PATH": "/bin"}
    settings = load_settings(MinterSettings, tmp_path / "minter.toml", environ)
    assert settings.lease_limits.mint_rate == 9
    assert settings.keys["a"].source == "env:A"


def test_an_unknown_override_is_a_fault(tmp_path):
    (tmp_path / "minter.toml").write_text("")
    with pytest.raises(ConfigurationError, match="MINTER_STAET: unknown setting"):
        load_settings(MinterSettings, tmp_path / "minter.toml", {"MINTER_STAET": "x"})


def test_an_unknown_override_is_told_with_what_was_probably_meant(tmp_path):
    (tmp_path / "minter.toml").write_text("")
    environ = {"MINTER_STAET": "x", "MINTER_LEASE_LIMITS__MINT_RAT": "1"}
    with pytest.raises(ConfigurationError) as caught:
        load_settings(MinterSettings, tmp_path / "minter.toml", environ)
    assert "did you mean MINTER_STATE?" in str(caught.value)
    assert "did you mean MINTER_LEASE_LIMITS__MINT_RATE?" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("BROKER_ALLOW_ROOT", "", "BROKER_ALLOW_ROOT: expected true or false, found a text (the value is read as TOML"),
        ("BROKER_LISTEN", "127.0.0.1:1", "BROKER_LISTEN: expected a list, found a text (the value is read as TOML"),
        ("BROKER_LISTEN", "[5]", "BROKER_LISTEN[0]: expected a text, found a whole number"),
        ("BROKER_MAX_RUNS", "-1", "BROKER_MAX_RUNS: expected at least"),
    ],
)
def test_a_fault_from_the_environment_names_the_variable_and_not_the_file(tmp_path, name, text, fault):
    (tmp_path / "broker.toml").write_text("listens = 1\nmax_connections = true\n")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(BrokerSettings, tmp_path / "broker.toml", {name: text})
    lines = str(caught.value).splitlines()
    assert [line for line in lines if line.startswith(fault)]
    # What stands in the file is still said of the file.
    assert sum(line.startswith(f"{tmp_path}/broker.toml: ") for line in lines) == 2


def test_a_missing_file_and_a_broken_one_are_faults(tmp_path):
    with pytest.raises(ConfigurationError, match=r"cannot be read.*minter init DIRECTORY.*--config or MINTER_CONFIG"):
        load_settings(MinterSettings, tmp_path / "none.toml", {})
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(ConfigurationError, match="not TOML"):
        load_settings(MinterSettings, tmp_path / "bad.toml", {})
