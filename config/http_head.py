"""What the head of a request must be before an application sees it: the parser's callbacks, which refuse by raising.

Whatever could be read in two ways is refused: both lengths, a length twice, odd codings, trailers, a target that is
not in origin form, a second ``Host``. The parser (llhttp, strict) refuses more below: bare line feeds, folded lines,
space before a colon, control characters. Where the two overlap, framing is worth saying twice.
"""

from __future__ import annotations

import abc
import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from config.listeners import Listener, ListenerGroup
from config.problems import ProblemError

# Where a connection stands in reading: between requests, in a head, in a body.
IDLE: Final = 0
HEAD: Final = 1
BODY: Final = 2

#: What may stand in a target: visible ASCII without the fragment's mark.
_IN_TARGETS: Final = bytes(set(range(0x21, 0x7F)) - set(b"#"))
_HOST: Final = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z_](?:[0-9A-Za-z_.-]*[0-9A-Za-z_])?)(?::[0-9]{1,5})?")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_WITH_BODY: Final = frozenset({b"POST", b"PUT", b"PATCH"})
_REFUSED_METHODS: Final = frozenset({b"CONNECT", b"TRACE"})


class HeadReader(HttpToolsProtocol):
    """The part of a connection that reads heads; :class:`config.http_protocol.Protocol` is the rest."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        loop: asyncio.AbstractEventLoop,
        *,
        group: ListenerGroup,
        hosts: frozenset[str] | None,
        listener: Listener,
    ) -> None:
        super().__init__(config, server_state, {}, loop)
        self.group = group
        self.limits = group.limits
        self.max_headers = group.limits.header_count
        self.refuse_forwarded = group.refuse_forwarded
        self.listener = listener
        #: Host names that are taken, None for any: on a Unix socket, which no browser reaches, names protect nothing.
        self.hosts = None if listener.kind == "unix" else hosts
        self.own_host = ""
        self.phase = IDLE
        #: Bytes that came in since the head began, as far as they are its own.
        self.fed = 0
        self.url = b""
        self.host: bytes | None = None
        self.known_host: bytes | None = None
        #: 0 no body, None a chunked one.
        self.body_length: int | None = 0
        self.has_length = False

    @abc.abstractmethod
    def begin(self, version: str, method: bytes) -> None:
        """Take a request whose head is right."""

    def on_message_begin(self) -> None:
        """Begin a request."""
        if self.phase != HEAD:
            # It began in the middle of a chunk: how many of its bytes are there is not known, but one is.
            self.phase = HEAD
            self.fed = 1
        self.url = b""
        self.headers = []
        self.host = None
        self.body_length = 0
        self.has_length = False
        self.expect_100_continue = False

    def on_url(self, url: bytes) -> None:
        """Gather the target."""
        self.url += url
        if len(self.url) > self.limits.target_bytes:
            raise ProblemError("target-too-long", limit=self.limits.target_bytes)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Gather a header line; look at those that frame, route or forbid."""
        if self.phase == BODY:
            raise ProblemError("request-malformed", "trailers are not taken")
        name = name.lower()
        look = _LOOKED_AT.get(name)
        if look is not None:
            look(self, value.strip(b" \t"))
        elif self.refuse_forwarded and (name in {b"forwarded", b"via"} or name.startswith(b"x-forwarded")):
            raise ProblemError("forwarding-not-allowed")
        self.headers.append((name, value))
        if len(self.headers) > self.max_headers:
            limit = self.max_headers
            raise ProblemError("headers-too-large", f"a request may have at most {limit} header lines", limit=limit)

    def on_headers_complete(self) -> None:
        """Judge the head as a whole."""
        version = self.parser.get_http_version()
        method = self.parser.get_method()
        if version not in {"1.1", "1.0"}:
            raise ProblemError("version-not-supported")
        if method in _REFUSED_METHODS:
            raise ProblemError("method-not-supported")
        if self.parser.should_upgrade():
            raise ProblemError("upgrade-refused")
        if self.url[:1] != b"/" or self.url.translate(None, _IN_TARGETS):
            raise ProblemError("target-malformed", "the target is an absolute path and perhaps a query, in ASCII")
        if self.fed > self.limits.header_bytes and self._head_size() > self.limits.header_bytes:
            raise self.too_large()
        if self.host is None or self.host != self.known_host:
            self._check_host(self.host)
        if version == "1.0":
            self._check_old(method)
        self.begin(version, method)

    def too_large(self) -> ProblemError:
        """Return the refusal of a head that has too many bytes."""
        limit = self.limits.header_bytes
        return ProblemError("headers-too-large", f"the headers may have at most {limit} bytes", limit=limit)

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def look_at_host(self, value: bytes) -> None:
        """Take the one Host."""
        if self.host is not None:
            raise ProblemError("request-malformed", "there are two Host headers")
        self.host = value

    def look_at_length(self, value: bytes) -> None:
        """Take the one plain length."""
        if self.has_length or self.body_length is None or not _LENGTH.fullmatch(value):
            raise ProblemError("request-malformed", "the body's length is not one plain number")
        self.has_length = True
        self.body_length = int(value)

    def look_at_coding(self, value: bytes) -> None:
        """Take the one coding there is."""
        if self.has_length or self.body_length is None or value.lower() != b"chunked":
            raise ProblemError("request-malformed", "a body is chunked, once, and has no other coding")
        self.body_length = None

    def look_at_expect(self, value: bytes) -> None:
        """Take the one expectation there is."""
        if value.lower() != b"100-continue":
            raise ProblemError("expectation-unknown")
        self.expect_100_continue = True

    def look_at_upgrade(self, _value: bytes) -> None:
        """Refuse to become another protocol."""
        raise ProblemError("upgrade-refused")

    def look_at_origin(self, _value: bytes) -> None:
        """Refuse web pages."""
        if self.group.refuse_browsers:
            raise ProblemError("origin-not-allowed")

    def _check_host(self, host: bytes | None) -> None:
        if host is None:
            raise ProblemError("request-malformed", "there is no Host header")
        match = _HOST.fullmatch(host)
        if match is None:
            raise ProblemError("request-malformed", "the Host header is not a host and perhaps a port")
        if self.hosts is not None:
            name = match[1].decode("ascii").lower()
            # The address that the connection came to is ours, whatever its interface; only names can lie.
            if name not in self.hosts and name.strip("[]") != self.own_host:
                raise ProblemError("host-not-allowed")
        self.known_host = host

    def _check_old(self, method: bytes) -> None:
        if self.body_length is None:
            raise ProblemError("request-malformed", "HTTP/1.0 has no chunked bodies")
        if method in _WITH_BODY and not self.has_length:
            raise ProblemError("length-required")


#: The header lines that are looked at while they are gathered.
_LOOKED_AT: Final[Mapping[bytes, Callable[[HeadReader, bytes], None]]] = {
    b"host": HeadReader.look_at_host,
    b"content-length": HeadReader.look_at_length,
    b"transfer-encoding": HeadReader.look_at_coding,
    b"expect": HeadReader.look_at_expect,
    b"upgrade": HeadReader.look_at_upgrade,
    b"http2-settings": HeadReader.look_at_upgrade,
    b"origin": HeadReader.look_at_origin,
}
