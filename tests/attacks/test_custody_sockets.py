"""Attacks over the minter's socket: without a credential, with another broker's, for another profile, replayed.

Each asker is a process of its own user; what it tries works for the broker that it pretends to be.
"""

from __future__ import annotations

import os

import pytest

from config.load import load_grants
from tests.attacks.house import unix
from tests.flow.test_main_job import profile
from tests.worlds.api import Api
from tests.worlds.service import CANARY
from tests.worlds.two_users import BROKER, SHARED, two_users
from tests.worlds.users import tried_as

pytestmark = [
    pytest.mark.flow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="switching to other users needs root"),
]

SECOND = 64904
RUN = "run_0000000000000000000000"
ORIGIN = "https://api.example.com"


class Refused(Exception):  # noqa: N818 - an outcome, not a fault
    """Stands for an answer: its name says status and code."""


@pytest.fixture(scope="module")
def minter():
    """A minter with two brokers of two users; the second may ask for one profile only."""
    with Api() as api, two_users() as two:
        made = {**profile(api), "base_url": ORIGIN, "params": {"customer": "[a-z]{1,20}"}}
        two.prepare({"api": made, "other": {**made, "params": {}}})
        two.tokens = {
            BROKER: (two.root / "broker/broker.credential").read_text().strip(),
            SECOND: two.new_broker("broker-2", SECOND, "--profile", "other").decode().strip(),
        }
        two.start("minter")
        # The grants as the minter has them: what an honest broker sends.
        two.digests = {name: one.digest for name, one in load_grants(two.root / "grants.json").profiles.items()}
        yield two


def body(two, name="api", **changes):
    asked = {
        "run_id": RUN,
        "caller": "support-agent",
        "profile": name,
        "params": {"customer": "acme"} if name == "api" else {},
        "ttl_s": 600.0,
        "origin": ORIGIN,
        "grant_digest": two.digests[name],
        **changes,
    }
    return {name: value for name, value in asked.items() if value is not None}


def asks(two, uid, *, token=None, method="POST", target="/v1/leases", sent=None):
    """Ask as a user; return ``200`` or the status with the problem's code."""
    path = two.root / "shared/minter.sock"

    def ask():
        reply = unix(path, method, target, token=token or "", body=sent)
        if reply.status >= 400:
            raise type(f"{reply.status} {reply.json['code']}", (Refused,), {})
        if method == "POST" and CANARY not in reply.body.decode():
            raise Refused

    (outcome,) = tried_as(uid, {"ask": ask}, groups=[SHARED]).values()
    return outcome


def test_the_broker_itself_is_lent_to(minter):
    assert asks(minter, BROKER, token=minter.tokens[BROKER], sent=body(minter)) == "succeeded"
    assert asks(minter, SECOND, token=minter.tokens[SECOND], sent=body(minter, "other")) == "succeeded"


def test_another_brokers_credential_is_worth_nothing_to_a_broker(minter):
    """Both are members of the group and hold a good credential; each token is bound to its own user."""
    for uid, owner in ((SECOND, BROKER), (BROKER, SECOND)):
        sent = body(minter, "other")
        assert asks(minter, uid, token=minter.tokens[owner], sent=sent) == "401 broker-token-invalid"
    minter.until(lambda: minter.audited("access.denied"), "the denials are in the log")
    assert {event["principal"] for event in minter.audited("access.denied") if "principal" in event} <= {
        "broker-1",
        "broker-2",
    }


def test_a_broker_is_lent_nothing_of_a_profile_that_is_not_its_own(minter):
    outcome = asks(minter, SECOND, token=minter.tokens[SECOND], sent=body(minter, "api"))
    assert outcome == "403 profile-not-allowed"


def test_a_broker_neither_ends_nor_sees_another_brokers_leases(minter):
    assert asks(minter, BROKER, token=minter.tokens[BROKER], sent=body(minter)) == "succeeded"
    (lease,) = [one for one in minter.leases() if one["broker"] == "broker-1"]
    second = minter.tokens[SECOND]
    target = f"/v1/leases/{lease['lease_id']}"
    assert asks(minter, SECOND, token=second, method="DELETE", target=target) == "404 lease-not-found"
    # The same run of its own broker's is another run: none of its leases are touched.
    assert asks(minter, SECOND, token=second, method="DELETE", target=f"/v1/runs/{RUN}") == "succeeded"
    assert [one["state"] for one in minter.leases() if one["lease_id"] == lease["lease_id"]] == ["active"]


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"params": {"customer": "other"}}, "409 lease-conflict"),
        ({"params": {}}, "422 params-invalid"),
        ({"caller": "somebody-else"}, "403 caller-not-allowed"),
        ({"origin": "https://evil.example.com"}, "409 origin-mismatch"),
        ({"grant_digest": "sha256:" + "0" * 64}, "409 grant-mismatch"),
        ({"profile": "none"}, "403 profile-unknown"),
    ],
)
def test_a_lease_request_that_is_replayed_with_anything_changed_is_refused(minter, changes, refused):
    token = minter.tokens[BROKER]
    assert asks(minter, BROKER, token=token, sent=body(minter)) == "succeeded"
    assert asks(minter, BROKER, token=token, sent=body(minter, **changes)) == refused
    # Replayed as it was, it is the same lease and no second credential.
    assert asks(minter, BROKER, token=token, sent=body(minter)) == "succeeded"
    assert len([one for one in minter.leases() if (one["broker"], one["profile"]) == ("broker-1", "api")]) == 1


def test_a_parameter_that_the_profile_does_not_declare_makes_no_other_lease(minter):
    """A run may have parameters of several profiles: those of another one have no say, and change nothing."""
    sent = body(minter, params={"customer": "acme", "admin": "1"})
    assert asks(minter, BROKER, token=minter.tokens[BROKER], sent=sent) == "succeeded"
    assert len([one for one in minter.leases() if (one["broker"], one["profile"]) == ("broker-1", "api")]) == 1


def test_operators_calls_do_not_exist_where_brokers_ask(minter):
    for method, target in (
        ("GET", "/v1/custody"),
        ("GET", "/v1/leases"),
        ("GET", "/v1/audit"),
        ("GET", "/v1/process"),
        ("POST", "/v1/backup"),
        ("DELETE", "/v1/quarantine"),
        ("POST", "/v1/keys/api/rotate"),
        ("POST", "/v1/reload"),
    ):
        outcome = asks(minter, BROKER, token=minter.tokens[BROKER], method=method, target=target)
        assert outcome in ("404 not-found", "405 method-not-supported"), (method, target, outcome)


@pytest.mark.parametrize("token", ["", "mbk_", "mbk_" + "A" * 43, "Bearer", "brk_" + "A" * 43])
def test_without_a_credential_that_is_known_nothing_is_lent(minter, token):
    for method, target in (
        ("POST", "/v1/leases"),
        ("GET", "/v1/leases/watch"),
        ("DELETE", f"/v1/runs/{RUN}"),
        ("DELETE", "/v1/leases/lse_0000000000000000000000"),
    ):
        sent = body(minter) if method == "POST" else None
        outcome = asks(minter, BROKER, token=token, method=method, target=target, sent=sent)
        # Whoever keeps guessing is not even looked at.
        assert outcome in ("401 broker-token-invalid", "429 too-many-requests"), target
