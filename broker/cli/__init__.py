"""The ``broker`` command: one file for each command or group; only the one asked for is imported."""

from __future__ import annotations

from typing import NoReturn

from config.console import commands

_COMMANDS = {
    "init": ("broker.cli.init", "Write a directory to start from."),
    "serve": ("broker.cli.serve", "Run the broker."),
    "check": ("broker.cli.check", "Check a grants file, and what it must allow and refuse."),
    "explain": ("broker.cli.explain", "Say which route decides about a call, and why not the others."),
    "callers": ("broker.cli.callers", "Create, list, rotate and revoke the tokens of callers."),
    "runs": ("broker.cli.runs", "List and show runs; end one, many or all."),
    "exec": ("broker.cli.exec", "Run a command with a run of its own and no key."),
    "specgen": ("broker.cli.specgen", "Make routes, clients and texts of an OpenAPI document."),
    "doctor": ("broker.cli.doctor", "Look for what is wrong with this installation."),
    "reload": ("broker.cli.reload", "Let the running broker read grants and callers again."),
}


def main() -> NoReturn:
    """Run the ``broker`` command."""
    commands.run("broker", "Let code call APIs by an allow list, without ever holding a key.", _COMMANDS)
