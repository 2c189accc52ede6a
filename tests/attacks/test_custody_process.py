"""Attacks on the minter's process by others on the same machine: of its own user, of the broker's, of another one.

Each way is also tried against a process that holds a secret and is not hardened, and works there: it can fail.
Whoever may write where Python looks for modules (PYTHONPATH, a planted sitecustomize) is the minter, not beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.flow.test_main_job import profile
from tests.worlds import thief
from tests.worlds.api import Api
from tests.worlds.service import CANARY
from tests.worlds.two_users import BROKER, MINTER, OTHER, SHARED, allow_cores, cores_are_files, two_users
from tests.worlds.users import as_user, tried_as

pytestmark = [
    pytest.mark.flow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="switching to other users needs root"),
]

#: Holds a secret as the minter does, in memory and in the environment, and waits.
VICTIM = (
    "import os, signal, sys; from config.process import harden\n"
    "if sys.argv[1] == 'hardened': harden()\n"
    "held = os.environ['API_KEY'] + '-held'\n"
    "sys.stdout.write('ready\\n'); sys.stdout.flush(); signal.pause()\n"
)
#: The secret in the minter's environment: the kernel keeps what a process was started with, for root to see.
VARIABLE = "sekret-VARIABLE-51c7e0a94b3d"
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def minter():
    """A minter with one key from its environment and one from a file, both lent; and where cores would lie."""
    with Api() as api, two_users(minter_extra='[keys.variable]\nsource = "env:API_KEY"') as two:
        api.on("GET", "/v1/items")
        two.environ = {"API_KEY": VARIABLE}
        variable = {**profile(api), "token": {"type": "static", "key": "variable"}}
        two.prepare({"api": profile(api), "variable": variable})
        two.start("minter")
        two.environ = {}
        two.start("broker")
        for name in ("api", "variable"):
            assert two.call(two.open_run(name), "GET", "/v1/items", profile=name).status == 200
        yield two


@contextlib.contextmanager
def victim(kind, folder):
    """A process of the minter's user that is no minter."""
    process = subprocess.Popen(
        as_user(MINTER, [sys.executable, "-c", VICTIM, kind]),
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "API_KEY": CANARY, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        preexec_fn=allow_cores,  # noqa: PLW1509 - one system call, and no lock is taken
    )
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def scratch():
    """A folder of the minter's user."""
    with tempfile.TemporaryDirectory(prefix="minter-broker-scratch-") as folder:
        os.chown(folder, MINTER, MINTER)
        Path(folder).chmod(0o700)
        yield Path(folder)


def refused(outcomes):
    return {name: outcome for name, outcome in outcomes.items() if outcome != "PermissionError"}


def test_a_process_of_the_same_user_reads_nothing_of_the_minter(minter, scratch):
    pid = minter.processes["minter"].pid
    attempts = thief.attempts(pid, CANARY.encode(), scratch=scratch)
    assert refused(tried_as(MINTER, attempts)) == {}
    assert refused(tried_as(OTHER, attempts)) == {}


def test_each_of_these_ways_leads_to_the_secret_of_a_process_that_is_not_hardened(scratch):
    with victim("soft", scratch) as soft:
        attempts = thief.attempts(soft.pid, CANARY.encode(), scratch=scratch)
        outcomes = tried_as(MINTER, attempts)
        assert {name for name, outcome in outcomes.items() if outcome != "succeeded"} == set()
    with victim("hardened", scratch) as hard:
        attempts = thief.attempts(hard.pid, CANARY.encode(), scratch=scratch)
        assert refused(tried_as(MINTER, attempts)) == {}


@pytest.mark.skipif(not cores_are_files(), reason="core dumps do not go to files here")
@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGQUIT, signal.SIGSEGV])
def test_a_signal_that_dumps_core_leaves_none_of_a_hardened_process(scratch, number):
    for kind, cores in (("soft", 1), ("hardened", 0)):
        with victim(kind, scratch) as process:
            process.send_signal(number)
            assert process.wait(30) == -number
        found = list(scratch.glob("core*"))
        assert len(found) == cores
        for core in found:
            assert CANARY.encode() in core.read_bytes()
            core.unlink()


