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


@pytest.mark.root
@LINUX
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_another_process_of_the_same_user_cannot_read_a_hardened_ones_memory_or_environment():
    # Both are the same unprivileged user: without hardening the reading works, which shows that the test can fail.
    def readable(harden: str) -> bool:
        target = subprocess.Popen(
            [sys.executable, "-c", f"from config.process import harden; {harden}; print(1, flush=True); input()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, preexec_fn=become,
        )  # fmt: skip
        try:
            assert target.stdout.readline() == "1\n"
            script = (
                "import sys\n"
                "try:\n"
                "  open(f'/proc/{sys.argv[1]}/environ').read(); open(f'/proc/{sys.argv[1]}/mem', 'rb').close()\n"
                "except PermissionError: print('refused')\n"
                "else: print('read')\n"
            )
            return "read" in subprocess.run(
                [sys.executable, "-c", script, str(target.pid)],
                capture_output=True, text=True, check=True, preexec_fn=become,
            ).stdout  # fmt: skip
        finally:
            target.communicate("\n")

    def become():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

    if subprocess.run([sys.executable, "-c", ""], preexec_fn=become, check=False, cwd=ROOT).returncode:
        pytest.skip("the other user cannot run this Python")
    assert readable("pass")
    assert not readable("harden()")


@pytest.mark.skipif(os.getuid() != 0, reason="needs to be root")
def test_root_is_refused_unless_allowed_and_the_remedy_is_named():
    with pytest.raises(ConfigurationError, match="BROKER_ALLOW_ROOT=1"):
        refuse_root("broker", allowed=False)
    refuse_root("broker", allowed=True)


def test_a_child_gets_nothing_that_is_not_named():
    ours = {"PATH": "/bin", "LANG": "C", "MINTER_KEY": "canary", "LD_PRELOAD": "x", "HTTP_PROXY": "y", "TZ": ""}
    assert child_environment(ours, extra={"BROKER_URL": "z"}) == {"PATH": "/bin", "LANG": "C", "BROKER_URL": "z"}
    assert child_environment({}, passed=()) == {"PATH": "/usr/local/bin:/usr/bin:/bin"}
