"""The head of a call: which headers pass, what is added, and what frames the body.

It is built anew from an allow list; what the code sent besides does not pass. Header values pass as the bytes they
are, or the call is refused. What does not change from call to call is put together once: for each run and profile
(:class:`Prepared`), and of that for each lease (:class:`Dressed`).
"""

from __future__ import annotations

import re
from base64 import b64decode
from typing import TYPE_CHECKING, Final

from broker.scrub import Needles
from config.problems import ProblemError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.egress import Egress
    from broker.leases import Lease
    from broker.placements import Placement, Registry
    from broker.run import RunProfile
    from broker.wire.pool import Origin

Headers = list[tuple[bytes, bytes]]

#: Some APIs refuse calls that do not name their client. The code's own is dropped unless ``request_headers`` lists it.
_USER_AGENT: Final = (b"user-agent", b"minter-broker")
#: While an answer is scrubbed it is to come as a whole and as it is.
_IDENTITY: Final = (b"accept-encoding", b"identity")
_NOT_WHILE_SCRUBBING: Final = frozenset({b"accept-encoding", b"range", b"if-range"})

#: All bytes but controls; a tab is none here.
SENDABLE: Final = bytes(byte for byte in range(256) if byte == 9 or (byte >= 32 and byte != 127))  # noqa: PLR2004
_SENDABLE_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SENDABLE_TARGET: Final = re.compile(rb"/[!-~]*")
#: Methods whose body is expected: that there is none has to be said (RFC 9110 section 8.6).
_SAYS_ITS_LENGTH: Final = frozenset({"POST", "PUT", "PATCH"})


class Prepared:
    """What is the same for every call of a run with one profile, until the grants are reloaded.

    ``fixed`` are headers that every call gets; ``prefix`` is the profile's ``run_token_prefix``; ``health`` the target
    of its health check.
    """

    __slots__ = ("_bare", "_dressed", "_lease", "answers_pass", "fixed", "health", "origin", "passes", "placement",
                 "prefix", "scrub")  # fmt: skip

    def __init__(self, granted: RunProfile, origin: Origin, placement: Placement) -> None:
        """Take the profile and where its calls go."""
        frozen = granted.frozen
        self.origin = origin
        self.placement = placement
        self.prefix = frozen.run_token_prefix.encode("ascii")
        self.scrub = granted.scrub
        self.fixed: Headers = list(frozen.fixed_headers)
        names = {name for name, _ in self.fixed}
        self.passes = granted.request_headers - names
        if _USER_AGENT[0] not in self.passes | names:
            self.fixed.append(_USER_AGENT)
        # The length frames the answer, whoever lists it.
        self.answers_pass = granted.response_headers - {b"content-length"}
        health, now = frozen.health_check, granted.current
        # As with a route: both grants must name it.
        named = health is not None and now is not None and now[0].health_check == health
        self.health = health.text.partition(" ")[2].encode("ascii") if health is not None and named else None
        self._bare = Dressed(self, None)
        self._lease: Lease | None = None
        self._dressed = self._bare

    def dressed(self, lease: Lease | None) -> Dressed:
        """Return what is the same for every call with ``lease``; None where nothing is attached.

        Errors: ``ProblemError("credential-unusable")``.
        """
        if lease is None:
            return self._bare
        if lease is not self._lease:
            self._dressed = Dressed(self, lease)
            self._lease = lease
        return self._dressed