@pytest.mark.skipif(not cores_are_files(), reason="core dumps do not go to files here")
def test_a_minter_that_is_aborted_leaves_no_core(minter):
    minter.processes["minter"].send_signal(signal.SIGABRT)
    assert minter.processes.pop("minter").wait(30) == -signal.SIGABRT
    try:
        assert list(minter.root.rglob("core*")) == []
    finally:
        minter.environ = {"API_KEY": VARIABLE}
        minter.start("minter")
        minter.environ = {}


def test_what_a_running_minter_says_of_itself(minter):
    done = minter.run("minter", "doctor", "--json", check=False)
    found = {(one["check"], one["where"]): one for one in json.loads(done.stdout)["findings"]}
    assert found["process", "dumpable"]["level"] == "ok"
    assert found["process", "core dumps"]["level"] == "ok"
    assert found["process", "umask"]["level"] == "ok"
    assert found["process", "secret variables"]["level"] == "ok"


# --- another user ---


def everything(root, own):
    """Return an attempt for every file, folder and socket below ``root`` that is not meant to be public."""
    public = {"grants.json", "minter.toml", "broker.toml", "minter.log", "broker.log", "shared", "home"}
    attempts = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if name.split("/", maxsplit=1)[0] in public and not path.is_socket():
            continue
        if own(name):
            continue
        if path.is_dir():
            attempts[f"list {name}"] = lambda path=path: os.listdir(path)
            attempts[f"plant in {name}"] = lambda path=path: (path / "planted").touch()
        elif path.is_socket():
            attempts[f"connect {name}"] = lambda path=path: connected(path)
        else:
            attempts[f"read {name}"] = path.read_bytes
            attempts[f"write {name}"] = lambda path=path: path.open("ab").close()
        attempts[f"remove {name}"] = lambda path=path: path.rename(path.with_name("taken"))
    return attempts


def connected(path):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))


def test_another_user_opens_changes_and_removes_nothing_of_either_program(minter):
    attempts = everything(minter.root, own=lambda _name: False)
    assert len(attempts) > 40
    assert {"read state/minter.db", "read state/sealing.key", "connect run/minter-admin.sock"} <= attempts.keys()
    assert "connect shared/minter.sock" in attempts
    assert refused(tried_as(OTHER, attempts)) == {}
    # Not for want of files: their owner reads them.
    readable = {name: attempt for name, attempt in attempts.items() if name.startswith("read state/minter")}
    assert set(tried_as(MINTER, readable).values()) == {"succeeded"}


def test_the_brokers_user_reaches_the_one_socket_and_nothing_else_of_the_minter(minter):
    own = ("broker", "callers.json")
    attempts = everything(minter.root, own=lambda name: name.split("/")[0] in own or name == "run/broker.credential")
    reached = attempts.pop("connect shared/minter.sock")
    assert refused(tried_as(BROKER, attempts, groups=[SHARED])) == {}
    assert tried_as(BROKER, {"socket": reached}, groups=[SHARED]) == {"socket": "succeeded"}


def test_another_user_sees_of_the_process_its_name_and_ends_nothing(minter):
    pid = minter.processes["minter"].pid
    proc = Path(f"/proc/{pid}")
    attempts = {
        **{name: (proc / name).read_bytes for name in ("environ", "maps", "mem", "auxv", "stack", "syscall", "io")},
        **{name: (proc / name).readlink for name in ("cwd", "root", "exe")},
        "files": lambda: os.listdir(proc / "fd"),
        "end": lambda: os.kill(pid, signal.SIGTERM),
        "limits": lambda: resource.prlimit(pid, 4, (1, 1)),
    }
    assert refused(tried_as(OTHER, attempts)) == {}
    assert b"sekret" not in (proc / "cmdline").read_bytes()
