"""``make demo`` tells the main job truthfully: it counts what happened, and a broken claim makes it fail."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ops.demo.world import KEY_IN_CLIENT, WAY_TO_MINTER

pytestmark = pytest.mark.flow

ROOT = Path(__file__).parents[2]
TOTALS = """\
  3 of 14 routes granted
  5 runs
  4 of 4 requests at the API carried the key
  2 calls refused by the broker; none reached the API
  key found in 0 places
  0 ways to obtain the key
  2 leases minted, 2 ended (key_still_valid)
"""


@pytest.fixture
def folder():
    # Not tmp_path: the code's user must be able to pass through it, and a socket's path must be short.
    made = Path(tempfile.mkdtemp(prefix="d-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ops.demo", *arguments]


def environ(folder: Path) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "TMPDIR": str(folder), "LANG": "C.UTF-8"}


def demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=ROOT, env=environ(folder), capture_output=True, text=True, check=False, timeout=110
    )


def left_over(folder: Path) -> list[str]:
    """Return what the demo left: files, and processes that have its folder in their arguments."""
    left = [str(path) for path in folder.iterdir()]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in arguments:
            left.append(arguments)
    return left


def test_the_demo_counts_the_main_job_and_leaves_nothing_running(folder):
    done = demo(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert TOTALS in done.stdout
    assert "\x1b" not in done.stdout
    assert ("users: minter " if os.getuid() == 0 else "note: not started as root") in done.stdout
    assert done.stdout.count("the broker answered: 403 ") == 2
    assert done.stdout.count("with the key  200") == 4
    assert "after it the API answered 401 to the same token" in done.stdout
    assert left_over(folder) == []


def test_a_key_left_in_the_client_is_named_and_fails_the_demo(folder):
    done = demo(folder, "--sabotage", KEY_IN_CLIENT)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "key found in 0 places" not in done.stdout
    for place in ("the client (LEFT_IN_BY_MISTAKE)", "the file client.py of the code", "its own memory"):
        assert place in done.stdout
    assert "claims do not hold" in done.stdout
    assert left_over(folder) == []


def test_a_way_to_the_minter_is_named_and_fails_the_demo(folder):
    done = demo(folder, "--sabotage", WAY_TO_MINTER)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 ways to obtain the key" not in done.stdout
    assert "a stray broker credential lies in the file " in done.stdout
    assert "minter.sock gave a lease for a stray broker credential" in done.stdout
    assert "a lease that " in done.stdout
    assert left_over(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_running(folder, number):
    with subprocess.Popen(
        command(), cwd=ROOT, env=environ(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            if line.startswith("started the minter"):
                break
        process.send_signal(number)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130, rest + errors
    assert "Traceback" not in errors
    assert left_over(folder) == []


def test_a_killed_demo_takes_its_programs_with_it(folder):
    with subprocess.Popen(command(), cwd=ROOT, env=environ(folder), stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("started the minter"):
                break
        process.kill()
        process.wait()
        process.stdout.read()
    # The kernel ends them when it takes their parent away, which may be a moment later.
    deadline = time.monotonic() + 10
    while running := [line for line in left_over(folder) if not line.startswith(str(folder))]:
        assert time.monotonic() < deadline, running
        time.sleep(0.02)
