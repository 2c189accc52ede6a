"""The document of the events keeps up with the table, and codes tell success from failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from minter.audit_events import EVENTS, FIELDS
from minter.cli.audit_read import as_markdown

DOCUMENT = Path(__file__).parents[2] / "ops/audit-events.md"

#: What an event tells of, and what tells that the same failed.
FAILURES = {
    "lease.minted": "lease.mint-failed",
    "lease.requested": "lease.refused",
    "lease.revoked": "lease.revoke-failed",
    "service.reloaded": "reload.refused",
    "brokers.read": "brokers.refused",
    "key.destroyed": "key.destroy-failed",
    "key.rotation-activated": "key.rotation-aborted",
    "audit.sink-restored": "audit.sink-failed",
}


def test_the_document_of_the_events_is_what_the_table_says():
    assert DOCUMENT.read_text() == as_markdown(), "minter audit events --markdown > ops/audit-events.md"


@pytest.mark.parametrize(("success", "failure"), FAILURES.items())
def test_what_failed_has_a_code_of_its_own(success, failure):
    assert {success, failure} <= EVENTS.keys()


def test_no_event_tells_its_outcome_in_a_field():
    assert not {"success", "ok", "status", "outcome", "result", "error"} & FIELDS.keys()
