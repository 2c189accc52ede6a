"""What the programs do to their own process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from config.errors import ConfigurationError
from config.process import child_environment, refuse_root

ROOT = Path(__file__).resolve().parents[2]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


def run(code: str, **options) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=20, **options
    ).stdout


@LINUX
def test_a_hardened_process_writes_files_of_its_own_only_and_leaves_no_core():
    printed = run(
        "import os, resource; from config.process import harden; os.umask(0); harden();"
        "print(oct(os.umask(0)), resource.getrlimit(resource.RLIMIT_CORE), open('/proc/self/status').read())"
    )
    assert printed.startswith("0o77 (0, 0)")


#: Becomes an unprivileged user, forks a process that holds something, and reads what the kernel shows of it.
#: (A change of user makes a process undumpable by itself; the control says so back, else it could not fail.)
PEEK = """
import ctypes, os, signal, sys
from config.process import harden
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ready, told = os.pipe()
pid = os.fork()
if pid == 0:
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
    if sys.argv[1] == "hardened":
        harden()
    os.write(told, b"1")
    signal.pause()
os.read(ready, 1)
for name in ("environ", "maps", "mem"):
    try:
        open(f"/proc/{pid}/{name}", "rb").close()
    except PermissionError:
        print("refused")
    else:
        print("open")
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
"""


@pytest.mark.root
@LINUX
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize(("how", "result"), [("plain", "open\n" * 3), ("hardened", "refused\n" * 3)])
def test_another_process_of_the_same_user_cannot_read_a_hardened_ones_memory_or_environment(how, result):
    done = subprocess.run(
        [sys.executable, "-c", PEEK, how], capture_output=True, text=True, check=True, cwd=ROOT, timeout=20
    )
    assert done.stdout == result


@pytest.mark.skipif(os.getuid() != 0, reason="needs to be root")
def test_root_is_refused_unless_allowed_and_the_remedy_is_named():
    with pytest.raises(ConfigurationError, match="BROKER_ALLOW_ROOT=1"):
        refuse_root("broker", allowed=False)
    refuse_root("broker", allowed=True)


def test_a_child_gets_nothing_that_is_not_named():
    ours = {"PATH": "/bin", "LANG": "C", "MINTER_KEY": "canary", "LD_PRELOAD": "x", "HTTP_PROXY": "y", "TZ": ""}
    assert child_environment(ours, extra={"BROKER_URL": "z"}) == {"PATH": "/bin", "LANG": "C", "BROKER_URL": "z"}
    assert child_environment({}, passed=()) == {"PATH": "/usr/local/bin:/usr/bin:/bin"}
