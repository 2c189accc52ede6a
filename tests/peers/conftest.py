"""Real peers: what is not installed is skipped by name. `make test-peers` runs these, `make test` does not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.worlds.api import Api
from tests.worlds.service import Service


def needs(*programs: str) -> None:
    """Skip, naming what is missing and how Debian calls it."""
    packages = {"dbus-daemon": "dbus", "gnome-keyring-daemon": "gnome-keyring"}
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(packages.get(program, program) for program in missing)}")


@pytest.fixture
def api():
    with Api() as running:
        yield running


@pytest.fixture
def service(tmp_path):
    made = Service(tmp_path)
    try:
        yield made
        made.assert_canary_absent()
    finally:
        made.end()
        made.assert_canary_absent()


@pytest.fixture
def secret_service(tmp_path_factory) -> Iterator[dict[str, str]]:
    """An unlocked GNOME keyring on a session bus of its own; gives the environment that leads to it."""
    needs("dbus-daemon", "gnome-keyring-daemon")
    home = tmp_path_factory.mktemp("keyring-home")
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
    bus = subprocess.Popen(
        ["dbus-daemon", "--session", "--print-address", "--nofork"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ,
        text=True,
    )
    assert bus.stdout is not None
    environ["DBUS_SESSION_BUS_ADDRESS"] = bus.stdout.readline().strip()
    daemon = subprocess.Popen(
        ["gnome-keyring-daemon", "--foreground", "--unlock", "--components=secrets"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environ,
    )
    assert daemon.stdin is not None
    daemon.stdin.write(b"a passphrase of the test")
    daemon.stdin.close()
    try:
        yield {name: value for name, value in environ.items() if name != "HOME"}
    finally:
        for process in (daemon, bus):
            if process.poll() is None:
                os.kill(process.pid, signal.SIGTERM)
            process.wait(10)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
