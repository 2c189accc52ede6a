"""What is wrong with a message is said without the message."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from config.contract import decode
from config.problems import ProblemError

CANARY = "sekret-CANARY'`$"


class Message(msgspec.Struct, forbid_unknown_fields=True):
    step: Literal["start", "stop"]
    many: int = 0


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"step": CANARY}, "$.step"),
        ({"step": "start", "many": CANARY}, "$.many"),
        ({"step": "start", CANARY: 1}, "unknown field"),
        ([CANARY], "object"),
    ],
)
def test_a_fault_names_the_place_and_never_what_stood_there(document, told):
    with pytest.raises(ProblemError) as refused:
        decode(Message, msgspec.json.encode(document))
    assert refused.value.code == "body-malformed"
    assert told in refused.value.detail
    assert "CANARY" not in refused.value.detail
