from __future__ import annotations

import re

import pytest

from config.origin import Origin, parse_origin


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://api.cloudflare.com", Origin("https", "api.cloudflare.com", 443)),
        ("https://api.test:8443", Origin("https", "api.test", 8443)),
        ("https://xn--bcher-kva.example", Origin("https", "xn--bcher-kva.example", 443)),
        ("https://93.184.216.34", Origin("https", "93.184.216.34", 443)),
        ("https://[2001:db8::1]:444", Origin("https", "2001:db8::1", 444)),
        ("http://127.0.0.1:9400", Origin("http", "127.0.0.1", 9400)),
        ("http://127.8.9.1", Origin("http", "127.8.9.1", 80)),
        ("http://[::1]:9400", Origin("http", "::1", 9400)),
        ("http://localhost:9400", Origin("http", "localhost", 9400)),
        ("https://agent_memory:9400", Origin("https", "agent_memory", 9400)),
    ],
)
def test_an_origin_in_its_one_spelling_is_taken(text, origin):
    assert parse_origin(text) == origin


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("https://U.TEST", "https://u.test"),
        ("HTTPS://u.test", "https://u.test"),
        ("https://u.test/", "https://u.test"),
        ("https://u.test.", "dot at its end"),
        ("https://u.test:443", "leave the default port out: https://u.test"),
        ("http://127.0.0.1:80", "leave the default port out: http://127.0.0.1"),
        ("https://u.test/v1", "only the origin"),
        ("https://u.test?x", "only the origin"),
        ("https://u.test#x", "only the origin"),
        ("https://u.test:0443", "only the origin"),
        ("https://u.test:", "only the origin"),
        ("https://u.test:x", "only the origin"),
        ("https://u.test:70000", "at most 65535"),
        ("https://user:hunter2@u.test", "no user and no password"),
        ("https://u.test@evil.test", "no user and no password"),
        ("http://u.test", "use https"),
        ("http://10.0.0.1", "use https"),
        ("http://localhost.evil.test", "use https"),
        ("http://localhost.", "dot at its end"),
        ("ftp://u.test", "starts with https://"),
        ("u.test", "starts with https://"),
        ("//u.test", "starts with https://"),
        ("", "starts with https://"),
        ("https://", "only the origin"),
        ("https://bücher.example", "xn--"),
        ("https://a..b", "not a host name"),
        ("https://-a.test", "not a host name"),
        ("https://" + "a" * 64 + ".test", "not a host name"),
        ("https://127.1", "four decimal"),
        ("https://0x7f.0.0.1", "four decimal"),
        ("https://0177.0.0.1", "four decimal"),
        ("https://2130706433", "four decimal"),
        ("https://1.2.3.256", "four decimal"),
        ("https://0x7f000001", "four decimal"),
        ("https://[::ffff:127.0.0.1]", "write an IPv4 address"),
        ("https://[0:0:0:0:0:0:0:1]", "write the address as [::1]"),
        ("https://[fe80::1%eth0]", "only the origin"),
        ("https://[:::]", "not an IPv6 address"),
        ("https://u.test\n", "only the origin"),
        ("https://u.test\\@evil.test", "no user"),
        ("https://u test", "only the origin"),
        (" https://u.test", "starts with https://"),
    ],
)
def test_every_other_spelling_is_refused_and_the_right_one_said(text, reason):
    """A6: case, a trailing dot and the default port all meet the same rule."""
    with pytest.raises(ValueError, match=re.escape(reason)) as refused:
        parse_origin(text)
    assert "hunter2" not in str(refused.value)
