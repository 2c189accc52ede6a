"""``POST /v1/leases``: raw ASGI, because it is asked thousands of times a second."""

from __future__ import annotations

from typing import Final

from config.asgi import Receive, Scope, Send, describe, read_body, send_json, send_problem
from config.clock import Clock, rfc3339
from config.contract import LEASES, LeaseReply, LeaseRequest, decode
from config.problems import ProblemError
from minter import failpoints
from minter.audit_events import Event, Value
from minter.brokers import Brokers
from minter.denials import Recorder
from minter.lease_values import Lent
from minter.limits import Rate
from minter.metrics import Metrics
from minter.service import LeaseService

#: A lease request is a few hundred bytes; run parameters are at most 256 characters each.
MAX_BODY: Final = 64 * 1024
_JSON: Final = b"application/json"


class LeaseEndpoint:
    """Answers a lease request; every refusal is counted and reaches the audit log at a bounded rate."""

    def __init__(
        self, *, service: LeaseService, brokers: Brokers, record: Recorder, clock: Clock, metrics: Metrics
    ) -> None:
        self._service = service
        self._brokers = brokers
        self._record = record
        self._clock = clock
        self._metrics = metrics
        self._recorded = Rate(clock, per_s=5.0, burst=50.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            reply = await self._answer(scope, receive)
        except ProblemError as error:
            await send_problem(send, error, "minter")
            return
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - the last net: described by its type and place only
            await send_problem(send, describe(error), "minter")
            return
        await send_json(send, 200, reply)
        failpoints.reached("mint.answered")

    async def _answer(self, scope: Scope, receive: Receive) -> LeaseReply:
        broker = self._brokers.authenticate(scope, operation=f"POST {LEASES}")
        request = None
        try:
            _check_media_type(scope)
            request = decode(LeaseRequest, await read_body(receive, MAX_BODY, scope))
            lent = await self._service.lease(broker, request)
        except ProblemError as error:
            self._metrics.refused(error.code)
            if not self._recorded.wait_s((broker.id, error.code)):
                self._record(_refused(broker.id, request, error.code))
            raise
        return self._reply(lent)

    def _reply(self, lent: Lent) -> LeaseReply:
        row = lent.row
        left_s = lent.live.remaining(self._clock, highest_wall=0.0)
        if left_s <= 0:
            raise ProblemError("run-over")
        return LeaseReply(
            lease_id=row.id,
            # The one place where a credential leaves the minter.
            credential={name: secret.reveal() for name, secret in lent.credential.items()},
            expires_at=rfc3339(row.expires_at),
            expires_in_s=left_s,
            kind=row.kind,
            fingerprint=row.fingerprint,
        )


def _check_media_type(scope: Scope) -> None:
    if not any(name == b"content-type" and value.startswith(_JSON) for name, value in scope["headers"]):
        raise ProblemError("media-type-not-supported")


def _refused(broker: str, request: LeaseRequest | None, code: str) -> Event:
    """Describe a refusal. Names of another form than ours were refused for it: they stay out of the log."""
    fields: dict[str, Value] = {"broker": broker, "problem": code}
    if request is not None and code not in ("body-malformed", "profile-not-allowed", "profile-unknown"):
        fields |= {"run_id": request.run_id, "caller": request.caller, "profile": request.profile}
        if request.trace_id is not None:
            fields["trace_id"] = request.trace_id
    return Event("lease.refused", fields)
