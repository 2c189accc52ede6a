"""One run of the demo: opened at the broker, code in a fresh process, ended, and what each side saw of it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from config.load import load_grants
from ops.demo import DemoError, settings
from ops.demo.needle import RESULT
from ops.demo.programs import call, spawn, uninterrupted
from ops.demo.users import ROOT
from ops.demo.world import World
from ops.fakes.memory_record import Received

CODE: Final = Path(__file__).parent / "code"
PYTHON: Final = ".py"
JAVASCRIPT: Final = ".js"
_CODE_S: Final = 180
_WAIT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What is known of a run when it is over.

    ``trace`` is the broker's answer to ``GET /v1/runs/{id}``; ``received`` is what reached the API meanwhile;
    ``result`` is the last line of a search.
    """

    number: int
    title: str
    source: Path
    run_id: str
    status: int
    printed: str
    trace: dict[str, Any]
    received: list[Received]
    result: dict[str, list[str]] | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the trace's row of each call."""
        rows: list[dict[str, Any]] = self.trace["trace"]["rows"]
        return rows

    @property
    def denied(self) -> int:
        """Return how many calls the broker refused."""
        return int(self.trace["trace"]["denied"])


class Caller:
    """The orchestrator: opens and ends runs with its own token."""

    def __init__(self, world: World) -> None:
        """Call the broker of ``world``."""
        self._world = world

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Make a call of the caller's API. Errors: :class:`DemoError` with the problem's code."""
        sent = None if body is None else json.dumps(body).encode()
        try:
            status, answer = call(method, self._world.broker_url + path, token=self._world.caller.reveal(), body=sent)
        except (OSError, http.client.HTTPException) as error:
            raise DemoError(f"the broker does not answer {method} {path}: {type(error).__name__}") from error
        content: dict[str, Any] = json.loads(answer or b"{}")
        if not http.client.OK <= status < http.client.MULTIPLE_CHOICES:
            raise DemoError(f"{method} {path}: {status} {content.get('code')}: {content.get('detail')}")
        return content


def make_run(
    world: World, source: Path, *, profile: str = settings.PROFILE, before_end: Callable[[], None] | None = None
) -> Ran:
    """Open a run, let the code run, end it, and gather what happened. ``before_end`` is called while it still lives."""
    number = int(source.stem.partition("_")[0])
    caller = Caller(world)
    earlier = len(world.received())
    opened = caller.ask("POST", "/v1/runs", {"profile": profile, "trace_id": f"demo-{number}"})
    folder = _lay_out(world, source, opened)
    try:
        status, printed = _run_code(world, folder, source.name, opened["run_token"])
    finally:
        # Nothing is left for a later run.
        shutil.rmtree(folder)
    received = world.received()[earlier:]
    if before_end is not None:
        before_end()
    caller.ask("DELETE", f"/v1/runs/{opened['run_id']}")
    trace = caller.ask("GET", f"/v1/runs/{opened['run_id']}")
    lines, _, result = printed.partition(RESULT)
    return Ran(
        number=number,
        title=title_of(source),
        source=source,
        run_id=opened["run_id"],
        status=status,
        printed=lines.rstrip(),
        trace=trace,
        received=received,
        result=json.loads(result) if result else None,
    )


def title_of(source: Path) -> str:
    """Return what a run's code says about itself, without the full stop."""
    first = source.read_text().partition("\n")[0]
    return first.removeprefix("//").strip(' ".')


def code_of(source: Path) -> str:
    """Return a run's code without its title."""
    return source.read_text().partition("\n")[2].strip()


def until(condition: Callable[[], bool], seconds: float = _WAIT_S) -> bool:
    """Wait for what another process is about to do; say whether it did."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _lay_out(world: World, source: Path, opened: dict[str, Any]) -> Path:
    """Make a folder for the run with what its code may read: the client, the code, and for the search its tools.

    The client is the one that the broker serves to the run: it knows what the run may call.
    """
    folder = world.folder / "code" / source.stem
    folder.mkdir()
    shutil.copy(source, folder)
    name = f"client{source.suffix}"
    status, client = call("GET", f"{world.broker_url}/v1/self/{name}", token=opened["run_token"])
    if status != http.client.OK:
        raise DemoError(f"the broker does not serve {name}: {status}")
    (folder / name).write_bytes(client)
    if source.suffix == PYTHON and "search" in source.stem:
        for name in ("search.py", "reach.py", "needle.py"):
            shutil.copy(Path(__file__).parent / name, folder)
        (folder / "told.json").write_text(json.dumps(_told(world, folder, opened["run_id"]), indent=1))
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def _run_code(world: World, folder: Path, name: str, run_token: str) -> tuple[int, str]:
    # These two are all that the code is given.
    environ = {"BROKER_URL": world.broker_url, "BROKER_RUN_TOKEN": run_token}
    if name.endswith(PYTHON):
        command = [*world.cast.python, "-S", "-B", name]
    else:
        command = [*world.cast.programs, "-m", "ops.demo.engine", str(folder / "client.js"), str(folder / name)]
        # The engine's process needs our modules; its code sees nothing of them.
        environ |= world.cast.environ
        folder = ROOT if world.cast.engine.uid is None else Path("/")
    user = world.cast.users["code"] if name.endswith(PYTHON) else world.cast.engine
    with uninterrupted():
        process = spawn(command, user=user, environ=environ, folder=folder, output=subprocess.PIPE)
        world.programs.remember("code", process)
    try:
        output, _ = process.communicate(timeout=_CODE_S)
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL, f"nothing within {_CODE_S} seconds"
    finally:
        process.kill()
        process.wait()
    return process.returncode, output.decode(errors="replace")


def _told(world: World, folder: Path, run_id: str) -> dict[str, Any]:
    """Return what an attacker who read the sources would know. There is no secret among it."""
    profile = load_grants(world.folder / "grants.json").profiles[settings.PROFILE]
    return {
        "needles": [needle.as_dict() for needle in world.needles],
        "budget_s": world.search_s,
        "directory": str(world.folder),
        "own_directory": str(folder),
        "skip": [str(world.folder / "python")],
        "sockets": [str(path) for path in world.sockets],
        "urls": [world.broker_url, world.minter_url],
        "programs": world.programs.pids | {"the demo": os.getpid()},
        "uids": {name: user.number for name, user in world.cast.users.items() if name != "code"},
        "credential_files": [str(world.credential_file), str(world.folder / "api/introspect.credential")],
        "keyring_entries": [settings.KEYRING_ENTRY],
        "site_packages": sysconfig.get_path("purelib"),
        "lease": {
            "run_id": run_id,
            "caller": settings.CALLER,
            "profile": settings.PROFILE,
            "params": {},
            "ttl_s": 600,
            "origin": profile.base_url,
            "grant_digest": profile.digest,
        },
    }
