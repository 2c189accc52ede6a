"""How the command line speaks to the running broker: JSON over the admin socket, known by the user's id.

What the broker refuses becomes a ``CommandError`` with its code and detail; a broker that does not answer becomes an
``UnreachableError`` (status 75) with what to do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from broker.egress import MinterTransport
from config.console.commands import CommandError, UnreachableError, answered
from config.errors import ExitCode
from config.settings import BrokerSettings

_TIMEOUT_S: Final = 30.0
_NOT_READY: Final = 503


class AdminClient:
    """The admin API of the broker that ``settings`` describes."""

    def __init__(self, settings: BrokerSettings) -> None:
        sockets = [listener for listener in settings.admin_listen if listener.startswith("unix:")]
        if not sockets:
            raise CommandError(
                ExitCode.CONFIGURATION, "admin_listen names no Unix socket, so there is no way to the running broker"
            )
        self._address = sockets[0]
        self.socket_path = sockets[0].removeprefix("unix:")

    def get(self, path: str, **query: str | None) -> Any:
        """Read something. Errors: ``CommandError``."""
        return self._ask("GET", path, query)

    def delete(self, path: str, **query: str | None) -> Any:
        """End something. Errors: ``CommandError``."""
        return self._ask("DELETE", path, query)

    def post(self, path: str) -> Any:
        """Do something. Errors: ``CommandError``."""
        return self._ask("POST", path, {}, b"{}")

    def readiness(self) -> Any:
        """Return each part of the broker and whether it is well. Errors: ``CommandError``."""
        status, answer = self._send("GET", "/readyz?verbose", None)
        # Not being ready is an answer here, not a refusal.
        return answered(200 if status == _NOT_READY else status, answer, by="broker")

    def _ask(self, method: str, path: str, query: Mapping[str, str | None], body: bytes | None = None) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        status, answer = self._send(method, path + ("?" + urlencode(given) if given else ""), body)
        return answered(status, answer, by="broker")

    def _send(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        if _may_not_open(self.socket_path):
            raise CommandError(
                ExitCode.REFUSED,
                f"user {os.geteuid()} may not open the broker's admin socket {self.socket_path}",
                "Run this as the broker's user or as root.",
            )
        try:
            return asyncio.run(_send(self._address, method, target, body))
        except OSError as error:
            raise UnreachableError(
                f"no broker answers at {self.socket_path}: {error}",
                "Is it running? Start it with broker serve, or name its settings with --config.",
            ) from None


def _may_not_open(socket_path: str) -> bool:
    try:
        Path(socket_path).stat()
        return not os.access(socket_path, os.W_OK)
    except PermissionError:
        return True
    except OSError:
        return False


async def _send(address: str, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
    transport = MinterTransport(address)
    try:
        status, _, answer = await transport.request(method, target, authorization="", body=body, timeout_s=_TIMEOUT_S)
    finally:
        await transport.close()
    return status, answer
