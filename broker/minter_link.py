"""What the broker asks of the minter, and what it makes of the answers.

The code that made a call is told which side failed and when to try again, never what the minter said: that goes to the
log, by its code.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from config.contract import LEASES, WATCH, WATCH_STALE_S, EndedLease, LeaseReply, LeaseRequest, Revoked, RunRecord
from config.problems import PROBLEMS, ProblemError
from config.secret import Secret

if TYPE_CHECKING:
    from broker.egress import MinterTransport

log = structlog.get_logger("broker.minter")

#: An issuer may take its time; the code's own client gives up on its own.
_LEASE_TIMEOUT_S: Final = 30.0
_TIMEOUT_S: Final = 10.0
_OK: Final = 200
_CREATED: Final = 201
_NO_CONTENT: Final = 204
_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500


class MinterLink:
    """The broker's side of the contract."""

    def __init__(self, transport: MinterTransport, credential: Secret) -> None:
        """Take the way to the minter and the broker's own token (``mbk_...``)."""
        self._transport = transport
        self._credential = credential

    async def lease(self, request: LeaseRequest) -> LeaseReply:
        """Return the run's lease for a profile.

        Errors: ``ProblemError``: ``minter-unavailable``, ``mint-failed``, ``lease-refused`` (with ``minter_code``).
        """
        status, retry_after, body = await self._ask(
            "POST", LEASES, msgspec.json.encode(request), timeout_s=_LEASE_TIMEOUT_S
        )
        if status not in (_OK, _CREATED):
            raise _refusal(status, retry_after, body)
        try:
            reply = msgspec.json.decode(body, type=LeaseReply)
        except msgspec.DecodeError as error:
            # The type and the place; msgspec repeats no value.
            log.error("lease-reply-malformed", error=type(error).__name__)  # noqa: TRY400 - a traceback holds the body
            raise ProblemError("mint-failed", retry_after=1) from None
        if not reply.credential or not all(reply.credential.values()) or reply.expires_in_s <= 0:
            raise ProblemError("mint-failed", retry_after=1)
        return reply

    async def end_run(self, run_id: str) -> Revoked:
        """Revoke the leases of a run that ended. A run without any is no error.

        Errors: ``ProblemError``: ``minter-unavailable``, ``mint-failed``, ``lease-refused``.
        """
        status, retry_after, body = await self._ask("DELETE", f"/v1/runs/{run_id}")
        if status in (_NOT_FOUND, _NO_CONTENT):
            return Revoked(leases=[])
        if status != _OK:
            raise _refusal(status, retry_after, body)
        try:
            return msgspec.json.decode(body, type=Revoked)
        except msgspec.DecodeError:
            raise ProblemError("minter-unavailable", retry_after=1) from None

    async def record(self, run_id: str, record: RunRecord) -> None:
        """Hand over the counts of a run that ended.

        Errors: as :meth:`end_run`.
        """
        status, retry_after, body = await self._ask("POST", f"/v1/runs/{run_id}/record", msgspec.json.encode(record))
        if not _OK <= status < _OK + 100:
            raise _refusal(status, retry_after, body)

    async def watch(self) -> AsyncIterator[EndedLease]:
        """Yield ended leases as they end, and beats (an empty ``lease_id``) in between.

        Errors: ``ProblemError("minter-unavailable")`` when the stream ends, breaks off or stays silent.
        """
        try:
            async for line in self._transport.lines(WATCH, authorization=self._bearer(), idle_s=WATCH_STALE_S):
                if line.strip():
                    yield msgspec.json.decode(line, type=EndedLease)
        except OSError as error:
            raise ProblemError("minter-unavailable", str(error), retry_after=1) from None
        except msgspec.DecodeError:
            raise ProblemError("minter-unavailable", "the stream holds what is no message", retry_after=1) from None
        raise ProblemError("minter-unavailable", "the stream ended", retry_after=1)

    async def _ask(
        self, method: str, path: str, body: bytes | None = None, *, timeout_s: float = _TIMEOUT_S
    ) -> tuple[int, str | None, bytes]:
        try:
            return await self._transport.request(
                method, path, authorization=self._bearer(), body=body, timeout_s=timeout_s
            )
        except OSError as error:
            log.warning("minter-unavailable", reason=str(error))
            raise ProblemError("minter-unavailable", retry_after=1) from None

    def _bearer(self) -> str:
        return "Bearer " + self._credential.reveal()


def _refusal(status: int, retry_after: str | None, body: bytes) -> ProblemError:
    code = _code(body)
    log.warning("minter-refused", status=status, code=code)
    if status == _TOO_MANY or status >= _SERVER_ERROR:
        seconds = float(retry_after[:6]) if retry_after and retry_after.isascii() and retry_after.isdigit() else 1.0
        return ProblemError("mint-failed", retry_after=seconds, minter_code=code)
    return ProblemError("lease-refused", retry_after=5, minter_code=code)


class _Code(msgspec.Struct):
    code: str = ""


def _code(body: bytes) -> str:
    """Return the problem code of an answer; only one of our own table is believed."""
    try:
        code = msgspec.json.decode(body, type=_Code).code
    except msgspec.DecodeError:
        return ""
    return code if code in PROBLEMS else ""
