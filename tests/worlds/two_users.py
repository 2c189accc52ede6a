"""A minter and a broker under users of their own, in directories of their own. The tests themselves run as root."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.worlds.service import BIN, Service
from tests.worlds.users import as_user

MINTER, BROKER, OTHER, SHARED = 64901, 64902, 64903, 64910


def cores_are_files() -> bool:
    """Say whether the kernel writes a core file where a process stands, as it does by default."""
    return Path("/proc/sys/kernel/core_pattern").read_text().strip() in ("core", "core.%p")


def allow_cores() -> None:
    """Let a program that is about to start leave a core file of any size."""
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class TwoUsers(Service):
    """The minter's user owns the state, the broker's its credential; a shared group reaches the socket between them."""

    def prepare(self, profiles):
        super().prepare(profiles)
        (self.root / "minter.toml").write_text(
            f'socket_group = "{SHARED}"\nlisten = ["unix:shared/minter.sock"]\n{self.minter_top}\n'
            f'[keys.api]\nsource = "file:secrets/api.key"\n{self.minter_extra}\n'
        )
        (self.root / "broker.toml").write_text(
            f'listen = ["127.0.0.1:{self.port}"]\nminter = "unix:shared/minter.sock"\n'
            'state = "sqlite:broker/broker.db"\nminter_credential = "file:broker/broker.credential"\n'
            'admin_listen = ["unix:broker/broker-admin.sock"]\n'
        )
        (self.root / "brokers.json").unlink()
        (self.root / "broker").mkdir(mode=0o700)
        credential = self.root / "broker/broker.credential"
        credential.write_bytes(self.new_broker("broker-1", BROKER))
        (self.root / "shared").mkdir(mode=0o750)
        os.chown(self.root / "shared", MINTER, SHARED)
        for owner, names in {
            MINTER: ["secrets", "secrets/api.key", "state", "run", "brokers.json"],
            BROKER: ["broker", "broker/broker.credential", "callers.json"],
        }.items():
            for name in names:
                os.chown(self.root / name, owner, owner)
        for name in ("secrets/api.key", "brokers.json", "broker/broker.credential", "callers.json"):
            (self.root / name).chmod(0o600)
        for name in ("grants.json", "minter.toml", "broker.toml"):
            (self.root / name).chmod(0o644)

    def new_broker(self, name, uid, *more):
        """Make a broker known, and return its credential."""
        made = self.run("minter", "brokers", "create", name, "--uid", str(uid), *more, "--file", "brokers.json")
        return made.stdout

    def start(self, *programs):
        for program in programs or ("minter", "broker"):
            uid = {"minter": MINTER, "broker": BROKER}[program]
            self.processes[program] = self.launch(
                uid, [str(BIN / program), "serve", "--config", str(self.root / f"{program}.toml")], program
            )
            self.until(lambda p=program: self.ready(p), f"{program} is ready")

    def launch(self, uid, argv, name):
        """Start a program of a user, standing in the state's folder, where a core of it would lie."""
        with (self.root / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                as_user(uid, argv, groups=[SHARED]),
                cwd=self.root / ("state" if uid == MINTER else "broker"),
                env={"PATH": "/usr/bin:/bin", **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=allow_cores,  # noqa: PLW1509 - one system call, and no lock is taken
            )

    def ready(self, program):
        assert self.processes[program].poll() is None, self.log(program)[-3000:]
        if program == "minter":
            with socket.socket(socket.AF_UNIX) as probe:
                return probe.connect_ex(str(self.root / "shared/minter.sock")) == 0
        with contextlib.suppress(OSError):
            return self.http("GET", "/readyz").status == 200
        return False


@contextlib.contextmanager
def two_users(**settings) -> Iterator[TwoUsers]:
    """Yield the two, not prepared; end them and look for the marked secret."""
    root = Path(tempfile.mkdtemp(prefix="minter-broker-two-users-"))
    root.chmod(0o755)
    made = TwoUsers(root, **settings)
    try:
        yield made
        made.assert_canary_absent()
    finally:
        made.end()
        shutil.rmtree(root)
