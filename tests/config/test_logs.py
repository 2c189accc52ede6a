"""Logs are one JSON object a line, without tokens and without the text of an exception."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from pathlib import Path

import pytest
import structlog

from config import logs, tokens

FULL = Path("/dev/full")


def test_a_log_line_masks_tokens_and_keeps_only_an_exceptions_type():
    out = io.StringIO()
    logs.set_up("broker", "info", stream=out)
    token = tokens.generate("brk_").reveal()
    log = structlog.get_logger()
    log.debug("too-quiet")
    try:
        raise ValueError(f"upstream said sekret-AAAA1111 {token}")
    except ValueError:
        log.exception("call-failed", note=f"a {token} b")
    logging.getLogger("aiohttp.client").warning("bad value %s", "sekret-AAAA1111")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["call-failed", "library-warning"]
    assert lines[0]["error"] == "ValueError"
    assert lines[0]["note"] == "a <token> b"
    assert lines[0]["program"] == "broker"
    assert lines[1]["logger"] == "aiohttp.client"
    assert "sekret" not in out.getvalue()
    assert token not in out.getvalue()
    structlog.reset_defaults()


@pytest.mark.skipif(not FULL.exists(), reason="Linux has a device that is a full disk")
def test_a_log_that_cannot_be_written_stops_nobody():
    out = FULL.open("w", buffering=1)
    try:
        logs.set_up("broker", "info", stream=out)
        for number in range(1000):
            structlog.get_logger().error("state-unavailable", number=number)
    finally:
        structlog.reset_defaults()
        with contextlib.suppress(OSError):
            out.close()
