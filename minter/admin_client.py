"""How the command line speaks to the running minter: JSON over the admin socket, known by the user's id.

What the minter refuses becomes a :class:`config.commands.CommandError` with its code and detail; a minter that does
not answer becomes :class:`config.commands.UnreachableError` (status 75) with what to do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from config.commands import CommandError, UnreachableError, answered
from config.errors import ExitCode
from config.secret import Secret
from config.settings import MinterSettings
from minter import egress

_NOT_READY: Final = 503


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

    def readiness(self) -> Any:
        """Return each part of the minter and what is wrong with it. Errors: ``CommandError``."""
        answer = self._send("GET", "/readyz", {"verbose": ""}, None)
        # Not being ready is an answer here, not a refusal.
        return answered(200 if answer.status == _NOT_READY else answer.status, answer.body, by="minter")

    def _ask(self, method: str, path: str, query: Mapping[str, str | None], body: bytes | None = None) -> Any:
        answer = self._send(method, path, {n: v for n, v in query.items() if v is not None}, body)
        return answered(answer.status, answer.body, by="minter")

    def _send(self, method: str, path: str, query: Mapping[str, str], body: bytes | None) -> egress.Answer:
        try:
            return asyncio.run(egress.ask(self.socket_path, method, path, query=query, body=body))
        except PermissionError:
            raise CommandError(
                ExitCode.REFUSED,
                f"user {os.geteuid()} may not open the minter's admin socket {self.socket_path}",
                "Run this as the minter's user or as root; further users: operator_uids with socket_group.",
            ) from None
        except egress.EgressError as error:
            raise UnreachableError(
                f"no minter answers at {self.socket_path}: {error.reason}",
                "Is it running? Start it with minter serve, or name its settings with --config.",
            ) from None
