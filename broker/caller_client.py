"""A caller's side of the broker's API, as ``broker exec`` uses it: open a run, end it."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from broker.egress import Egress, MinterTransport
from broker.wire.whole import fetch
from config import tokens
from config.console.commands import CommandError, UnreachableError, answered
from config.errors import ConfigurationError, ExitCode, Fault
from config.problems import ProblemError
from config.secret import Secret
from config.settings import UpstreamSettings

_TIMEOUT_S: Final = 30.0
#: No answer to a caller is longer: what a run may call stands in it.
_MAX_ANSWER: Final = 4 * 1024 * 1024
_MAX_TOKEN: Final = 4096


def read_caller_token(path: Path) -> Secret:
    """Return the ``clr_`` token that the file holds; nobody but its owner may be able to read it.

    Errors: ``ConfigurationError``.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _fault(path, f"cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _fault(path, "is not a regular file")
        if status.st_mode & 0o077:
            raise _fault(path, f"can be read by others ({stat.S_IMODE(status.st_mode):04o})", "chmod 600")
        text = os.read(descriptor, _MAX_TOKEN).decode("ascii", "replace").removesuffix("\n").removesuffix("\r")
    finally:
        os.close(descriptor)
    if tokens.digest(text, tokens.CALLER) is None:
        raise _fault(path, "holds no caller token (clr_...)", "broker callers create prints one")
    return Secret(text)


def _fault(path: Path, what: str, hint: str = "") -> ConfigurationError:
    return ConfigurationError([Fault(str(path), what, hint)])


class CallerClient:
    """One caller at one broker: ``url`` is ``http://HOST:PORT``, ``https://HOST:PORT`` or ``unix:PATH``."""

    def __init__(self, url: str, token: Secret, *, ca_file: str = "") -> None:
        """Take the token; ``ca_file`` replaces the system's certificate authorities.

        Errors: ``CommandError`` for an address that is none.
        """
        self._url = url.rstrip("/")
        self._token = token
        self._ca_file = ca_file
        self._why_not = ""
        if not url.startswith("unix:") and not _is_origin(self._url):
            raise CommandError(
                ExitCode.USAGE, "the broker's address is not http://HOST:PORT, https://HOST:PORT or unix:PATH"
            )

    def open(self, body: dict[str, Any]) -> dict[str, Any]:
        """Open a run and return what the broker says of it. Errors: ``CommandError``."""
        opened: dict[str, Any] = self._ask("POST", "/v1/runs", msgspec.json.encode(body))
        return opened

    def end(self, run_id: str) -> None:
        """End a run. Errors: ``CommandError``."""
        self._ask("DELETE", f"/v1/runs/{run_id}", None)

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        try:
            status, answer = asyncio.run(self._within_time(method, path, body))
        except ProblemError as error:
            if error.code == "response-too-large":
                raise CommandError(ExitCode.UPSTREAM, "the broker's answer is too long to be one") from None
            raise self._unreachable(self._why_not or error.detail) from None
        except OSError as error:
            raise self._unreachable(str(error) or "too slow") from None
        return answered(status, answer, by="broker")

    def _note(self, _origin: str, why: str) -> None:
        self._why_not = why

    def _unreachable(self, why: str) -> UnreachableError:
        return UnreachableError(
            f"no broker answers at {self._url} ({why})", "Is it running? Name it with --url, or its settings with -c."
        )

    async def _within_time(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        return await asyncio.wait_for(self._send(method, path, body), _TIMEOUT_S)

    async def _send(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        authorization = f"Bearer {self._token.reveal()}"
        if self._url.startswith("unix:"):
            transport = MinterTransport(self._url)
            try:
                status, _, content = await transport.request(
                    method, path, authorization=authorization, body=body, timeout_s=_TIMEOUT_S
                )
            finally:
                await transport.close()
            return status, content
        egress = Egress(UpstreamSettings(ca_file=self._ca_file), tell=self._note)
        try:
            # The operator named this address: it may well be a private one.
            origin = egress.origin(self._url, private=True)
            lines = [
                b"%s %s HTTP/1.1" % (method.encode(), path.encode()),
                b"host: %s" % origin.authority,
                b"authorization: %s" % authorization.encode(),
                b"content-type: application/json",
                b"content-length: %d" % len(body or b""),
            ]
            answer = await fetch(origin, b"\r\n".join(lines) + b"\r\n\r\n" + (body or b""), limit=_MAX_ANSWER)
            return answer.status, answer.body
        finally:
            await egress.close()


def _is_origin(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.hostname and parts.port != 0
    except ValueError:  # a port that is none
        return False
    beyond = parts.path or parts.query or parts.fragment or "@" in parts.netloc
    return bool(parts.scheme in {"http", "https"} and named and url.isascii() and not beyond)
