"""Every byte that the broker sends out: calls to APIs, and requests to the minter.

Calls go to the profile's origin only. Nothing of the environment has a say: no proxy, no ``.netrc``, no trust file, no
key log. Every address that a name resolves to is checked, and a checked one is dialled. Redirects are answers. A call
is sent once: there is no code here that would send one again.

aiohttp's session is left out for calls, because it re-sends idempotent ones; its connector, request and response are
used beneath it. This is the one file that knows of aiohttp.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import aiohappyeyeballs
import aiohttp
import structlog
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from broker.wire.pool import Origin as WireOrigin
from broker.wire.upstream import Owner, UpstreamConnection
from config import addresses
from config.errors import ConfigurationError, Fault
from config.problems import ProblemError
from config.tls import client_context

if TYPE_CHECKING:
    from config.settings import TlsSettings, UpstreamSettings

log = structlog.get_logger("broker.egress")

Headers = Iterable[tuple[bytes, bytes]]

#: How long a resolved address is used for new connections. It is checked each time.
_DNS_TTL_S: Final = 10
#: How long the first address may take before the next is tried beside it (RFC 8305).
_NEXT_ADDRESS_S: Final = 0.25
#: How much of an answer waits here while the code does not read.
_READ_BUFFER: Final = 65_536
#: Limits of an answer's head.
_MAX_LINE: Final = 16_384
_MAX_HEADERS: Final = 128
#: A body on these methods may be overlooked by an API and taken for the next request: the connection is not used again.
_BODY_UNUSUAL: Final = frozenset({"GET", "HEAD", "DELETE"})
#: What an answer can have: interim ones are read over, and 101 would make it another protocol.
_STATUSES: Final = range(200, 600)


class CheckedResolver(AbstractResolver):
    """Resolves a name and refuses it if one of its addresses may not be dialled."""

    def __init__(self, inner: AbstractResolver, *, private: bool, loopback: bool) -> None:
        """Take who resolves, and what :func:`config.addresses.check` takes."""
        self._inner = inner
        self._private = private
        self._loopback = loopback

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        """Return the addresses of ``host``, all of them checked."""
        found = await self._inner.resolve(host, port, family)  # type: ignore[arg-type]
        for address in found:
            addresses.check(address["host"], private=self._private, loopback=self._loopback)
        return found

    async def close(self) -> None:
        """Close what resolves."""
        await self._inner.close()


class _Request(ClientRequest):
    """A request with the headers that it was given, and framing: aiohttp adds none of its own."""

    _NONE_OF_ITS_OWN: Final = CIMultiDict[None]({"Content-Type": None})

    def update_auto_headers(self, skip_auto_headers: Iterable[str] | None) -> None:  # noqa: ARG002
        self._skip_auto_headers = self._NONE_OF_ITS_OWN


class _Connector(aiohttp.TCPConnector):
    """The connections of one policy."""

    async def connect(
        self,
        req: ClientRequest,
        traces: list[aiohttp.tracing.Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's signature
    ) -> Connection:
        while True:
            connection = await super().connect(req, traces, timeout)
            # An idle connection on which something arrived holds an answer that nobody asked for: it would be taken
            # for the answer to the next call.
            if connection.protocol is None or not connection.protocol.should_close:
                return connection
            connection.close()


class Answer:
    """An API's answer: status and headers as received, then the body piece by piece."""

    __slots__ = ("_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        """Take a response whose head has arrived."""
        self._response = response
        self.status = response.status
        self.headers: tuple[tuple[bytes, bytes], ...] = response.raw_headers

    async def read(self) -> bytes:
        """Return what has arrived of the body, waiting for something; empty at its end.

        Errors: ``ProblemError("upstream-broke-off")`` when it ends before it is complete.
        """
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, HttpProcessingError, OSError):
            raise ProblemError("upstream-broke-off") from None

    def complete(self) -> bool:
        """Say whether everything has been read."""
        return self._response.content.at_eof()

    def close(self) -> None:
        """Let go of the connection: it is used again only if the answer was read to its end."""
        self._response.close()


class Origin:
    """One origin under one policy: where calls of a profile go."""

    __slots__ = ("_base", "_connector", "_refused", "_timeout")

    def __init__(self, base_url: str, connector: _Connector, timeout: aiohttp.ClientTimeout, *, refused: bool) -> None:
        """Take the origin without a trailing slash; ``refused`` says that its literal address may not be dialled."""
        self._base = base_url
        self._connector = connector
        self._timeout = timeout
        self._refused = refused

    async def connect(
        self, method: str, target: bytes, headers: Headers, body: bytes | AsyncIterable[bytes] | None
    ) -> Sending:
        """Return a connection with the call ready to be sent on it; nothing has been sent yet.

        ``headers`` are all that are sent but ``Host`` and the framing, which follows from ``body``: with a
        ``content-length`` among the headers that many bytes, else in chunks.
        Errors: ``ProblemError``: ``upstream-unreachable``, ``upstream-address-refused``, ``target-malformed``,
        ``header-malformed``.
        """
        if self._refused:
            raise ProblemError("upstream-address-refused", "the origin is an address that may not be called")
        text = target.decode("ascii")
        url = URL(self._base + text, encoded=True)
        if url.raw_path_qs != text:
            # Match and send one byte string: what the library would send otherwise is not sent.
            raise ProblemError("target-malformed")
        try:
            request = _Request(
                method,
                url,
                headers=[(name.decode("ascii"), value.decode("utf-8")) for name, value in headers],
                data=body,
                loop=asyncio.get_running_loop(),
            )
        except ValueError:
            raise ProblemError("header-malformed", "a header is not UTF-8 text") from None
        try:
            connection = await self._connector.connect(request, [], self._timeout)
        except (aiohttp.ClientError, OSError):
            raise ProblemError("upstream-unreachable", retry_after=1) from None
        return Sending(request, connection, once=body is not None and method in _BODY_UNUSUAL)


class Sending:
    """A call that is about to be sent on a connection of its own."""

    __slots__ = ("_connection", "_once", "_request")

    def __init__(self, request: _Request, connection: Connection, *, once: bool) -> None:
        """Take what :meth:`Origin.connect` made; ``once`` closes the connection after the answer."""
        self._request = request
        self._connection = connection
        self._once = once

    async def send(self) -> Answer:
        """Send the call and return the answer once its head has arrived.

        Errors: ``ProblemError``: ``upstream-broke-off``, ``upstream-malformed``.
        """
        protocol = self._connection.protocol
        if protocol is None:
            raise ProblemError("upstream-broke-off")
        if self._once:
            protocol.force_close()
        protocol.set_response_params(
            skip_payload=self._request.method == "HEAD",
            read_until_eof=True,
            auto_decompress=False,
            read_bufsize=_READ_BUFFER,
            max_line_size=_MAX_LINE,
            max_field_size=_MAX_LINE,
            max_headers=_MAX_HEADERS,
        )
        response = None
        try:
            response = await self._request.send(self._connection)
            await response.start(self._connection)
            _check_status(response.status)
        except BaseException as error:
            if response is not None:
                response.close()
            self._connection.close()
            if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError | ValueError):
                raise ProblemError("upstream-malformed") from None
            if isinstance(error, aiohttp.ClientError | OSError):
                raise ProblemError("upstream-broke-off") from None
            raise
        return Answer(response)


def _check_status(status: int) -> None:
    if status not in _STATUSES:
        raise ProblemError("upstream-malformed", "the status is not one that an answer has")


#: Returns the addresses of a host, as text, for a port.
Resolve = Callable[[str, int], Awaitable[list[str]]]


async def system_resolve(host: str, port: int) -> list[str]:
    """Ask the system. Errors: ``OSError``."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [str(address[0]) for *_, address in found]


class Addresses:
    """What names resolved to, for a short while; who asks for the same name at once shares the answer."""

    def __init__(self, resolve: Resolve) -> None:
        """Take who resolves."""
        self._resolve = resolve
        self._known: dict[tuple[str, int], tuple[float, list[str]]] = {}
        self._asking: dict[tuple[str, int], asyncio.Task[list[str]]] = {}

    async def of(self, host: str, port: int) -> list[str]:
        """Return the addresses of ``host``, unchecked. Errors: ``OSError``."""
        key = (host, port)
        until, known = self._known.get(key, (0.0, []))
        if asyncio.get_running_loop().time() < until:
            return known
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.create_task(self._ask(key))
        # Who gives up leaves the others their answer.
        return await asyncio.shield(asking)

    async def _ask(self, key: tuple[str, int]) -> list[str]:
        try:
            found = await self._resolve(*key)
        finally:
            del self._asking[key]
        self._known[key] = (asyncio.get_running_loop().time() + _DNS_TTL_S, found)
        return found

    def close(self) -> None:
        """Stop asking."""
        for asking in list(self._asking.values()):
            asking.cancel()


class Dialler:
    """Opens connections to one origin, under one policy on addresses."""

    def __init__(self, url: str, known: Addresses, tls: ssl.SSLContext, *, private: bool) -> None:
        """Take the origin as a URL; ``private`` is ``private_addresses``."""
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = tls if parts.scheme == "https" else None
        self._port = parts.port or (80 if self._tls is None else 443)
        self._known = known
        self._private = private
        self._loopback = addresses.is_loopback_host(self._host)
        self._literal = addresses.is_literal(self._host)
        self.authority = parts.netloc.encode("ascii")

    async def dial(self, owner: Owner) -> UpstreamConnection:
        """Return a connection for ``owner``: every address of the name is checked, and a checked one dialled.

        Errors: ``OSError``; ``ProblemError("upstream-address-refused")``.
        """
        found = [self._host] if self._literal else await self._known.of(self._host, self._port)
        for address in found:
            addresses.check(address, private=self._private, loopback=self._loopback)
        loop = asyncio.get_running_loop()
        try:
            sock = await aiohappyeyeballs.start_connection(
                [_address_info(address, self._port) for address in found],
                happy_eyeballs_delay=_NEXT_ADDRESS_S,
                loop=loop,
            )
        except (RuntimeError, ValueError) as error:  # as uvloop has it, and where there is no address at all
            raise ConnectionError(type(error).__name__) from None
        try:
            _, connection = await loop.create_connection(
                lambda: UpstreamConnection(owner),
                sock=sock,
                ssl=self._tls,
                server_hostname=self._host if self._tls is not None else None,
            )
        except BaseException:
            with contextlib.suppress(OSError):
                sock.close()
            raise
        return connection


def _address_info(address: str, port: int) -> tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]:
    tcp = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
    if ":" in address:
        return (socket.AF_INET6, *tcp, (address, port, 0, 0))
    return (socket.AF_INET, *tcp, (address, port))


