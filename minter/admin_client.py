"""How the command line speaks to the running minter: JSON over the admin socket, known by the user's id.

What the minter refuses becomes a ``CommandError`` with its code and detail; a minter that does not answer becomes an
``UnreachableError`` (status 75) with what to do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from config.console.commands import CommandError, UnreachableError, answered
from config.errors import ExitCode
from config.secret import Secret
from config.settings import MinterSettings
from minter import egress


class AdminClient:
    """The admin API of the minter that ``settings`` describes."""

    def __init__(self, settings: MinterSettings) -> None:
        sockets = [listener.removeprefix("unix:") for listener in settings.admin_listen if listener.startswith("unix:")]
        if not sockets:
            raise CommandError(
                ExitCode.CONFIGURATION, "admin_listen names no Unix socket, so there is no way to the running minter"
            )
        self.socket_path = sockets[0]

    def get(self, path: str, **query: str | None) -> Any:
        """Read something. Errors: ``CommandError``."""
        return self._ask("GET", path, query)

    def delete(self, path: str, **query: str | None) -> Any:
        """Revoke something. Errors: ``CommandError``."""
        return self._ask("DELETE", path, query)

    def post(self, path: str, body: Mapping[str, Any], *, secret: Secret | None = None) -> Any:
        """Do something; ``secret`` is sent as the member ``value``. Errors: ``CommandError``."""
        sent = dict(body) if secret is None else {**body, "value": secret.reveal()}
        return self._ask("POST", path, {}, msgspec.json.encode(sent))

    def _ask(self, method: str, path: str, query: Mapping[str, str | None], body: bytes | None = None) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        try:
            answer = asyncio.run(egress.ask(self.socket_path, method, path, query=given, body=body))
        except PermissionError:
            raise CommandError(
                ExitCode.REFUSED,
                f"user {os.geteuid()} may not open the minter's admin socket {self.socket_path}",
                "Run this as the minter's user or as root. Auditors: see auditor_uids and admin_socket_group.",
            ) from None
        except egress.EgressError as error:
            raise UnreachableError(
                f"no minter answers at {self.socket_path}: {error.reason}",
                "Is it running? Start it with minter serve, or name its settings with --config.",
            ) from None
        return answered(answer.status, answer.body, by="minter")
