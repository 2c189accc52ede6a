from __future__ import annotations

import pytest

from config.headers import STANDARD_REQUEST, STANDARD_RESPONSE, credential_like, name_fault
from tests.config.grants_of import faults_of, profile

REFUSED = [
    "Connection",
    "Keep-Alive",
    "Proxy-Connection",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
    "HTTP2-Settings",
    "Proxy-Authenticate",
    "Proxy-Authorization",
    "Proxy-Anything",
    "Host",
    "Content-Length",
    "Expect",
    "Authorization",
    "X-API-Key",
    "api_key",
    "X-Auth-Token",
    "DD-API-KEY",
    "DD-APPLICATION-KEY",
    "Ocp-Apim-Subscription-Key",
    "X-Amz-Security-Token",
    "X-Functions-Key",
    "Private-Token",
    "Cookie",
    "Set-Cookie",
    "Cookie2",
    "Set-Cookie2",
    "Forwarded",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X_Forwarded_For",
    "X-Real-IP",
    "Via",
    "True-Client-IP",
    "CF-Connecting-IP",
    "Origin",
    "X-HTTP-Method-Override",
    "X-HTTP-Method",
    "X-Method-Override",
    "X-Original-URL",
    "X-Rewrite-URL",
    "X_HTTP_METHOD_OVERRIDE",
    "Broker-Refused-By",
    "X-Client-Secret",
    "X-Password",
    "DPoP",
]
PASSING = [
    "Idempotency-Key",
    "OpenAI-Organization",
    "OpenAI-Beta",
    "anthropic-version",
    "X-Request-Id",
    "User-Agent",
    "Link",
    "X-GitHub-Api-Version",
    "X-RateLimit-Remaining",
    "X-RateLimit-Remaining-Tokens",
    "Accept-Encoding",
    "Prefer",
    "Location",
]


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_must_never_pass_is_refused_in_all_three_lists(name):
    """F-I2 (method override) and B14, B16 are among them."""
    assert name_fault(name)
    for fields in ({"request_headers": [name]}, {"response_headers": [name]}, {"fixed_headers": {name: "x"}}):
        assert len(faults_of(**fields)) == 1


@pytest.mark.parametrize("name", PASSING)
def test_an_ordinary_name_may_be_listed(name):
    assert not credential_like(name)
    assert faults_of(request_headers=[name], response_headers=[name]) == []


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\nb", "é", "(x)", "x" * 129])
def test_what_is_no_header_name_is_refused(name):
    assert faults_of(request_headers=[name])


def test_a_profile_holds_the_standard_names_and_its_own_in_lower_case():
    made = profile(
        request_headers=["Idempotency-Key"], response_headers=["X-Request-Id"], fixed_headers={"X-Version": "2"}
    )
    assert made.request_headers == STANDARD_REQUEST | {b"idempotency-key"}
    assert made.response_headers == STANDARD_RESPONSE | {b"x-request-id"}
    assert made.fixed_headers == ((b"x-version", b"2"),)
    assert not any(credential_like(name) for name in STANDARD_REQUEST | STANDARD_RESPONSE)


@pytest.mark.parametrize("value", ["", " x", "x ", "a\r\nb", "a\x00b", "é", "x" * 4097])
def test_a_fixed_value_that_cannot_go_on_the_wire_is_refused_without_being_repeated(value):
    (fault,) = faults_of(fixed_headers={"X-Version": value})
    assert fault.startswith("fixed_headers.X-Version: a fixed header's value")


def test_one_name_has_one_owner():
    assert faults_of(request_headers=["X-A", "x-a"]) == ["request_headers[1]: stands twice"]
    assert faults_of(request_headers=["X-A"], fixed_headers={"x-a": "1"}) == [
        "request_headers[0]: stands in fixed_headers too"
    ]
    placed = "the placement puts the credential there"
    assert faults_of(request_headers=["X-Mine"], placement={"scheme": "header", "name": "x-mine"}) == [
        f"request_headers[0]: {placed}"
    ]
    # Servers that make variables of headers read both as one.
    assert faults_of(request_headers=["X-Mine"], placement={"scheme": "header", "name": "x_mine"}) == [
        f"request_headers[0]: {placed}"
    ]
    assert faults_of(fixed_headers={"X-Mine": "1"}, placement={"scheme": "headers", "headers": {"x-mine": "a"}}) == [
        f"fixed_headers.X-Mine: {placed}"
    ]