class Egress:
    """The way to the APIs: one connector for each policy on addresses."""

    def __init__(
        self,
        settings: UpstreamSettings,
        *,
        resolver: type[AbstractResolver] = aiohttp.ThreadedResolver,
        resolve: Resolve = system_resolve,
    ) -> None:
        """Take the settings; ``resolve`` is what asks for addresses.

        Errors: ``ConfigurationError`` when ``ca_file`` cannot be read.
        """
        self._settings = settings
        self._resolver = resolver
        self._tls = client_context(settings.ca_file)
        self._tls.set_alpn_protocols(["http/1.1"])
        self._known = Addresses(resolve)
        self._pools: dict[tuple[str, bool], WireOrigin] = {}
        self._connectors: dict[tuple[bool, bool], _Connector] = {}
        self._origins: dict[tuple[str, bool], Origin] = {}
        connect_s = float(settings.connect_timeout)
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_s, sock_connect=connect_s)

    def origin(self, base_url: str, host: str, *, private: bool) -> Origin:
        """Return the origin ``base_url``, whose host is ``host``; ``private`` is ``private_addresses``."""
        key = (base_url, private)
        origin = self._origins.get(key)
        if origin is None:
            loopback = addresses.is_loopback_host(host)
            refused = False
            if addresses.is_literal(host):
                # A literal address is not resolved: it is checked here, once, as it cannot change.
                try:
                    addresses.check(host.strip("[]"), private=private, loopback=loopback)
                except ProblemError:
                    refused = True
            connector = self._connector(private=private, loopback=loopback)
            origin = self._origins[key] = Origin(base_url, connector, self._timeout, refused=refused)
        return origin

    def pool(self, base_url: str, *, private: bool) -> WireOrigin:
        """Return the connections to the origin ``base_url``; ``private`` is ``private_addresses``."""
        key = (base_url, private)
        pool = self._pools.get(key)
        if pool is None:
            dialler = Dialler(base_url, self._known, self._tls, private=private)
            pool = self._pools[key] = WireOrigin(
                dialler.authority,
                dialler.dial,
                max_connections=self._settings.max_connections,
                keep_alive_s=float(self._settings.keep_alive),
                connect_timeout_s=float(self._settings.connect_timeout),
            )
        return pool

    def _connector(self, *, private: bool, loopback: bool) -> _Connector:
        policy = (private, loopback)
        connector = self._connectors.get(policy)
        if connector is None:
            connector = self._connectors[policy] = _Connector(
                limit=0,
                limit_per_host=self._settings.max_connections,
                keepalive_timeout=float(self._settings.keep_alive),
                ttl_dns_cache=_DNS_TTL_S,
                ssl=self._tls,
                resolver=CheckedResolver(self._resolver(), private=private, loopback=loopback),
            )
        return connector

    async def close(self) -> None:
        """Close every connection."""
        self._known.close()
        while self._pools:
            _, pool = self._pools.popitem()
            pool.close()
        self._origins.clear()
        while self._connectors:
            _, connector = self._connectors.popitem()
            await connector.close(abort_ssl=True)


