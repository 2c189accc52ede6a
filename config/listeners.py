"""Where a program listens, for whom, and within which limits. Pure: :mod:`config.server` binds.

A listener is written ``127.0.0.1:8090``, ``[::1]:8090``, ``unix:PATH`` or ``tls:HOST:PORT``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec
import structlog

from config.problems import By
from config.settings import ListenSettings, TlsSettings

if TYPE_CHECKING:
    from config.http_exchange import Direct

L = TypeVar("L", bound=ListenSettings)

_log = structlog.get_logger("config.listeners")

#: An ASGI 3 application: ``await app(scope, receive, send)``.
App = Callable[[Any, Any, Any], Any]

_TCP: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[0-9A-Za-z.-]+)):(?P<port>[0-9]{1,5})", re.ASCII)
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True)
class Listener:
    """One address to listen on.

    >>> Listener.parse("tls:0.0.0.0:8443").kind
    'tls'
    """

    kind: Literal["tcp", "tls", "unix"]
    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Listener:
        """Read a listener; the settings have made its path absolute.

        Errors: ``ValueError`` says what was expected.
        """
        if text.startswith("unix:"):
            name = text.removeprefix("unix:")
            if not name or "\0" in name or name.startswith("@"):
                raise ValueError("unix: needs the path of a socket")
            return cls("unix", path=name)
        kind: Literal["tcp", "tls"] = "tls" if text.startswith("tls:") else "tcp"
        match = _TCP.fullmatch(text.removeprefix("tls:"))
        if match is None:
            raise ValueError("expected HOST:PORT, [IPV6]:PORT, unix:PATH or tls:HOST:PORT")
        if (port := int(match["port"])) > 65_535:  # noqa: PLR2004 - what a port is
            raise ValueError("a port is at most 65535")
        if match["six"]:
            try:
                return cls(kind, str(ipaddress.IPv6Address(match["six"])), port)
            except ValueError:
                raise ValueError("what stands in [ ] is not an IPv6 address") from None
        return cls(kind, match["host"].lower(), port)

    @property
    def host_name(self) -> str:
        """Return the host as a Host header writes it: IPv6 in brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def is_loopback(self) -> bool:
        """Say whether only this machine can reach it."""
        if self.kind == "unix" or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"unix:{self.path}"
        return f"{'tls:' if self.kind == 'tls' else ''}{self.host_name}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one connection may take. Raising one lets a hostile peer hold more memory or hold it longer."""

    header_bytes: int = 32 * 1024
    """Request line and headers, counted as they arrive: 431."""
    header_count: int = 100
    """Header lines of one request: 431."""
    target_bytes: int = 8 * 1024
    """The request target: 414."""
    header_s: float = 10.0
    """From a connection's start, or a request's first byte, to the end of its headers: 408."""
    body_idle_s: float = 30.0
    """How long a body may pause: 408. Waiting for the application to read does not count."""
    body_rate: int = 256
    """Bytes a second that a body must bring beyond one such pause, so that a drip does not hold a call for ever."""
    keep_alive_s: float = 75.0
    """How long a connection may stay idle between requests."""
    write_idle_s: float = 60.0
    """How long a client may stop reading an answer that waits for it: the connection is cut."""
    max_connections: int = 2048
    """Open connections of the group. The next one takes the place of the connection that has waited longest without an
    active request: an idle one, else one whose head is not complete. When all have one, it is answered 429 and closed.
    """
    max_pipelined: int = 16
    """Requests that may wait behind one that is being answered."""

    @classmethod
    def of(cls, settings: ListenSettings) -> Limits:
        """Return the limits that the settings give."""
        return cls(
            header_bytes=settings.max_header_bytes,
            header_count=settings.max_headers,
            target_bytes=settings.max_target_bytes,
            header_s=float(settings.header_deadline),
            body_idle_s=float(settings.body_deadline),
            keep_alive_s=float(settings.keep_alive),
            max_connections=settings.max_connections,
        )


def affordable(settings: L, open_files: int, *, own: int, each: int) -> L:
    """Return the settings with no more connections than there are open files for; negative: there is no limit.

    ``own``: what the program opens besides; ``each``: what one more connection may take. Else whoever can connect takes
    the last file, and then neither the state nor anything else can be opened.
    """
    most = max(1, (open_files - own) // each)
    if open_files < 0 or most >= settings.max_connections:
        return settings
    _log.warning("few-open-files", open_files=open_files, max_connections=most, hint="raise the limit (LimitNOFILE)")
    return msgspec.structs.replace(settings, max_connections=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class TLSFiles:
    """What a ``tls:`` listener shows, and whom it takes. ``client_ca`` makes it mutual: no certificate, no talk."""

    certificate: str
    key: str
    client_ca: str = ""

    @classmethod
    def of(cls, settings: TlsSettings) -> TLSFiles | None:
        """Return the files that the settings name, or None when they name no certificate."""
        if not settings.certificate:
            return None
        return cls(certificate=settings.certificate, key=settings.key, client_ca=settings.client_ca)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerGroup:
    """One application and the listeners that lead to it.

    ``hosts`` are names a Host header may carry besides the loopback's and the listeners' own; None takes any
    well-formed one. On a Unix socket, which no browser reaches, any well-formed one is taken. ``refuse_browsers``
    refuses any ``Origin``; ``refuse_forwarded`` refuses ``Forwarded``, ``Via`` and ``X-Forwarded-*``.
    ``direct`` answers some targets instead of the application (:class:`config.http_exchange.Direct`).
    ``socket_group`` (a gid) opens Unix sockets to one group. ``on_refused`` is told the code of each refusal that
    never reached the application, for counting.
    """

    app: App
    listeners: tuple[Listener, ...]
    by: By
    limits: Limits = field(default_factory=Limits)
    hosts: frozenset[str] | None = frozenset()
    refuse_browsers: bool = True
    refuse_forwarded: bool = False
    socket_group: int | None = None
    tls: TLSFiles | None = None
    direct: Direct | None = None
    on_refused: Callable[[str], None] | None = None

    def allowed_hosts(self) -> frozenset[str] | None:
        """Return every host name that is taken on TCP, in lower case, or None for any."""
        if self.hosts is None:
            return None
        own = {listener.host_name for listener in self.listeners if listener.kind != "unix"}
        return _LOOPBACK_NAMES | own | {name.lower() for name in self.hosts}


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a Unix socket, as the kernel says (``SO_PEERCRED``)."""

    uid: int
    gid: int
    pid: int
