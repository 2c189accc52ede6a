"""The demo's world: a folder, settings, and the fake API, the minter and the broker as real processes.

The key is made by a process of its own (``ops/demo/maker.py``) and is in nobody's hands but the minter's. Leaving the
``with`` block ends every process and removes the folder, whatever happened.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from config import tokenfiles, tokens
from config.secret import Secret
from config.tokenfiles import Principal, TokenEntry, TokenFile
from ops.demo import settings
from ops.demo.needle import KEY, Needle
from ops.demo.programs import Programs, answers, connects, free_ports, listens
from ops.demo.users import ROOT, Cast, assemble
from ops.fakes.memory_record import Received, read_record

#: 2026-04-21T00:00:00Z, the day of the examples on the API's own pages.
_STILL: Final = 1776729600
#: What ``--sabotage`` takes: each makes a claim false, to see that the demo notices.
KEY_IN_CLIENT: Final = "key-in-client"
WAY_TO_MINTER: Final = "way-to-minter"


class World:
    """Everything that the demo started."""

    def __init__(self, say: Callable[[str], None], *, sabotage: str = "", still: bool = False) -> None:
        """``say`` is told what goes on; ``sabotage`` breaks a claim on purpose.

        ``still``: time stands still at the API and its ids are counted, so that it answers the same each time.
        """
        self._say = say
        self._sabotage = sabotage
        self._still = still
        #: How long the search of run 5 may look at large places that are not the demo's.
        self.search_s = 3 if still else 10
        # Other users may look into it: what they must not read is closed by itself.
        self.folder = Path(tempfile.mkdtemp(prefix="minter-broker-demo-")).resolve()
        self.folder.chmod(0o755)
        self.programs = Programs(self._make("logs"))
        self.cast: Cast
        self.caller: Secret
        self.needles: list[Needle] = []
        self.api_url, self.minter_url, self.broker_url = (f"http://127.0.0.1:{port}" for port in free_ports(3))

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """End every process and remove the folder; a second Ctrl-C does not cut that short."""
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for name in self.programs.end():
                self._say(f"{name} did not end when it was asked to and was killed")
            shutil.rmtree(self.folder, ignore_errors=True)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # --- what is where ---

    @property
    def minter_socket(self) -> Path:
        """Where brokers reach the minter."""
        return self.folder / "run/minter.sock"

    @property
    def sockets(self) -> list[Path]:
        """Every Unix socket of the two programs."""
        return [
            self.minter_socket,
            self.folder / "minter/admin/minter-admin.sock",
            self.folder / "broker/admin/broker-admin.sock",
        ]

    @property
    def credential_file(self) -> Path:
        """Where the broker's credential would lie if it lay in a file."""
        return self.folder / "run/broker.credential"

    def received(self) -> list[Received]:
        """Return every request that the API received, in order."""
        return read_record(self.folder / "api/record.jsonl")

    def thief_token(self) -> str:
        """Return the last token of a run that the API accepted, as somebody who got hold of it; empty if none was."""
        kept = self.folder / "api/jwt"
        return kept.read_text() if kept.exists() else ""

    def audited(self) -> list[dict[str, Any]]:
        """Return the minter's audit log."""
        log = self.folder / "minter/state/audit.jsonl"
        # A line that is being written has no end yet.
        return [json.loads(line) for line in log.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]

    # --- starting ---

    def _start(self) -> None:
        self.cast = assemble(self.folder / "python")
        for note in self.cast.notes:
            self._say(f"note: {note}")
        if self.cast.apart:
            numbers = ", ".join(f"{name} {user.number}" for name, user in self.cast.users.items())
            self._say(f"users: {numbers}")
        for name in ("minter", "broker", "api"):
            self._make(name, name)
            if name != "api":
                self._make(f"{name}/state", name)
        self._make("code").chmod(0o755)
        run = self._make("run", "minter")
        # The broker may enter the socket's folder, by its group; nobody else may.
        self._share(run, 0o750)
        grants = self.folder / "grants.json"
        grants.write_text(settings.grants_json(self.api_url))
        self._share(grants, 0o640)
        key_out, key_in = os.pipe()
        credential_out, credential_in = os.pipe()
        signer_out, signer_in = os.pipe()
        known, leaked = self._make_secrets(key_in, credential_in, signer_in)
        self._write_clients(f'LEFT_IN_BY_MISTAKE = "{leaked}"' if leaked else "")
        self._make_principals(known["credential"]["sha256"])
        self.needles += [
            Needle(KEY, **known["key"]),
            Needle("the broker's credential", **known["credential"]),
            _needle("the caller's token", tokens.CALLER, self.caller),
        ]
        self._start_api(known["key"]["sha256"])
        self._start_minter(key_out, signer_out)
        self._start_broker(credential_out)
        if self._sabotage == WAY_TO_MINTER:
            self.minter_socket.chmod(0o666)
            self.minter_socket.parent.chmod(0o755)

    def _start_api(self, key_digest: str) -> None:
        folder, credential = self.folder / "api", self.folder / "api/introspect.credential"
        command = [*self.cast.programs, "-m", "ops.fakes.agent_memory", "--port", self.api_url.rsplit(":", 1)[1]]
        command += ["--key-digest", key_digest, "--namespace", f"{settings.ACCOUNT}/{settings.NAMESPACE}"]
        command += ["--jwks", self.minter_url + "/.well-known/jwks.json", "--audience", self.api_url]
        command += ["--issuer", self.minter_url, "--introspect", self.minter_url + "/v1/introspect"]
        command += ["--introspect-credential-file", str(credential)]
        command += ["--record", str(folder / "record.jsonl"), "--keep-jwt", str(folder / "jwt")]
        if self._still:
            command += ["--still", str(_STILL)]
        self._start_program("api", command, ready=lambda: listens(self.api_url))
        # It was read; a file that is gone cannot be found.
        credential.unlink()

    def _start_minter(self, key_fd: int, signer_fd: int) -> None:
        text = settings.minter_toml(
            self.folder, url=self.minter_url, key_fd=key_fd, signer_fd=signer_fd, socket_group=self.cast.socket_group
        )
        file = self._write("minter/minter.toml", text, "minter")
        self._serve("minter", file, (key_fd, signer_fd), lambda: connects(self.minter_socket))

    def _start_broker(self, credential_fd: int) -> None:
        text = settings.broker_toml(self.folder, url=self.broker_url, credential_fd=credential_fd)
        file = self._write("broker/broker.toml", text, "broker")
        self._serve("broker", file, (credential_fd,), lambda: answers(self.broker_url, "/readyz"))

    def _serve(self, name: str, file: Path, inherited: Sequence[int], ready: Callable[[], bool]) -> None:
        script = Path(sys.executable).parent / name
        command = [*self.cast.programs, str(script), "serve", "--config", str(file)]
        self._start_program(name, command, inherited=inherited, ready=ready)
        for end in inherited:
            os.close(end)

    def _start_program(
        self, name: str, command: list[str], *, ready: Callable[[], bool], inherited: Sequence[int] = ()
    ) -> None:
        self.programs.start(
            name,
            command,
            user=self.cast.users[name],
            environ=self.cast.environ,
            inherited=inherited,
            ready=ready,
        )
        self._say(f"started {_TITLES[name]}")

    # --- secrets ---

    def _make_secrets(self, *pipes: int) -> tuple[dict[str, Any], str]:
        """Let another process make the secrets and fill their pipes; return what is known of two of them."""
        leak_out, leak_in = os.pipe()
        ends = [*pipes, *([leak_in] if self._sabotage == KEY_IN_CLIENT else [])]
        command = [sys.executable, "-m", "ops.demo.maker", *map(str, ends)]
        made = subprocess.run(command, cwd=ROOT, pass_fds=ends, stdout=subprocess.PIPE, check=True)
        for end in (*pipes, leak_in):
            os.close(end)
        with os.fdopen(leak_out) as leak:
            leaked = leak.read()
        return json.loads(made.stdout), leaked

    def _make_principals(self, credential_digest: str) -> None:
        """Write who may ask the minter and who may open runs, and the API's credential for introspection."""
        uid = self.cast.users["broker"].number
        broker = Principal(id="demo-broker", uid=uid, tokens=[TokenEntry(sha256=credential_digest)])
        api = Principal(id="agent-memory-api", profiles=[], introspect=True)
        brokers, introspection = tokenfiles.create([broker], api, tokens.BROKER)
        if self._sabotage == WAY_TO_MINTER:
            # A credential counts from one user only: this one from the code's.
            stray = Principal(id="stray", uid=self.cast.users["code"].number)
            brokers, credential = tokenfiles.create(brokers, stray, tokens.BROKER)
            self.credential_file.write_text(credential.reveal())
            self.credential_file.chmod(0o644)
            self.needles.append(_needle("a stray broker credential", tokens.BROKER, credential))
        callers, self.caller = tokenfiles.create([], Principal(id=settings.CALLER), tokens.CALLER)
        self._write("minter/brokers.json", msgspec.json.encode(TokenFile(brokers=brokers)).decode(), "minter")
        self._write("broker/callers.json", msgspec.json.encode(TokenFile(callers=callers)).decode(), "broker")
        self._write("api/introspect.credential", introspection.reveal(), "api")

    # --- files ---

    def _write_clients(self, left_in: str) -> None:
        """Lay the generated clients beside the grants, from where the broker serves them to runs."""
        for name in settings.CLIENTS:
            client = self.folder / name
            client.write_text((settings.FOLDER / name).read_text() + (f"\n{left_in}\n" if left_in else ""))
            client.chmod(0o644)

    def _make(self, name: str, owner: str | None = None) -> Path:
        folder = self.folder / name
        folder.mkdir(mode=0o700)
        if owner is not None:
            self.cast.users[owner].own(folder)
        return folder

    def _write(self, name: str, text: str, owner: str) -> Path:
        file = self.folder / name
        file.touch(0o600)
        file.write_text(text)
        self.cast.users[owner].own(file)
        return file

    def _share(self, path: Path, mode: int) -> None:
        """Let minter and broker both in, by their common group, when they have users of their own."""
        if self.cast.socket_group:
            shutil.chown(path, group=self.cast.socket_group)
            path.chmod(mode)


_TITLES: Final = {
    "api": "the fake Agent Memory API, which keeps only the key's digest",
    "minter": "the minter, which alone got the key, by an inherited pipe",
    "broker": "the broker, which got its credential to the minter by another",
}


def _needle(name: str, mark: str, secret: Secret) -> Needle:
    return Needle(name, mark, len(secret), hashlib.sha256(secret.reveal().encode()).hexdigest())
