"""Which addresses both programs dial.

A name that nobody hostile can choose may still resolve to a place that it must not reach: the machine itself, its
network, or a cloud's metadata service. So every address is looked up in the tables below before it is dialled, and what
stands in none of them is refused. IPv6 addresses that carry an IPv4 address (mapped, compatible, translated, 6to4,
NAT64, ISATAP) are judged by both.

Source: the IANA IPv4 and IPv6 special-purpose address registries (RFC 6890 and its updates).
"""

from __future__ import annotations

from enum import IntEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from config.problems import ProblemError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Reach(IntEnum):
    """How far an address lies; the higher value wins when an address has two readings."""

    PUBLIC = 0
    PRIVATE = 1
    LOOPBACK = 2
    NEVER = 3


def _v4(reach: Reach, *networks: str) -> tuple[tuple[IPv4Network, Reach], ...]:
    return tuple((IPv4Network(network), reach) for network in networks)


def _v6(reach: Reach, *networks: str) -> tuple[tuple[IPv6Network, Reach], ...]:
    return tuple((IPv6Network(network), reach) for network in networks)


#: The first network that holds the address decides.
_V4: Final = (
    *_v4(
        Reach.NEVER,
        "169.254.0.0/16",  # link-local, and most clouds' metadata
        "100.100.100.200/32",  # Alibaba Cloud's metadata, inside the shared address space
        "168.63.129.16/32",  # Azure's host, on a public address
        "0.0.0.0/8",  # this host
        "192.0.0.0/24",  # protocol assignments, Oracle Cloud's metadata among them
        "192.0.2.0/24",  # documentation
        "198.51.100.0/24",
        "203.0.113.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    ),
    *_v4(Reach.LOOPBACK, "127.0.0.0/8"),
    *_v4(
        Reach.PRIVATE,
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",  # shared by carriers (CGNAT) and by overlay networks
        "198.18.0.0/15",  # benchmarking
    ),
)

_V6: Final = (
    *_v6(
        Reach.NEVER,
        "::/128",
        "fe80::/10",  # link-local
        "fec0::/10",  # site-local, given up
        "fd00:ec2::254/128",  # Amazon's metadata
        "fd20:ce::254/128",  # Google's
        "fd00:42::42/128",  # Scaleway's
        "2001::/23",  # protocol assignments, Teredo and ORCHID among them
        "2001:db8::/32",  # documentation
        "3fff::/20",
    ),
    *_v6(Reach.LOOPBACK, "::1/128"),
    *_v6(Reach.PRIVATE, "fc00::/7", "64:ff9b:1::/48"),
    *_v6(
        Reach.PUBLIC,
        "::ffff:0:0/96",  # these carry an IPv4 address, which decides
        "::ffff:0:0:0/96",
        "::/96",
        "64:ff9b::/96",
        "2000::/3",  # what is given out at all
    ),
)

#: Where an IPv4 address stands in an IPv6 one: the network, and by how many bits to shift it down.
_CARRIERS: Final = (
    (IPv6Network("::ffff:0:0/96"), 0),  # mapped
    (IPv6Network("::ffff:0:0:0/96"), 0),  # translated (RFC 2765)
    (IPv6Network("::/96"), 0),  # compatible, given up
    (IPv6Network("64:ff9b::/96"), 0),  # NAT64 (RFC 6052)
    (IPv6Network("64:ff9b:1::/48"), 0),  # NAT64 in a local network (RFC 8215)
    (IPv6Network("2002::/16"), 80),  # 6to4
)
#: The interface identifiers of ISATAP (RFC 5214): an IPv4 address stands in the last 32 bits behind them.
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})


def reach(address: Address) -> Reach:
    """Return how far ``address`` lies, by its worst reading.

    >>> reach(ip_address("::ffff:169.254.169.254")).name
    'NEVER'
    """
    if isinstance(address, IPv4Address):
        return _look_up(address, _V4)
    own = _look_up(address, _V6)
    if own in (Reach.LOOPBACK, Reach.NEVER):
        return own
    return max((own, *(_look_up(carried, _V4) for carried in _carried(address))))


def check(text: str, *, private: bool, loopback: bool) -> None:
    """Pass when the address ``text`` may be dialled.

    ``private`` is the profile's ``private_addresses``. ``loopback`` says that the origin's own host is the loopback:
    the operator wrote down a local API. Nothing else may be dialled then, and without it the loopback never.
    Errors: ``ProblemError("upstream-address-refused")``, which names no address.
    """
    try:
        # A zone (fe80::1%eth0) names an interface of this machine; only local addresses have one.
        found = Reach.NEVER if "%" in text else reach(ip_address(text))
    except ValueError:
        found = Reach.NEVER
    allowed = found is Reach.LOOPBACK if loopback else found is Reach.PUBLIC or (private and found is Reach.PRIVATE)
    if not allowed:
        raise ProblemError(
            "upstream-address-refused", _WHY[found] if not loopback else "the origin is not the loopback"
        )


def is_loopback_host(host: str) -> bool:
    """Say whether an origin's host names the loopback itself."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return reach(ip_address(host.strip("[]"))) is Reach.LOOPBACK
    except ValueError:
        return False


def is_literal(host: str) -> bool:
    """Say whether a host is an address and not a name."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


_WHY: Final = {
    Reach.PUBLIC: "the address is public",
    Reach.PRIVATE: "the name resolves to a private address; see private_addresses",
    Reach.LOOPBACK: "the name resolves to this machine",
    Reach.NEVER: "the name resolves to an address that is never called",
}


def _look_up(address: Address, table: tuple[tuple[Network, Reach], ...]) -> Reach:
    # What stands in no table is public among IPv4 addresses, and not given out among IPv6 ones.
    otherwise = Reach.PUBLIC if isinstance(address, IPv4Address) else Reach.NEVER
    return next((found for network, found in table if address in network), otherwise)


def _carried(address: IPv6Address) -> list[IPv4Address]:
    number = int(address)
    found = [IPv4Address(number >> shift & 0xFFFF_FFFF) for network, shift in _CARRIERS if address in network]
    if number >> 32 & 0xFFFF_FFFF in _ISATAP:
        found.append(IPv4Address(number & 0xFFFF_FFFF))
    return found
