"""The minter's only HTTP client: to issuers, and of its own command line to the running minter over the admin socket.

No proxy and no trust file from the environment, no redirect, no cookie, no retry; an answer has a time and a size
limit. An issuer is one origin that an operator wrote down: https, or http on the loopback; every address that its name
resolves to is checked, and a checked one is dialled.
"""

from __future__ import annotations

import functools
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

import aiohttp
import yarl
from aiohttp.abc import AbstractResolver, ResolveResult

from config import addresses
from config.origin import parse_origin
from config.problems import ProblemError
from config.secret import Secret
from config.tls import client_context

#: An answer larger than this is a fault; audit and lease lists are read in pages far below it.
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
#: What an issuer says about a credential or a list of them.
MAX_ISSUER_BYTES: Final = 4 * 1024 * 1024
#: An issuer that asks for a longer pause is asked again after this one.
_MAX_RETRY_AFTER_S: Final = 3600.0
_SECONDS: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


class EgressError(Exception):
    """No answer. ``reason`` is a short phrase without addresses or values.

    ``unsent``: not a byte of the request has left, so it has done nothing.
    """

    def __init__(self, reason: str, *, unsent: bool = False) -> None:
        self.reason = reason
        self.unsent = unsent
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. The body may be a problem: the status says so. ``retry_after`` is an issuer's, in seconds.

    ``date`` is what an issuer's clock says, as it writes it.
    """

    status: int
    body: bytes
    retry_after: float | None = None
    date: str = ""


async def ask(
    socket_path: str,
    method: str,
    path: str,
    *,
    query: Mapping[str, str] | None = None,
    body: bytes | None = None,
    timeout_s: float = 30.0,
) -> Answer:
    """Send one request over the Unix socket at ``socket_path`` and return the whole answer.

    ``path`` is sent as it is: what others chose in it is percent-encoded already.

    Errors: :class:`EgressError`; ``PermissionError`` when the socket may not be opened.
    """
    url = yarl.URL(f"http://localhost{path}" + (f"?{urlencode(query)}" if query else ""), encoded=True)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    timeout = aiohttp.ClientTimeout(total=timeout_s, connect=5.0)
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(socket_path),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Accept-Encoding"),
                trust_env=False,
                timeout=timeout,
            ) as session,
            session.request(method, url, data=body, headers=headers, allow_redirects=False) as response,
        ):
            chunks = bytearray()
            async for chunk in response.content.iter_any():
                chunks += chunk
                if len(chunks) > MAX_ANSWER_BYTES:
                    raise EgressError("the answer is larger than any that a minter gives")
            return Answer(response.status, bytes(chunks))
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, PermissionError):
            raise PermissionError from None
        raise EgressError(error.os_error.strerror or type(error.os_error).__name__) from None
    except TimeoutError:
        raise EgressError(f"no answer within {timeout_s:g} s") from None
    except aiohttp.ClientError as error:
        raise EgressError(f"the connection broke ({type(error).__name__})") from None


async def call(
    origin: str,
    method: str,
    target: str,
    *,
    bearer: Secret | None = None,
    body: bytes | None = None,
    timeout_s: float = 10.0,
) -> Answer:
    """Send one request to an issuer and return the whole answer, whatever its status.

    ``origin`` is as :func:`config.origin.parse_origin` takes it, ``target`` a path with its query, sent as it is.
    Errors: :class:`EgressError`.
    """
    resolver = _resolver(origin)
    headers = {"Accept": "application/json"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if bearer is not None:
        headers["Authorization"] = f"Bearer {bearer.reveal()}"
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(resolver=resolver, force_close=True, ssl=_trust(origin)),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Accept-Encoding"),
                trust_env=False,
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=5.0),
            ) as session,
            session.request(
                method, yarl.URL(origin + target, encoded=True), data=body, headers=headers, allow_redirects=False
            ) as response,
        ):
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > MAX_ISSUER_BYTES:
                    raise EgressError("the answer is too large")
            pause = _retry_after(response.headers.get("Retry-After", ""))
            return Answer(response.status, bytes(content), pause, response.headers.get("Date", ""))
    except ProblemError:
        raise EgressError("the issuer's name resolves to an address that is never called", unsent=True) from None
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise EgressError(f"no connection ({type(error).__name__})", unsent=True) from None
    except TimeoutError:
        raise EgressError(f"no answer within {timeout_s:g} s") from None
    except aiohttp.ClientError as error:
        raise EgressError(f"the connection broke ({type(error).__name__})") from None


def _resolver(origin: str) -> AbstractResolver:
    try:
        host = parse_origin(origin).host
        loopback = addresses.is_loopback_host(host)
        if addresses.is_literal(host):
            # An address is not resolved: it is checked here.
            addresses.check(host, private=True, loopback=loopback)
    except (ValueError, ProblemError):
        raise EgressError("the issuer's address is none that may be called", unsent=True) from None
    return _Checked(loopback=loopback)


def _trust(origin: str) -> ssl.SSLContext | bool:
    return _authorities() if origin.startswith("https:") else True


@functools.cache
def _authorities() -> ssl.SSLContext:
    # Once: it takes some milliseconds.
    return client_context()


def _retry_after(text: str) -> float | None:
    # A date would be by the issuer's clock, which nobody here has reason to believe.
    return min(float(text), _MAX_RETRY_AFTER_S) if _SECONDS.fullmatch(text) else None


class _Checked(AbstractResolver):
    """Resolves an issuer's name and refuses it when one of its addresses is never called."""

    def __init__(self, *, loopback: bool) -> None:
        self._inner = aiohttp.ThreadedResolver()
        self._loopback = loopback

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)  # type: ignore[arg-type]
        for one in found:
            addresses.check(one["host"], private=True, loopback=self._loopback)
        return found

    async def close(self) -> None:
        await self._inner.close()
