from __future__ import annotations

import os

import pytest

from broker.credential import read_credential
from config import tokens
from config.errors import ConfigurationError
from tests.worlds.tokens import fixed

TOKEN = fixed(tokens.BROKER)


def fault(reference):
    with pytest.raises(ConfigurationError) as refused:
        read_credential(reference)
    assert TOKEN not in str(refused.value)
    return str(refused.value)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "broker.credential"
    path.touch(0o600)
    path.write_text(TOKEN)
    return path


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_one_trailing_line_break_is_left_off(file, ending):
    file.write_bytes((TOKEN + ending).encode())
    assert read_credential(f"file:{file}").reveal() == TOKEN


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "is empty"),
        ("\n", "is empty"),
        (TOKEN + "\n\n", "holds no broker credential"),
        (" " + TOKEN, "holds no broker credential"),
        (TOKEN[:-1] + ("0" if TOKEN[-1] != "0" else "1"), "holds no broker credential"),
        (fixed(tokens.CALLER), "holds no broker credential"),
        ("sekret", "holds no broker credential"),
    ],
)
def test_what_is_no_credential_stops_the_start_and_is_not_repeated(file, content, what):
    file.write_text(content)
    said = fault(f"file:{file}")
    assert what in said
    assert "sekret" not in said


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_can_read_is_refused(file, mode):
    file.chmod(mode)
    assert "can be read by others" in fault(f"file:{file}")


def test_a_symlink_a_directory_and_a_missing_file_are_refused(tmp_path, file):
    (tmp_path / "link").symlink_to(file)
    assert "cannot be read" in fault(f"file:{tmp_path / 'link'}")
    assert "not a regular file" in fault(f"file:{tmp_path}")
    assert "cannot be read" in fault(f"file:{tmp_path / 'nothing'}")


def test_a_pipe_in_the_place_of_the_file_does_not_hang_the_start(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "not a regular file" in fault(f"file:{tmp_path / 'pipe'}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_refused(file):
    os.chown(file, 4711, -1)
    assert "belongs to another user" in fault(f"file:{file}")


def test_a_systemd_credential_is_found_by_its_name(tmp_path, file, monkeypatch):
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    assert "CREDENTIALS_DIRECTORY" in fault("credential:broker.credential")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_credential("credential:broker.credential").reveal() == TOKEN
    assert "takes a name" in fault("credential:../broker.credential")


def test_an_inherited_pipe_is_read_to_its_end_and_closed():
    read, write = os.pipe()
    os.write(write, TOKEN.encode() + b"\n")
    os.close(write)
    assert read_credential(f"fd:{read}").reveal() == TOKEN
    with pytest.raises(OSError):
        os.fstat(read)
    assert "cannot be read" in fault(f"fd:{read}")


@pytest.mark.parametrize("reference", ["", "file:", "env:BROKER", "fd:x", "fd:0", "fd:-1", TOKEN, f"mbk:{TOKEN}"])
def test_any_other_reference_is_refused_without_repeating_it(reference):
    assert "expected file:PATH, credential:NAME or fd:N" in fault(reference)
