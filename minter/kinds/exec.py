"""``exec``: a credential helper, a program that prints a credential."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, ClassVar, Final, Literal, Self

import msgspec

from config.clock import parse_rfc3339
from config.errors import ConfigurationError, Fault
from config.problems import ProblemError
from config.secret import Secret
from config.settings import CommandSettings
from minter.custody import Custody
from minter.kinds import Ending, HowEnded, LeaseView, Minted, MintRequest, lifetime, options

Format = Literal["kubectl", "aws", "text"]

#: Assumed of a credential that does not say when it ends.
DEFAULT_TTL_S: Final = 300.0
#: Helpers of one token object that run at the same time.
AT_ONCE: Final = 8
_RETRY_S: Final = 5.0
_EXEC_CREDENTIAL: Final = "client.authentication.k8s.io/"
_EXEC_INFO: Final = json.dumps(
    {"apiVersion": f"{_EXEC_CREDENTIAL}v1", "kind": "ExecCredential", "spec": {"interactive": False}}
)


class _Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: str
    command: str
    format: Format
    ttl: float | str | None = None


class ExecKind:
    """What a credential helper prints.

    ``command`` is a name of ``[commands]`` in minter.toml: the program is the operator's choice, never the grants
    file's. ``format`` is ``kubectl`` (an exec plugin's ExecCredential with a token), ``aws`` (as for
    ``credential_process``) or ``text`` (one line). The helper runs without a shell, with exactly the environment that
    the settings give, within limits of time and output; what it writes to standard error is thrown away. A credential
    that does not say when it ends is taken to last ``ttl``, 5 minutes if not given.
    """

    name: ClassVar[str] = "exec"
    local: ClassVar[bool] = False
    how_ends: ClassVar[HowEnded] = "expired_only"
    example: ClassVar[Mapping[str, Any]] = {"type": "exec", "command": "cluster-token", "format": "kubectl"}

    def __init__(self, given: _Options, command: CommandSettings, ttl_s: float, custody: Custody) -> None:
        self._command = command
        self._parse = _PARSERS[given.format]
        self._environ = {**command.env, **({"KUBERNETES_EXEC_INFO": _EXEC_INFO} if given.format == "kubectl" else {})}
        self._ttl_s = ttl_s
        self._custody = custody
        self._slots = asyncio.Semaphore(AT_ONCE)

    @classmethod
    def build(cls, token: Mapping[str, Any], custody: Custody, where: str) -> Self:
        """Make the kind of a token object."""
        given = options(_Options, token, where)
        command = custody.settings.commands.get(given.command)
        if command is None:
            hint = "see [commands] in minter.toml"
            raise ConfigurationError([Fault(f"{where}.command", f"there is no command {given.command!r}", hint)])
        if not PurePath(command.argv[0]).is_absolute():
            raise ConfigurationError([Fault(f"commands.{given.command}.argv[0]", "is not an absolute path")])
        return cls(given, command, lifetime(given.ttl, DEFAULT_TTL_S, where), custody)

    async def mint(self, request: MintRequest) -> Minted:
        """Run the helper."""
        async with self._slots:
            output = await self._run()
        try:
            credential, expires_at = self._parse(output)
        except (ValueError, RecursionError) as error:
            # Our own words alone: the library's would quote what the helper printed.
            why = str(error) if type(error) is _ShapeError else "its output is not what the format says"
            raise ProblemError("issuer-failed", f"the credential helper failed: {why}", retry_after=_RETRY_S) from None
        if expires_at is None:
            expires_at = request.now + self._ttl_s
        if expires_at <= request.now:
            raise ProblemError("issuer-failed", "the credential helper gave one that has ended", retry_after=_RETRY_S)
        return Minted(
            credential={name: Secret(value) for name, value in credential.items()},
            expires_at=expires_at,
            fingerprint=self._custody.fingerprint(Secret("\0".join(credential.values()))),
            key_versions=(),
            how_ends="expired_only",
        )

    async def revoke(self, lease: LeaseView, credential: Mapping[str, Secret] | None) -> Ending:
        """Say that only its own end ends the credential: helpers have no word for it."""
        del lease, credential
        return Ending("expired_only")

    async def _run(self) -> bytes:
        # A pipe of our own: it can be closed although something that the helper left behind holds the other end.
        output, stdout = os.pipe()
        try:
            os.set_blocking(output, False)
            process = await self._start(stdout)
            return await self._result(process, output)
        finally:
            os.close(output)

    async def _start(self, stdout: int) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self._command.argv,
                env=self._environ,
                cwd="/",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout,
                stderr=asyncio.subprocess.DEVNULL,
                close_fds=True,
                # A group of its own, so that what the helper starts goes with it.
                start_new_session=True,
            )
        except OSError as error:
            raise _failed(f"it cannot be started ({type(error).__name__})") from None
        finally:
            os.close(stdout)

    async def _result(self, process: asyncio.subprocess.Process, output: int) -> bytes:
        done = False
        try:
            async with asyncio.timeout(float(self._command.timeout)):
                data = await _read(output, self._command.max_output)
                status = await process.wait()
            done = True
        except TimeoutError:
            raise _failed("it took too long") from None
        finally:
            if not done:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if status != 0:
            raise _failed("it ended with an error")
        return data


async def _read(output: int, limit: int) -> bytes:
    data = b""
    while chunk := await _chunk(output, limit + 1 - len(data)):
        data += chunk
        if len(data) > limit:
            raise _failed("it printed too much")
    return data


async def _chunk(output: int, most: int) -> bytes:
    """Read what is there, waiting for something; empty at the end.

    Not by ``connect_read_pipe``: uvloop closes such a pipe twice, and the second time it closes whatever another
    thread has opened under that number in between, such as the journal of the state.
    """
    loop = asyncio.get_running_loop()
    while True:
        with contextlib.suppress(BlockingIOError):
            return os.read(output, most)
        readable = asyncio.Event()
        loop.add_reader(output, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(output)


def _failed(why: str) -> ProblemError:
    return ProblemError("issuer-failed", f"the credential helper failed: {why}", retry_after=_RETRY_S)


# --- formats: what was printed -> (credential by field, end) ---


class _ShapeError(ValueError):
    """Output of another shape; the message names fields, never values."""


def _kubectl(output: bytes) -> tuple[dict[str, str], float | None]:
    document = _object(json.loads(output, object_pairs_hook=_pairs), "ExecCredential")
    version = document.get("apiVersion")
    if document.get("kind") != "ExecCredential" or not isinstance(version, str):
        raise _ShapeError("it printed no ExecCredential")
    if version not in (f"{_EXEC_CREDENTIAL}v1", f"{_EXEC_CREDENTIAL}v1beta1"):
        raise _ShapeError("its apiVersion is not one of client.authentication.k8s.io")
    status = _object(document.get("status"), "status")
    if "clientCertificateData" in status or "clientKeyData" in status:
        raise _ShapeError("it printed a client certificate, which cannot be lent; make it print a token")
    return {"value": _text(status, "token")}, _end(status.get("expirationTimestamp"), "expirationTimestamp")


def _aws(output: bytes) -> tuple[dict[str, str], float | None]:
    document = _object(json.loads(output, object_pairs_hook=_pairs), "credential")
    if document.get("Version") != 1 or document.get("Version") is True:
        raise _ShapeError("its Version is not 1")
    credential = {
        "access_key_id": _text(document, "AccessKeyId"),
        "secret_access_key": _text(document, "SecretAccessKey"),
    }
    if document.get("SessionToken") is not None:
        credential["session_token"] = _text(document, "SessionToken")
    return credential, _end(document.get("Expiration"), "Expiration")


def _plain(output: bytes) -> tuple[dict[str, str], float | None]:
    text = output.decode("ascii").removesuffix("\n").removesuffix("\r")
    if not text or not text.isprintable():
        raise _ShapeError("it did not print one line of printable ASCII")
    return {"value": text}, None


_PARSERS: Final[Mapping[Format, Callable[[bytes], tuple[dict[str, str], float | None]]]] = {
    "kubectl": _kubectl,
    "aws": _aws,
    "text": _plain,
}


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise _ShapeError("it printed a name twice")
    return document


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _ShapeError(f"it printed no {what}")
    return value


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise _ShapeError(f"it printed no {name}")
    if not (value.isascii() and value.isprintable()):
        raise _ShapeError(f"its {name} has characters that cannot be sent")
    return value


def _end(value: Any, name: str) -> float | None:
    if value is None:
        return None
    try:
        end = parse_rfc3339(value)
    except (TypeError, ValueError, OverflowError):
        raise _ShapeError(f"its {name} is not an instant with a zone") from None
    if not math.isfinite(end):
        raise _ShapeError(f"its {name} is not an instant")
    return end


KIND = ExecKind
