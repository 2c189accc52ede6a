"""The README's ten lines are run exactly as they stand there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.flow

ROOT = Path(__file__).resolve().parents[2]

#: With a network of its own the fixed ports of the README cannot meet anybody else's.
LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
with socket.socket() as s:
    request = struct.pack("16sH14s", b"lo", 0, b"")
    flags = struct.unpack("16sH14s", fcntl.ioctl(s, 0x8913, request))[1]
    fcntl.ioctl(s, 0x8914, struct.pack("16sH14s", b"lo", flags | 1, b""))
os.execvp(sys.argv[1], sys.argv[1:])
"""


def ten_lines() -> list[str]:
    block = re.search(r"<!-- the ten lines.*?-->\n```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    return block[1].splitlines()


def test_the_ten_lines_work_as_they_are_printed(tmp_path):
    lines = ten_lines()
    assert len(lines) == 10
    # The folder as a newcomer has it, with the environment that the tests run in.
    for name in ("ops", "config", "minter", "broker"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    script = "set -e\n" + "\n".join(f"{line}\necho; echo '--- {number}'" for number, line in enumerate(lines, 1))
    argv = ["bash", "-c", script]
    if os.geteuid() == 0 and shutil.which("unshare"):
        argv = ["unshare", "--net", sys.executable, "-c", LOOPBACK_UP, *argv]
    process = subprocess.Popen(
        argv,
        cwd=tmp_path,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=90)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err[-4000:]
    printed = re.split(r"\n--- \d+\n", out)
    assert json.loads(printed[6])["result"]["content"] == "The customer wants replies in Spanish."
    refused = json.loads(printed[7])
    assert (refused["status"], refused["by"], refused["code"]) == (403, "broker", "route-not-granted")
    state = json.loads(printed[8])
    assert [row["status"] for row in state["trace"]["rows"]] == [200]
    assert state["trace"]["denied_by"]
    assert "verif" in (printed[9] + err).lower()
    for token in re.findall(r"(?:mbk|clr)_[0-9A-Za-z]{49}", out + err):
        raise AssertionError(f"a token of {token[:3]} was printed")
