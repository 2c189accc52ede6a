from __future__ import annotations

from ipaddress import ip_address

import pytest

from config.addresses import Reach, check, is_literal, is_loopback_host, reach
from config.problems import ProblemError

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "172.15.0.1",
    "172.32.0.1",
    "100.63.255.255",
    "100.128.0.0",
    "2606:4700::1111",
    "2a00::1",
]
PRIVATE = [
    "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "100.127.255.255", "198.18.0.1", "fc00::1",
    "fd12:3456::1", "::ffff:10.0.0.1", "::10.0.0.1", "64:ff9b::10.0.0.1", "2002:a00:1::", "::ffff:0:192.168.0.1",
    "64:ff9b:1::8.8.8.8", "2001:470:1:1:0:5efe:10.0.0.1", "2606:4700::200:5efe:192.168.0.1",
]  # fmt: skip
LOOPBACK = [
    "127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::127.0.0.1", "2002:7f00:1::",
    "::ffff:0:127.0.0.1",
]  # fmt: skip
NEVER = [
    "0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.0.1", "169.254.170.2", "100.100.100.200", "168.63.129.16",
    "192.0.0.192", "192.0.0.1", "192.0.2.1", "198.51.100.1", "203.0.113.1", "192.88.99.1", "224.0.0.1",
    "239.255.255.255", "240.0.0.1", "255.255.255.255", "::", "fe80::1", "fe80::a9fe:a9fe", "febf::1", "fec0::1",
    "ff02::1", "fd00:ec2::254", "fd20:ce::254", "fd00:42::42", "100::1", "2001:db8::1", "2001::1", "2001:10::1",
    "3fff::1", "4000::1", "5f00::1", "::ffff:169.254.169.254", "::169.254.169.254", "64:ff9b::169.254.169.254",
    "64:ff9b::100.100.100.200", "64:ff9b:1::169.254.169.254", "2002:a9fe:a9fe::", "2002:a9fe:a9fe::1",
    "::ffff:0:169.254.169.254", "::ffff:0.0.0.0", "2606:4700::5efe:169.254.169.254", "64:ff9b::192.0.0.192",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *((text, Reach.PUBLIC) for text in PUBLIC),
        *((text, Reach.PRIVATE) for text in PRIVATE),
        *((text, Reach.LOOPBACK) for text in LOOPBACK),
        *((text, Reach.NEVER) for text in NEVER),
    ],
)
def test_an_address_is_judged_by_its_worst_reading(text, found):
    assert reach(ip_address(text)) is found


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("loopback", [False, True])
@pytest.mark.parametrize("text", [*NEVER, "fe80::1%lo", "2606:4700::1%eth0", "::1%lo", "not an address", ""])
def test_metadata_link_local_and_reserved_addresses_are_never_dialled(text, private, loopback):
    with pytest.raises(ProblemError, match="upstream-address-refused") as error:
        check(text, private=private, loopback=loopback)
    assert not text or text not in str(error.value)


def test_private_addresses_are_dialled_only_where_the_profile_says_so():
    for text in PRIVATE:
        check(text, private=True, loopback=False)
        with pytest.raises(ProblemError):
            check(text, private=False, loopback=False)


def test_the_loopback_is_dialled_only_for_an_origin_that_is_the_loopback_and_then_nothing_else():
    for text in LOOPBACK:
        check(text, private=False, loopback=True)
        with pytest.raises(ProblemError):
            check(text, private=True, loopback=False)
    for text in (*PUBLIC, *PRIVATE):
        with pytest.raises(ProblemError):
            check(text, private=True, loopback=True)


def test_public_addresses_are_dialled():
    for text in PUBLIC:
        check(text, private=False, loopback=False)


@pytest.mark.parametrize(
    ("host", "literal", "loopback"),
    [
        ("localhost", False, True), ("LOCALHOST.", False, True), ("127.0.0.1", True, True), ("[::1]", True, True),
        ("::1", True, True), ("api.example.com", False, False), ("localhost.example.com", False, False),
        ("127.0.0.1.nip.io", False, False), ("10.0.0.1", True, False), ("2130706433", False, False),
    ],
)  # fmt: skip
def test_what_a_host_is(host, literal, loopback):
    assert (is_literal(host), is_loopback_host(host)) == (literal, loopback)
