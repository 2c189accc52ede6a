"""Running a program as another user of this machine, when the tests themselves run as root.

The interpreter, the virtual environment or the checkout may lie below a directory that other users cannot enter
(such as root's home). Then the program gets a mount namespace of its own in which that directory shows nothing but
what the program needs; permissions on the machine stay as they are.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def as_user(uid: int, argv: Sequence[str], *, groups: Sequence[int] = ()) -> list[str]:
    """Return the command line that runs ``argv`` as ``uid`` (gid the same), a member of ``groups``."""
    membership = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
    drop = ["setpriv", "--reuid", str(uid), "--regid", str(uid), *membership, *argv]
    needed = [Path(path).resolve() for path in (sys.base_prefix, sys.prefix, REPOSITORY)]
    hidden = {
        closed: [path for path in needed if path.is_relative_to(closed)] for closed in map(_closed, needed) if closed
    }
    if not hidden:
        return drop
    script = ["set -e"]
    for closed, paths in hidden.items():
        holds = [(path, f"{tempfile.gettempdir()}/.hold-{os.getpid()}-{number}") for number, path in enumerate(paths)]
        for path, hold in holds:
            script += [f"mkdir -p {hold}", f"mount --bind {shlex.quote(str(path))} {hold}"]
        script.append(f"mount -t tmpfs -o mode=0755 tmpfs {shlex.quote(str(closed))}")
        for path, hold in holds:
            place = shlex.quote(str(path))
            script += [f"mkdir -p {place}", f"mount --move {hold} {place}"]
    script.append("exec " + shlex.join(drop))
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(script)]


def _closed(path: Path) -> Path | None:
    """Return the outermost directory on the way to ``path`` that other users cannot enter."""
    for directory in reversed([path, *path.parents]):
        if not stat.S_IMODE(directory.stat().st_mode) & stat.S_IXOTH:
            return directory
    return None


def tried_as(uid: int, attempts: dict[str, Callable[[], object]], *, groups: Sequence[int] = ()) -> dict[str, str]:
    """Make each attempt in a forked child that is ``uid``; return the name of what it raised, or ``"succeeded"``."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.setgroups(list(groups))
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        for name, attempt in attempts.items():
            try:
                attempt()
                outcome = "succeeded"
            except BaseException as error:  # noqa: BLE001 - whatever it is, its name is the outcome
                outcome = type(error).__name__
            os.write(write, f"{name}\0{outcome}\n".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as lines:
        outcomes = dict(line.rstrip("\n").split("\0") for line in lines)
    os.waitpid(child, 0)
    return outcomes
