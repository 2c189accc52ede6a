"""The ``minter`` command: one file for each command or group; only the one asked for is imported."""

from __future__ import annotations

from typing import NoReturn

from config.console import commands

_COMMANDS = {
    "init": ("minter.cli.init", "Write a directory to start from."),
    "serve": ("minter.cli.serve", "Run the minter."),
    "rotate": ("minter.cli.rotate", "Rotate a custody key."),
    "brokers": ("minter.cli.brokers", "Create, list, rotate and revoke the credentials of brokers."),
    "keys": ("minter.cli.keys", "Create, import, show, rebind, retire and destroy custody keys."),
    "leases": ("minter.cli.leases", "List and revoke leases; forget one that cannot be revoked."),
    "audit": ("minter.cli.audit", "Verify, search and export the audit log; keep checkpoints."),
    "custody": ("minter.cli.custody", "Report where every key is, who may use it and who did."),
    "kinds": ("minter.cli.kinds", "List and explain the token kinds."),
    "backup": ("minter.cli.backup", "Write a backup of the state, the audit log and the configuration."),
    "restore": ("minter.cli.restore", "Put a backup back, and confirm it."),
    "doctor": ("minter.cli.doctor", "Look for what is wrong with this installation."),
    "reload": ("minter.cli.reload", "Let the running minter read grants, brokers and keys again."),
}


def main() -> NoReturn:
    """Run the ``minter`` command."""
    commands.run("minter", "Keep API keys and lend short-lived credentials to brokers.", _COMMANDS)