def _why(error: Exception) -> str:
    """Say what went wrong with a connection of ours: the system's words where there are some, never an address."""
    number = error.os_error.errno if isinstance(error, aiohttp.ClientConnectorError) else None
    return os.strerror(number) if number and number > 0 else type(error).__name__


class MinterTransport:
    """HTTP to the minter: over its Unix socket, or with mutual TLS."""

    def __init__(self, address: str, tls: TlsSettings | None = None) -> None:
        """Take ``unix:PATH`` or ``tls:HOST:PORT``; ``tls`` is our certificate and the minter's authority.

        Errors: ``ConfigurationError`` for another address, or a certificate that cannot be read.
        """
        self._address = address
        self._context: ssl.SSLContext | None = None
        self._session: aiohttp.ClientSession | None = None
        scheme, _, rest = address.partition(":")
        if scheme == "unix" and rest:
            self._base = "http://minter"
            self._path = rest
        elif scheme == "tls" and rest and tls is not None and tls.certificate and tls.key:
            self._base = f"https://{rest}"
            self._path = ""
            self._context = client_context(tls.client_ca)
            try:
                self._context.load_cert_chain(tls.certificate, tls.key)
            except (OSError, ssl.SSLError):
                raise ConfigurationError([Fault("minter_tls", "certificate and key cannot be read")]) from None
        else:
            raise ConfigurationError(
                [Fault("minter", "expected unix:PATH, or tls:HOST:PORT with minter_tls.certificate and minter_tls.key")]
            )

    async def request(
        self, method: str, path: str, *, authorization: str, body: bytes | None, timeout_s: float
    ) -> tuple[int, str | None, bytes]:
        """Send a request and return status, ``Retry-After`` and body.

        Errors: ``OSError`` when the minter cannot be reached, breaks off or takes too long.
        """
        headers = {"Authorization": authorization, "Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._open().request(
                method, self._base + path, data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                return response.status, response.headers.get("Retry-After"), await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise OSError(_why(error)) from None

    async def lines(self, path: str, *, authorization: str, idle_s: float) -> AsyncIterator[bytes]:
        """Yield the lines of a stream until it ends; ``idle_s`` without one is an error.

        Errors: ``OSError`` when the minter cannot be reached, refuses or breaks off.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=idle_s, sock_read=idle_s)
        try:
            async with self._open().get(
                self._base + path, headers={"Authorization": authorization}, timeout=timeout, allow_redirects=False
            ) as response:
                if response.status != 200:  # noqa: PLR2004 - what a stream begins with
                    raise OSError(f"status {response.status}")
                async for line in response.content:
                    yield line
        except (aiohttp.ClientError, TimeoutError) as error:
            raise OSError(_why(error)) from None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector: aiohttp.BaseConnector
            if self._context is None:
                connector = aiohttp.UnixConnector(self._path, limit=0)
            else:
                connector = aiohttp.TCPConnector(limit=0, ssl=self._context)
            self._session = aiohttp.ClientSession(
                connector=connector,
                trust_env=False,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers={"User-Agent", "Accept-Encoding", "Accept"},
            )
        return self._session

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None
