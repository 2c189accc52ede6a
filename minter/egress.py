"""The minter's only HTTP client: its own command line speaking to the running minter over the admin Unix socket.

No proxy and no trust file from the environment, no redirect, no cookie, no retry; an answer has a time and a size
limit. Nothing here can leave the machine: there is no way to name a host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

import aiohttp
import yarl

#: An answer larger than this is a fault; audit and lease lists are read in pages far below it.
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024


class EgressError(Exception):
    """No answer. ``reason`` is a short phrase without addresses or values."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. The body may be a problem: the status says so."""

    status: int
    body: bytes


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
