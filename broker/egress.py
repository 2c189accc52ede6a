"""Every socket that the broker opens: calls to APIs, and requests to the minter.

Calls go to the profile's origin only. Nothing of the environment has a say: no proxy, no ``.netrc``, no trust file, no
key log. Every address that a name resolves to is checked, and a checked one is dialled; TLS is verified against the
name. What travels on a connection is decided in ``broker/wire/``. This is the one file that knows of aiohttp, which
carries the requests to the minter.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import aiohappyeyeballs
import aiohttp
import structlog

from broker.wire.pool import Origin, Tell
from broker.wire.upstream import Owner, UpstreamConnection
from config import addresses
from config.errors import ConfigurationError, Fault
from config.tls import client_context

if TYPE_CHECKING:
    from config.settings import TlsSettings, UpstreamSettings

log = structlog.get_logger("broker.egress")

#: How long a resolved address is used for new connections. It is checked each time.
_DNS_TTL_S: Final = 10
#: How long the first address may take before the next is tried beside it (RFC 8305).
_NEXT_ADDRESS_S: Final = 0.25
#: Returns the addresses of a host, as text, for a port.
Resolve = Callable[[str, int], Awaitable[list[str]]]


async def system_resolve(host: str, port: int) -> list[str]:
    """Ask the system. Errors: ``OSError``."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except UnicodeError:
        raise OSError("not a host name") from None
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
        try:
            # Who gives up leaves the others their answer.
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            if asking.cancelled():  # by close(), which is not for the caller's task to end with
                raise ConnectionAbortedError from None
            raise

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
        _, connection = await loop.create_connection(
            lambda: UpstreamConnection(owner),
            sock=sock,
            ssl=self._tls,
            server_hostname=self._host if self._tls is not None else None,
        )
        return connection


def _address_info(address: str, port: int) -> tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]:
    tcp = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
    if ":" in address:
        return (socket.AF_INET6, *tcp, (address, port, 0, 0))
    return (socket.AF_INET, *tcp, (address, port))


class Egress:
    """The way to the APIs."""

    def __init__(
        self, settings: UpstreamSettings, *, resolve: Resolve = system_resolve, tell: Tell | None = None
    ) -> None:
        """Take the settings; ``resolve`` is what asks for addresses; ``tell`` hears why an API cannot be reached.

        Errors: ``ConfigurationError`` when ``ca_file`` cannot be read.
        """
        self._settings = settings
        self._tls = client_context(settings.ca_file)
        self._tls.set_alpn_protocols(["http/1.1"])
        self._known = Addresses(resolve)
        self._tell = tell or _log_it
        self._origins: dict[tuple[str, bool], Origin] = {}

    def origin(self, base_url: str, *, private: bool) -> Origin:
        """Return the connections to the origin ``base_url``; ``private`` is ``private_addresses``."""
        key = (base_url, private)
        origin = self._origins.get(key)
        if origin is None:
            dialler = Dialler(base_url, self._known, self._tls, private=private)
            origin = self._origins[key] = Origin(
                dialler.authority,
                dialler.dial,
                tell=self._tell,
                max_connections=self._settings.max_connections,
                keep_alive_s=float(self._settings.keep_alive),
                connect_timeout_s=float(self._settings.connect_timeout),
            )
        return origin

    async def close(self) -> None:
        """Close every connection."""
        self._known.close()
        while self._origins:
            _, origin = self._origins.popitem()
            origin.close()


def _log_it(origin: str, why: str) -> None:
    """Log why an API cannot be reached: the code does not learn it, and an operator can do something about it."""
    if why:
        log.warning("upstream-unreachable", origin=origin, reason=why)
    else:
        log.info("upstream-reachable-again", origin=origin)


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
