"""``base_url``: the one origin of a profile, and the one way to write it.

Rule: scheme and host in lower case, the port only when it is not the scheme's own, nothing after it: no slash, no
path, no user. A host is a DNS name in its ASCII form without a trailing dot, an IPv4 address in dotted decimal, or an
IPv6 address in brackets in its canonical form. The scheme is https, or http to ``localhost`` or a loopback address.
Another spelling of the same origin is a fault that says the right one: an origin is compared as text (pins, leases).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

_FORM: Final = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([1-9][0-9]{0,4}))?", re.ASCII)
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9])?", re.ASCII)
_NUMERIC: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_DEFAULT_PORT: Final = {"https": 443, "http": 80}
_MAX_PORT: Final = 65535
_MAX_HOST: Final = 253


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a profile's calls go. ``host`` is as it is dialled: an IPv6 address without brackets."""

    scheme: str
    host: str
    port: int


def parse_origin(text: str) -> Origin:
    """Parse a ``base_url``.

    Errors: ``ValueError`` with the reason. It repeats the text only in a correction of its spelling, and never when
    the text could hold a password.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(_reason(text))
    scheme, host, port = match[1], match[2], int(match[3] or 0)
    if port == _DEFAULT_PORT[scheme]:
        raise ValueError(f"leave the default port out: {scheme}://{host}")
    if port > _MAX_PORT:
        raise ValueError("a port is at most 65535")
    loopback = _check_address(host[1:-1]) if host.startswith("[") else _check_name(host)
    if scheme == "http" and not loopback:
        raise ValueError("http is only for localhost and loopback addresses; use https")
    return Origin(scheme, host.strip("[]"), port or _DEFAULT_PORT[scheme])


def _reason(text: str) -> str:
    if "@" in text:
        return "an origin holds no user and no password"
    lower = text.lower().rstrip("/")
    if lower != text and _FORM.fullmatch(lower):
        return f"an origin is written in lower case and without a slash at its end: {lower}"
    if not text.isascii():
        return "write the host in its ASCII form (xn--...)"
    if not text.lower().startswith(("https://", "http://")):
        return "an origin starts with https:// (http:// for loopback only)"
    return "only the origin: https://HOST or https://HOST:PORT, without path, query or fragment"


def _check_address(text: str) -> bool:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise ValueError("not an IPv6 address") from None
    if address.ipv4_mapped is not None:
        raise ValueError("write an IPv4 address as such")
    if str(address) != text:
        raise ValueError(f"write the address as [{address}]")
    return address.is_loopback


def _check_name(host: str) -> bool:
    labels = host.split(".")
    if host.endswith("."):
        raise ValueError("write the host without a dot at its end")
    if _NUMERIC.fullmatch(labels[-1]):
        try:
            return ipaddress.IPv4Address(host).is_loopback
        except ValueError:
            raise ValueError("an IPv4 address is four decimal numbers") from None
    if len(host) > _MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("not a host name")
    return host == "localhost"
