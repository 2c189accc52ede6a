"""Well-formed tokens that are the same in every process: cases are named after them, and workers compare the names."""

from __future__ import annotations

from config import tokens


def fixed(prefix: tokens.Prefix, body: str = "Made0Up") -> str:
    text = prefix + body.ljust(tokens.BODY_LENGTH, "x")
    return text + tokens.checksum(text)