class Dressed:
    """What is the same for every call with one credential, or without one.

    ``needles`` are the forms of the credential that must not come back, None when answers are not scrubbed.
    """

    __slots__ = ("_added", "_constant", "_lease", "_prepared", "needles", "passes")

    def __init__(self, prepared: Prepared, lease: Lease | None) -> None:
        """Take what is attached. Errors: ``ProblemError("credential-unusable")``."""
        self._prepared = prepared
        self._lease = lease
        self.passes = prepared.passes
        added = prepared.fixed
        scrubbing = lease is not None and prepared.scrub != "off"
        if scrubbing:
            self.passes -= _NOT_WHILE_SCRUBBING
            added = [*(header for header in added if header[0] not in _NOT_WHILE_SCRUBBING), _IDENTITY]
        self._added = added
        attached: Headers = []
        #: The lines that every call has, when what is attached does not depend on the call.
        self._constant: bytes | None = None
        if lease is not None and getattr(prepared.placement, "constant", False):
            added, _ = prepared.placement.place(added, b"/", lease.credential)
            self.passes -= {name for name, _ in added}
            attached = [header for header in added if header not in self._added]
        self.needles = Needles.of(lease.credential, _whole(attached)) if lease is not None and scrubbing else None
        if lease is not None and not attached:
            return
        self._constant = b"\r\nhost: %b\r\n%b" % (prepared.origin.authority, _lines(added))

    def head(self, method: str, target: bytes, passed: Headers, length: int | None) -> bytes:
        """Return a complete head; ``length`` is None when the body comes in chunks.

        Errors: ``ProblemError``: ``credential-unusable``, ``query-not-granted`` as the placement says.
        """
        constant = self._constant
        if constant is None:
            target, passed, constant = self._placed(target, passed)
        parts = [method.encode("ascii"), b" ", target, b" HTTP/1.1", constant]
        passes = self.passes
        for name, value in passed:
            if name in passes:
                parts += (name, b": ", value, b"\r\n")
        if length is None:
            parts.append(b"transfer-encoding: chunked\r\n")
        elif length or method in _SAYS_ITS_LENGTH:
            parts.append(b"content-length: %d\r\n" % length)
        parts.append(b"\r\n")
        return b"".join(parts)

    def _placed(self, target: bytes, passed: Headers) -> tuple[bytes, Headers, bytes]:
        prepared, lease = self._prepared, self._lease
        if lease is None:
            raise ProblemError("credential-unusable")
        passed = [header for header in passed if header[0] in self.passes]
        headers, target = prepared.placement.place(passed + self._added, target, lease.credential)
        if not _SENDABLE_TARGET.fullmatch(target):
            raise ProblemError("credential-unusable", "the credential cannot stand in a target")
        return target, [], b"\r\nhost: %b\r\n%b" % (prepared.origin.authority, _lines(headers))


def _whole(attached: Headers) -> list[bytes]:
    """Return what is attached as it stands in the headers, and the pair of user and secret that it may encode."""
    found = []
    for _, value in attached:
        word = value.rpartition(b" ")[2]
        found.append(word)
        if value[:6].lower() == b"basic ":
            found.append(b64decode(word))
    return found


def prepare(granted: RunProfile, egress: Egress, placements: Registry) -> Prepared:
    """Prepare a run's profile for its calls, and keep that until the next reload."""
    frozen = granted.frozen
    origin = egress.origin(frozen.base_url, private=granted.private_addresses)
    prepared = granted.wire = Prepared(granted, origin, placements.build(frozen.placement))
    return prepared


def passed_headers(passes: frozenset[bytes], headers: Headers) -> Headers:
    """Return the code's headers that pass.

    Errors: ``ProblemError("header-malformed")``.
    """
    passed: Headers = []
    for header in headers:
        if header[0] in passes:
            value = header[1]
            if value.translate(None, SENDABLE) or not (value.isascii() or _is_utf8(value)):
                raise ProblemError("header-malformed")
            passed.append(header)
    return passed


def _lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return header lines. What a placement made is checked: a line break in it would be another header.

    Errors: ``ProblemError("credential-unusable")``.
    """
    lines = []
    for name, value in headers:
        if not _SENDABLE_NAME.fullmatch(name) or value.translate(None, SENDABLE):
            raise ProblemError("credential-unusable", "a header holds what no header may")
        lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join(lines)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
