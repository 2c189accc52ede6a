"""Under which users the demo's processes run, and with which interpreter.

Started as root, the demo gives the minter, the broker, the API and the code a user each: numbers without an entry in
the system's list are enough. An interpreter below root's own folder is out of their reach; they then get a copy of it.
Started as anybody else, everything runs as that user, and the demo says that this is no boundary.
"""

from __future__ import annotations

import grp
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ops.demo import DemoError

ROOT: Final = Path(__file__).resolve().parents[2]

#: Groups that systems have and nobody is in: one of them is lent to minter and broker for the minter's socket.
_GROUPS: Final = ("nogroup", "nobody", "daemon", "bin")
_UIDS: Final = {"minter": 64901, "broker": 64902, "code": 64903, "api": 64904}
_NEEDED: Final = "import ctypes, http.client, ssl"
_LEFT_OUT: Final = ("site-packages", "test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "config-*")
_LOADER: Final = re.compile(rb"/lib[0-9A-Za-z/_.-]*/ld-[0-9A-Za-z_.-]+\.so[0-9.]*")


@dataclass(frozen=True, slots=True)
class User:
    """Who a process runs as; ``uid`` None leaves it as it is."""

    uid: int | None
    groups: tuple[int, ...] = ()

    @property
    def popen(self) -> dict[str, Any]:
        """Return the arguments of ``subprocess`` that make a process run so."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.uid, "extra_groups": list(self.groups)}

    @property
    def number(self) -> int:
        """Return the user's number."""
        return os.getuid() if self.uid is None else self.uid

    def own(self, path: Path) -> None:
        """Give a file or folder to this user."""
        if self.uid is not None:
            os.chown(path, self.uid, self.uid)


@dataclass(frozen=True, slots=True)
class Cast:
    """The demo's users and how each starts Python: ``python`` is for the code, ``programs`` for the two programs."""

    users: Mapping[str, User]
    socket_group: str
    python: tuple[str, ...]
    programs: tuple[str, ...]
    environ: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def engine(self) -> User:
        """Who runs the engine of JavaScript code: the code's user where it can read the engine, else who runs all."""
        programs = self.users["minter"]
        return programs if programs.uid is None else self.users["code"]

    @property
    def apart(self) -> bool:
        """Say whether the code's user is another than the programs'."""
        return self.users["code"].number not in {self.users[name].number for name in ("minter", "broker", "api")}


def assemble(copy_to: Path) -> Cast:
    """Decide who runs as whom. ``copy_to`` is where a copy of the interpreter may be made."""
    environ = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"}
    if os.geteuid() != 0:
        everyone = {name: User(None) for name in _UIDS}
        note = "not started as root: all of it runs as your user, which is no boundary between processes"
        return Cast(everyone, "", (sys.executable,), (sys.executable,), environ, (note,))
    group = next((entry for entry in grp.getgrall() if entry.gr_name in _GROUPS and entry.gr_gid), None)
    shared = (group.gr_gid,) if group else ()
    users = {name: User(uid, shared if name in ("minter", "broker") else ()) for name, uid in _UIDS.items()}
    python = _reachable(users["code"], copy_to)
    site = os.pathsep.join([sysconfig.get_path("purelib"), str(ROOT)])
    apart = environ | {"PYTHONPATH": site}
    if group and _works(python, users["minter"], "import minter.cli, broker.cli, ops.fakes.agent_memory", apart):
        return Cast(users, group.gr_name, python, python, apart, ())
    # The code is kept apart all the same.
    root = dict.fromkeys(("minter", "broker", "api"), User(None)) | {"code": users["code"]}
    allowed = environ | {"MINTER_ALLOW_ROOT": "1", "BROKER_ALLOW_ROOT": "1"}
    note = "the project's folder is out of other users' reach: minter and broker run as root, the code does not"
    return Cast(root, "", python, (sys.executable,), allowed, (note,))


def _reachable(user: User, copy_to: Path) -> tuple[str, ...]:
    """Return how to start an interpreter that ``user`` can run: this one, or a copy of it."""
    here = (os.path.realpath(sys.executable),)
    if _works(here, user, _NEEDED, {}):
        return here
    base, version = Path(sys.base_prefix), f"python{sys.version_info.major}.{sys.version_info.minor}"
    (copy_to / "bin").mkdir(parents=True)
    program = shutil.copy2(here[0], copy_to / "bin" / version)
    library = copy_to / "lib"
    shutil.copytree(base / "lib" / version, library / version, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
    for shared in (base / "lib").glob("libpython*.so*"):
        shutil.copy2(shared, library / shared.name)
    for path in [copy_to, *copy_to.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
    copied = (str(program),)
    if _works(copied, user, _NEEDED, {}):
        return copied
    # The program names its library by a path that is out of reach: start it through the loader, which takes another.
    loader = _LOADER.search(Path(program).read_bytes())
    if loader is None:
        raise DemoError("no interpreter can be started as another user")
    return (loader[0].decode(), "--library-path", str(library), *copied)


def _works(python: tuple[str, ...], user: User, code: str, environ: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(
            [*python, "-c", code], env=environ, cwd="/", capture_output=True, check=False, timeout=60, **user.popen
        )
    except OSError:
        return False
    return done.returncode == 0
