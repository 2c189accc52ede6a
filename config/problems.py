"""The one table of problem codes: what either program answers when it refuses or fails (RFC 9457).

A body is ``application/problem+json`` with ``type``, ``title``, ``status``, ``code``, ``detail``, ``by`` (``broker``,
``minter`` or ``upstream``) and members of its own code. ``code`` is stable and kebab-case; programs branch on it,
people read ``detail``. Neither ever holds a credential, a body, a query or the path of a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

By = Literal["broker", "minter"]

MEDIA_TYPE: Final = "application/problem+json"

#: Header of every answer that refuses: who did. An SDK tells a refusal of its run token from the API's own 401 by it.
REFUSED_BY: Final = "broker-refused-by"


@dataclass(frozen=True, slots=True)
class Problem:
    """One row of the table. ``remedy`` says what the one who got it can do."""

    code: str
    status: int
    title: str
    remedy: str


def _table(*rows: tuple[str, int, str, str]) -> dict[str, Problem]:
    table = {}
    for code, status, title, remedy in rows:
        if code in table:
            raise ValueError(f"problem code {code} stands twice")
        table[code] = Problem(code, status, title, remedy)
    return table


PROBLEMS: Final[Mapping[str, Problem]] = _table(
    # --- how a request is written (both programs, config/server.py) ---
    (
        "request-malformed",
        400,
        "The request is not well-formed HTTP/1.1",
        "Mend the client or the hop in between.",
    ),
    (
        "request-timeout",
        408,
        "The request did not arrive in time",
        "Send headers and body without long pauses.",
    ),
    (
        "length-required",
        411,
        "The body's length is not known",
        "Send Content-Length or chunked encoding over HTTP/1.1.",
    ),
    ("request-too-large", 413, "The body is larger than allowed", "Send less; the limit is in this answer."),
    ("target-too-long", 414, "The request target is longer than allowed", "Shorten the path or the query."),
    ("headers-too-large", 431, "The headers are larger than allowed", "Send fewer or shorter headers."),
    ("expectation-unknown", 417, "Only 100-continue can be expected", "Leave the Expect header out."),
    ("upgrade-refused", 400, "Upgrades (WebSocket, h2c) are not carried", "Use plain HTTP/1.1 calls, without Upgrade."),
    (
        "host-not-allowed",
        421,
        "The Host header does not name this service",
        "Use the address this service gave.",
    ),
    (
        "origin-not-allowed",
        403,
        "Calls from web pages are refused",
        "Call from a program, not from a browser.",
    ),
    ("forwarding-not-allowed", 403, "Forwarded requests are refused here", "Connect directly."),
    ("method-not-supported", 405, "The method is not one that this service carries", "See the Allow header."),
    ("media-type-not-supported", 415, "The body is not JSON", "Send application/json."),
    ("body-malformed", 400, "The body is not what this call takes", "See detail and /openapi.json."),
    ("version-not-supported", 505, "Only HTTP/1.1 and HTTP/1.0 are spoken here", "Use HTTP/1.1."),
    ("not-found", 404, "There is nothing here", "See /openapi.json."),
    ("parameter-unknown", 400, "The call takes no such query parameter", "See detail."),
    (
        "lease-not-forgettable",
        409,
        "The lease cannot be forgotten",
        "Only orphan_suspect, irrevocable and damaged leases can; see minter leases list, and minter leases revoke.",
    ),
    ("filter-required", 400, "A filter is needed", "Name what is meant, or all=true."),
    ("reload-refused", 422, "The configuration does not load, so the old one is kept", "See faults."),
    ("too-many-requests", 429, "Too many requests at once", "Try again after Retry-After seconds."),
    ("internal-error", 500, "Something went wrong in this program", "Give the request id to the operator."),
    ("not-ready", 503, "The service is not ready", "See detail."),
    ("shutting-down", 503, "The service is shutting down", "Try again after Retry-After seconds."),
    # --- the code's call (broker) ---
    ("run-token-missing", 401, "No run token was sent", "Send the run token where the API's key would go."),
    (
        "run-token-invalid",
        401,
        "The run token is not valid",
        "Open a new run: this one is unknown or has ended.",
    ),
    ("run-token-conflict", 400, "Two different run tokens were sent", "Send one."),
    (
        "run-token-misplaced",
        400,
        "A run token was sent where none may be",
        "Send it only where the API's key would go.",
    ),
    (
        "profile-not-granted",
        403,
        "The run has no such profile",
        "See GET /v1/self for what the run may call.",
    ),
    ("target-malformed", 400, "The target cannot be sent exactly as it is written", "See detail."),
    ("route-not-granted", 403, "No granted route matches", "See nearest and GET /v1/self."),
    (
        "route-reserved",
        403,
        "A more specific route, which is not granted, matches",
        "See nearest and GET /v1/self.",
    ),
    ("query-not-granted", 403, "The query is not one that the route takes", "See detail and GET /v1/self."),
    ("encoding-not-granted", 403, "The route takes no percent-encoding there", "Send the plain characters."),
    ("header-malformed", 400, "A header cannot be sent as it is written", "Leave out control characters."),
    (
        "budget-exhausted",
        403,
        "The run has made all its calls",
        "Open a new run; more attempts cannot succeed.",
    ),
    ("too-many-concurrent", 429, "Too many calls at once", "Wait for one to end."),
    ("breaker-open", 503, "The API asked for a pause", "Try again after Retry-After seconds."),
    ("minter-unavailable", 503, "The minter does not answer", "Try again after Retry-After seconds."),
    ("lease-refused", 503, "The minter refused a credential", "Tell the operator; see the broker's log."),
    ("mint-failed", 503, "The credential could not be made", "Try again after Retry-After seconds."),
    ("credential-unusable", 503, "The credential cannot be attached", "Tell the operator."),
    (
        "upstream-unreachable",
        502,
        "The API could not be reached",
        "Try again later; the call was not delivered. The broker's log has the reason.",
    ),
    (
        "upstream-address-refused",
        502,
        "The API's address is not one that may be called",
        "Tell the operator: private_addresses decides about private ones.",
    ),
    (
        "upstream-broke-off",
        502,
        "The API broke off before its answer was complete",
        "The call may have been delivered: look before you repeat it.",
    ),
    (
        "upstream-malformed",
        502,
        "The API's answer is not well-formed",
        "The call may have been delivered. Tell the operator.",
    ),
    (
        "upstream-timeout",
        504,
        "The API did not answer in time",
        "The call may have been delivered: look before you repeat it.",
    ),
    (
        "response-too-large",
        502,
        "The API's answer is larger than allowed",
        "Ask for less; the limit is in this answer.",
    ),
    (
        "upstream-coding-unsupported",
        502,
        "The API's answer is compressed in a way that cannot be opened",
        "The call was delivered. Tell the operator: only plain, gzip and deflate can be scrubbed.",
    ),
    (
        "credential-reflected",
        502,
        "The API's answer holds the credential",
        "The call was delivered. Tell the operator: the API echoes, or the route should not be granted.",
    ),
    # --- callers and operators (broker) ---
    ("caller-token-invalid", 401, "The caller token is not valid", "See broker callers list."),
    ("profile-unknown", 403, "No such profile for this caller", "Check the name and allowed_callers."),
    ("params-invalid", 422, "A run parameter is missing, unknown or does not fit", "See detail."),
    ("ttl-invalid", 422, "The lifetime is not one that the profile allows", "See detail."),
    ("run-not-found", 404, "There is no such run", "It never was, is another caller's, or is long over."),
    ("run-ended", 409, "The run has ended", "Open a new one."),
    ("too-many-runs", 429, "The caller has too many runs open", "End one."),
    ("idempotency-key-reused", 422, "The Idempotency-Key was used with another body", "Use a new key."),
    (
        "idempotency-key-invalid",
        400,
        "The Idempotency-Key is not printable ASCII of 1 to 255 characters",
        "Mend it.",
    ),
    ("state-unavailable", 503, "The state cannot be written", "Tell the operator; see the log."),
    # --- the minter ---
    ("broker-token-invalid", 401, "The broker credential is not valid here", "See minter brokers list."),
    ("operator-required", 403, "Only an operator may do this", "See operator_uids."),
    ("auditor-required", 403, "Only an auditor or an operator may read this", "See auditor_uids."),
    ("profile-not-allowed", 403, "This broker may not ask for that profile", "See minter brokers list."),
    ("caller-not-allowed", 403, "The profile does not list that caller", "See allowed_callers."),
    (
        "origin-mismatch",
        409,
        "The origin is not the grant's",
        "Reload both programs with the same grants file.",
    ),
    (
        "grant-mismatch",
        409,
        "The grant is not the one the minter has",
        "Reload both programs with the same grants.",
    ),
    ("lease-conflict", 409, "The run has a lease for something else", "Use one run for one purpose."),
    (
        "origin-not-pinned",
        403,
        "The key is pinned to other origins",
        "Run minter keys rebind if that is meant.",
    ),
    ("no-token", 404, "The profile has no token", "A profile without a token needs no lease."),
    ("too-many-leases", 429, "Too many live leases", "End runs; see the limits in minter.toml."),
    ("mint-rate-exceeded", 429, "Credentials are asked for too fast", "Try again after Retry-After seconds."),
    ("run-over", 409, "The run has no time left", "Open a new run."),
    (
        "audit-unavailable",
        503,
        "The audit log cannot be written, so nothing is released",
        "Mend the log's disk.",
    ),
    (
        "checkpoint-unavailable",
        503,
        "No checkpoint of the audit log can be signed or kept",
        "See minter doctor and the log.",
    ),
    ("secret-unavailable", 503, "The secret cannot be read from its source", "See minter doctor."),
    ("issuer-failed", 503, "The issuer did not make a credential", "See minter doctor and the log."),
    (
        "quarantined",
        503,
        "The state was restored and is not confirmed, so nothing is lent or ended",
        "An operator runs minter restore --confirm.",
    ),
    ("not-quarantined", 409, "The state is not in quarantine", "There is nothing to confirm."),
    ("lease-not-found", 404, "There is no such lease", "See minter leases list."),
    ("key-not-found", 404, "There is no such custody key", "See minter keys list."),
    ("key-exists", 409, "The alias or its place is taken", "Choose another; see minter keys list."),
    ("key-in-use", 409, "The custody key is in use", "See detail."),
    ("key-retired", 409, "The custody key was retired and does not come back", "Import a new one under another alias."),
    (
        "rotation-running",
        409,
        "A rotation of this key is running",
        "Finish it with minter rotate ALIAS --finish.",
    ),
    (
        "rotation-not-running",
        409,
        "No rotation of this key is running",
        "Start one with minter rotate ALIAS.",
    ),
    ("rotation-unsupported", 422, "This key cannot be rotated by the minter", "See detail."),
)


class ProblemError(Exception):
    """A refusal or a failure, to be answered as problem+json.

    Deny by raising this; nothing that authorises returns a boolean.
    """

    def __init__(self, code: str, detail: str = "", *, retry_after: float | None = None, **members: Any) -> None:
        """Take the ``code`` from the table; ``retry_after`` is in seconds; ``members`` are sent as they are."""
        self.problem = PROBLEMS[code]
        self.code = code
        self.status = self.problem.status
        self.detail = detail or self.problem.remedy
        self.retry_after = retry_after
        self.members = members
        super().__init__(f"{code}: {self.detail}")

    def body(self, by: By) -> bytes:
        """Return the JSON body."""
        return msgspec.json.encode(
            {
                "type": f"urn:minter-broker:problem:{self.code}",
                "title": self.problem.title,
                "status": self.status,
                "code": self.code,
                "detail": self.detail,
                "by": by,
                **self.members,
            }
        )

    def headers(self, by: By) -> list[tuple[bytes, bytes]]:
        """Return the response headers but Content-Length, as ASGI wants them."""
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            (REFUSED_BY.encode(), by.encode()),
        ]
        if self.retry_after is not None:
            # Whole seconds, rounded up: a client that waits them finds the door open.
            headers.append((b"retry-after", str(max(1, -int(-self.retry_after // 1))).encode()))
        return headers
