"""Which headers pass, and which names no grants file may list.

From the code only the standard request headers and ``request_headers`` pass, back to it only the standard response
headers and ``response_headers``; ``fixed_headers`` are set by the broker and replace what the code sent under
that name. The three lists may not name what frames a message, routes it, identifies its sender or overrides what was
matched.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

STANDARD_REQUEST: Final = frozenset(
    {b"accept", b"accept-language", b"content-type", b"if-match", b"if-none-match", b"range"}
)
STANDARD_RESPONSE: Final = frozenset(
    {
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"etag",
        b"last-modified",
        b"retry-after",
    }
)
#: Headers that end at the next hop (RFC 9110 section 7.6.1 and what came before it).
HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-authentication-info",
        b"te",
        b"trailer",
        b"trailers",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)

_HOP_BY_HOP: Final = frozenset(name.decode() for name in HOP_BY_HOP)
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}", re.ASCII)
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,4094}[\x21-\x7e])?", re.ASCII)
_CREDENTIAL_WORDS: Final = frozenset(
    {
        "authorization",
        "authentication",
        "auth",
        "token",
        "secret",
        "password",
        "passwd",
        "passphrase",
        "apikey",
        "apitoken",
        "appkey",
        "accesskey",
        "authkey",
        "authtoken",
        "credential",
        "credentials",
        "jwt",
        "bearer",
        "dpop",
    }
)
#: A word that makes the ``key`` after it a credential; ``Idempotency-Key`` and the like are none.
_KEY_WORDS: Final = frozenset(
    {"api", "access", "app", "application", "auth", "client", "functions", "master", "private", "secret", "service"}
    | {"session", "shared", "signing", "subscription", "admin", "account", "license"}
)
_COOKIES: Final = frozenset({"cookie", "cookie2", "set-cookie", "set-cookie2"})
_FRAMING: Final = frozenset({"host", "content-length", "expect", "max-forwards", "date", "x-content-length"})
_SENDER: Final = frozenset(
    {
        "forwarded",
        "via",
        "origin",
        "referer",
        "x-real-ip",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-remote-addr",
        "x-remote-user",
        "x-original-host",
        "x-originating-ip",
        "true-client-ip",
        "client-ip",
        "cf-connecting-ip",
        "fastly-client-ip",
        "x-host",
    }
)
_OVERRIDES: Final = frozenset(
    {
        "x-http-method",
        "x-http-method-override",
        "x-method-override",
        "x-method",
        "x-original-method",
        "x-original-url",
        "x-original-uri",
        "x-rewrite-url",
        "x-rewrite-uri",
        "x-override-url",
        "x-request-uri",
        "x-original-path",
        "x-envoy-original-path",
        "x-envoy-original-method",
        "x-accel-redirect",
        "x-sendfile",
    }
)

_PREFIXES: Final = (
    ("x-forwarded-", "a header that says who sends or for which host is never passed on"),
    ("forwarded-", "a header that says who sends or for which host is never passed on"),
    ("proxy-", "a header for a proxy never passes"),
    ("broker-", "broker- headers are the broker's own"),
)


def credential_like(name: bytes | str) -> bool:
    """Say whether a header's name is one under which credentials travel: such a header is dropped first.

    >>> [name for name in ("X-API-Key", "Idempotency-Key", "dd_application_key") if credential_like(name)]
    ['X-API-Key', 'dd_application_key']
    """
    plain = _plain(name)
    if plain in _COOKIES:
        return True
    words = plain.split("-")
    if not _CREDENTIAL_WORDS.isdisjoint(words):
        return True
    return any(word in _KEY_WORDS and following in ("key", "keys") for word, following in itertools.pairwise(words))


def name_fault(name: str) -> str | None:
    """Return why ``name`` may stand in none of the three lists of a profile, or None when it may."""
    if not _NAME.fullmatch(name):
        return "not a header name"
    plain = _plain(name)
    for names, reason in (
        (_HOP_BY_HOP, "a hop-by-hop header never passes"),
        (_FRAMING, "the broker sets this header itself"),
        (_COOKIES, "cookies never pass; a credential in one is a `placement`"),
        (_SENDER, "a header that says who sends or for which host is never passed on"),
        (_OVERRIDES, "a header that overrides method or URL would call what was not matched"),
    ):
        if plain in names:
            return reason
    for prefix, reason in _PREFIXES:
        if plain.startswith(prefix):
            return reason
    if credential_like(plain):
        return "a header that carries a credential never passes; where one goes is said by `placement`"
    return None


def value_fault(value: str) -> str | None:
    """Return why ``value`` cannot be a fixed header's value, or None when it can. It does not repeat the value."""
    if _VALUE.fullmatch(value):
        return None
    return "a fixed header's value is printable ASCII without space around it, at most 4096 characters"


def list_faults(
    request: Sequence[str], response: Sequence[str], fixed: Mapping[str, str], *, placed: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield (place in the profile, reason) of what is wrong with its three lists.

    ``placed`` are the lower-case names that the placement writes.
    """
    placed = {_plain(name) for name in placed}
    lists = (
        ("request_headers", [(f"request_headers[{index}]", name) for index, name in enumerate(request)], placed),
        ("response_headers", [(f"response_headers[{index}]", name) for index, name in enumerate(response)], ()),
        ("fixed_headers", [(f"fixed_headers.{name}", name) for name in fixed], placed),
    )
    fixed_names = {name.lower() for name in fixed}
    for field, names, taken in lists:
        seen: set[str] = set()
        for place, name in names:
            lower, plain = name.lower(), _plain(name)
            fault = name_fault(name)
            if fault is not None:
                yield place, fault
            if lower in seen:
                yield place, "stands twice"
            if plain in taken:
                yield place, "the placement puts the credential there"
            if field == "request_headers" and lower in fixed_names:
                yield place, "stands in fixed_headers too"
            seen.add(lower)
    for name, value in fixed.items():
        fault = value_fault(value)
        if fault is not None:
            yield f"fixed_headers.{name}", fault


def placed(placement: Mapping[str, Any]) -> set[str]:
    """Return, in lower case, the header names that a placement object gives by itself."""
    scheme, named = placement.get("scheme"), placement.get("headers")
    names = {placement.get("name")} if scheme == "header" else set()
    if scheme == "headers" and isinstance(named, dict):
        names |= set(named)
    return {name.lower() for name in names if isinstance(name, str)}


def _plain(name: bytes | str) -> str:
    # Some servers read `X_Forwarded_For` as `X-Forwarded-For`.
    text = name.decode("latin-1") if isinstance(name, bytes) else name
    return text.lower().replace("_", "-")
