"""The console scripts as an operator runs them: real processes, an empty home, nothing else in the environment."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The lines of a piped table, without its header."""
        return [line.split("\t") for line in self.out.splitlines()[1:]]


@dataclass
class Console:
    """Runs ``minter`` and ``broker`` in ``root``."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)

    def env(self) -> dict[str, str]:
        home = self.root / "home"
        home.mkdir(exist_ok=True)
        return {"PATH": "/usr/bin:/bin", "HOME": str(home), **self.environ}

    def __call__(self, program: str, *arguments: str | Path, stdin: str = "") -> Done:
        done = subprocess.run(
            [str(BIN / program), *map(str, arguments)],
            cwd=self.root,
            env=self.env(),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def on_a_terminal(self, program: str, *arguments: str | Path, typed: str = "") -> tuple[int, str]:
        """Run a command with a terminal at all three ends; return its status and what the terminal showed.

        ``typed`` is typed when the command asks for something: at a colon that ends what is shown so far.
        """
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [str(BIN / program), *map(str, arguments)],
            cwd=self.root,
            env={"TERM": "xterm", "COLUMNS": "160", **self.env()},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        shown = b""
        try:
            with contextlib.suppress(OSError):  # what reading gives when the other end is closed
                while chunk := os.read(ours, 65536):
                    shown += chunk
                    if typed and shown.endswith(b": "):
                        os.write(ours, typed.encode())
                        typed = ""
            return process.wait(60), shown.decode()
        finally:
            process.kill()
            process.wait()
            os.close(ours)
